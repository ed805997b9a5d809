"""What is only predicted is never plain `better`, and a verification is refused where there is
nothing to verify."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.base.errors import AutotuneError, BadInput
from autotune.base.evidence import Evidence
from autotune.base.notify import silent
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.outputs.report import StudyRecord
from autotune.outputs.report.render import render
from autotune.outputs.report.sentences import lines
from autotune.outputs.report.sentences import said as sentence
from autotune.outputs.tracking.content import outcome_tags
from autotune.tuner.comparison import StudyFigures
from autotune.tuner.search.decide.verdict import judge
from autotune.tuner.search.history import History
from autotune.tuner.search.plan import _unmeasured_prediction
from autotune.tuner.study.home import Home
from autotune.tuner.study.options import VerifyOptions
from autotune.tuner.study.recommendation import Recommendation, Verdict
from autotune.tuner.study.spec import PredictedCommand, StudySpec, Verified
from autotune.tuner.verify import verification
from tests import small_study
from tests.small_study import BASELINE, WINNER, conclusion

OPEN, EXPECTED = (-4.0, 160.0), (3.0, 160.0)


def predicted(
    ends: tuple[float, float] | None, evidence: Evidence = Evidence.SIMULATED
) -> Recommendation:
    return small_study.recommendation(gain_interval90_on_a_node=ends, evidence=evidence)


@pytest.mark.parametrize(
    ("outcome", "holds", "said"),
    [
        (predicted(OPEN), False, "better in the simulation, open on a real node"),
        (predicted(EXPECTED), True, "better in the simulation, expected on a real node"),
        (predicted(None), None, "better in the simulation, open on a real node"),
        (
            predicted(OPEN, Evidence.EMULATED),
            False,
            "better on the emulated node, open on a real node",
        ),
        (predicted(None, Evidence.MEASURED), None, "better"),
        (
            predicted(OPEN, Evidence.REPLAYED).model_copy(
                update={"evidence_of": Evidence.SIMULATED}
            ),
            False,
            "better in the simulation, open on a real node",
        ),
        (
            predicted(OPEN).model_copy(update={"verdict": Verdict.INDISTINGUISHABLE}),
            None,
            "indistinguishable",
        ),
    ],
)
def test_a_prediction_says_whether_it_holds_on_a_real_node(
    outcome: Recommendation, holds: bool | None, said: str
) -> None:
    assert outcome.to_json()["holds_on_a_node"] is holds
    assert Recommendation.from_json(json.loads(json.dumps(outcome.to_json()))) == outcome
    assert f"Verdict: {said}" in conclusion(outcome)
    tags = outcome_tags(outcome)
    assert (tags["verdict"], tags.get("holds_on_a_node")) == (
        outcome.verdict,
        {None: None}.get(holds, str(holds).lower()),
    )
    advised = f"`autotune verify {outcome.study} --on process`" in conclusion(outcome)
    assert advised is ("real node" in said)
    assert f"Verdict: {said}" in sentence("gain", outcome), "serve.sh and the exports"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (None, "has not ended, so it has no predictions yet"),
        ({"evidence": Evidence.MEASURED}, "is already measured on real servers"),
        ({"recommended": None, "verdict": Verdict.INFEASIBLE}, "has no recommendation"),
    ],
)
def test_what_predicts_nothing_is_not_verified(
    tmp_path: Path, changes: dict[str, object] | None, why: str
) -> None:
    home = Home(tmp_path)
    folder = home.open(small_study.spec(study="s"))
    if changes is not None:
        done = small_study.recommendation(**changes)
        (folder / "recommendation.json").write_text(json.dumps(done.to_json()))
    with pytest.raises(BadInput, match=why):
        verification(home, VerifyOptions("s", on="emulator"), silent)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (VerifyOptions("unknown"), "unknown study 'unknown'"),
        (VerifyOptions("s"), "no 8 x h200.*--on emulator"),
        (
            VerifyOptions("s", on="simulator"),
            "predictions are measured on process, docker, emulator, external:URL",
        ),
    ],
)
def test_where_nothing_can_be_measured_that_is_said(
    tmp_path: Path, options: VerifyOptions, why: str
) -> None:
    home = Home(tmp_path)
    folder = home.open(small_study.spec(study="s"))
    (folder / "recommendation.json").write_text(json.dumps(small_study.recommendation().to_json()))
    with pytest.raises(AutotuneError, match=why):
        verification(home, options, silent)


def verifying() -> tuple[StudySpec, CandidateSet]:
    """The small study as one that verifies predictions of 6,300 and 8,645, and of a command that
    was not launched."""
    told = [
        ("baseline", BASELINE, 6300.0),
        ("recommended", WINNER, 8645.0),
        ("next best", small_study.TOO_BIG, 5000.0),
    ]
    commands = tuple(
        PredictedCommand(
            role=role,
            engine=one.engine,
            command=small_study.COMMANDS[one].shell(),
            fingerprint=one.fingerprint,
            predicted=value,
            interval90=(value / 2, value * 2),
        )
        for role, one, value in told
    )
    spec = small_study.spec(verifies=Verified(study="s", label="SIMULATED", commands=commands))
    known = dict.fromkeys(
        [one for _, one, _ in told] + [row.trial.configuration for row in small_study.launches()]
    )
    items = [Candidate(one, small_study.VERSIONS[one.engine]) for one in known]
    return spec, CandidateSet(items, 0, as_they_are=True)


def test_each_command_stands_beside_its_prediction_and_its_error(tmp_path: Path) -> None:
    spec, candidates = verifying()
    launches = small_study.launches()
    history = History.from_launches(spec, candidates, launches)
    rows = StudyFigures(history, launches, judge(history)).predictions()
    assert [row.role for row in rows] == ["baseline", "recommended", "next best"]
    assert rows[0].measured is not None
    assert rows[0].predicted.error_percent == pytest.approx(
        100 * (6300 / rows[0].measured.value - 1)
    )
    assert rows[1].predicted.error_percent == pytest.approx(-5.0, abs=0.01)
    assert (rows[2].measured, rows[2].failure, rows[2].predicted.error_percent) == (
        None,
        "out_of_memory",
        None,
    )
    outcome = small_study.recommendation(predictions=rows, evidence=Evidence.MEASURED)
    assert Recommendation.from_json(outcome.to_json()) == outcome
    assert lines("predictions", outcome)[1] == (
        "Recommended (sglang): predicted 8,640 (90 % interval 4,320 to 17,300), measured 9,100, "
        "prediction error -5.0 %."
    )
    report = render(StudyRecord(spec, launches, outcome, tmp_path), "md")
    assert "## How accurate were the predictions?" in report
    for line in lines("predictions", outcome):
        assert line in report.replace("\\_", "_")
    assert "out_of_memory, not measured" in lines("predictions", outcome)[2]
    assert "autotune verify s --on" in report.replace(" \\\n ", ""), "how to do it again"


def test_every_prediction_is_measured_once_before_anything_is_measured_again() -> None:
    spec, candidates = verifying()
    launches = small_study.launches()
    everything = History.from_launches(spec, candidates, launches)
    assert _unmeasured_prediction(everything) is None
    few = History.from_launches(
        spec,
        candidates,
        [one for one in launches if one.trial.configuration != small_study.TOO_BIG],
    )
    step = _unmeasured_prediction(few)
    assert step is not None
    assert step.position == 2
    assert _unmeasured_prediction(replace(few, spec=small_study.spec())) is None
