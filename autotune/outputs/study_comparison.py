"""Compare two finished studies: commands, gains, common knobs, cost; only comparable figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.base.errors import BadInput
from autotune.base.evidence import Evidence
from autotune.engines.command import Configuration, Scalar
from autotune.engines.context import effective
from autotune.engines.registry import engine
from autotune.load.bench.compare import SHOWN, Change, changes_json, rows_of
from autotune.load.bench.results import Interval
from autotune.load.metrics import readable
from autotune.load.metrics.table import PER_GPU, TABLE, Rent
from autotune.tuner.comparison import ratio_interval90
from autotune.tuner.replay.bundle import BEGINNING, read_bundle
from autotune.tuner.search.spread import percents
from autotune.tuner.study.home import Home, library_of
from autotune.tuner.study.recommendation import Objective, Recommendation
from autotune.tuner.study.spec import StudySpec

from .report import text, words

_NOTES = (
    "a change's interval is that of the objective, from both studies' new launches; what is predicted is open unless "
    "its interval on real nodes says otherwise: there the simulator errs independently on different hardware",
    "a gain is relative to each study's own baseline",
)


@dataclass(frozen=True, slots=True)
class FinishedStudy:
    """A finished study, of the home folder or of a bundle."""

    name: str
    spec: StudySpec
    outcome: Recommendation

    @property
    def goal(self) -> Objective | None:
        """Objective of the recommended command; None without a recommendation."""
        return self.outcome.recommended.objective if self.outcome.recommended else None

    def summary(self) -> dict[str, Any]:
        """Summarise one study of a comparison."""
        told, done, spent = self.outcome.to_json(), self.outcome, self.outcome.study_cost
        cost = {
            "launches": done.launches,
            "failures": done.failures,
            "hours": done.duration_s / 3600,
        }
        cost |= {
            "gpu_hours": spent.gpu_hours if spent else None,
            "money": spent.cost if spent else None,
        }
        keys = (
            "engine",
            "engine_version",
            "config",
            "fingerprint",
            "command",
            "objective",
            "not_simulated",
        )
        choices = {"recommended": told if done.recommended else None, "baseline": told["baseline"]}
        sides = {
            role: {key: row[key] for key in keys} if row else None for role, row in choices.items()
        }
        gains = ("gain_percent", "gain_ci95", "gain_interval90_on_a_node", "holds_on_a_node")
        shown = ("model", "hardware", "evidence", "evidence_of", "verdict")
        about = {"study": self.name, **{key: told[key] for key in shown}}
        return {**about, **sides, **{key: told[key] for key in gains}, "cost": cost}

    def set_knobs(self) -> dict[str, Scalar]:
        """Return the recommended knobs that differ from the engine's default; all of an unknown
        engine."""
        chosen, defaults = self.outcome.recommended, dict[str, Scalar]()
        if chosen is None:
            return {}
        with suppress(BadInput):
            kind = engine(chosen.engine, library_of(self.spec))
            version = kind.known_version(chosen.engine_version) or kind.version()
            context = self.spec.context(version)
            own = Configuration(kind.name, kind.default_knobs(context))
            defaults |= effective(kind.card, own, context).knobs
        return {name: value for name, value in chosen.config.items() if value != defaults.get(name)}


def study_named(text: str, home: Home) -> FinishedStudy | None:
    """Return the finished study of a name or a bundle's file, None for neither; raises `BadInput`
    if unfinished."""
    path = Path(text)
    if text in home.names():
        spec, done = home.spec(text), home.recommendation(text)
    elif path.is_file() and (content := path.read_bytes()).startswith(BEGINNING):
        bundle = read_bundle(path, content)
        spec, done = bundle.spec, bundle.recommendation
    else:
        return None
    if done is None:
        raise BadInput(f"study {text!r} has not ended, so there is no recommendation to compare")
    return FinishedStudy(text, spec, done)


@dataclass(frozen=True, slots=True)
class StudyComparison:
    """Two compared studies, with warnings if they are not comparable or not measured.

    `metrics` are the recommended commands', by the workloads that both measured; `knobs` those set
    in either one, with the value in both (None: not set).
    """

    a: FinishedStudy
    b: FinishedStudy
    warnings: tuple[str, ...]
    metrics: Mapping[str, tuple[Change, ...]]
    knobs: Mapping[str, tuple[Scalar, Scalar]]

    @property
    def carried_over(self) -> dict[str, Scalar]:
        """Return the knobs with equal values in both commands."""
        both = self.a.set_knobs().keys() & self.b.set_knobs().keys()
        return {name: a for name, (a, b) in self.knobs.items() if name in both and a == b}

    def to_json(self) -> dict[str, Any]:
        carried = self.carried_over
        differ = {
            name: {"a": a, "b": b} for name, (a, b) in self.knobs.items() if name not in carried
        }
        return {
            "a": self.a.summary(),
            "b": self.b.summary(),
            "comparable": not self.warnings,
            "warnings": list(self.warnings),
            "metrics": {
                workload: changes_json(changes) for workload, changes in self.metrics.items()
            },
            "rent": self._rent(),
            "knobs": {"carried_over": carried, "not_carried_over": differ},
            "notes": list(_NOTES),
        }

    def lines(self) -> list[str]:
        """Format the comparison for people: the warnings come before the numbers."""
        lines = [
            *_told("A", self.a),
            *_told("B", self.b),
            *(f"WARNING: {text}" for text in self.warnings),
            "",
        ]
        for workload, changes in self.metrics.items():
            lines += [f"{workload}:", *rows_of(changes), ""]
        rent = self._rent()
        lines += [rent["told"], ""] if rent else []
        carried = self.carried_over
        same = ", ".join(f"{name}={_text(value)}" for name, value in carried.items())
        lines += [f"knobs in common: {same or 'none'}"]
        differ = [(name, a, b) for name, (a, b) in self.knobs.items() if name not in carried]
        if differ:
            lines.append(f"{'knobs that differ':<31}{'A':>24}{'B':>24}")
        lines += [f"{name:<31}{_text(a):>24}{_text(b):>24}" for name, a, b in differ]
        return [*lines, "", *(f"Note: {text}." for text in _NOTES)]

    def _rent(self) -> dict[str, Any] | None:
        """Compare what a token costs: rents, tokens of a GPU, and the rent of B where a token costs
        as much.

        None without a rent of A, or without figures of both.
        """
        changes = {change.metric: change for change in next(iter(self.metrics.values()), ())}
        per_gpu, aim = changes.get(PER_GPU), changes.get(self.a.spec.objective)
        rents = [
            Rent.checked(study.spec.gpus, study.spec.gpu_hour_price) for study in (self.a, self.b)
        ]
        if per_gpu is None or (equal := rents[0].break_even(per_gpu.b / per_gpu.a)) is None:
            return None
        ends, sure = None, ""
        if aim is not None and aim.on_a_node and TABLE[aim.metric].is_work:
            low, high = (1 + end / 100 for end in aim.on_a_node)
            ends = (equal * (low / high) ** 0.5, equal * (high / low) ** 0.5)
            sure = f" (90 % on real nodes: {readable.interval(ends)})"
        names = [study.spec.hardware.name.upper() for study in (self.a, self.b)]
        a, b = names if names[0] != names[1] else "AB"
        more = per_gpu.percent or 0.0
        carries = f"{abs(more):.1f} % {'fewer' if more < 0 else 'more'} tokens a second"
        return {
            "a": asdict(rents[0]),
            "b": asdict(rents[1]),
            "carries_percent": more,
            "cheaper_below": equal,
            "cheaper_below_interval90_on_a_node": ends,
            "told": f"{a}: {rents[0]}; {b}: {rents[1]}. A GPU of {b} carries {carries}. "
            f"{b} is cheaper below {readable.number(equal)} a GPU hour{sure}.",
        }


def compare_studies(a: FinishedStudy, b: FinishedStudy) -> StudyComparison:
    """Compare two studies; different settings give a warning and are not compared."""
    one, other = (study.outcome.recommended for study in (a, b))
    configs = [dict(choice.config) if choice else {} for choice in (one, other)]
    names = [*a.set_knobs(), *(name for name in b.set_knobs() if name not in a.set_knobs())]
    knobs = {name: (configs[0].get(name), configs[1].get(name)) for name in names}
    return StudyComparison(a, b, tuple(_warnings(a, b)), _metrics(a, b), knobs)


def _warnings(a: FinishedStudy, b: FinishedStudy) -> Iterator[str]:
    of_a, of_b = a.outcome.label, b.outcome.label
    if a.outcome.origin is not b.outcome.origin:
        yield f"EVIDENCE DIFFERS: A is {of_a}, B is {of_b}; the change is not a measured one"
    elif a.outcome.origin is not Evidence.MEASURED:
        yield f"{of_a}: neither was measured on a real node"
    pairs = [
        ("model", a.outcome.model, b.outcome.model),
        ("objective", a.spec.objective, b.spec.objective),
        ("workloads", ", ".join(a.spec.workloads), ", ".join(b.spec.workloads)),
        ("weights", a.spec.weights, b.spec.weights),
        (
            "limits",
            ", ".join(map(str, a.spec.slos)) or "none",
            ", ".join(map(str, b.spec.slos)) or "none",
        ),
        ("number of GPUs", a.outcome.gpus, b.outcome.gpus),
    ]
    yield from (f"different {what}: {x} in A, {y} in B" for what, x, y in pairs if x != y)
    for name, study in (("A", a), ("B", b)):
        if study.outcome.recommended is None:
            yield f"{name} has no recommendation: {study.outcome.stop_reason}"
    if a.outcome.model == b.outcome.model and not set(a.spec.workloads) & set(b.spec.workloads):
        yield "no common workload: no figures to compare"


def _metrics(a: FinishedStudy, b: FinishedStudy) -> dict[str, tuple[Change, ...]]:
    """Return the recommended commands' metrics on the common workloads; none for different
    models."""
    tables: dict[str, tuple[Change, ...]] = {}
    for name in a.spec.workloads if a.outcome.model == b.outcome.model else ():
        sides = [study.outcome.workloads.get(name) for study in (a, b)]
        rows = [side.recommended if side and side.recommended else {} for side in sides]
        changes = []
        for metric in SHOWN:
            x, y = (row.get(metric) for row in rows)
            if isinstance(x, int | float) and isinstance(y, int | float):
                changes.append(_change(a, b, metric, name, (float(x), float(y))))
        if changes:
            tables[name] = tuple(changes)
    return tables


def _change(
    a: FinishedStudy, b: FinishedStudy, metric: str, workload: str, values: Interval
) -> Change:
    """Return the change of a metric, with intervals if it is the objective of both."""
    one, other = a.goal, b.goal
    same = {(goal.metric, goal.workload) for goal in (one, other) if goal} == {(metric, workload)}
    if one is None or other is None or not same:
        return Change(metric, *values, None)
    change, launches = math.log(other.value / one.value), _half(one.ci95, other.ci95)
    predicted = [study.outcome.origin.predicted for study in (a, b)]
    if not any(predicted):
        return Change(metric, *values, _ends(change, launches))
    sides = zip(predicted, (one, other), strict=True)
    nodes = _half(*(goal.interval90_on_a_node if guess else goal.ci95 for guess, goal in sides))
    if all(predicted) and a.spec.hardware == b.spec.hardware and launches is not None:
        nodes = _shared(a, b, metric, workload, launches)
    return Change(metric, *values, _ends(change, launches), _ends(change, nodes), predicted=True)


def _half(*intervals: Interval | None) -> float | None:
    """Return half the interval of the ratio of independent figures, a logarithm; None for an
    unknown one."""
    known = [ends for ends in intervals if ends is not None and ends[0] > 0]
    # Half widths of independent logarithms add up as squares.
    halves = [math.log(high / low) / 2 for low, high in known]
    return math.hypot(*halves) if len(known) == len(intervals) else None


def _shared(
    a: FinishedStudy, b: FinishedStudy, metric: str, workload: str, launches: float
) -> float | None:
    """Return half the interval as `_half`, where the simulator errs alike on one kind of
    hardware."""
    sides = ((a.spec, a.outcome), (b.spec, b.outcome))
    ends = ratio_interval90(sides, workload, metric, launches)
    return None if ends is None else math.log1p(ends[1] / 100)


def _ends(change: float, half: float | None) -> Interval | None:
    return None if half is None else percents((change - half, change + half))


def _told(name: str, study: FinishedStudy) -> list[str]:
    """Return a study's lines: settings, command, gain and cost."""
    told = study.summary()
    done, goal, cost = study.outcome, study.goal, told["cost"]
    lines = [f"{name}  {study.name}: {done.model} on {done.gpus} x {done.hardware}, {done.label}"]
    if done.recommended is not None and goal is not None:
        sure = [f"95 % interval {readable.interval(goal.ci95)}"] if goal.ci95 else []
        if on_nodes := words.on_a_node(goal):
            sure.append(f"{on_nodes} on a real node, 90 %")
        what = f"{done.recommended.engine} {done.recommended.engine_version}"
        ends = f" ({'; '.join(sure)})" if sure else ""
        lines.append(f"   {what}: {text.measure(goal.metric, goal.value)} on {goal.workload}{ends}")
        lines += [f"   {line}" for line in done.recommended.command.splitlines()]
    lines += [f"   {unseen}"] if (unseen := words.not_simulated(done)) else []
    base = (
        f" The baseline is {done.baseline.engine} {done.baseline.engine_version}."
        if done.baseline
        else ""
    )
    lines.append(f"   {words.gain(done)}{base}")
    failed = f", {sum(done.failures.values())} failed" if done.failures else ""
    money = f", {readable.number(cost['money'])} for the GPUs" if cost["money"] else ""
    hours = f"{readable.number(cost['hours'])} hours"
    hours += f", {readable.number(cost['gpu_hours'])} GPU hours" if cost["gpu_hours"] else ""
    return [*lines, f"   {cost['launches']} launches{failed}, {hours}{money}", ""]


def _text(value: Scalar) -> str:
    return "–" if value is None else str(value)
