"""What the report concludes where nothing is better, the baseline did not run, or nothing kept the
limits."""

from __future__ import annotations

from pathlib import Path

from autotune.engines.failure import Failure, FailureKind
from autotune.load.metrics.formulas import Slo
from autotune.outputs.report.render import render
from autotune.tuner.study.recommendation import Verdict
from autotune.tuner.trial import Role
from tests import small_study
from tests.outputs.test_report import blocks, record, section
from tests.small_study import BASELINE, conclusion


def test_indistinguishable_claims_nothing(tmp_path: Path) -> None:
    close = {"verdict": Verdict.INDISTINGUISHABLE, "gain_percent": 1.2, "gain_ci95": (-0.5, 2.9)}
    report = render(record(tmp_path, small_study.recommendation(**close)), "md")
    text = section(report, "Conclusion")
    assert "is indistinguishable from the baseline" in text
    assert "Gain +1.2 % (95 % interval -0.5 % to +2.9 %" in text
    assert "the difference may be chance" in text
    assert "better, as" not in text


def test_both_gains_are_told_and_one_that_shrinks() -> None:
    whole = small_study.recommendation()
    name = next(iter(whole.workloads))

    def told(prompts: str | None, expected: float | None, **more: object) -> str:
        rows = {name: whole.workloads[name].model_copy(update={"prompts": prompts, **more})}
        within = None if expected is None else (expected - 3, expected + 3)
        gains = {"gain_percent": 10.0, "gain_ci95": (6.0, 14.0), "workloads": rows}
        return conclusion(
            whole.model_copy(
                update={**gains, "search_gain_percent": expected, "search_gain_ci95": within}
            )
        )

    assert "prompts" not in told(None, 12.0)
    assert (
        "that the search had not used; the search's estimate was +14.0 % (95 % interval +11.0 % to +17.0 %)."
        in told("unseen", 14.0)
    )
    # 5 % are the two half intervals of 4 and 3 together.
    assert (
        "+15.1 % (95 % interval +12.1 % to +18.1 %): the gain on new prompts is smaller by more"
        in told("unseen", 15.1)
    )
    assert "prompts that the search had not used (jsonl:mine)." in told(
        "unseen", None, sent="jsonl:mine"
    )
    assert "prompts that the search had used" in told("seen", 12.0)
    # What was sent is told of the baseline too, where it is what is recommended.
    row = whole.workloads[name].model_copy(update={"prompts": "unseen", "sent": "jsonl:mine"})
    itself = whole.model_copy(update={"recommended": whole.baseline, "workloads": {name: row}})
    assert "had not used (jsonl:mine)." in conclusion(itself)


def test_the_baseline_itself_as_the_winner(tmp_path: Path) -> None:
    same = small_study.choice(BASELINE, 6000.0)
    outcome = small_study.recommendation(
        verdict=Verdict.INDISTINGUISHABLE,
        recommended=same,
        baseline=same,
        gain_percent=0.0,
        gain_ci95=None,
    )
    assert "This is the baseline: no configuration" in conclusion(outcome)
    assert "no gain is claimed" in conclusion(outcome)


def test_unopposed_says_why_the_baseline_did_not_run(tmp_path: Path) -> None:
    failure = Failure(FailureKind.UNSUPPORTED, "DCP needs *softmax* LSE.", "")
    launches = [
        small_study.launch(0, Role.BASELINE, BASELINE, failure),
        *small_study.launches()[3:4],
    ]
    outcome = small_study.recommendation(
        verdict=Verdict.UNOPPOSED,
        baseline=None,
        gain_percent=None,
        gain_ci95=None,
        contributions=[],
    )
    text = section(render(record(tmp_path, outcome, launches), "md"), "Conclusion")
    assert "there is no comparison" in text
    assert "The baseline failed with unsupported: DCP needs \\*softmax\\* LSE." in text
    assert len(blocks(text)) == 1
    assert "Gain" not in text


def test_infeasible_gives_no_command(tmp_path: Path) -> None:
    text = section(render(record(tmp_path, small_study.infeasible()), "md"), "Conclusion")
    assert "there is no command to recommend" in text
    assert blocks(text) == []
    broken = section(
        render(
            record(
                tmp_path,
                small_study.infeasible(),
                small_study.launches()[:1],
                slos=[Slo.parse("mean_tpot_ms<=50")],
            ),
            "md",
        ),
        "Conclusion",
    )
    assert "- launch 0: mean\\_tpot\\_ms\\<=50 by 300 % (200)" in broken
    nothing = section(render(record(tmp_path, small_study.infeasible(), []), "md"), "Conclusion")
    assert "No launch is valid" in nothing


def test_a_goodput_of_next_to_nothing_says_that_the_load_is_too_heavy() -> None:
    """A gain of several hundred percent over next to nothing is no answer."""
    choice = small_study.recommendation().recommended
    assert choice is not None
    choice = choice.model_copy(
        update={"objective": choice.objective.model_copy(update={"metric": "request_goodput"})}
    )
    row = small_study.recommendation().workloads[choice.objective.workload]
    said = []
    for good in (0.5, 2.0):
        metrics = {**(row.recommended or {}), "request_goodput": good, "request_throughput": 12.5}
        rows = {choice.objective.workload: row.model_copy(update={"recommended": metrics})}
        said.append(conclusion(small_study.recommendation(recommended=choice, workloads=rows)))
    assert "Only 4 % of the requests are good" in said[0]
    assert said[0].index("Only 4 %") < said[0].index("Gain")
    assert "of the requests are good" not in said[1]
