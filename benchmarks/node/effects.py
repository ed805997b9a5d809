"""The effect of one flag: measured ratios of two commands beside the simulator's.

    python benchmarks/node/effects.py TABLE … [--published flag_effects.csv] [--calibration FILE]
    [--rows] [--markdown]

A table is one that ``autotune calibrate --data`` reads (``scripts/calibration_table.py`` makes them
of published measurements). A pair is two of its points of one model, node, engine version and load
that differ in one knob. ``--published`` has effects of which a source gives the ratio alone:
columns ``model, gpu, gpus, engine, version, workload, concurrency, flag, from, to, ratio, source``.

Of each knob: pairs, pairs with a measured effect above 5 %, how many of these have the sign right,
and the median of ``exp(abs(ln(predicted / measured)))`` less 1, both being ratios of total token
throughputs. A pair of which the simulator says that one command does not run, or that nothing
changes, counts as a wrong sign. *Clear* are those of the pairs above 5 % whose effect is larger
than the difference of two runs of one of its commands. Points of the shipped calibration's own rows
are no test of it: they are marked ``fitted``.
"""

from __future__ import annotations

import argparse
import csv
import math
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
from autotune.node.fit.reading import MeasuredPoint, points_of, read_file
from autotune.node.resolve_command import ResolvedCommand, resolve_for

LEAST_EFFECT = 0.05
_NONE = 1e-3
"""A predicted change of ln(throughput) below it is none."""
_FITTED = ("seed_measurements", "dstack_r1_concurrency_sweep", "more_measurements", "newer_rows")
"""Tables that the shipped calibration was fitted to."""
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
    """

    knob: str
    change: str
    where: str
    source: str
    measured: float
    predicted: float
    noise: float = 0.0

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


def pairs(points: Sequence[MeasuredPoint]) -> Iterator[tuple[str, MeasuredPoint, MeasuredPoint]]:
    """Points of one question that differ in one knob, in a fixed order of its values."""
    groups: dict[tuple[str, ...], list[MeasuredPoint]] = {}
    for point in points:
        if point.failure is None and point.measured > 0:
            context, load = point.resolved.context, point.workload.points[-1].arrival
            key = (
                context.model.id,
                context.hardware.name,
                str(context.gpus),
                point.engine,
                context.version,
            )
            groups.setdefault((*key, point.workload.name, str(load)), []).append(point)
    for members in groups.values():
        for one, other in combinations(members, 2):
            ours, theirs = one.resolved.effective.knobs, other.resolved.effective.knobs
            changed = [name for name in ours if ours[name] != theirs.get(name)]
            if len(changed) == 1:
                first, second = sorted(
                    (one, other), key=lambda p: _order(p.resolved.effective.knobs[changed[0]])
                )
                yield changed[0], first, second


def _order(value: Scalar) -> tuple[bool, float, str]:
    number = float(value) if isinstance(value, int | float) else 0.0
    return value is not None, number, str(value)


def predicted(resolved: ResolvedCommand, point: MeasuredPoint, calibration: Calibration) -> float:
    outcome = resolved.with_setup(calibration=calibration).simulate(point.workload, 0)
    return math.nan if outcome.failure is not None else float(outcome.metrics[HEADLINE])


def measured_pairs(tables: Sequence[Path], calibration: Calibration) -> Iterator[Effect]:
    """Effects of the tables' pairs."""
    for table in tables:
        points = [p for p in points_of(read_file(table).rows) if (table.stem, p.label) not in _COLD]
        told: dict[int, float] = {}
        for knob, first, second in pairs(points):
            for point in (first, second):
                if id(point) not in told:
                    told[id(point)] = predicted(point.resolved, point, calibration)
            knobs = [point.resolved.effective.knobs[knob] for point in (first, second)]
            context = first.resolved.context
            where = f"{context.model.id} {context.gpus}x{context.hardware.name} {first.engine} {context.version}"
            source = f"{table.name}{' (fitted)' if table.stem in _FITTED else ''} {first.label} {second.label}"
            ratio = told[id(second)] / told[id(first)]
            change = f"{knobs[0]} to {knobs[1]}"
            measured, noise = second.measured / first.measured, max(first.spread, second.spread)
            yield Effect(
                knob, change, f"{where} {first.workload.name}", source, measured, ratio, noise
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
    """One line for each knob, and one for all."""
    row = (
        "| {} | {} | {} | {} | {} | {} | {} |"
        if markdown
        else "{:34s} {:>6} {:>8} {:>8} {:>8} {:>8} {:>8}"
    )
    yield row.format("knob", "pairs", "above 5%", "sign", "clear", "sign", "error")
    if markdown:
        yield "|---|--:|--:|--:|--:|--:|--:|"
    knobs = sorted({one.knob for one in effects})
    for knob in (*knobs, "all"):
        ours = [one for one in effects if knob in (one.knob, "all")]
        large, clear = [one for one in ours if one.counts], [one for one in ours if one.clear]
        signs = [f"{sum(one.right for one in some)}" if some else "–" for some in (large, clear)]
        known = [one.error for one in ours if not math.isnan(one.predicted)]
        error = f"{math.expm1(median(known)):.0%}" if known else "–"
        yield row.format(knob, len(ours), len(large), signs[0], len(clear), signs[1], error)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", type=Path, nargs="*", metavar="TABLE")
    parser.add_argument("--published", type=Path, metavar="FILE")
    parser.add_argument("--calibration", type=Path, metavar="FILE", help="default: the shipped one")
    parser.add_argument("--rows", action="store_true", help="print each pair")
    parser.add_argument("--markdown", action="store_true", help="the table of docs/simulator.md")
    asked = parser.parse_args()
    calibration = (
        read_calibration(asked.calibration) if asked.calibration else packaged_calibration()
    )
    effects = list(measured_pairs(asked.tables, calibration))
    for one in published(asked.published, calibration, Library()) if asked.published else ():
        if isinstance(one, str):
            print(f"left out: {one}")
        else:
            effects.append(one)
    if asked.rows:
        for one in sorted(effects, key=lambda one: (one.knob, one.where)):
            mark = "" if not one.counts else "right" if one.right else "WRONG"
            rate = "does not run" if math.isnan(one.predicted) else f"{one.predicted:.3f}"
            print(
                f"{one.knob} {one.change}: {one.measured:.3f}, predicted {rate} {mark} ({one.where}; {one.source})"
            )
    fitted = [one for one in effects if "(fitted)" in one.source]
    others = [one for one in effects if "(fitted)" not in one.source]
    for title, group in (
        ("rows of the shipped calibration", fitted),
        ("rows that it has not seen", others),
    ):
        if group:
            print(f"\n{title}")
            print("\n".join(told(group, asked.markdown)))


if __name__ == "__main__":
    main()
