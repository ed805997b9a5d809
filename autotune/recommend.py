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
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from autotune import comparison
from autotune.search import equivalents, objective
from autotune.search.decide.estimate import mean, percent
from autotune.search.decide.sequential_test import Outcome
from autotune.search.decide.verdict import Judgement, evidence, judge, settings_of
from autotune.search.history import BASELINE_ROLES, History
from autotune.search.nodes import NodeScore, contrast
from autotune.space.enumeration import CandidateSet
from autotune.study.recommendation import (
    Choice,
    Exclusion,
    Explanation,
    NodeShare,
    Objective,
    Recommendation,
    Resolution,
    Verdict,
    WorkloadComparison,
)
from autotune.study.spec import StudySpec
from autotune.trial import Evidence, Launch, Metrics, Role


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
    nodes = comparison.nodes(measured)
    sheet = _Sheet(spec, history, {launch.trial.number: launch for launch in launches}, judgement)
    gain, told = judgement.gain, explanation or Explanation()
    return Recommendation(
        study=spec.study,
        model=spec.model.id,
        hardware=spec.hardware.name,
        gpus=spec.gpus,
        evidence=launches[0].result.evidence if launches else Evidence.MEASURED,
        verdict=judgement.verdict,
        stop_reason=_explained(stop_reason, judgement, len(history.by_position) > 1, nodes),
        recommended=sheet.choice(judgement.winner),
        baseline=sheet.choice(candidates.baseline if history.scores(candidates.baseline) else None),
        gain_percent=percent(gain.log) if gain else None,
        gain_ci95=_percents(gain.interval) if gain else None,
        workloads=sheet.workloads(),
        contributions=told.contributions,
        inert=told.inert,
        untried=told.untried,
        matrix=comparison.matrix(history, judgement, sheet._measured, sheet.choice),
        front=comparison.front(history, sheet._measured, sheet.choice),
        launches=len(launches),
        trials=len(history.by_position),
        failures=_failures(launches),
        excluded=list(excluded),
        resolutions=_resolutions(candidates, launches),
        nodes=nodes,
        duration_s=sum(entry.seconds for entry in history),
    )


class _Sheet:
    """The figures of a recommendation."""

    def __init__(self, spec: StudySpec, history: History, launches: Mapping[int, Launch], judgement: Judgement) -> None:
        self._spec, self._history, self._launches, self._judgement = spec, history, launches, judgement
        self._base = history.candidates.baseline

    def choice(self, position: int | None) -> Choice | None:
        """A configuration with its command and what it achieves."""
        if position is None:
            return None
        trial = self._shown(position).trial
        return Choice(
            engine=trial.configuration.engine,
            engine_version=trial.engine_version,
            config=dict(trial.configuration.knobs),
            fingerprint=trial.configuration.fingerprint,
            argv=list(trial.command.words),
            container=list(trial.command.container),
            env=dict(trial.command.env),
            files=dict(trial.command.files),
            command=trial.command.shell(),
            objective=self._objective(position),
        )

    def _shown(self, position: int) -> Launch:
        """The launch whose command stands for a configuration: the equivalent without settings that do nothing.

        The baseline's stands as it was typed.
        """
        launches = self._measured(position)
        fingerprint = self._history.candidates.items[position].fingerprint
        own = [row for row in launches if row.trial.configuration.fingerprint == fingerprint]
        if position == self._base and own:
            return own[-1]
        return min(launches, key=lambda row: settings_of(self._history, row.trial.configuration))

    def _objective(self, position: int) -> Objective:
        scores = evidence(self._history, position)
        middle, half = mean(scores), self._judgement.spread.half_width((len(scores),))
        ends = None if half is None or len(scores) < 2 else (middle - half, middle + half)
        values = sorted(objective.from_score(self._spec, end) for end in ends) if ends else None
        return Objective(
            metric=self._spec.objective,
            workload=objective.on_workloads(self._spec),
            value=objective.from_score(self._spec, middle),
            ci95=(values[0], values[1]) if values else None,
            repeats=len(scores),
        )

    def _measured(self, position: int) -> list[Launch]:
        """The launches behind `evidence`, in order."""
        roles = BASELINE_ROLES if position == self._base else (Role.FINAL,)
        return [self._launches[e.number] for e in self._history.evidence(position, *roles)]

    def workloads(self) -> dict[str, WorkloadComparison]:
        """Every workload before and after."""
        return {name: self._comparison(name) for name in self._spec.workloads}

    def _comparison(self, workload: str) -> WorkloadComparison:
        winner = self._judgement.winner
        before = self._node_scores(self._base, workload)
        after = self._node_scores(winner, workload) if winner is not None else []
        gain = percent(contrast(after, before)[0]) if before and after else None
        if gain is not None and self._judgement.gain and list(objective.weights(self._spec)) == [workload]:
            gain = percent(self._judgement.gain.log)
        return WorkloadComparison(
            baseline=self._metrics(self._base, workload),
            recommended=self._metrics(winner, workload) if winner is not None else None,
            gain_percent=gain,
        )

    def _node_scores(self, position: int, workload: str) -> list[NodeScore]:
        """The scores with the nodes where they were measured."""
        if not self._history.scores(position):
            return []
        nodes, rows = {entry.number: entry.node for entry in self._history}, self._measured(position)
        scores = [(nodes[row.trial.number], objective.score(self._spec, row, workload)) for row in rows]
        return [(node, score) for node, score in scores if score is not None]

    def _metrics(self, position: int, workload: str) -> Metrics | None:
        """Means over the launches of every metric that is a number in all of them."""
        if not self._history.scores(position):
            return None
        rows = [m for launch in self._measured(position) if (m := launch.result.metrics.get(workload))]
        if not rows:
            return None
        means = {name: _mean_of([row.get(name) for row in rows], rows[-1][name]) for name in rows[-1]}
        # Goals have one mean everywhere, the geometric one that gains are ratios of.
        scores = [score for _, score in self._node_scores(position, workload)]
        if workload in objective.weights(self._spec) and scores:
            means[self._spec.objective] = objective.from_score(self._spec, mean(scores))
        seconds = [s for launch in self._measured(position) if (s := objective.second(self._spec, launch)) is not None]
        if workload == self._spec.workloads[0] and self._spec.pareto and seconds:
            means[self._spec.pareto] = objective.from_score(self._spec, mean(seconds), self._spec.pareto)
        return means


def _resolutions(candidates: CandidateSet, launches: Sequence[Launch]) -> list[Resolution]:
    joined = equivalents.canonical_of(launches, candidates, candidates.items[candidates.baseline].fingerprint)
    return [
        Resolution(**{**asdict(found), "launches": list(found.launches)})
        for found in equivalents.differences(launches, joined)
    ]


def _explained(stop_reason: str, judgement: Judgement, challenged: bool, nodes: Sequence[NodeShare]) -> str:
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
    return "; ".join(parts)


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


def _percents(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    return (percent(interval[0]), percent(interval[1])) if interval else None


def _failures(launches: Sequence[Launch]) -> dict[str, int]:
    kinds = Counter(launch.result.failure.kind.value for launch in launches if launch.result.failure)
    return dict(sorted(kinds.items()))


def _mean_of(values: Sequence[object], last: object) -> object:
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return mean(numbers) if len(numbers) == len(values) else last
