"""The engine's Prometheus page: the live engine's figures, and what its front end has seen of
requests."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from autotune.engines.expression import evaluate

from .engine import LiveEngine
from .launch import EmulatedLaunch, MetricLine, fill_template

_LOST = MetricLine(
    name="autotune_emulator_lost_seconds_total",
    kind="counter",
    value="lost_s",
    help="time by which the emulator fell behind and that it skipped",
)

Row = tuple[str, str, float]
"""End of a sample's name, its own labels, and its value."""


class Histogram:
    """Histogram of a metrics page: counts of observations by upper bound, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds, self._sum = bounds, 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float, times: int) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def rows(self) -> list[Row]:
        bounds, counts = (*self._bounds, "+Inf"), list(accumulate(self._counts))
        rows = [("_bucket", f',le="{o}"', n) for o, n in zip(bounds, counts, strict=True)]
        return [*rows, ("_sum", "", self._sum), ("_count", "", counts[-1])]


class MetricsPage:
    """The metrics that the engine's version has with its options."""

    def __init__(self, launch: EmulatedLaunch, engine: LiveEngine) -> None:
        self._card, self._engine, self._model = launch.card, engine, launch.models[0]
        parsed = launch.parsed
        lines = [*self._card.metrics, _LOST]
        self._metrics = [o for o in lines if o.is_for(parsed.version) and parsed.has(o.option)]
        most = {one.value: evaluate(one.most, launch.scope) for one in self._metrics}
        self._histograms = {
            one.value: Histogram([bound for bound in one.bounds if bound <= most[one.value]])
            for one in self._metrics
            if one.bounds
        }
        self.ended = Counter[str]()

    def observe(self, value: str, number: float, times: int = 1) -> None:
        """Count a number in the histogram of a value of `MetricLine`, if there is one."""
        if value in self._histograms:
            self._histograms[value].observe(number, times)

    def text(self) -> str:
        engine = self._engine
        known = {n: [value] for n, value in engine.figures().items()} | engine.rank_figures()
        lines = list[str]()
        for metric in self._metrics:
            rows = list(self._rows(metric, known))
            if rows and (any(value for *_, value in rows) or not metric.absent_at_zero):
                name = metric.name
                lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
                lines += [f"{name}{end}{labels} {value}" for end, labels, value in rows]
        return "\n".join([*lines, ""])

    def _rows(self, metric: MetricLine, known: Mapping[str, Sequence[float]]) -> Iterator[Row]:
        values = known.get(metric.value, ())
        several = metric.per_rank and len(values) > 1
        form = self._card.rank_labels if several else self._card.labels
        rows: list[Row] = [("", "", value) for value in (values if several else values[:1])]
        if metric.bounds:
            rows = self._histograms[metric.value].rows()
        elif metric.reasons:
            rows = [("", f',finished_reason="{o}"', self.ended[o]) for o in metric.reasons]
        for rank, (end, own, value) in enumerate(rows):
            labels = fill_template(form, {"rank": rank, "model": self._model})
            yield end, f"{{{labels}{own}}}", value
