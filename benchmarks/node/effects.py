"""The effect of one setting: measured ratios of two commands beside the simulator's.

    python benchmarks/node/effects.py TABLE … [--published flag_effects.csv] [--calibration FILE]
    [--most N] [--rows] [--markdown]

A table is one that ``autotune calibrate --data`` reads (``scripts/calibration_table.py`` makes them
of published measurements). A pair is two points of the tables, of one kind of GPU, engine version
and load, that differ in one knob (``--most``: in several), in the layout over the GPUs, their
number too, or in the weights' format (``-FP8``, ``-NVFP4``, … at the end of the model's name).
``--published`` has effects of which a source gives the ratio alone: columns ``model, gpu, gpus,
engine, version, workload, concurrency, flag, from, to, ratio, source``.

Of each kind: pairs, the median of ``exp(abs(ln(predicted / measured)))`` less 1, both being ratios
of total token throughputs of all GPUs; how many have a measured effect above 5 %, how many of these
have the sign right, and their error. A pair of which the simulator says that one command does not
run, or that nothing changes, counts as a wrong sign. *Clear* are those of the pairs above 5 % whose
effect is larger than the difference of two runs of one of its commands. Pairs of tables that the
calibration was fitted to are no test of it.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

from autotune.base.errors import BadInput
from autotune.engines.command import Command, Scalar
from autotune.engines.context import Context
from autotune.engines.engine import Engine
from autotune.engines.installed import as_measured
from autotune.engines.library import Library
from autotune.engines.registry import engine
from autotune.load.metrics.table import HEADLINE
from autotune.load.workloads import Workload, load_workload
from autotune.load.workloads.arrivals import arrival_of
from autotune.node.calibration import Calibration, packaged_calibration, read_calibration
from autotune.node.fit.reading import MeasuredPoint, model_name, points_of, read_file
from autotune.node.resolve_command import ResolvedCommand, resolve_for

LEAST_EFFECT = 0.05
_NONE = 1e-3
"""A predicted change of ln(throughput) below it is none."""
_WEIGHTS = "weights"
_FORMAT = re.compile("-(NV)?FP[48]$")
_LAYOUT = {"tensor_parallel", "data_parallel", "replicas", "expert_parallel", "pipeline_parallel"}
_SMALL = {"block_size", "context_length"}
"""Knobs that may differ beside a layout or a format: every request of a table fits its context."""
_COLD = {("more_measurements", "89"), ("more_measurements", "167")}
"""SGLang's flashinfer backend on Qwen3-14B and 8B: its first answers waited 6 s longer than those
of the same server with fa3, and its tokens came as fast (median TPOT 95.1 and 94.4 ms, 5.63 and
5.58 ms). A warm server has no such effect; what the fit takes for cold is longer
(`autotune.node.fit.reading`)."""
_LOADS = {"low load": "sharegpt-c4", "saturated": "long", "": "sharegpt"}
"""What a source that names no lengths is taken for; sglang#31888 measured prompts of 3,500 tokens
and more."""
_PROGRAMS = {
    "vllm": "vllm serve {model} --tensor-parallel-size {gpus}",
    "sglang": "python3 -m sglang.launch_server --model-path {model} --tp-size {gpus}",
}
_MTP = '--speculative-config \'{{"method":"mtp","num_speculative_tokens":{}}}\''
_FLAGS = {
    "speculative_tokens": {str(n): _MTP.format(n) if n else "" for n in (0, 1, 2, 3)},
    "enable-prefix-caching": {"off": "--no-enable-prefix-caching", "on": "--enable-prefix-caching"},
    "async-scheduling": {"off": "--no-async-scheduling", "on": "--async-scheduling"},
    "expert_parallel": {"1": "", "8": "--enable-expert-parallel"},
}
"""Arguments of flags that are more than ``--flag value``."""


@dataclass(frozen=True)
class Effect:
    """Two commands that differ in one knob, with the measured and the predicted ratio of their
    throughputs.

    Attributes:
        predicted: NaN where the simulator says that one of them does not run.
        noise: ln of the highest over the lowest of several runs of one of the commands.
        fitted: the calibration was fitted to both.
    """

    kind: str
    change: str
    where: str
    source: str
    measured: float
    predicted: float
    noise: float = 0.0
    fitted: bool = False

    @property
    def error(self) -> float:
        return abs(math.log(self.predicted / self.measured))

    @property
    def counts(self) -> bool:
        return abs(math.log(self.measured)) > math.log(1 + LEAST_EFFECT)

    @property
    def clear(self) -> bool:
        return self.counts and abs(math.log(self.measured)) > self.noise

    @property
    def right(self) -> bool:
        return math.log(self.predicted) * math.copysign(1.0, math.log(self.measured)) > _NONE


def pairs(
    points: Sequence[MeasuredPoint], most: int = 1
) -> Iterator[tuple[str, MeasuredPoint, MeasuredPoint]]:
    """Points of one question that differ in one thing, with its kind: a knob (at most `most`), the
    layout over the GPUs, the weights' format."""
    groups: dict[tuple[str, ...], list[MeasuredPoint]] = {}
    for point in points:
        if point.failure is None and point.measured > 0:
            context, load = point.resolved.context, point.workload.points[-1].arrival
            where = context.hardware.name, point.engine, context.version
            key = _FORMAT.sub("", model_name(context.model)), *where, point.workload.name, str(load)
            groups.setdefault(key, []).append(point)
    for members in groups.values():
        for one, other in combinations(members, 2):
            kind = _kind(one, other, most)
            if kind is not None:
                first, second = sorted((one, other), key=lambda p: _order(p, kind))
                yield kind, first, second


def _kind(one: MeasuredPoint, other: MeasuredPoint, most: int) -> str | None:
    ours, theirs = one.resolved.effective.knobs, other.resolved.effective.knobs
    changed = [name for name in ours if ours[name] != theirs.get(name)]
    large = [name for name in changed if name not in _SMALL]
    same_model = one.model.id == other.model.id
    if large and _LAYOUT.issuperset(large) and same_model:
        return " + ".join(large)
    if one.resolved.context.gpus != other.resolved.context.gpus:
        return None
    if not same_model:
        return None if large else _WEIGHTS
    return " + ".join(changed) if 0 < len(changed) <= most else None


def _order(point: MeasuredPoint, kind: str) -> tuple[tuple[bool, float, str], ...]:
    return tuple(
        (v is not None, v if isinstance(v, int | float) else 0.0, str(v))
        for v in _values(point, kind)
    )


def _values(point: MeasuredPoint, kind: str) -> Sequence[Scalar]:
    if kind == _WEIGHTS:
        return [model_name(point.model)]
    return [point.resolved.effective.knobs[name] for name in kind.split(" + ")]


def predicted(resolved: ResolvedCommand, point: MeasuredPoint, calibration: Calibration) -> float:
    outcome = resolved.with_setup(calibration=calibration).simulate(point.workload, 0)
    return math.nan if outcome.failure is not None else float(outcome.metrics[HEADLINE])


def measured_pairs(
    tables: Sequence[Path], calibration: Calibration, most: int = 1
) -> Iterator[Effect]:
    """Effects of the pairs of all tables."""
    fitted = {Path(one.source).stem for one in calibration.fitted_to}
    table_of: dict[int, Path] = {}
    points: list[MeasuredPoint] = []
    for table in tables:
        ours = [p for p in points_of(read_file(table).rows) if (table.stem, p.label) not in _COLD]
        table_of.update((id(point), table) for point in ours)
        points += ours
    told: dict[int, float] = {}
    for kind, *both in pairs(points, most):
        for point in both:
            if id(point) not in told:
                told[id(point)] = predicted(point.resolved, point, calibration)
        first, second = both
        context = first.resolved.context
        of = [table_of[id(point)] for point in both]
        yield Effect(
            kind,
            " to ".join(" ".join(map(str, _values(point, kind))) for point in both),
            f"{context.model.id} {context.gpus}x{context.hardware.name} {first.engine}"
            f" {context.version} {first.workload.name}",
            ", ".join(f"{table.name} {p.label}" for table, p in zip(of, both, strict=True)),
            second.measured / first.measured,
            told[id(second)] / told[id(first)],
            max(first.spread, second.spread),
            all(table.stem in fitted for table in of),
        )


def published(file: Path, calibration: Calibration, library: Library) -> Iterator[Effect | str]:
    """Effects of which a source gives the ratio; of what cannot be asked, the reason."""
    for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
        name = f"{row['model']} {row['flag']} {row['from']} to {row['to']}"
        try:
            load = load_workload(_LOADS.get(row["workload"], row["workload"]), library)
            if row["concurrency"]:
                load = load.with_arrival(arrival_of(int(row["concurrency"]), None))
            model, kind = library.model(row["model"]), engine(row["engine"], library)
            if not row["gpu"]:
                raise BadInput("no node is named")
            kind, version = as_measured(kind, row["version"] or kind.card.newest)
            context = Context(
                model, library.node(row["gpu"]), int(row["gpus"]), version, load.longest_request
            )
            rates = [
                _rate(kind, row, row[side], context, load, calibration) for side in ("from", "to")
            ]
        except BadInput as error:
            yield f"{name}: {str(error).partition('; did you')[0]}"
            continue
        where = f"{row['model']} {row['gpus']}x{row['gpu']} {row['engine']} {row['version']} {row['workload']}"
        change = f"{row['from']} to {row['to']}"
        yield Effect(
            row["flag"], change, where, row["source"], float(row["ratio"]), rates[1] / rates[0]
        )


def _rate(
    kind: Engine,
    row: dict[str, str],
    value: str,
    context: Context,
    load: Workload,
    calibration: Calibration,
) -> float:
    flag = row["flag"]
    known = _FLAGS.get(flag)
    if known is None and "+" in flag:
        raise BadInput("two flags at once")
    words = known[value] if known is not None else f"--{flag} {value}"
    text = f"{_PROGRAMS[row['engine']].format(model=row['model'], gpus=row['gpus'])} {words}"
    resolved = resolve_for(kind, Command(tuple(shlex.split(text))), context)
    outcome = resolved.with_setup(calibration=calibration).simulate(load, 0)
    return math.nan if outcome.failure is not None else float(outcome.metrics[HEADLINE])


def told(effects: Sequence[Effect], markdown: bool) -> Iterator[str]:
    """One line for each kind, and one for all."""
    row = "| {} | {} | {} | {} | {} | {} | {} | {} |" if markdown else "{:50s}" + "{:>9}" * 7
    yield row.format("kind", "pairs", "error", "above 5%", "sign", "error", "clear", "sign")
    if markdown:
        yield "|---" + "|--:" * 7 + "|"
    kinds = sorted({one.kind for one in effects})
    for kind in (*kinds, "all"):
        ours = [one for one in effects if kind in (one.kind, "all")]
        large, clear = [one for one in ours if one.counts], [one for one in ours if one.clear]
        yield row.format(
            *(kind, len(ours), _error(ours)),
            *(len(large), _signs(large), _error(large)),
            *(len(clear), _signs(clear)),
        )


def _signs(effects: Sequence[Effect]) -> str:
    return f"{sum(one.right for one in effects)}" if effects else "–"


def _error(effects: Sequence[Effect]) -> str:
    known = [one.error for one in effects if not math.isnan(one.predicted)]
    return f"{math.expm1(median(known)):.0%}" if known else "–"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", type=Path, nargs="*", metavar="TABLE")
    parser.add_argument("--published", type=Path, metavar="FILE")
    parser.add_argument("--calibration", type=Path, metavar="FILE", help="default: the shipped one")
    parser.add_argument("--most", type=int, default=1, metavar="N", help="knobs of a pair")
    parser.add_argument("--rows", action="store_true", help="print each pair")
    parser.add_argument("--markdown", action="store_true", help="the table of docs/simulator.md")
    asked = parser.parse_args()
    calibration = (
        read_calibration(asked.calibration) if asked.calibration else packaged_calibration()
    )
    effects = list(measured_pairs(asked.tables, calibration, asked.most))
    for one in published(asked.published, calibration, Library()) if asked.published else ():
        if isinstance(one, str):
            print(f"left out: {one}")
        else:
            effects.append(one)
    if asked.rows:
        for one in sorted(effects, key=lambda one: (one.kind, one.where)):
            mark = "" if not one.counts else "right" if one.right else "WRONG"
            rate = "does not run" if math.isnan(one.predicted) else f"{one.predicted:.3f}"
            print(
                f"{one.kind} {one.change}: {one.measured:.3f}, predicted {rate} {mark} ({one.where}; {one.source})"
            )
    fitted = [one for one in effects if one.fitted]
    others = [one for one in effects if not one.fitted]
    for title, group in (
        ("rows of the calibration", fitted),
        ("rows that it has not seen", others),
    ):
        if group:
            print(f"\n{title}")
            print("\n".join(told(group, asked.markdown)))


if __name__ == "__main__":
    main()
