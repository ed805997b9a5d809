"""Figures of a recommendation: configurations before and after, their curves, the nodes.

All but the nodes are of the launches that count: those of the finals where a configuration has any.

Over numbers of requests in flight the gain at each is a ratio of geometric means over launches. A
launch is faster or slower as a whole, at all its loads, so the noise is that from launch to launch;
where the finals are too few to show it, 3 % are taken. One configuration is faster where the gain's
95 % interval by that noise excludes zero. Between concurrencies the gain and the ends of its
interval are interpolated on the logarithm of the concurrency.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import pairwise
from statistics import fmean
from typing import Any

from autotune.base import BadInput, Interval, Json, by_key
from autotune.engines import Command
from autotune.load.metrics.table import CURVE, HEADLINE, Metrics, curve_of, is_number, is_valid_row
from autotune.load.workloads import Workload, load_workload
from autotune.node.calibration import ServerSetup, calibration_of, interval90, sigma
from autotune.node.prediction_intervals import errors_for, gain_interval90, subject_of
from autotune.node.resolve_command import not_simulated_in

from .search import objective
from .search.decide import drafts
from .search.decide.verdict import Gain, Judgement, evidence, settings_of
from .search.entry import Entry
from .search.history import History
from .search.nodes import NodeScore, contrast
from .search.spread import FEW_DEGREES, LAUNCH_NOISE, Spread, Z, mean, percent
from .study.home import library_of
from .study.loads import FACTS
from .study.recommendation import (
    SERVED,
    Alternative,
    BrokenLimit,
    Choice,
    Crossing,
    CurvePoint,
    Curves,
    DraftedAtLoad,
    MatrixCell,
    MatrixRow,
    NearestMiss,
    NodeShare,
    Objective,
    PredictedValue,
    RecipeGain,
    Recommendation,
    Verification,
    WorkloadComparison,
)
from .study.spec import PredictedCommand, StudySpec
from .trial import Launch, Launches, Role, Side


def compare(
    spec: StudySpec, spread: Spread, baseline: Launches, recommended: Launches
) -> Curves | None:
    """Return the curves of the objective, or of total token throughput if the loads of the curve
    lack it.

    The launches are those that count; those of the recommended are none where the baseline is
    recommended.
    """
    for metric in (spec.objective, HEADLINE):
        theirs, mine = (_scores_by_load(spec, rows, metric) for rows in (baseline, recommended))
        if theirs or mine:
            break
    else:
        return None
    points = []
    for load in sorted(mine.keys() | theirs.keys()):
        values = [
            objective.value_of(metric, mean(s[load])) if load in s else None for s in (theirs, mine)
        ]
        gain = {}
        if load in mine and load in theirs:
            half = half_width(spread, (len(mine[load]), len(theirs[load])))
            log = mean(mine[load]) - mean(theirs[load])
            faster = None if abs(log) <= half else "recommended" if log > 0 else "baseline"
            ends = (percent(log - half), percent(log + half))
            gain = {"gain_percent": percent(log), "ci95": ends, "faster": faster}
        points.append(
            CurvePoint(concurrency=load, baseline=values[0], recommended=values[1], **gain)
        )
    return Curves(
        metric=metric,
        workload=spec.workloads[0],
        noise_percent=percent(_noise(spread)),
        launches=(
            max(map(len, theirs.values()), default=0),
            max(map(len, mine.values()), default=0),
        ),
        points=points,
        crossings=crossings(points),
    )


def _scores_by_load(spec: StudySpec, launches: Launches, metric: str) -> dict[int, list[float]]:
    """Return the scores of a metric by concurrency, over the launches that measured it there."""
    return by_key(
        (load, score)
        for launch in launches
        for load, row in objective.curve(launch, spec.workloads[0]).items()
        if (score := objective.score_of(metric, row.get(metric))) is not None
    )


def half_width(spread: Spread, counts: Sequence[int]) -> float:
    """Return half the 95 % interval of a difference of means of these numbers of launches."""
    if spread.sd == 0:
        counts = [1 for _ in counts]
    elif spread.degrees > FEW_DEGREES:
        return spread.half_width(counts) or 0.0
    return Z * _noise(spread) * math.sqrt(sum(1 / n for n in counts))


def _noise(spread: Spread) -> float:
    """Return the noise of one launch; the usual noise if few repeats show less or are equal."""
    few = spread.sd == 0 or spread.degrees <= FEW_DEGREES
    return max(spread.sd, LAUNCH_NOISE) if few else spread.sd


def crossings(points: Sequence[CurvePoint]) -> list[Crossing]:
    """Return where the faster one changes, for points by rising concurrency."""
    found = []
    known = [(one, one.ci95) for one in points if one.ci95 is not None]
    decided = [i for i, (one, _) in enumerate(known) if one.faster is not None]
    for first, last in pairwise(decided):
        below = known[first][0].faster
        above = known[last][0].faster
        if below is None or above is None or below == above:
            continue
        at = [one.concurrency for one, _ in known[first : last + 1]]
        ends = [
            sorted(math.log1p(end / 100) for end in ci95) for _, ci95 in known[first : last + 1]
        ]
        if below == "baseline":  # From here on falling from above zero to below it.
            ends = [[-high, -low] for low, high in ends]
        middle = _zero(at, [(low + high) / 2 for low, high in ends])
        low = _zero(at, [low for low, _ in ends])
        high = _zero(at[::-1], [-high for _, high in reversed(ends)])
        found.append(Crossing(concurrency=middle, between=(low, high), below=below, above=above))
    return found


def _zero(at: Sequence[int], heights: Sequence[float]) -> float:
    """Return the concurrency where a curve that starts above zero reaches it, log-interpolated;
    else the last."""
    for (a, b), (one, other) in zip(pairwise(at), pairwise(heights), strict=True):
        if other <= 0:
            return float(
                f"{math.exp(math.log(a) + one / (one - other) * (math.log(b) - math.log(a))):.4g}"
            )
    return float(at[-1])


def setup_of(spec: StudySpec, one: Choice) -> ServerSetup:
    """Return a configuration as the simulator knows it."""
    fitted = calibration_of(library_of(spec))
    node = spec.model, spec.hardware, spec.gpus
    return ServerSetup(one.engine, one.engine_version, one.config, *node, fitted)


def ratio_interval90(
    studies: Sequence[tuple[StudySpec, Recommendation]], name: str, metric: str, launches: float
) -> Interval | None:
    """Return the 90 % interval, in percent, of the ratio of two studies' recommended commands.

    None where the prompts of the workload `name` are no longer there.

    Args:
        launches: the error from launch to launch of each, a standard deviation of the logarithm.
    """
    sides = []
    for spec, outcome in studies:
        assert outcome.recommended is not None
        predicted = outcome.workloads[name].recommended or {}
        sides.append((setup_of(spec, outcome.recommended), predicted))
    with suppress(BadInput):
        workload = load_workload(name, library_of(studies[0][0]))
        mine, theirs = sides
        return gain_interval90(1.0, mine, theirs, workload, metric, (launches, launches))
    return None


class StudyFigures:
    """Figures of a study's candidates, by position.

    Gains are ratios of geometric means; of several nodes, by launches on the same ones.
    """

    def __init__(self, history: History, launches: Launches, judgement: Judgement) -> None:
        self.history = history
        self._judgement = judgement
        self.spec = history.spec
        self._launches = {launch.number: launch for launch in launches}
        self._base = history.baseline

    def choice(self, position: int) -> Choice:
        """Return a configuration with its results and its command, which listens on loopback as
        ``serve.sh`` does.

        A baseline that is not recommended keeps the command that was typed.
        """
        trial = self._shown(position).trial
        typed = position == self._base != self._judgement.winner
        command = trial.command if typed else trial.command.on_loopback()
        return Choice(
            engine=trial.configuration.engine,
            engine_version=trial.engine_version,
            config=dict(trial.configuration.knobs),
            fingerprint=trial.configuration.fingerprint,
            **_typed(command),
            objective=self.goal(
                self.spec.objective,
                objective.on_workloads(self.spec),
                evidence(self.history, position),
                self._judgement.spread,
            ),
            speculation=self._shown(position).result.speculation,
            **{name: self._least(position, name) for name in SERVED},
        )

    def not_simulated(self, position: int) -> list[str]:
        """List the settings of a configuration's command on which no figure of the simulator
        depends."""
        trial = self._shown(position).trial
        context = self.spec.context(trial.engine_version)
        return not_simulated_in(trial.command, library_of(self.spec), context)

    def _least(self, position: int, name: str) -> Any:
        """Return the least of a figure over the launches that report it; None for none."""
        results = [self._launches[entry.number].result for entry in self.history.at(position)]
        reported = [getattr(result, name) for result in results]
        return min((value for value in reported if value is not None), default=None)

    def alternatives(self) -> list[Alternative]:
        """Return the best measured command without a trade-off if the winner has one; else the
        fastest one with one."""
        history = self.history
        winner = self._judgement.winner
        if winner is None:
            return []
        mine = bool(history.trade_offs(winner))
        ran = [
            p
            for p in history.by_position
            if history.feasible(p) and bool(history.trade_offs(p)) is not mine
        ]
        ran = [p for p in ran if mine or self._over(p, winner).log > 0]
        # Fresh launches before others: the best of many single ones was lucky.
        best = max(
            ran, key=lambda p: (bool(history.scores(p, Role.FINAL)), self._level(p)), default=None
        )
        if best is None:
            return []
        trade_offs = list(history.trade_offs(best))
        lead = self._over(winner, best)
        kinds = " and ".join(dict.fromkeys(row.kind for row in trade_offs))
        label = "has no trade-off" if mine else f"has a trade-off ({kinds}, allowed by --allow)"
        figures = {
            "gives_up": trade_offs,
            "lead_percent": percent(lead.log),
            "lead_ci95": lead.percents,
        }
        return [Alternative(**self.choice(best).model_dump(), label=label, **figures)]

    def over_recipe(self) -> RecipeGain | None:
        """Return the winner's gain over the fastest vendor recipe that ran within the limits, the
        baseline excluded."""
        history = self.history
        winner = self._judgement.winner
        ran = [
            p
            for p in history.candidates.recipes
            if history.canonical(p) != self._base and history.feasible(p)
        ]
        if winner is None or not ran:
            return None
        best = max(ran, key=self._level)
        gain = Gain(0.0, None) if history.canonical(best) == winner else self._over(winner, best)
        return RecipeGain(
            engine=history.configuration(best).engine,
            recipe=history.candidates.recipes[best],
            percent=percent(gain.log),
            ci95=gain.percents,
        )

    def _over(self, position: int, other: int) -> Gain:
        """Return the gain of one configuration over another, with its 95 % interval by launch
        noise."""
        log, counts = self.history.contrast(position, other)
        return Gain.within(log, self._judgement.spread.half_width(counts))

    def interval90(self, position: int) -> Interval | None:
        """Return the interval of a simulated objective on a real node: the simulator's error, and
        the launches'."""
        workload = self._main_workload()
        if workload is None:
            return None
        setup, metrics = self._predicted(position)
        subject = subject_of(setup, workload, metrics)
        deviation = sigma(errors_for(setup), subject, self.spec.objective)
        half = self._judgement.spread.half_width((len(evidence(self.history, position)),)) or 0.0
        return interval90(self.choice(position).objective.value, deviation, (half, half))

    def gain_interval90(self, position: int, gain: Gain) -> Interval | None:
        """Return the interval as `interval90`, for a configuration's gain over the baseline in
        percent.

        A gain that was not tested has the spread of its launches.
        """
        workload = self._main_workload()
        if workload is None:
            return None
        sides = self._predicted(position), self._predicted(self._base)
        untested = self._over(position, self._base).interval
        low, high = gain.interval or untested or (gain.log, gain.log)
        reach = gain.log - low, high - gain.log
        return gain_interval90(math.exp(gain.log), *sides, workload, self.spec.objective, reach)

    def _main_workload(self) -> Workload | None:
        """Return the objective's workload, of several the one of most weight; None for a missing or
        unknown one."""
        try:
            self.spec.model.check_predicted()
            return load_workload(self._main, library_of(self.spec))
        except BadInput:
            return None

    @property
    def _main(self) -> str:
        return max(objective.weights(self.spec).items(), key=lambda pair: pair[1])[0]

    def _predicted(self, position: int) -> tuple[ServerSetup, Metrics]:
        return setup_of(self.spec, self.choice(position)), self._metrics(position, self._main) or {}

    def predictions(self) -> list[Verification]:
        """Compare another study's predictions of the candidates with the measurements."""
        verified = self.spec.verifies
        return [self._verified(one) for one in verified.commands] if verified else []

    def _verified(self, one: PredictedCommand) -> Verification:
        candidates = self.history.candidates
        measured = failure = None
        known = one.fingerprint in candidates
        # A server that somebody else runs is the only candidate, whatever its configuration is.
        position = candidates.position(one.fingerprint) if known else 0
        entries = self.history.at(position) if known or len(candidates) == 1 else []
        if entries:
            failure = self._launches[entries[-1].number].result.failure
            measured = self.choice(position).objective if self.history.scores(position) else None
        return Verification(
            **one.model_dump(include={"role", "engine", "fingerprint", "command"}),
            predicted=PredictedValue(
                value=one.predicted,
                interval90=one.interval90,
                error_percent=100 * (one.predicted / measured.value - 1) if measured else None,
            ),
            measured=measured,
            failure=failure.kind.value if failure else None,
            not_simulated=self.not_simulated(position) if measured else [],
        )

    def _level(self, position: int) -> float:
        return mean(evidence(self.history, position))

    def _shown(self, position: int) -> Launch:
        """Return the launch whose command represents a configuration: without idle settings; the
        baseline as typed."""
        launches = self.measured(position)
        fingerprint = self.history.candidates.items[position].fingerprint
        own = [row for row in launches if row.fingerprint == fingerprint]
        if position == self._base and own:
            return own[-1]
        return min(
            launches, key=lambda row: settings_of(self.history.candidates, row.trial.configuration)
        )

    def goal(
        self, metric: str, workload: str, scores: Sequence[float], spread: Spread
    ) -> Objective:
        """Return a goal's mean over launches with its interval."""
        middle = mean(scores)
        half = spread.half_width((len(scores),)) if len(scores) > 1 else None
        ends = [] if half is None else [middle - half, middle + half]
        values = sorted(objective.value_of(metric, end) for end in ends)
        return Objective(
            metric=metric,
            workload=workload,
            value=objective.value_of(metric, middle),
            ci95=(values[0], values[1]) if values else None,
            repeats=len(scores),
        )

    def measured(self, position: int) -> list[Launch]:
        """Return the launches behind `evidence`, in order."""
        return [self._launches[e.number] for e in self.history.deciding(position)]

    def _scores(self, position: int, workload: str) -> list[NodeScore]:
        """Return the scores on one workload with the nodes of their measurements."""
        scores = [
            (entry.node, objective.score_on(self.spec, self._on(entry, workload)))
            for entry in self.history.deciding(position)
        ]
        return [(node, score) for node, score in scores if score is not None]

    def _gain(self, position: int, workload: str, spread: Spread) -> Gain | None:
        """Return the gain over the baseline; None if one of them was not measured."""
        mine = self._scores(position, workload)
        base = self._scores(self._base, workload)
        if not mine or not base:
            return None
        judged = self._judgement.gain if position == self._judgement.winner else None
        if judged and list(objective.weights(self.spec)) == [workload]:
            return judged  # One gain has one interval.
        log = contrast(mine, base)[0]
        return Gain.within(log, spread.half_width((len(mine), len(base))))

    def workloads(self) -> dict[str, WorkloadComparison]:
        """Return baseline and recommendation on every workload."""
        winner = self._judgement.winner
        rows = {}
        for name in self.spec.workloads:
            gain = mine = None
            base = self._metrics(self._base, name)
            if winner is not None:
                gain = self._gain(winner, name, self._judgement.spread)
                mine = self._metrics(winner, name)
            rows[name] = WorkloadComparison(
                baseline=base,
                recommended=mine,
                gain_percent=percent(gain.log) if gain else None,
                **{key: side.pop(key, None) for side in (base, mine) if side for key in FACTS},
            )
        return rows

    def _metrics(self, position: int, workload: str) -> Metrics | None:
        """Return means over the launches of every metric that is a number in all of them."""
        deciding = self.history.deciding(position)
        rows = [measured for entry in deciding if (measured := self._on(entry, workload))]
        if not rows:
            return None
        means = _means_of(rows)
        # Goals have one mean everywhere, the geometric one that gains are ratios of.
        scores = [score for _, score in self._scores(position, workload)]
        if workload in objective.weights(self.spec) and scores:
            means[self.spec.objective] = objective.value_of(self.spec.objective, mean(scores))
        seconds = self.seconds(position)
        if workload == self.spec.workloads[0] and seconds:
            means[self.spec.goals[-1]] = objective.value_of(self.spec.goals[-1], mean(seconds))
        return means

    def _on(self, entry: Entry, workload: str) -> Metrics:
        return self._launches[entry.number].result.metrics.get(workload, {})

    def seconds(self, position: int) -> list[float]:
        """Return the scores of the second goal."""
        return [e.second for e in self.history.deciding(position) if e.second is not None]

    def matrix(self) -> list[MatrixRow]:
        """Return the baseline and the finalists that meet the SLOs, the recommended one first, by
        workload."""
        history = self.history
        base = self._base
        winner = self._judgement.winner
        contenders = [entry.position for entry in history.of_role(Role.FINAL)]
        kept = [p for p in contenders if history.feasible(p, Role.FINAL)]
        others = [p for p in dict.fromkeys([winner, *kept]) if p is not None and p != base]
        listed = [*([base] if history.scores(base) else []), *others]
        columns = {name: self._column(name, listed) for name in self.spec.workloads}
        roles: dict[int | None, Side] = {winner: "recommended", base: "baseline"}
        return [
            MatrixRow(
                **self.choice(p).model_dump(),
                role=roles.get(p, "finalist"),
                workloads={name: column[p] for name, column in columns.items() if p in column},
            )
            for p in listed
        ]

    def _column(self, workload: str, listed: Sequence[int]) -> dict[int, MatrixCell]:
        """Return one workload: position to its cell, for configurations measured on it."""
        groups = by_key((p, score) for p in listed for _, score in self._scores(p, workload))
        spread = Spread.pooled(groups.values())
        eligible = [p for p in groups if p != self._base or self.history.feasible(p)]
        best = max(eligible, key=lambda p: mean(groups[p]), default=None)
        cells = {}
        for p, scores in groups.items():
            gain = self._gain(p, workload, spread) if p != self._base else None
            cells[p] = MatrixCell(
                value=objective.value_of(self.spec.objective, mean(scores)),
                gain_percent=percent(gain.log) if gain else None,
                ci95=gain.percents if gain else None,
                repeats=len(scores),
                best=p == best,
            )
        return cells

    def nearest_miss(self) -> NearestMiss | None:
        """Return the measured configuration with the smallest worst SLO violation; None if none
        ran, or one meets all.

        A configuration counts where every limited metric was measured, by the mean over its
        launches.
        """
        found = []
        first = self.spec.workloads[0]
        for position in self.history.by_position:
            rows = self._tried(position)
            breaks = []
            for slo in self.spec.slos:
                values = [objective.number_in(self._on(row, first), slo.metric) for row in rows]
                value = fmean([math.nan if one is None else one for one in values] or [math.nan])
                breaks.append((slo.excess(value), slo, value))
            breaks.sort(key=lambda row: -row[0])
            if (
                breaks
                and not self.history.broke(position)
                and not any(math.isnan(row[0]) for row in breaks)
            ):
                found.append((breaks[0][0], position, breaks))
        if not found:
            return None
        _, position, breaks = min(found, key=lambda row: row[:2])
        broken = [
            BrokenLimit(slo=str(slo), metric=slo.metric, value=value, limit=slo.limit)
            for beyond, slo, value in breaks
            if beyond > 0
        ]
        if not broken:
            return None
        what: Json = {**dict(broken[0]), "broken": broken}
        if self.history.scores(position):
            keys = {"command", "argv", "env", "config"}
            return NearestMiss(**what, **self.choice(position).model_dump(include=keys))
        launch = self._launches[self._tried(position)[-1].number]
        return NearestMiss(
            **what,
            **_typed(launch.trial.command.on_loopback()),
            config=dict(launch.trial.configuration.knobs),
            load=self.spec.load.lightest(launch.result.curve(first)),
        )

    def _tried(self, position: int) -> list[Entry]:
        """Return the launches behind a configuration's figures, those without a capacity if it has
        no others."""
        return self.history.evidence(position, Role.FINAL) or [
            entry for entry in self.history.at(position) if entry.too_slow and entry.violations
        ]

    def curves(self) -> Curves | None:
        """Return the curves of baseline and recommended configuration; None if none was
        measured."""
        winner = self._judgement.winner
        mine = self.measured(winner) if winner is not None and winner != self._base else []
        return compare(self.spec, self._judgement.spread, self.measured(self._base), mine)

    def drafts_by_load(self) -> list[DraftedAtLoad]:
        """Return the numbers of drafted tokens without figures over the loads, then which number is
        the best at which load."""
        winner, curves, history = self._judgement.winner, self.curves(), self.history
        if winner is None or curves is None:
            return []
        near = drafts.others(history, winner)
        logs = {
            p: _scores_by_load(self.spec, self.measured(p), curves.metric)
            for p in (winner, *filter(history.feasible, near))
        }
        rows = [
            DraftedAtLoad(speculative_tokens=drafts.drafted(history, p))
            for p in near
            if not logs.get(p)
        ]
        for load, own in sorted(logs[winner].items() if len(rows) < len(near) else ()):
            leads = {p: mean(at[load]) - mean(own) for p, at in logs.items() if load in at}
            best = max(leads, key=leads.__getitem__)
            half = half_width(self._judgement.spread, (len(own), len(logs[best][load])))
            best = winner if leads[best] <= half else best
            ends = percent(leads[best] - half), percent(leads[best] + half)
            row = DraftedAtLoad(
                speculative_tokens=drafts.drafted(history, best),
                up_to_concurrency=load,
                gain_percent=percent(leads[best]),
                ci95=None if best == winner else ends,
                command=self.choice(best).command,
            )
            if rows and rows[-1].command == row.command:
                rows.pop()
            rows.append(row)
        return rows


def _typed(command: Command) -> Json:
    """Return the fields of a `Choice` or `NearestMiss` that have a command."""
    return {**asdict(command), "argv": command.words, "command": command.shell()}


def _means_of(rows: Sequence[Metrics]) -> Metrics:
    """Return means of several launches; of a curve at each measured load, over the launches that
    have it."""
    means = {}
    for name, last in rows[-1].items():
        values = [row.get(name) for row in rows]
        numbers = [float(value) for value in values if is_number(value)]
        means[name] = mean(numbers) if len(numbers) == len(values) else last
    if any(isinstance(row.get(CURVE), list) for row in rows):
        loads: dict[tuple[str, float], list[Metrics]] = {}
        for point in (point for row in rows for point in curve_of(row) if is_valid_row(point)):
            by = "concurrency" if "concurrency" in point else "request_rate"
            loads.setdefault((by, point.get(by, 0)), []).append(point)
        means[CURVE] = [
            {**_means_of(points), by: load} for (by, load), points in sorted(loads.items())
        ]
    return means


def compare_nodes(history: History) -> list[NodeShare]:
    """Compare the nodes that ran the study by unadjusted scores; empty for a single node."""
    names = sorted({entry.node for entry in history if entry.node})
    if len(names) < 2:
        return []
    known = history.node_offsets
    scores = by_key(history.node_scores(history.baseline))
    means = {name: mean(scores[name]) for name in names if name in scores}
    shares = []
    for name in names:
        value = difference = None
        others = [other for node, other in means.items() if node != name]
        if name in means:
            value = objective.value_of(history.spec.objective, means[name])
            difference = percent(means[name] - mean(others)) if others else None
        shares.append(
            NodeShare(
                node=name,
                launches=sum(entry.node == name for entry in history),
                baseline=value,
                difference_percent=difference,
                offset_percent=percent(known[name].offset) if name in known else 0.0,
                certain=name in history.off_nodes,
            )
        )
    return shares
