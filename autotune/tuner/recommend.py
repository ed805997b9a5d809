"""Turn the launches of a study into its recommendation: the winner, its gain with an interval, the
verdict.

The winner is the finalist, if the sequential test of its fresh launches against the baseline's
stopped at a bound: ``better``. Its gain is the test's median-unbiased estimate with its 95 %
interval (`search.sequential`), so it can differ a little from the ratio of the geometric means;
positive is better, also for latencies. The verdict is ``unopposed`` where the baseline could not
run, ``infeasible`` where nothing ran or kept the SLOs, and else ``indistinguishable``: then the
baseline stays, unless it breaks an SLO that the finalist keeps. Where the baseline changed during
the study, the recommendation says so. Where several nodes ran it, configurations are compared by
launches on the same node, so that a gain can differ from the ratio of the means by a little more.

The judgement itself is in `autotune.tuner.search.decide.verdict`, because the study needs it too, to
decide which launches of the finals are worth making; here it is put into words and figures.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from autotune.base import Evidence, Json, StringDict
from autotune.engines import Candidate, CandidateSet, Kept
from autotune.engines.promises import NOTICED, noticed
from autotune.load.metrics import readable

from .comparison import StudyFigures, compare_nodes
from .search import equivalents
from .search.decide.verdict import Judgement, evidence, judge
from .search.front import dominated
from .search.history import History
from .search.reach import OUT_OF_REACH
from .search.spread import Spread, mean, percent
from .study.home import context_limit
from .study.recommendation import (
    Choice,
    Exclusion,
    Explanation,
    FrontPoint,
    NodeShare,
    PromisedValue,
    Recommendation,
    StudyCost,
    Verdict,
    compared_answers,
)
from .study.sentences import sentences
from .study.spec import StudySpec
from .trial import Launches, Role, State, TrialResult, named


def recommend(
    spec: StudySpec,
    candidates: CandidateSet,
    launches: Launches,
    excluded: Sequence[Exclusion] = (),
    stop_reason: str = "",
    explanation: Explanation | None = None,
    kept: Mapping[str, Kept] = MappingProxyType({}),
) -> Recommendation:
    """Recommend a command with its certainty; the rules are at the top of this file.

    The launches are of candidates (``KeyError`` otherwise), in any order. Why nothing could be
    decided is added to the `stop_reason`. By engine, `kept` is what its candidates have of the
    user's own command.
    """
    spec = spec.with_goodput_floor if stop_reason == OUT_OF_REACH else spec
    measured = History.from_launches(spec, candidates, launches)
    history, candidates = measured.adjusted(), measured.candidates
    judgement = judge(history)
    nodes = compare_nodes(measured)
    explained = explanation or Explanation()
    sheet = StudyFigures(history, launches, judgement)
    gain = judgement.gain
    winner = judgement.winner
    base = candidates.baseline
    usual = candidates.baseline_candidate
    seen = launches[0].result if launches else TrialResult(State.COMPLETE, Evidence.MEASURED)
    predicted = seen.origin.predicted
    baseline = _chosen(sheet, base, predicted) if history.scores(base) else None
    on_a_node = None
    if winner is not None and winner != base and gain and predicted and baseline:
        on_a_node = sheet.gain_interval90(winner, gain)
    joined = equivalents.canonical_of(launches, candidates, usual.fingerprint)
    chosen = candidates.items[winner].fingerprint if winner is not None else ""
    recommended = _chosen(sheet, winner, predicted) if winner is not None else None
    return Recommendation(
        **_head(spec, launches, seen),
        verdict=judgement.verdict,
        stop_reason="; ".join(_explained(stop_reason, judgement, history, launches, nodes)),
        unconfirmed=_unconfirmed(history, launches),
        recommended=recommended,
        baseline=baseline,
        gain_percent=percent(gain.log) if gain else None,
        gain_ci95=gain.percents if gain else None,
        gain_interval90_on_a_node=on_a_node,
        gain_over_recipe=sheet.over_recipe(),
        gives_up=list(history.trade_offs(winner)) if winner is not None else [],
        given_up=_given_up(history, launches),
        **_beside_the_baseline(spec, recommended, usual, kept),
        alternatives=sheet.alternatives(),
        predictions=sheet.predictions(),
        **compared_answers(launches, usual.fingerprint, chosen),
        workloads=sheet.workloads(),
        **dict(explained),
        matrix=sheet.matrix(),
        front=front(sheet),
        trials=len(history.by_position),
        excluded=list(excluded),
        resolutions=equivalents.differences(launches, joined),
        nodes=nodes,
        nearest_miss=sheet.nearest_miss() if winner is None else None,
        curves=sheet.curves() if spec.rungs_of(Role.FINAL) else None,
        drafts_by_load=sheet.drafts_by_load(),
        study_cost=StudyCost.of(spec, launches),
        duration_s=sum(launch.result.seconds for launch in launches),
    )


def _given_up(history: History, launches: Launches) -> dict[str, list[str]]:
    """Return the kinds of trade-offs of each launched configuration that has any, by
    fingerprint."""
    kinds = dict[str, list[str]]()
    for name in dict.fromkeys(launch.fingerprint for launch in launches):
        rows = history.trade_offs(history.canonical(history.candidates.position(name)))
        if rows:
            kinds[name] = sorted({row.kind for row in rows})
    return kinds


def _chosen(sheet: StudyFigures, position: int, predicted: bool) -> Choice:
    """Return a configuration, where predicted with its objective's interval on a real node."""
    choice = sheet.choice(position)
    if not predicted:
        return choice
    objective = choice.objective.with_fields(interval90_on_a_node=sheet.interval90(position))
    return choice.with_fields(objective=objective, not_simulated=sheet.not_simulated(position))


def _beside_the_baseline(
    spec: StudySpec, recommended: Choice | None, usual: Candidate, kept: Mapping[str, Kept]
) -> Json:
    """Return what the recommended command has of the user's, and their promises value by value; {}
    for the same."""
    if recommended is None or recommended.fingerprint == usual.fingerprint:
        return {}
    baseline = usual.configuration
    own = kept.get(recommended.engine, Kept())
    rows = []
    for knob, what in NOTICED.items():
        if knob not in baseline.knobs or knob not in recommended.config:
            continue  # A row of a table does not say.
        pair = baseline.knobs[knob], recommended.config[knob]
        # Engines mean different things by a memory fraction.
        alike = knob != "memory_fraction" or recommended.engine == baseline.engine
        if alike and (knob == "context_length" or pair != (None, None)):
            limits = (
                context_limit(spec, baseline.engine, usual.engine_version),
                context_limit(spec, recommended.engine, recommended.engine_version),
            )
            old, new = (noticed(knob, *one) for one in zip(pair, limits, strict=True))
            rows.append(PromisedValue(what=what, knob=knob, baseline=old, recommended=new))
    return {
        "promised": rows,
        "kept": own.kept,
        "translated": own.translated,
        "dropped": own.dropped,
    }


def unfinished(spec: StudySpec, launches: Launches) -> Recommendation:
    """Summarise an unfinished study: without a verdict or a recommendation."""
    return Recommendation(
        **_head(spec, launches, launches[0].result),
        verdict=Verdict.UNFINISHED,
        stop_reason="",
        recommended=None,
        baseline=None,
        gain_percent=None,
        gain_ci95=None,
        workloads={},
        excluded=[],
        trials=len({launch.fingerprint for launch in launches}),
        duration_s=sum(launch.result.seconds for launch in launches),
    )


def _head(spec: StudySpec, launches: Launches, seen: TrialResult) -> Json:
    """Return the head of every summary: the settings of the study, its evidence, its launches, and
    failures by kind."""
    return {
        "study": spec.study,
        "model": spec.model.id,
        "hardware": spec.hardware.name,
        "gpus": spec.gpus,
        "evidence": seen.evidence,
        "evidence_of": seen.evidence_of,
        "launches": len(launches),
        "failures": dict(
            sorted(
                Counter(x.result.failure.kind.value for x in launches if x.result.failure).items()
            )
        ),
    }


def _unconfirmed(history: History, launches: Launches) -> str:
    """Say that no final of a challenger was measured, and why; empty where one was, or none was to
    be."""
    finals = {e.number for e in history.of_role(Role.FINAL) if e.position != history.baseline}
    results = [row.result for row in launches if row.number in finals]
    if any(e.measured for e in history if e.number in finals):
        return ""
    ends = [one.failure.kind if one.failure else one.state for one in results]
    known = {"challengers": history.challengers, "unexplained": history.unexplained_launches}
    return "".join(sentences(__file__, "unconfirmed", finals=ends, named=named, **known))


def _unfit_recipes(history: History, launches: Launches) -> StringDict:
    """Return the launched vendor recipes without a gain, each with the kind of its failure; empty
    where it violates a limit."""
    unfit = {}
    candidates = history.candidates
    for position, name in candidates.recipes.items():
        if (
            history.canonical(position) == candidates.baseline
            or not history.at(position)
            or history.feasible(position)
        ):
            continue
        one = history.configuration(position)
        mine = [row.result.failure for row in launches if row.fingerprint == one.fingerprint]
        kinds = [failure.kind.value for failure in mine if failure and not history.scores(position)]
        unfit[f"{one.engine}'s recipe {name}"] = kinds[0] if kinds else ""
    return unfit


def _explained(
    stop_reason: str,
    judgement: Judgement,
    history: History,
    launches: Launches,
    nodes: Sequence[NodeShare],
) -> list[str]:
    """List the reasons why the study ended and why its answer is not more certain."""
    indistinguishable = judgement.verdict is Verdict.INDISTINGUISHABLE
    entries = [] if judgement.winner is None else history.at(judgement.winner)
    numbers = {entry.number for entry in entries}
    mine = [launch.result for launch in launches if launch.number in numbers]
    return sentences(
        __file__,
        "explained",
        stop_reason=stop_reason,
        undecided=indistinguishable and not history.candidates.alone,
        judgement=judgement,
        readable=readable,
        metric=history.spec.objective,
        percent=percent,
        challenged=len(history.by_position) > 1,
        nodes=nodes,
        changes=history.changes,
        launched=len(mine),
        # Failures among the launches of the recommended command count as chance.
        failed=[one.failure.kind for one in mine if one.state is State.FAILED and one.failure],
        recipes=_unfit_recipes(history, launches),
    )


def front(sheet: StudyFigures) -> list[FrontPoint]:
    """Return the non-dominated configurations that meet the SLOs, by the first goal; none without a
    second."""
    spec = sheet.spec
    if len(spec.goals) == 1:
        return []
    feasible = [p for p in sheet.history.by_position if sheet.history.feasible(p, Role.FINAL)]
    seconds = {p: scores for p in feasible if (scores := sheet.seconds(p))}
    firsts = {p: mean(evidence(sheet.history, p)) for p in seconds}
    both = np.array([(firsts[p], mean(seconds[p])) for p in seconds]).reshape(-1, 2)
    kept = [p for p, beaten in zip(seconds, dominated(both), strict=True) if not beaten]
    spread = Spread.pooled(seconds.values())
    points = []
    for position in sorted(kept, key=lambda p: -firsts[p]):
        latest = sheet.measured(position)[-1].result
        points.append(
            FrontPoint(
                **sheet.choice(position).model_dump(),
                second=sheet.goal(spec.goals[-1], spec.workloads[0], seconds[position], spread),
                evidence=latest.evidence,
                evidence_of=latest.evidence_of,
            )
        )
    return points
