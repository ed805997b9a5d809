"""`autotune run --find-load` on the simulated node: the capacity as objective, its curve, and
nothing that keeps it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.load.capacity.judge import LOOKS
from autotune.load.capacity.search import LoadSearch
from autotune.load.load import Load
from autotune.load.metrics.formulas import Slo
from autotune.load.workloads import load_workload
from autotune.node.resolve_command import resolve_command
from autotune.tuner.backends.simulator import SimulatedEvaluator, simulate
from autotune.tuner.foresight import predict
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import prepare
from autotune.tuner.search.priors.simulated import physical
from autotune.tuner.study.home import library_for
from autotune.tuner.study.options import RunOptions
from autotune.tuner.trial import Role, State, Trial
from tests.product.cli import autotune

SPACE = Path(__file__).resolve().parents[2] / "examples" / "small-space.yaml"
MODEL = "deepseek-ai/DeepSeek-V3.2"
WORKLOAD = "random:500:50:200"
RUN = [
    "run",
    "--model",
    MODEL,
    "--hw",
    "h200",
    "--space",
    str(SPACE),
    "--study",
    "s",
    "--workload",
    WORKLOAD,
]


def rows(home: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in (home / "studies" / "s" / "results.jsonl").read_text().splitlines()
    ]


@pytest.mark.e2e
def test_a_study_finds_the_command_of_the_highest_capacity(tmp_path: Path) -> None:
    home = tmp_path / "home"
    limits = [
        "--slo",
        "p90_ttft_ms<=1000",
        "--slo",
        "p90_tpot_ms<=40",
        "--workload",
        "random:500:50:50",
    ]
    done = autotune(
        *RUN, "--find-load", "concurrency", *limits, "--launches", "14", "--json", home=home
    )
    assert done.code == 0, done.err
    outcome = done.json
    assert outcome["objective"]["metric"] == "capacity_total_token_throughput"
    complete = [row for row in rows(home) if row["state"] == "complete"]
    assert complete
    for row in complete:
        metrics = row["metrics"][WORKLOAD]
        at = [
            point
            for point in metrics["curve"]
            if point["concurrency"] == metrics["capacity_concurrency"]
        ]
        assert len(at) == 1
        assert at[0]["kept"]
        assert at[0]["steady_total_token_throughput"] == metrics["capacity_total_token_throughput"]
        assert metrics["p90_ttft_ms"] <= 1000
        assert metrics["p90_tpot_ms"] <= 40
        assert metrics["capacity_broken_at"] is None or metrics["capacity_broken_at"] <= max(
            1.1 * metrics["capacity_concurrency"], metrics["capacity_concurrency"] + 1
        )
        # A further workload runs as it is.
        further = row["metrics"].get("random:500:50:50", {})
        assert "curve" not in further
        assert further.get("completed", 50) == 50
    best = max(row["metrics"][WORKLOAD]["capacity_total_token_throughput"] for row in complete)
    assert 0.8 * best <= outcome["objective"]["value"] <= best
    report = (home / "studies" / "s" / "report.md").read_text()
    assert "## What load does it carry within the limits?" in report
    assert "Capacity: " in report
    assert "arrival times set by the load search" in report
    again = autotune("resume", "s", "--json", home=home)
    assert again.json["objective"] == outcome["objective"]
    assert "find_load: concurrency" in (home / "studies" / "s" / "study.yaml").read_text()


@pytest.mark.e2e
def test_where_the_lightest_load_breaks_a_limit_the_nearest_miss_is_told(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = autotune(
        *RUN,
        "--find-load",
        "rate",
        "--slo",
        "p90_ttft_ms<=1",
        "--launches",
        "4",
        "--json",
        home=home,
    )
    assert done.code == 3, done.err
    miss = done.json["nearest_miss"]
    assert (miss["slo"], miss["metric"], miss["limit"]) == ("p90_ttft_ms<=1", "p90_ttft_ms", 1)
    assert miss["value"] > 1
    assert miss["load"] > 0
    assert miss["argv"]
    assert "at the lightest load" in done.err
    launched = [row["fingerprint"] for row in rows(home)]
    assert launched
    assert len(launched) == len(set(launched)), "what is too slow is not launched again"
    assert all(row["metrics"][WORKLOAD]["capacity_request_rate"] == 0 for row in rows(home))


def spec_of(**more: Any) -> Any:
    asked = {
        "on": "simulator",
        "slos": ("p90_ttft_ms<=1000",),
        "find_load": "concurrency",
        "workloads": [WORKLOAD],
        "noise": 0.0,
    }
    return build_spec(RunOptions(MODEL, "h200", study="s", space=SPACE, **{**asked, **more}))


@pytest.mark.parametrize("by", ["concurrency", "rate"])
def test_noise_is_a_node_s_clock(by: Any) -> None:
    """One draw per launch, shared by its loads: twice as fast within half the limits, a node
    carries twice as much."""
    library = library_for(SPACE)
    spec = spec_of()
    prepared = prepare(spec, library)
    candidate = prepared.candidates.baseline_candidate
    context = spec.context(candidate.engine_version)
    resolved = resolve_command(prepared.command_of(candidate), library, context)
    workload, found = load_workload(WORKLOAD), []
    for factor in (1.0, 2.0):
        search = LoadSearch(by, [Slo.parse(f"p90_ttft_ms<={800 / factor}")], workload, 1)
        came, load_s = simulate(resolved, Load(WORKLOAD, workload, 0, search), factor=factor)
        capacity = search.found.capacity
        found.append((capacity, came.metrics["capacity_total_token_throughput"], load_s))
    (load, speed, seconds), (faster_load, faster_speed, faster_seconds) = found
    assert faster_load == pytest.approx(load if by == "concurrency" else 2 * load, rel=0.01)
    assert faster_speed == pytest.approx(2 * speed, rel=0.02)
    assert faster_seconds == pytest.approx(seconds / 2, rel=0.05)


@pytest.mark.parametrize(("on", "looks"), [("simulator", 1), ("emulator", LOOKS)])
def test_a_launch_is_told_to_last_as_long_as_the_looks_that_it_has(on: str, looks: int) -> None:
    spec = spec_of(on=on, slos=("p99_ttft_ms<=1000", "p99_tpot_ms<=30"))
    prepared = prepare(spec, library_for(SPACE))
    candidate = prepared.candidates.baseline_candidate
    command = prepared.command_of(candidate)
    trial = Trial(
        0, Role.BASELINE, candidate.configuration, candidate.engine_version, command, (WORKLOAD,)
    )
    resolved = resolve_command(
        command,
        prepared.library,
        spec.context(trial.engine_version),
    )
    search = LoadSearch("concurrency", spec.slos, load_workload(WORKLOAD), looks)
    came, load_s = simulate(resolved, Load(WORKLOAD, load_workload(WORKLOAD), 0, search))
    told = predict(prepared, trial)
    start_s = 1.0 if on == "emulator" else came.startup_s
    assert told.seconds == pytest.approx(start_s + load_s)


def test_the_prior_orders_the_candidates_as_the_capacity_does() -> None:
    spec = spec_of(slos=("p90_ttft_ms<=1000", "p90_tpot_ms<=30"))
    prepared = prepare(spec, library_for(SPACE))
    prior = physical(prepared)[0]
    items, command_of = prepared.candidates.items, prepared.command_of
    places = list(range(0, len(items), max(1, len(items) // 12)))
    simulated, predicted = [], []
    for place in places:
        one = items[place]
        trial = Trial(
            0, Role.SEARCH, one.configuration, one.engine_version, command_of(one), (WORKLOAD,)
        )
        result = SimulatedEvaluator(spec, library_for(SPACE))(trial)
        if result.state is State.COMPLETE and result.metrics[WORKLOAD]["capacity_concurrency"]:
            simulated.append(result.metrics[WORKLOAD]["capacity_total_token_throughput"])
            predicted.append(float(prior.mean[place]))
    best = max(range(len(simulated)), key=simulated.__getitem__)
    # Between engines, physics without fitted figures is sure of no more than a fifth.
    assert predicted[best] >= max(predicted) - 0.2


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--find-load", "concurrency"], "needs a latency limit"),
        (["--find-load", "rate", "--slo", "p99_ttft_ms<=5", "--workload", "sweep"], None),
        (
            ["--objective", "capacity_total_token_throughput"],
            "needs --find-load concurrency or rate",
        ),
        (
            [
                "--find-load",
                "rate",
                "--slo",
                "p99_ttft_ms<=5",
                "--objective",
                "capacity_concurrency",
            ],
            "capacity_concurrency needs --find-load concurrency",
        ),
        (
            ["--find-load", "rate", "--slo", "p99_ttft_ms<=5", "--weights", f"{WORKLOAD}=1"],
            "the load search uses only the first workload",
        ),
    ],
    ids=str,
)
def test_bad_input(tmp_path: Path, more: list[str], words: str | None) -> None:
    done = autotune(*RUN, *more, "--dry-run", home=tmp_path / "home")
    if words is None:
        assert done.code == 0, "a further workload runs as it is, whatever its load"
        return
    assert done.code == 2
    assert words in done.err


def test_a_workload_that_fixes_its_load_is_refused(tmp_path: Path) -> None:
    words = [
        "--find-load",
        "rate",
        "--slo",
        "p99_ttft_ms<=5",
        "--workload",
        "sharegpt-c4",
        "--dry-run",
    ]
    done = autotune("run", "--model", MODEL, "--hw", "h200", *words, home=tmp_path / "home")
    assert done.code == 2
    assert "sharegpt-c4: it fixes a load: 4 at a time" in done.err


FIND = ["--find-load", "concurrency", "--slo", "p90_ttft_ms<=1000", "--slo", "p90_tpot_ms<=40"]
SERVER = ["--", "vllm", "serve", MODEL, "--tensor-parallel-size", "8"]


@pytest.mark.e2e
def test_the_capacity_of_a_launch_is_found_again_by_simulate(tmp_path: Path) -> None:
    home = tmp_path / "home"
    baseline = " ".join(SERVER[1:])
    done = autotune(
        *RUN, *FIND, "--launches", "1", "--noise", "0", "--baseline", baseline, "--json", home=home
    )
    assert done.code == 0, done.err
    promised = rows(home)[0]["metrics"][WORKLOAD]
    asked = ["simulate", "--hw", "h200", "--workload", WORKLOAD, *FIND]
    found = autotune(*asked, "--json", *SERVER, home=home)
    assert found.code == 0, found.err
    for name in (
        "capacity_concurrency",
        "capacity_total_token_throughput",
        "capacity_ramp_s",
        "p90_tpot_ms",
        "curve",
    ):
        assert found.json[name] == promised[name], name
    capacity, ramp_s = found.json["capacity_concurrency"], found.json["capacity_ramp_s"]
    assert ramp_s > 0
    assert (
        "the streams start spread over the time of a request, not all at once" in found.json["load"]
    )
    assert (
        f"the streams start spread over {ramp_s:.3g} s, not all at once"
        in found.json["load_search"]
    )
    # Answers of one length stay in step when they start together, so that no prompt disturbs them:
    # it may be more.
    assert found.json["capacity_concurrency_at_once"] > 0
    told = autotune(*asked, *SERVER, home=home)
    assert f"{capacity} in flight meet every limit" in told.out
    assert (
        f"If all streams start at once: {found.json['capacity_concurrency_at_once']} in flight."
        in told.out
    )
    for page in (
        (home / "studies" / "s" / "report.md").read_text(),
        autotune("resume", "s", home=home).out,
    ):
        assert "the streams start spread over the time of a request, not all at once" in " ".join(
            page.split()
        )


def test_simulate_finds_a_rate_and_says_where_there_is_none(tmp_path: Path) -> None:
    asked = ["simulate", "--hw", "h200", "--workload", WORKLOAD, "--find-load", "rate"]
    found = autotune(*asked, "--slo", "p90_ttft_ms<=1000", "--json", *SERVER, home=tmp_path)
    assert found.code == 0, found.err
    assert found.json["capacity_request_rate"] > 0
    assert "at random (Poisson)" in found.json["load"]
    none = autotune(*asked, "--slo", "p90_ttft_ms<=1", "--json", *SERVER, home=tmp_path)
    assert none.code == 3
    assert "violated at the lightest load" in none.err
    assert none.json["capacity_request_rate"] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--slo", "p99_ttft_ms<=2000"], "--slo: add --find-load concurrency or rate"),
        (
            ["--find-load", "rate"],
            "--find-load needs a latency limit, e.g. --slo 'p99_ttft_ms<=2000'",
        ),
        (
            [*FIND, "--concurrency", "8"],
            "--concurrency with --find-load: the search finds the load",
        ),
        ([*FIND, "--versus", "0.13"], "--versus with --find-load: the search finds the load"),
    ],
)
def test_simulate_refuses_two_loads(options: list[str], words: str, tmp_path: Path) -> None:
    done = autotune("simulate", "--hw", "h200", *options, *SERVER, home=tmp_path)
    assert done.code == 2
    assert words in " ".join(done.err.split())
