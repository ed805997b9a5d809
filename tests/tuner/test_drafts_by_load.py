"""Which number of drafted tokens is the best at which load: what is launched for it, and told."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from autotune.base.evidence import Evidence
from autotune.engines.command import Command, Configuration
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.outputs.progress import Progress
from autotune.run import run
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.recommend import recommend
from autotune.tuner.search.decide.drafts import next_other, others
from autotune.tuner.search.history import History
from autotune.tuner.study.home import Home
from autotune.tuner.study.options import RunOptions
from autotune.tuner.study.recommendation import DraftedAtLoad, Recommendation
from autotune.tuner.trial import Launch, Role, State, Trial, TrialResult
from tests.small_study import conclusion
from tests.tuner.test_recommend import spec

KNOBS = [
    {"tp": 8, "speculative_tokens": 0, "graphs": 512},
    {"tp": 4, "speculative_tokens": 3, "graphs": 1024},
    {"tp": 4, "speculative_tokens": 0, "graphs": 512},
    {"tp": 4, "speculative_tokens": 1, "graphs": 1024},
    {"tp": 4, "speculative_tokens": 1, "graphs": 512},
]
CANDIDATES = CandidateSet(
    tuple(Candidate(Configuration("vllm", knobs), "1.0") for knobs in KNOBS), 0, (0,)
)
LOADS = (1, 16, 256)
ASKED = spec(ladder=LOADS, workloads=("chat",), launches=20)


def launch(number: int, role: Role, position: int, value: float, *curve: float) -> Launch:
    configuration = CANDIDATES.items[position].configuration
    command = Command(("vllm", "serve", f"--position={position}"))
    rungs = LOADS if curve else ()
    trial = Trial(number, role, configuration, "1.0", command, ("chat",), rungs=rungs)
    rows = [
        {"concurrency": load, "total_token_throughput": rate}
        for load, rate in zip(LOADS, curve, strict=False)
    ]
    metrics = {"chat": {"total_token_throughput": value, "completed": 100, "curve": rows}}
    return Launch(trial, TrialResult(State.COMPLETE, Evidence.SIMULATED, metrics=metrics))


FINALS = [
    launch(0, Role.BASELINE, 0, 1000, 50, 300, 900),
    launch(1, Role.SEARCH, 1, 2000),
    launch(2, Role.SEARCH, 4, 1500),
    launch(3, Role.FINAL, 1, 2020, 100, 600, 1800),
    launch(4, Role.FINAL, 0, 1010, 51, 301, 905),
    launch(5, Role.FINAL, 0, 990, 49, 299, 895),
    launch(6, Role.FINAL, 1, 1980, 101, 598, 1810),
]


def told(rows: list[Launch]) -> Recommendation:
    return recommend(ASKED, CANDIDATES, rows, (), "done")


def test_each_number_of_drafted_tokens_is_launched_in_the_nearest_form() -> None:
    """The baseline is another command, although it was launched in the finals."""
    history = History.from_launches(ASKED, CANDIDATES, FINALS)
    assert others(history, 1) == [2, 3]
    assert next_other(history, 1, 1) == 2
    rows = [*FINALS, launch(7, Role.FINAL, 2, 1700, 40, 500, 2400)]
    history = History.from_launches(ASKED, CANDIDATES, rows)
    assert next_other(history, 1, 1) == 3
    history = History.from_launches(
        ASKED, CANDIDATES, [*rows, launch(8, Role.FINAL, 3, 1800, 80, 590, 1900)]
    )
    assert next_other(history, 1, 1) is None
    assert next_other(history, 1, 2) == 2
    one_load = History.from_launches(spec(workloads=("chat",)), CANDIDATES, FINALS)
    assert others(one_load, 1) == []


def test_the_best_number_changes_with_the_load_and_has_a_command_for_each() -> None:
    more = [
        launch(7, Role.FINAL, 2, 1700, 40, 500, 2400),
        launch(8, Role.FINAL, 3, 1800, 80, 590, 1900),
    ]
    outcome = told([*FINALS, *more])
    low, high = outcome.drafts_by_load
    assert (low.speculative_tokens, low.up_to_concurrency, low.ci95) == (3, 16, None)
    assert (high.speculative_tokens, high.up_to_concurrency) == (0, 256)
    assert high.gain_percent == pytest.approx(100 * (2400 / (1800 * 1810) ** 0.5 - 1), abs=0.01)
    assert high.ci95 is not None
    assert 0 < high.ci95[0] < high.gain_percent < high.ci95[1]
    assert ["--position=1" in low.command, "--position=2" in high.command] == [True, True]
    said = conclusion(outcome)
    assert "Tokens to draft: 3 up to 16 in flight; 0 up to 256 in flight, +33.0 % (95 % " in said
    assert Recommendation.from_json(outcome.to_json()).drafts_by_load == outcome.drafts_by_load


def test_a_number_without_a_launch_is_named_and_no_number_is_called_the_best() -> None:
    outcome = told(FINALS)
    assert outcome.drafts_by_load == [
        DraftedAtLoad(speculative_tokens=0),
        DraftedAtLoad(speculative_tokens=1),
    ]
    assert "Tokens to draft: 0 not measured, as no launch was left;" in conclusion(outcome)


@pytest.mark.e2e
def test_a_study_on_the_simulated_node_says_how_many_tokens_to_draft(tmp_path: Path) -> None:
    """More drafts are better with few requests in flight, as the node has time for them."""
    asked = RunOptions(
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "h200",
        gpus=4,
        engines=["vllm"],
        on="simulator",
        workloads=["random:1000:500:1024"],
        ladder="4,32,512",
        launches=26,
        screen="off",
        pins=[
            "tensor_parallel=4",
            "data_parallel=1",
            "expert_parallel=1",
            "max_running_requests=1024",
            "max_batched_tokens=16384",
        ],
        baseline="vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct -tp 2",
        study="s",
    )
    question = build_spec(asked)
    outcome = run(question, Home(tmp_path), Progress(question, Console(file=StringIO())))
    assert outcome.recommended is not None
    assert outcome.recommended.config["speculative_tokens"] == 0
    rows = [row for row in outcome.drafts_by_load if row.up_to_concurrency is not None]
    assert [row.up_to_concurrency for row in rows][-1] == 512
    assert rows[-1].speculative_tokens == 0
    few = next(row for row in rows if (row.up_to_concurrency or 0) >= 32)
    assert few.speculative_tokens > 1
    assert f"num_speculative_tokens {few.speculative_tokens}" in few.command
    assert few.ci95 is not None
    report = (tmp_path / "studies/s/report.md").read_text()
    assert f"With {few.speculative_tokens} drafted tokens:" in report
