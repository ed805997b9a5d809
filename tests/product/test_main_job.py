"""The main job through the real command line: every artefact, and physics that decides."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.outputs.report.text import command as broken
from tests.product.cli import Finished, autotune, new_home, rows

V32 = ["--model", "deepseek-ai/DeepSeek-V3.2", "--hw", "h200"]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = ["--space", str(EXAMPLES / "small-space.yaml")]
"""Where it is not about the candidates: to enumerate all takes seconds."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return new_home(tmp_path)


def tuned(home: Path, *arguments: str) -> dict[str, Any]:
    done = autotune("run", *arguments, "--json", home=home)
    assert done.code == 0, done.err
    found: dict[str, Any] = done.json
    return found


@pytest.fixture(scope="module")
def main_job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """The README's command, in a folder of its own: 25 s of CPU, so that its tests are e2e."""
    folder = tmp_path_factory.mktemp("main")
    command = ["run", *V32, "--study", "demo"]
    return folder / "mlruns", autotune(
        *command, home=folder, cwd=folder, fresh=True, AUTOTUNE_HOME="mlruns"
    )


@pytest.mark.e2e
def test_it_gains_a_third_for_certain_with_attention_replicas(
    main_job: tuple[Path, Finished],
) -> None:
    """Measured, SGLang's eight replicas are the best; how many the search ends with depends on what
    it comes across."""
    home, done = main_job
    assert done.code == 0, done.err
    found = json.loads((home / "studies" / "demo" / "recommendation.json").read_text())
    assert found["engine"] in ("sglang", "vllm")
    assert found["verdict"] == "better"
    replicas = found["config"]["data_parallel"]
    assert replicas > 1
    flag = {"sglang": "--attn-dp-size", "vllm": "--data-parallel-size"}[found["engine"]]
    assert found["argv"][found["argv"].index(flag) + 1] == str(replicas)
    assert found["command"] in done.unbroken
    low, high = found["gain_ci95"]
    assert 33 < low < found["gain_percent"] < high
    lowest, highest = found["gain_interval90_on_a_node"]
    assert lowest < low < high < highest, (
        "a real node adds the simulator's error to that of the launches"
    )
    goal = found["objective"]
    ends, within = goal["interval90_on_a_node"], goal["ci95"]
    assert ends[0] < within[0] < goal["value"] < within[1] < ends[1]


@pytest.mark.e2e
def test_acceptance_is_forced_in_launches_and_in_no_artefact_that_starts_a_server(
    main_job: tuple[Path, Finished],
) -> None:
    home, _ = main_job
    folder = home / "studies" / "demo"
    drafting = [row for row in rows(home, "demo") if row["config"].get("speculative_tokens")]
    assert drafting
    assert {row["speculation"]["forced"] for row in drafting} <= {1.8, 2.38, 2.75}
    switches = ("SIMULATE_ACC", "synthetic", "FORCE_NUM_ACCEPTED")
    files = [
        path
        for path in folder.rglob("*")
        if path.suffix in (".sh", ".json", ".jsonl", ".md", ".yaml", ".yml")
    ]
    assert {"serve.sh", "results.jsonl", "report.md", "recommendation.json"} <= {
        path.name for path in files
    }
    assert [path for path in files if any(word in path.read_text() for word in switches)] == []
    drafts = json.loads((folder / "recommendation.json").read_text())["speculation"]
    assert (
        drafts is None
        or f"forced to {drafts['forced']:.3g} tokens per step" in (folder / "report.md").read_text()
    )


@pytest.mark.e2e
def test_another_processor_makes_the_same_launches(home: Path) -> None:
    """One without the vector instructions that this one has beyond NumPy's baseline."""
    beyond = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    if not beyond:
        pytest.skip("this processor has no vector instructions to switch off")
    question = [*V32, "--engine", "tensorrt_llm", "--launches", "8", "--study"]
    assert autotune("run", *question, "here", home=home, fresh=True).code == 0
    switched_off = {"NPY_DISABLE_CPU_FEATURES": " ".join(beyond)}
    assert autotune("run", *question, "elsewhere", home=home, fresh=True, **switched_off).code == 0
    one, other = (
        [(r["role"], r["fingerprint"]) for r in rows(home, study)]
        for study in ("here", "elsewhere")
    )
    assert one == other


@pytest.mark.e2e
def test_every_artefact_says_simulated(main_job: tuple[Path, Finished]) -> None:
    home, done = main_job
    folder = home / "studies" / "demo"
    assert done.err.startswith("SIMULATED:")
    assert "simulated" in done.out.lower()
    for name in ("report.md", "report.html", "serve.sh", "recommendation.json"):
        assert "simulated" in (folder / name).read_text().lower(), name
    assert {row["evidence"] for row in rows(home, "demo")} == {"simulated"}
    assert os.access(folder / "serve.sh", os.X_OK)
    assert subprocess.run(["bash", "-n", folder / "serve.sh"], check=False).returncode == 0


@pytest.mark.e2e
def test_command_report_and_script_have_the_same_flags(main_job: tuple[Path, Finished]) -> None:
    home, done = main_job
    folder = home / "studies" / "demo"
    found = json.loads((folder / "recommendation.json").read_text())
    script = (folder / "serve.sh").read_text()
    started = shlex.split(script[script.index("\nexec") :].replace("\\\n", " "))
    assert started[-len(found["argv"]) - 1 :] == [*found["argv"], "$@"]
    assert found["argv"][-2:] == ["--host", "127.0.0.1"]
    for text in (done.unbroken, (folder / "report.md").read_text()):
        assert f"\n{found['command']}\n" in text


@pytest.mark.e2e
def test_a_predicted_objective_has_its_interval_on_a_real_node_wherever_it_is_read(
    main_job: tuple[Path, Finished],
) -> None:
    """It holds that of the launches; a gain's interval alone says nothing of a capacity to be
    bought."""
    home, done = main_job
    folder = home / "studies" / "demo"
    found = json.loads((folder / "recommendation.json").read_text())
    for choice in (found, found["baseline"]):
        (low, high), (least, most) = (
            choice["objective"][k] for k in ("interval90_on_a_node", "ci95")
        )
        assert low < least <= choice["objective"]["value"] <= most < high
    low, high = found["objective"]["interval90_on_a_node"]
    told = " to ".join(f"{float(f'{end:.3g}'):,.0f}" for end in (low, high))
    assert f"On a real node {told} tok/s, " in " ".join(done.out.split())
    assert f"{told} tok/s on a real node (90 %)" in (folder / "report.md").read_text()
    assert f"(90 % interval on a real node {told})" in (folder / "serve.sh").read_text()


LAUNCH = (
    r"#\d+ +\d+/30  (baseline|start|search|screen|drift|final) +(vllm|sglang|tensorrt_llm) +"
    r"([\d,.]+ simulated( +[-+][\d.]+ %)?|failed|ranked) +\d+ min  \w.*"
)


@pytest.mark.e2e
def test_the_readme_shows_what_it_prints(main_job: tuple[Path, Finished]) -> None:
    home, done = main_job
    readme = (EXAMPLES.parent / "README.md").read_text()
    assert f"autotune {shlex.join(['run', *V32, '--study', 'demo'])}\n" in readme
    shown = (
        readme[readme.index("```text\nSIMULATED") :]
        .split("```", 2)[1]
        .removeprefix("text\n")
        .splitlines()
    )
    launches = [line for line in shown if "/30  " in line]
    assert len(launches) > 8
    printed = [line for line in done.err.splitlines() if "/30  " in line]
    assert all(re.fullmatch(LAUNCH, line) for line in (*launches, *printed)), (launches, printed)
    kept = [line for line in shown if line.strip("… ") and line not in launches]
    lines = f"{done.err}\n{done.out}".splitlines()
    assert [
        line for line in kept if line.split()[:2] not in [other.split()[:2] for other in lines]
    ] == []
    places = [line for line in kept if "mlruns" in line or "http://" in line]
    assert len(places) == 5
    assert set(places) <= set(lines), "names and folders too"
    verdict = r"^SIMULATED: (\w+) .*\. Total TPS ([\d,.]+) tok/s"
    found = [re.search(verdict, text, re.MULTILINE) for text in ("\n".join(shown), done.out)]
    readmes, own = (float(one[2].replace(",", "")) for one in found if one)
    assert own == pytest.approx(readmes, rel=0.05)
    assert {one[1] for one in found if one} == {"better"}
    # From the blank line on it is what the study ends with.
    end = [line for line in done.out.splitlines() if line and "http://" not in line]
    command = json.loads((home / "studies" / "demo" / "recommendation.json").read_text())["command"]
    assert len(end) - len(broken(command, 100).splitlines()) <= 10, "beside the command"
    assert max(map(len, end)) <= 100


@pytest.mark.e2e
def test_the_rows_are_whole(main_job: tuple[Path, Finished]) -> None:
    home, _ = main_job
    launches = rows(home, "demo")
    assert [row["number"] for row in launches] == list(range(len(launches)))
    assert len(launches) <= 30
    assert launches[0]["role"] == "baseline"
    assert launches[0]["engine"] == "vllm"
    assert {"search", "final"} <= {row["role"] for row in launches}
    report = (home / "studies" / "demo" / "report.md").read_text()
    assert "```" in report
    # Some have random weights: no failures, and hours like the others.
    cheap = [row for row in launches if row["fidelity"] == "random_weights"]
    assert cheap
    valid = len(launches) - len(cheap)
    assert (
        f"{len(launches)} launches, {valid} valid, {len(cheap)} with random weights, which rank only. "
        in report
    )
    found = json.loads((home / "studies" / "demo" / "recommendation.json").read_text())
    assert found["duration_s"] == pytest.approx(3600 * found["study_cost"]["node_hours"])
    assert found["duration_s"] == pytest.approx(
        sum(sum(row["times_s"].values()) for row in launches)
    )


@pytest.mark.e2e
def test_what_is_recommended_is_what_simulate_says(main_job: tuple[Path, Finished]) -> None:
    home, _ = main_job
    found = json.loads((home / "studies" / "demo" / "recommendation.json").read_text())
    settings = [f"{name}={value}" for name, value in found["env"].items()]
    done = autotune(
        "simulate", "--hw", "h200", "--json", "--", *settings, *found["argv"], home=home, fresh=True
    )
    assert done.code == 0, done.err
    assert done.json["evidence"] == "simulated"
    assert done.json["failure"] is None
    low, high = done.json["interval90"]
    assert low < done.json["total_token_throughput"] < high
    # One launch's noise is 3 %, prompts differ between repeats.
    assert done.json["total_token_throughput"] == pytest.approx(
        found["objective"]["value"], rel=0.12
    )


@pytest.mark.e2e
def test_a_finished_study_is_shown_again(main_job: tuple[Path, Finished]) -> None:
    home, done = main_job
    before = (home / "studies" / "demo" / "results.jsonl").read_bytes()
    again = autotune("resume", "demo", home=home, cwd=home.parent, AUTOTUNE_HOME="mlruns")
    assert (again.code, again.out) == (0, done.out)
    assert (home / "studies" / "demo" / "results.jsonl").read_bytes() == before
    taken = autotune("run", *V32, "--study", "demo", home=home)
    assert taken.code == 2
    assert f"\nautotune resume demo --home {home}" in taken.err


@pytest.mark.e2e
def test_report_export_and_list(main_job: tuple[Path, Finished]) -> None:
    home, _ = main_job
    folder = home / "studies" / "demo"
    assert (
        autotune("report", "demo", home=home).out.strip()
        == (folder / "report.md").read_text().strip()
    )
    assert (
        autotune("export", "demo", "--to", "shell", home=home).out.strip()
        == (folder / "serve.sh").read_text().strip()
    )
    listed = autotune("list", "--json", home=home).json
    assert [(row["study"], row["verdict"], row["evidence"]) for row in listed] == [
        ("demo", "better", "simulated")
    ]
    wrong = autotune("export", "demo", "--to", "helm", home=home)
    assert wrong.code == 2
    assert "shell" in wrong.err


@pytest.mark.e2e
def test_vllm_alone_is_not_left_at_plain_tp8(home: Path) -> None:
    found = tuned(home, *V32, "--engine", "vllm", "--launches", "10")
    assert found["engine"] == "vllm"
    assert found["fingerprint"] != found["baseline"]["fingerprint"]
    assert (found["config"]["tensor_parallel"], found["config"]["data_parallel"]) != (8, 1)


@pytest.mark.e2e
def test_four_at_a_time_does_not_want_eight_replicas(home: Path) -> None:
    found = tuned(home, *V32, "--workload", "sharegpt-c4", "--launches", "12")
    assert found["config"]["data_parallel"] < 8


@pytest.mark.e2e
def test_half_the_memory_is_refused_before_the_first_launch(home: Path) -> None:
    node = EXAMPLES / "half-memory-node.yaml"
    done = autotune(
        "run", *V32[:2], "--hw", str(node), "--launches", "6", "--study", "half", home=home
    )
    assert (done.code, done.out) == (2, ""), done.err
    assert "Traceback" not in done.err
    assert "674 GB of weights, 564 GB of memory on 8 x half-h200" in done.err
    assert "a GPU needs 86.2 GB for weights and has 70.5 GB" in done.err
    assert not (home / "studies" / "half").exists()


def test_memory_for_the_weights_alone_is_infeasible(home: Path, tmp_path: Path) -> None:
    node = tmp_path / "node.yaml"
    node.write_text(
        (EXAMPLES / "half-memory-node.yaml").read_text().replace("memory_gb: 70.5", "memory_gb: 88")
    )
    done = autotune(
        "run", *V32[:2], *SMALL, "--hw", str(node), "--launches", "6", "--study", "tight", home=home
    )
    assert done.code == 3, done.err
    assert "Traceback" not in done.err
    found = json.loads((home / "studies" / "tight" / "recommendation.json").read_text())
    assert found["verdict"] == "infeasible"
    assert found["command"] is None
    assert found["failures"]["out_of_memory"] > 0
    assert "out_of_memory" in (home / "studies" / "tight" / "report.md").read_text()
    assert not (home / "studies" / "tight" / "serve.sh").exists()


@pytest.mark.e2e
def test_r1_on_mi300x_comes_with_its_rocm_environment(home: Path) -> None:
    found = tuned(
        home, "--model", "deepseek-ai/DeepSeek-R1-0528", "--hw", "mi300x", "--launches", "6"
    )
    assert found["engine"] in {"vllm", "sglang"}
    assert {"SGLANG_USE_AITER", "VLLM_ROCM_USE_AITER"} & set(found["env"])
    assert [entry["engine"] for entry in found["excluded"]] == ["tensorrt_llm"]
    assert "AMD" in found["excluded"][0]["reason"]
    assert found["launches"] <= 6


@pytest.mark.e2e
def test_several_workloads_goals_slos_and_pins(home: Path) -> None:
    found = tuned(
        home,
        *[*V32, "--launches", "8", "--workload", "sharegpt-c4", "--workload", "random:1000:100:50"],
        *[
            "--weights",
            "random:1000:100:50=1,sharegpt-c4=2",
            "--pareto",
            "p99_ttft_ms",
            "--study",
            "several",
        ],
        *[
            "--slo",
            "mean_tpot_ms<=200",
            "--set",
            "kv_cache_dtype=auto",
            "--set",
            "context_length=32768",
            "--engine",
            "sglang",
        ],
    )
    assert found["config"]["kv_cache_dtype"] == "bfloat16", "what SGLang does by itself"
    assert found["config"]["context_length"] == 32768
    assert found["baseline"]["config"]["context_length"] == 32768
    assert set(found["workloads"]) == {"sharegpt-c4", "random:1000:100:50"}
    assert all(entry["baseline"] and entry["recommended"] for entry in found["workloads"].values())
    assert found["workloads"]["sharegpt-c4"]["recommended"]["mean_tpot_ms"] <= 200
    assert found["objective"]["workload"] == "sharegpt-c4=2,random:1000:100:50=1"
    one, other = (
        entry["recommended"]["total_token_throughput"] for entry in found["workloads"].values()
    )
    assert found["objective"]["value"] == pytest.approx((one**2 * other) ** (1 / 3))
    searched = [row for row in rows(home, "several") if row["role"] == "search"]
    complete = [row for row in searched if row["state"] == "complete"]
    assert complete
    assert all(set(row["metrics"]) == set(found["workloads"]) for row in complete)
    assert found["matrix"][0]["role"] == "baseline"
    assert all(set(row["workloads"]) == set(found["workloads"]) for row in found["matrix"])
    report = autotune("report", "several", home=home).out
    front = [(point["objective"]["value"], point["second"]["value"]) for point in found["front"]]
    assert front == sorted(front, reverse=True), (
        "less throughput at more latency is no point of a front"
    )
    assert [latency for _, latency in front] == sorted(
        (latency for _, latency in front), reverse=True
    )
    assert found["front"]
    for point in found["front"]:
        assert (point["evidence"], point["second"]["metric"]) == ("simulated", "p99_ttft_ms")
        assert point["command"] in report


@pytest.mark.e2e
def test_a_baseline_as_typed_is_launched_as_typed(home: Path) -> None:
    typed = "vllm serve deepseek-ai/DeepSeek-V3.2 -tp 8 --max-num-seqs 256"
    found = tuned(
        home,
        *V32,
        *SMALL,
        "--launches",
        "5",
        "--engine",
        "vllm",
        "--baseline",
        typed,
        "--study",
        "typed",
    )
    recommended = found["baseline"]["fingerprint"] == found["fingerprint"]
    listening = ["--host", "127.0.0.1"] if recommended else []
    assert found["baseline"]["argv"] == [*typed.split(), *listening], (
        "what is recommended says where it listens"
    )
    assert found["baseline"]["config"]["max_running_requests"] == 256


@pytest.mark.e2e
def test_the_vendor_s_recipe_is_the_baseline(home: Path) -> None:
    asked = [
        "--launches",
        "3",
        "--engine",
        "vllm",
        "--baseline",
        "recipe:sglang",
        "--study",
        "recipe",
    ]
    found = tuned(home, *V32, *SMALL, *asked)
    assert found["baseline"]["engine"] == "sglang"
    assert found["baseline"]["config"]["data_parallel"] == 8
    first = rows(home, "recipe")[0]
    assert first["role"] == "baseline"
    report = (home / "studies" / "recipe" / "report.md").read_text()
    setup = report[report.index("## Setup") :].replace("\\_", "_")
    assert shlex.join(first["argv"]) in setup
    assert "as published at https://docs.sglang.io/basic_usage/deepseek_v32.html" in setup
    assert "--baseline recipe:sglang" in report


def test_a_budget_of_one_launch_decides_nothing(home: Path) -> None:
    found = tuned(home, *V32, *SMALL, "--launches", "1")
    assert (found["verdict"], found["launches"]) == ("indistinguishable", 1)
    assert found["stop_reason"]


@pytest.mark.e2e
def test_five_launches_are_enough_for_a_gain_that_doubles(home: Path) -> None:
    found = tuned(home, *V32, "--launches", "5", "--engine", "sglang")
    assert (found["verdict"], found["launches"]) == ("better", 5)
    assert found["gain_percent"] > 50
    odds = {row["knob"]: row["odds"] for row in found["contributions"] if not row["needed_to"]}
    # 0.5 is asked before the finals, whose launches move the odds.
    assert min(odds.values()) >= 0.4, "no setting is likely to do harm"
