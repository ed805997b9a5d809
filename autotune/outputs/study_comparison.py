"""Compare two finished studies: commands, gains, common knobs, cost; only comparable figures."""

import math
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from autotune.base import BadInput, Interval, Json, beside
from autotune.engines import Configuration, Scalar, engine
from autotune.engines.context import effective
from autotune.engines.entry import parse_yaml
from autotune.engines.environment import differences
from autotune.load.bench.compare import SHOWN, Change, changes_json
from autotune.load.metrics import readable
from autotune.load.metrics.table import PER_GPU, TABLE, Rent
from autotune.tuner.comparison import ratio_interval90
from autotune.tuner.replay.bundle import ZIP_BEGINNING, read_bundle
from autotune.tuner.search.spread import percents
from autotune.tuner.study.home import Home, library_of
from autotune.tuner.study.recommendation import Objective, Recommendation
from autotune.tuner.study.spec import StudySpec

from .report.templates import write

_TEXTS = parse_yaml(beside(__file__, "study_comparison.yaml"))


@dataclass(frozen=True)
class FinishedStudy:
    """A finished study, of the home folder or of a bundle."""

    name: str
    spec: StudySpec
    outcome: Recommendation

    @property
    def goal(self) -> Objective | None:
        """Objective of the recommended command; None without a recommendation."""
        return self.outcome.recommended.objective if self.outcome.recommended else None

    @property
    def config(self) -> dict[str, Scalar]:
        """Return the recommended knobs."""
        return self.outcome.recommended.config if self.outcome.recommended else {}

    def summary(self) -> Json:
        """Summarise one study of a comparison."""
        outcome = self.outcome
        spent = self.outcome.study_cost
        row = self.outcome.to_json()
        keys = ("engine", "engine_version", "config", "fingerprint", "command", "objective")
        choices = {"recommended": row if outcome.recommended else {}, "baseline": row["baseline"]}
        head = ("model", "hardware", "evidence", "evidence_of", "verdict")
        gains = ("gain_percent", "gain_ci95", "gain_interval90_on_a_node", "holds_on_a_node")
        return {
            "study": self.name,
            **{key: row[key] for key in head},
            **{
                role: {key: choice[key] for key in (*keys, "not_simulated")} if choice else None
                for role, choice in choices.items()
            },
            **{key: row[key] for key in gains},
            "cost": {
                "launches": outcome.launches,
                "failures": outcome.failures,
                "hours": outcome.duration_s / 3600,
                "gpu_hours": spent.gpu_hours if spent else None,
                "money": spent.cost if spent else None,
            },
        }

    @cached_property
    def set_knobs(self) -> dict[str, Scalar]:
        """Return the recommended knobs that differ from the engine's default; all of an unknown
        engine."""
        chosen = self.outcome.recommended
        spec = self.spec
        defaults = {}
        if not chosen:
            return {}
        with suppress(BadInput):
            kind = engine(chosen.engine, library_of(spec))
            version = kind.known_version(chosen.engine_version) or kind.version()
            context = spec.context(version).as_read(kind.card)
            own = Configuration(kind.name, kind.default_knobs(context))
            defaults = {**effective(kind.card, own, context).knobs}
        return {name: value for name, value in self.config.items() if value != defaults.get(name)}


def study_named(text: str, home: Home) -> FinishedStudy | None:
    """Return the finished study of a name or a bundle's file, None for neither; raises `BadInput`
    if unfinished."""
    path = Path(text)
    if text in home.names():
        spec = home.spec(text)
        done = home.recommendation(text)
    elif path.is_file() and (content := path.read_bytes()).startswith(ZIP_BEGINNING):
        bundle = read_bundle(path, content)
        spec = bundle.spec
        done = bundle.recommendation
    else:
        return None
    if not done:
        raise BadInput(f"study {text!r} has not ended, so there is no recommendation to compare")
    return FinishedStudy(text, spec, done)


@dataclass(frozen=True)
class StudyComparison:
    """Two compared studies; what differs in their settings gives a warning and is not compared."""

    a: FinishedStudy
    b: FinishedStudy

    @cached_property
    def knobs(self) -> dict[str, tuple[Scalar, Scalar]]:
        """Return the knobs set in either command, with the value in both (None: not set)."""
        names = {**self.a.set_knobs, **self.b.set_knobs}
        return {name: (self.a.config.get(name), self.b.config.get(name)) for name in names}

    @cached_property
    def carried_over(self) -> dict[str, Scalar]:
        """Return the knobs with equal values in both commands."""
        both = self.a.set_knobs.keys() & self.b.set_knobs.keys()
        return {name: a for name, (a, b) in self.knobs.items() if name in both and a == b}

    @cached_property
    def metrics(self) -> dict[str, list[Change]]:
        """Return the recommended commands' metrics on the common workloads; none for different
        models."""
        a = self.a.outcome
        b = self.b.outcome
        tables = {}
        for name in self.a.spec.workloads if a.model == b.model else ():
            sides = [outcome.workloads.get(name) for outcome in (a, b)]
            rows = [side.recommended if side and side.recommended else {} for side in sides]
            changes = []
            for metric in SHOWN:
                x, y = (row.get(metric) for row in rows)
                if isinstance(x, int | float) and isinstance(y, int | float):
                    changes.append(self._change(metric, name, (float(x), float(y))))
            if changes:
                tables[name] = changes
        return tables

    @cached_property
    def warnings(self) -> list[str]:
        """Return why the studies are not comparable or not measured."""
        shells = [study.spec.inherited or {} for study in (self.a, self.b)]
        text = write(_TEXTS["warnings"], found=self, variables=differences(*shells))
        return text.splitlines()

    def to_json(self) -> Json:
        """Return both studies with their differences."""
        differ = {
            name: {"a": a, "b": b}
            for name, (a, b) in self.knobs.items()
            if name not in self.carried_over
        }
        return {
            "a": self.a.summary(),
            "b": self.b.summary(),
            "comparable": not self.warnings,
            "warnings": self.warnings,
            "metrics": {name: changes_json(changes) for name, changes in self.metrics.items()},
            "rent": self._rent(),
            "knobs": {"carried_over": self.carried_over, "not_carried_over": differ},
            "notes": _TEXTS["notes"],
        }

    def _rent(self) -> Json | None:
        """Compare what a token costs: rents, tokens of a GPU, and the rent of B where a token costs
        as much.

        None without a rent of A, or without figures of both.
        """
        changes = {change.metric: change for change in next(iter(self.metrics.values()), ())}
        per_gpu = changes.get(PER_GPU)
        aim = changes.get(self.a.spec.objective)
        specs = (self.a.spec, self.b.spec)
        rents = [Rent(spec.gpus, spec.gpu_hour_price) for spec in specs]
        if not per_gpu or (equal := rents[0].break_even(per_gpu.b / per_gpu.a)) is None:
            return None
        ends = None
        interval = ""
        if aim and aim.on_a_node and TABLE[aim.metric].is_work:
            low, high = (1 + end / 100 for end in aim.on_a_node)
            ends = (equal * (low / high) ** 0.5, equal * (high / low) ** 0.5)
            interval = f" (90 % on real nodes: {readable.interval(ends)})"
        a, b = (spec.hardware.name.upper() for spec in specs)
        if a == b:
            a, b = "AB"
        more = per_gpu.percent or 0.0
        carries = f"{abs(more):.1f} % {'fewer' if more < 0 else 'more'} tokens a second"
        return {
            "a": asdict(rents[0]),
            "b": asdict(rents[1]),
            "carries_percent": more,
            "cheaper_below": equal,
            "cheaper_below_interval90_on_a_node": ends,
            "told": f"{a}: {rents[0]}; {b}: {rents[1]}. A GPU of {b} carries {carries}. "
            f"{b} is cheaper below {readable.number(equal)} a GPU hour{interval}.",
        }

    def _change(self, metric: str, workload: str, values: Interval) -> Change:
        """Return the change of a metric, with intervals if it is the objective of both."""
        a = self.a.goal
        b = self.b.goal
        if (
            not a
            or not b
            or {(goal.metric, goal.workload) for goal in (a, b)} != {(metric, workload)}
        ):
            return Change(metric, *values, None)
        change = math.log(b.value / a.value)
        launches = _half_width(a.ci95, b.ci95)
        predicted = [study.outcome.origin.predicted for study in (self.a, self.b)]
        if not any(predicted):
            return Change(metric, *values, _ends(change, launches))
        nodes = _half_width(
            *(
                goal.interval90_on_a_node if simulated else goal.ci95
                for simulated, goal in zip(predicted, (a, b), strict=True)
            )
        )
        same_hardware = self.a.spec.hardware == self.b.spec.hardware
        if all(predicted) and same_hardware and launches is not None:
            # Where the simulator errs alike on one kind of hardware.
            studies = [(study.spec, study.outcome) for study in (self.a, self.b)]
            ends = ratio_interval90(studies, workload, metric, launches)
            nodes = math.log1p(ends[1] / 100) if ends else None
        return Change(
            metric, *values, _ends(change, launches), _ends(change, nodes), predicted=True
        )


def _half_width(*intervals: Interval | None) -> float | None:
    """Return half the interval of the ratio of independent figures, a logarithm; None for an
    unknown one."""
    # Half widths of independent logarithms add up as squares.
    halves = [math.log(ends[1] / ends[0]) / 2 for ends in intervals if ends and ends[0] > 0]
    return math.hypot(*halves) if len(halves) == len(intervals) else None


def _ends(change: float, half: float | None) -> Interval | None:
    return None if half is None else percents((change - half, change + half))
