"""From the launches of a study to its recommendation: the winner, its gain with an interval, the verdict.

The winner is the finalist, if the sequential test of its fresh launches against the baseline's stopped at a bound:
``better``. Its gain is the test's median-unbiased estimate with its 95 % interval (`search.sequential`), so it can
differ a little from the ratio of the geometric means; positive is better, also for latencies. The verdict is
``unopposed`` where the baseline could not run, ``infeasible`` where nothing ran or kept the SLOs, and else
``indistinguishable``: then the one of baseline and finalist with the fewest settings is recommended. Where the
baseline changed during the study, the recommendation says so. Where several nodes ran it, configurations are
compared by launches on the same node, so that a gain can differ from the ratio of the means by a little more.

The judgement itself is in `autotune.search.decide.verdict`, because the study needs it too, to decide which launches
of the finals are worth making; here it is put into words and figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from autotune import comparison
from autotune.search import equivalents
from autotune.search.decide.estimate import percent
from autotune.search.decide.sequential_test import Outcome
from autotune.search.decide.verdict import Judgement, judge
from autotune.search.history import History
from autotune.space.enumeration import CandidateSet
from autotune.study.recommendation import Exclusion, Explanation, NodeShare, Recommendation, Verdict
from autotune.study.spec import StudySpec
from autotune.trial import Evidence, Launch


def recommend(
    spec: StudySpec,
    candidates: CandidateSet,
    launches: Sequence[Launch],
    excluded: Sequence[Exclusion] = (),
    stop_reason: str = "",
    explanation: Explanation | None = None,
) -> Recommendation:
    """What to serve with, and how sure that is; the rules stand at the top of this file.

    Args:
        launches: in any order; of configurations that are candidates (``KeyError`` otherwise).
        excluded: engines that were not searched.
        stop_reason: why the study ended; why nothing could be told is added to it.
        explanation: of the same launches; None = nothing is explained.
    """
    measured = History.of(spec, candidates, launches)
    history = measured.adjusted()
    judgement = judge(history)
    nodes, told = comparison.nodes(measured), explanation or Explanation()
    sheet = comparison.Sheet(history, launches, judgement)
    gain, winner, base = judgement.gain, judgement.winner, candidates.baseline
    joined = equivalents.canonical_of(launches, candidates, candidates.items[base].fingerprint)
    return Recommendation(
        study=spec.study,
        model=spec.model.id,
        hardware=spec.hardware.name,
        gpus=spec.gpus,
        evidence=launches[0].result.evidence if launches else Evidence.MEASURED,
        verdict=judgement.verdict,
        stop_reason="; ".join([*_explained(stop_reason, judgement, len(history.by_position) > 1, nodes), *_left(told)]),
        recommended=sheet.choice(winner) if winner is not None else None,
        baseline=sheet.choice(base) if history.scores(base) else None,
        gain_percent=percent(gain.log) if gain else None,
        gain_ci95=comparison.percents(gain.interval) if gain else None,
        workloads=sheet.workloads(),
        **dict(told),
        matrix=sheet.matrix(),
        front=sheet.front(),
        launches=len(launches),
        trials=len(history.by_position),
        failures=dict(sorted(Counter(x.result.failure.kind.value for x in launches if x.result.failure).items())),
        excluded=list(excluded),
        resolutions=equivalents.differences(launches, joined),
        nodes=nodes,
        nearest_miss=sheet.nearest_miss() if winner is None else None,
        duration_s=sum(entry.seconds for entry in history),
    )


def _left(told: Explanation) -> list[str]:
    """The regret that remains, in words."""
    found = told.regret
    return [f"odds {found.odds:g} that nothing is more than {found.percent:.1f} % better"] if found else []


def _explained(stop_reason: str, judgement: Judgement, challenged: bool, nodes: Sequence[NodeShare]) -> list[str]:
    parts = [stop_reason] if stop_reason else []
    if judgement.verdict is Verdict.INDISTINGUISHABLE:
        parts += _undecided(judgement, challenged)
    if judgement.change is not None:
        parts.append(
            f"the baseline's score changed by {percent(judgement.change):+.1f} % from its first launch to its last: "
            "the node may have changed during the study, and nothing is corrected for that"
        )
    for node in nodes:
        if node.certain:
            how = "slower" if node.offset_percent < 0 else "faster"
            parts.append(
                f"node {node.node} is {abs(node.offset_percent):.0f} % {how} than the others: nothing more was "
                "launched there, and scores of its launches are corrected"
            )
    return parts


def _undecided(judgement: Judgement, challenged: bool) -> list[str]:
    gain = judgement.challenger_gain
    if gain is None or gain.interval is None:
        # Where challengers were tried and none ran, more launches of the same would not have helped.
        few = judgement.challenger is not None or not challenged
        return ["too few launches to tell the best from the baseline: it must run again, and the baseline too"] * few
    low, high = (percent(end) for end in gain.interval)
    short = "too few launches to tell: " if judgement.outcome is Outcome.OPEN else ""
    return [
        f"{short}the best challenger's gain is {percent(gain.log):+.1f} % (95 % interval {low:+.1f} to {high:+.1f} %)"
    ]
