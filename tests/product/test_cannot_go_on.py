"""The machine lets a study down: it stops with one message, keeps what it has, and goes on once
that is put right."""

from __future__ import annotations

import platform
import re
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError
from rich.console import Console

from autotune.base.errors import BadInput, CannotGoOn, Interrupted
from autotune.base.files import write_atomically
from autotune.engines.failure import Failure, FailureKind
from autotune.outputs.progress import Progress
from autotune.run import run
from autotune.tuner.backends import EvaluationSetup, Evaluator, evaluator_for
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.study.home import Home
from autotune.tuner.study.options import RunOptions
from autotune.tuner.study.recommendation import Recommendation
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import State, Trial, TrialResult
from tests import small_study
from tests.engines.stand_ins import executable, python_with
from tests.product.cli import autotune, finished_rows, new_home, rows
from tests.weight_files import cache

ROOT = Path(__file__).resolve().parents[2]
MODEL = "deepseek-ai/DeepSeek-V3.2"

Spoil = Callable[[TrialResult, Path], TrialResult]


@dataclass(frozen=True)
class Spoiled:
    """Simulates, but from one trial on something happens."""

    simulated: Evaluator
    folder: Path
    from_trial: int
    spoil: Spoil

    def __call__(self, trial: Trial) -> TrialResult:
        result = self.simulated(trial)
        return self.spoil(result, self.folder) if trial.number >= self.from_trial else result


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_home(tmp_path_factory.mktemp("product"))


def study(home: Path, name: str, spoil: Spoil | None = None, from_trial: int = 1) -> Recommendation:
    """Run a study, or go on with it, in this process."""
    workloads, space = ["random:64:16:16"], ROOT / "examples" / "emulated-space.yaml"
    asked = RunOptions(
        MODEL, "h200", launches=6, workloads=workloads, study=name, on="simulator", space=space
    )
    spec = build_spec(asked)

    def evaluator(setup: EvaluationSetup) -> Evaluator:
        simulated = evaluator_for(setup)
        return Spoiled(simulated, setup.folder, from_trial, spoil) if spoil else simulated

    with Progress(spec, Console(file=StringIO())) as progress:
        return run(spec, Home(home), progress, evaluator)


def test_a_quarantined_node_stops_the_study_and_nothing_is_lost(home: Path) -> None:
    def gpu_stays_full(result: TrialResult, _: Path) -> TrialResult:
        return replace(result, quarantine="GPU 3 is full.")

    kept = r"2 launches are stored; continue with:\nautotune resume full --home \S+/home$"
    with pytest.raises(CannotGoOn, match=rf"^GPU 3 is full\.\nThe study has stopped; {kept}"):
        study(home, "full", gpu_stays_full)
    kept = finished_rows(home, "full")
    assert ['"quarantine":"GPU 3 is full."' in row for row in kept] == [False, True]
    assert study(home, "full").recommended is not None
    assert finished_rows(home, "full")[:2] == kept
    assert rows(home, "full")[1]["state"] == "complete", "what was measured before it counts"


def test_three_launches_in_a_row_that_no_configuration_is_to_blame_for(home: Path) -> None:
    def driver_is_gone(result: TrialResult, _: Path) -> TrialResult:
        failure = Failure(FailureKind.INFRASTRUCTURE, "No CUDA GPUs are available.", lasting=True)
        return replace(result, state=State.INVALID, metrics={}, failure=failure)

    with pytest.raises(
        CannotGoOn,
        match=r"3 launches in a row failed .* No CUDA GPUs are available\.\n.* 4 launches",
    ):
        study(home, "driver", driver_is_gone)
    outcome = study(home, "driver")
    assert outcome.recommended is not None
    states = [row["state"] for row in rows(home, "driver")]
    assert states == ["complete", "invalid", "invalid", "invalid", "complete", "complete"]
    report = (home / "studies" / "driver" / "report.md").read_text()
    assert "### infrastructure (not the configuration's fault)" in report


def test_figures_that_cannot_be_are_no_measurement_and_reach_no_file(home: Path) -> None:
    """NaN of one metric, a negative one, no objective at all; the figures beside them stay."""
    spoilt: list[dict[str, object]] = [
        {"total_token_throughput": float("nan")},
        {"p99_ttft_ms": -1.0},
    ]
    without = "total_token_throughput"

    def figures_are_bad(result: TrialResult, _: Path) -> TrialResult:
        workload, metrics = next(iter(result.metrics.items()))
        if spoilt:
            return replace(result, metrics={workload: {**metrics, **spoilt.pop(0)}})
        left = {name: value for name, value in metrics.items() if name != without}
        return replace(
            result, metrics={workload: left}, times_s={**result.times_s, "load": float("inf")}
        )

    outcome = study(home, "nan", figures_are_bad)
    assert outcome.recommended is not None
    kept = rows(home, "nan")
    assert {row["state"] for row in kept[1:]} == {"invalid"}
    said = [row["failure"]["message"] for row in kept[1:4]]
    assert (
        "random:64:16:16: total_token_throughput is nan; a finite number of at least 0 was expected"
        in said[0]
    )
    assert "random:64:16:16: p99_ttft_ms is -1" in said[1]
    assert "its metrics lack the objective, total_token_throughput" in said[2]
    assert all(row["metrics"]["random:64:16:16"]["duration"] > 0 for row in kept)
    folder = home / "studies" / "nan"
    for path in (folder / "results.jsonl", folder / "recommendation.json"):
        assert not re.search(r"\b(NaN|Infinity)\b", path.read_text())


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="no /dev/full, the one disk that is always full"
)
def test_a_full_disk_stops_the_study_and_what_was_written_is_kept(home: Path) -> None:
    results = home / "studies" / "disk" / "results.jsonl"

    def disk_fills(result: TrialResult, _: Path) -> TrialResult:
        results.rename(results.with_suffix(".kept"))
        results.symlink_to("/dev/full")
        return result

    with pytest.raises(
        CannotGoOn, match=r"left on device\); free disk space there\.\n.* 1 launches are stored"
    ):
        study(home, "disk", disk_fills)
    results.with_suffix(".kept").rename(results)
    kept = finished_rows(home, "disk")
    assert study(home, "disk").recommended is not None
    assert finished_rows(home, "disk")[:1] == kept


def test_a_study_that_cannot_be_written_when_it_is_resumed(home: Path) -> None:
    def is_interrupted(_: TrialResult, folder: Path) -> TrialResult:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        study(home, "resumed", is_interrupted)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
    try:
        with pytest.raises(
            CannotGoOn, match=r"too large\); free disk space there\. Then:\nautotune resume resumed"
        ):
            study(home, "resumed")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert study(home, "resumed").recommended is not None


def test_a_question_that_was_cut_off_is_no_other_question() -> None:
    """Also where whole lines are missing: those that are left would be a question too."""
    asked = small_study.spec()
    text = asked.to_yaml()
    assert StudySpec.from_yaml(text) == asked
    assert StudySpec.from_yaml(text.removeprefix("---\n").removesuffix("...\n")) == asked, (
        "as people write it"
    )
    lines = text.splitlines(keepends=True)
    for kept in range(1, len(lines)):
        with pytest.raises((yaml.YAMLError, ValidationError)):
            StudySpec.from_yaml("".join(lines[:kept]))


def test_no_draft_of_a_file_is_left(tmp_path: Path) -> None:
    """Neither of a writer that was killed, nor where there is no room; one that another process
    writes is.

    So is one of another machine, which nobody here can ask.
    """
    path = tmp_path / "optuna.journal"
    gone, alive = (
        tmp_path / f".optuna.journal.{platform.node()}.{pid}.tmp" for pid in (2**22 + 1, 1)
    )
    elsewhere = tmp_path / f".optuna.journal.another.{2**22 + 1}.tmp"
    for draft in (gone, alive, elsewhere):
        draft.write_text("a part")
    write_atomically(path, "whole")
    assert set(tmp_path.iterdir()) == {alive, elsewhere, path}
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_atomically(path, "more")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert set(tmp_path.iterdir()) == {alive, elsewhere, path}
    assert path.read_text() == "whole"


def test_a_study_whose_folder_goes_says_that_it_cannot_be_resumed(home: Path) -> None:
    def somebody_tidies_up(result: TrialResult, folder: Path) -> TrialResult:
        shutil.rmtree(folder)
        return result

    with pytest.raises(CannotGoOn, match="was deleted, so it cannot be resumed"):
        study(home, "gone", somebody_tidies_up)


def test_a_trial_that_cannot_be_written_stops_a_study_that_has_begun(home: Path) -> None:
    def disk_becomes_read_only(_: TrialResult, folder: Path) -> TrialResult:
        raise BadInput(f"the trial's folder {folder} is not writable (Read-only file system)")

    with pytest.raises(BadInput, match="Read-only"):
        study(home, "read-only", disk_becomes_read_only, from_trial=0)
    with pytest.raises(
        CannotGoOn,
        match=r"Read-only file system\)\n.* 1 launches are stored; continue with:\nautotune resume",
    ):
        study(home, "read-only", disk_becomes_read_only)


def test_a_first_launch_without_a_gpu_is_exit_130_with_one_message(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = python_with(tmp_path, vllm="0.32.0")
    fails = f"#!{python}\nimport sys\nsys.exit('RuntimeError: No CUDA GPUs are available')\n"
    program = executable(tmp_path / "bin" / "vllm", fails)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    cache(tmp_path / "hub", MODEL, ["model.safetensors"])
    question = [
        "--model",
        MODEL,
        "--hw",
        "h200",
        "--engine",
        "vllm",
        "--on",
        "process",
        "--study",
        "first",
    ]
    few = ["--workload", "random:16:4:8", "--space", str(ROOT / "examples" / "small-space.yaml")]
    stopped = autotune("run", *question, *few, home=home)
    assert stopped.code == 130, stopped.err
    assert "Traceback" not in stopped.err
    assert "No CUDA GPUs are available. The driver shows no usable GPU" in stopped.err
    assert "0 launches are stored; continue with:\nautotune resume first" in stopped.err


def test_a_model_s_folder_that_is_not_there_is_bad_input() -> None:
    request = RunOptions("/nowhere/DeepSeek-V3.2", "h200", on="process")
    with pytest.raises(BadInput, match="this folder does not exist"):
        build_spec(request)
    assert build_spec(replace(request, on="simulator")).model.id == "/nowhere/DeepSeek-V3.2"
