"""Studies as measurements: what was measured teaches, what was not is refused, what does not count
is left out."""

from __future__ import annotations

import dataclasses

import pytest

from autotune.base.errors import BadInput, MalformedFile, UnknownName
from autotune.base.evidence import Evidence
from autotune.engines.command import Command
from autotune.engines.failure import Failure, FailureKind
from autotune.engines.library import Library
from autotune.node.fit.reading import LeftOut
from autotune.tuner.study.home import Home
from autotune.tuner.study.measured import read, study_rows
from autotune.tuner.study.results import Results
from autotune.tuner.study.spec import EngineChoice, StudySpec
from tests.small_study import MODEL, launches

MEASURED = Evidence.MEASURED


@pytest.fixture
def study(tmp_path):
    """A function that writes a study with the small study's launches, changed."""

    def make(change=lambda launch: launch, evidence=MEASURED):
        library = Library()
        spec = StudySpec(
            study="mine",
            model=library.model(MODEL),
            hardware=library.node("h200"),
            gpus=8,
            engines=(EngineChoice(name="vllm", version="0.32.0"),),
            workloads=("sharegpt", "random:4000:200:500"),
            on="process",
        )
        home = Home(tmp_path)
        folder = home.open(spec)
        results = Results(folder / "results.jsonl")
        for launch in launches():
            # The small study's figures are made up; here the tokens over the duration are the
            # throughput.
            metrics = {
                name: {**m, "duration": 420_000 / m["total_token_throughput"]}
                for name, m in launch.result.metrics.items()
            }
            result = dataclasses.replace(launch.result, evidence=evidence, metrics=metrics)
            results.append(change(dataclasses.replace(launch, result=result)))
        return home

    return make


def test_complete_launches_are_rows_per_workload_and_failed_ones_are_failures(study):
    rows = list(study_rows(study(), "mine"))
    labels = [row.label for row in rows]
    assert labels[:4] == ["mine/0000", "mine/0000 random:4000:200:500", "mine/0001", "mine/0002"]
    by_label = dict(zip(labels, rows, strict=True))
    first = by_label["mine/0000"]
    assert (first.source, first.evidence, first.workload.name) == ("mine", "measured", "sharegpt")
    assert first.metrics["total_token_throughput"] == 6000
    assert "client_bound" not in first.metrics
    assert first.resolved.effective.knobs["tensor_parallel"] == 8
    failed = by_label["mine/0002"]
    assert failed.failure.startswith("out_of_memory: Weights")
    assert failed.resolved.effective.knobs["data_parallel"] == 8
    assert isinstance(by_label["mine/0004"], LeftOut)
    assert "is invalid" in by_label["mine/0004"].reason


@pytest.mark.parametrize("evidence", [Evidence.SIMULATED, Evidence.EMULATED, Evidence.REPLAYED])
def test_what_was_not_measured_teaches_nothing_unless_it_is_allowed_to(study, evidence):
    home = study(evidence=evidence)
    with pytest.raises(BadInput, match=f"was {evidence.value}, not measured"):
        list(study_rows(home, "mine"))
    rows = [
        row
        for row in study_rows(home, "mine", allow_unmeasured=True)
        if not isinstance(row, LeftOut)
    ]
    assert {row.evidence for row in rows} == {evidence.value}


def test_what_says_nothing_of_the_configuration_is_left_out(study):
    def spoilt(launch):
        result, trial = launch.result, launch.trial
        if trial.number == 1:
            bound = {name: {**m, "client_bound": True} for name, m in result.metrics.items()}
            result = dataclasses.replace(result, metrics=bound)
        if trial.number == 2:
            result = dataclasses.replace(result, failure=Failure(FailureKind.PORT, "taken"))
        if trial.number == 3:
            trial = dataclasses.replace(trial, command=Command(("external:http://h:1",)))
        return dataclasses.replace(launch, trial=trial, result=result)

    found = {row.label: row for row in study_rows(study(spoilt), "mine")}
    words = {"mine/0001": "client", "mine/0002": "port", "mine/0003": "external server"}
    for label, word in words.items():
        assert word in found[label].reason


def test_a_study_of_which_there_is_no_launch_is_refused(study, tmp_path):
    with pytest.raises(UnknownName, match="unknown study 'other'"):
        read([], ["other"], study())
    (tmp_path / "studies" / "mine" / "results.jsonl").unlink()
    with pytest.raises(BadInput, match="no finished launch"):
        read([], ["mine"], Home(tmp_path))


def test_a_torn_last_line_is_left_as_it_is_and_a_broken_one_before_it_is_named(study, tmp_path):
    home = study()
    path = tmp_path / "studies" / "mine" / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"number": 9, "ro')
    assert len(list(study_rows(home, "mine"))) == 10
    assert path.read_bytes().endswith(b'"ro')
    path.write_bytes(b"{}\n" + whole)
    with pytest.raises(MalformedFile, match=r"results\.jsonl:1: not a launch"):
        list(study_rows(home, "mine"))


def test_metrics_that_cannot_be_right_are_refused_with_the_launch(study):
    def zero(launch):
        metrics = {
            name: {**m, "total_token_throughput": 0.0} for name, m in launch.result.metrics.items()
        }
        return dataclasses.replace(
            launch, result=dataclasses.replace(launch.result, metrics=metrics)
        )

    with pytest.raises(MalformedFile, match=r"launch 0, sharegpt: total_token_throughput is 0"):
        list(study_rows(study(zero), "mine"))
