"""The search benchmark counts launches right: run as people run it, on its smallest landscape."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_each_seed_of_the_sampler_alone_has_a_start_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "tuner"))
    landscape, play = import_module("landscapes_altered").toy(), import_module("search_loops").play
    runs = [play("ours-bare-no-prior", landscape, seed, (6,)).visited for seed in (0, 1, 2)]
    assert {run[0] for run in runs} == {landscape.candidates.baseline}
    assert len({tuple(run[1:5]) for run in runs}) == 3


def test_launches_contradict_the_prior_as_those_of_one_h200_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "tuner"))
    landscape = import_module("landscapes_altered").contradicted()
    rows = [one.configuration.knobs for one in landscape.candidates.items]

    def ratios(values: np.ndarray, knob: str, value: str, usual: str) -> np.ndarray:
        """Ratios of rows that differ in one knob, in the order of the others."""
        return np.array(
            [
                values[place] / values[rows.index({**row, knob: usual})]
                for place, row in enumerate(rows)
                if row[knob] == value
            ]
        )

    cache, attention = (
        ("kv_cache_dtype", "fp8", "bfloat16"),
        ("attention_backend", "TRITON_ATTN", "FLASH_ATTN"),
    )
    assert [prior.name for prior in landscape.priors] == ["the simulator", "physics"]
    for prior in landscape.priors:
        assert ratios(np.exp(prior.mean), *cache) == pytest.approx(1.33)
        assert ratios(np.exp(prior.mean), *attention) == pytest.approx(1.0)
    measured = ratios(landscape.truth, *attention)
    assert (measured.min(), measured.max()) == pytest.approx((0.73, 0.84))
    measured = ratios(landscape.truth, *cache)
    assert (measured.min(), measured.max()) == pytest.approx((0.93, 1.15))


def test_a_hidden_node_differs_from_its_landscape_by_effects_and_interactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "tuner"))
    altered = import_module("landscapes_altered")
    base = altered.toy()
    hidden, other = altered.hidden(base), altered.hidden(base, 1)
    runs = np.isfinite(base.truth)
    assert (np.isfinite(hidden.truth) == runs).all()
    assert hidden.priors == base.priors
    assert not np.array_equal(hidden.truth[runs], other.truth[runs])
    for one in hidden, other:
        assert 0.25 < np.log(one.truth[runs] / base.truth[runs]).std() < 0.35


@pytest.mark.e2e
def test_the_benchmark_counts_launches_from_the_baseline(tmp_path: Path) -> None:
    samplers = ["ours", "tpe", "one-factor"]
    out = tmp_path / "runs.json"
    rows = ["kernel,1,,50", "kernel,2,crashed,", "kernel,4,,100", "kernel,8,,99"]
    (tmp_path / "gemm.csv").write_text(
        "\n".join(["engine,MWG,failure,total_token_throughput", *rows]) + "\n"
    )
    words = [
        "--landscape",
        "toy",
        "kernels-r1",
        "tuning:gemm",
        "tuning:pnpoly",
        "--tuning-tables",
        str(tmp_path),
    ]
    words += ["--seeds", "2", "--jobs", "1", "--json", str(out)]
    done = subprocess.run(
        [
            sys.executable,
            ROOT / "benchmarks" / "tuner" / "search.py",
            *words,
            "--sampler",
            *samplers,
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert "skipped kernels-r1: give --kernel-tables" in done.stdout
    assert "skipped tuning:pnpoly: give --tuning-tables" in done.stdout
    told = json.loads(out.read_text())
    figures = told["landscapes"]["tuning:gemm"]["figures"]
    told_of_it = [figures[name] for name in ("candidates", "fail", "within_2_percent", "baseline")]
    assert told_of_it == [4, 0.25, 2, 0.5]
    # It has no prior, so what takes one does not run on it.
    assert {run["sampler"] for run in told["runs"] if run["landscape"] == "tuning:gemm"} == {
        "tpe",
        "one-factor",
    }
    told["runs"] = [run for run in told["runs"] if run["landscape"] == "toy"]
    told["summary"] = [row for row in told["summary"] if row["landscape"] == "toy"]
    assert [(run["sampler"], run["seed"]) for run in told["runs"]] == [
        (s, seed) for s in samplers for seed in (0, 1)
    ]
    baseline = round(told["landscapes"]["toy"]["figures"]["baseline"], 5)
    assert all(run["qualities"][0] == baseline for run in told["runs"])
    # What is launched once by launch number 24 is the whole toy; only the product launches one
    # again.
    assert {len(run["qualities"]) for run in told["runs"] if run["sampler"] == "tpe"} == {24}
    for row in told["summary"]:
        runs = [run for run in told["runs"] if run["sampler"] == row["sampler"]]
        firsts = [
            next(n for n, quality in enumerate(run["qualities"], 1) if quality >= 0.98)
            for run in runs
        ]
        # Of two neighbours the upper one is told.
        assert row["to"]["0.98"][1] == max(firsts) > 1
        assert row["regret"]["40"] == [0, 0, 0]
        assert row["share"] == {"30": 1.0, "40": 1.0}
        shorts = [1 - run["recommended"]["40"] for run in runs]
        assert row["served"]["within_2"] == sum(short <= 0.02 for short in shorts)
        assert row["served"]["worst"] == max(shorts) >= row["served"]["mean"]
        assert all(0 <= short < 1 for short in row["recommended"]["10"])
