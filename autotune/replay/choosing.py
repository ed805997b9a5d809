"""Which rows of a table a study may choose from, and which of them is its baseline."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from autotune.engines import Engine, engine
from autotune.errors import BadInput, MalformedFile, UnknownName
from autotune.loadgen.workloads import Workload, load_workload
from autotune.replay.cells import same, shown
from autotune.replay.reading import engine_name
from autotune.replay.table import ENGINE, PLAIN, VERSION, Table, at, matches
from autotune.space.candidates import Candidate, CandidateSet
from autotune.space.context import Context
from autotune.space.library import Library
from autotune.study.spec import AUTO, StudySpec
from autotune.trial import Configuration, Scalar

Known = Mapping[str, tuple[Engine, Context]]
"""The table's engines that we know, each with what its command is made for."""

_SHOWN = 12
_FORM = "'column=value,…', e.g. 'engine=vllm,tensor_parallel=8'; a part with a comma in it is quoted"


def setting(table: Table, text: str, option: str, library: Library) -> tuple[str, Scalar]:
    """Column and value of ``column=value``; raises `BadInput` unless a row of the table has it."""
    name, equals, wanted = (part.strip() for part in text.partition("="))
    if not equals or not name:
        raise BadInput(f"{option} {text!r}: write column=value")
    if name not in (ENGINE, *table.columns):
        raise UnknownName("column", name, (ENGINE, *table.columns), f"They are those of {table.path}.")
    wanted = engine_name(wanted, library) if name == ENGINE else wanted
    there = _values(table, name)
    found = [value for value in there if wanted == ("" if value is None else shown(value))]
    # 8.0 and TRUE are not how we write them, but what somebody may type.
    loose = found or [value for value in there if value is not None and _alike(wanted, value)]
    if not loose:
        raise BadInput(f"{option} {text}: no row of {table.path} has that; {name} is {_listed(there)}")
    return name, loose[0]


def _values(table: Table, column: str) -> list[Scalar]:
    return list(dict.fromkeys(at(rows[0].configuration, column) for rows in table.repeats.values()))


def _alike(text: str, value: Scalar) -> bool:
    if isinstance(value, bool | str):
        return text.lower() == shown(value).lower()
    try:
        return value is not None and float(text) == value
    except ValueError:
        return False


def known_engines(spec: StudySpec, table: Table, library: Library) -> Known:
    """The table's engines that we know; the version is the table's where we know it, else our newest."""
    longest = [workload.longest_request for name in spec.workloads if (workload := _load(name, library)) is not None]
    known: dict[str, tuple[Engine, Context]] = {}
    for name in table.engines:
        try:
            kind = engine(name, library)
        except BadInput:
            continue
        version = known_version(kind, table.version_of(name)) or kind.version()
        known[name] = kind, Context(spec.model, spec.hardware, spec.gpus, version, max(longest, default=0))
    return known


def _load(name: str, library: Library) -> Workload | None:
    try:
        return load_workload(name, library)
    except BadInput:
        return None


def known_version(kind: Engine, told: str) -> str | None:
    """Our version that a text of the table stands for; None where there is none."""
    try:
        return kind.version(told)
    except BadInput:
        return None


def candidates_of(spec: StudySpec, table: Table, known: Known, library: Library) -> CandidateSet:
    """The rows that may be tried, each configuration once, and the baseline; raises `BadInput`."""
    left = _left(table, [choice.name for choice in spec.engines], spec.pins)
    if spec.baseline is None:
        baseline = _closest_to_defaults(left, [choice.name for choice in spec.engines], known)
    else:
        baseline = _named(table, left, spec.baseline, library)
    # One that the user named may be a row that is not searched.
    listed = left if any(c is baseline for c in left) else [*left, baseline]
    _check_figures(spec, table, listed)
    items = tuple(Candidate(c, table.repeats[table.key(c)][0].engine_version) for c in listed)
    position = next(i for i, c in enumerate(listed) if c is baseline)
    return CandidateSet(items, position, monotone_memory=library.monotone_memory)


def _left(table: Table, engines: Sequence[str], pins: Mapping[str, Scalar]) -> list[Configuration]:
    """The configurations that engines and pinned columns leave; says which of them removed the last."""
    everything = [rows[0].configuration for rows in table.repeats.values()]
    left = [c for c in everything if c.engine in engines]
    if not left:
        raise BadInput(
            f"--engine {', '.join(engines)} leaves no row of {table.path}; its engines: {_listed(table.engines)}"
        )
    for column, value in pins.items():
        kept = [c for c in left if same(at(c, column), value)]
        if not kept:
            there = dict.fromkeys(at(c, column) for c in left)
            raise BadInput(
                f"no candidate is left: --set {column}={'' if value is None else shown(value)} removes the last of "
                f"{len(left)}, in which {column} is {_listed(there)}"
            )
        left = kept
    return left


def _closest_to_defaults(left: Sequence[Configuration], engines: Sequence[str], known: Known) -> Configuration:
    """The row, of the engine that is the default baseline or else the first, with most knobs at the engine's defaults.

    A knob that is not set, or ``auto``, is at its default; of one that we do not know that is all that can be said.
    """
    there = {c.engine for c in left}
    by_default = [name for name in engines if name in known and known[name][0].card.default_baseline]
    first = next(name for name in [*by_default, *engines] if name in there)
    kind, context = known.get(first, (None, None))
    defaults = kind.default_knobs(context) if kind is not None and context is not None else {}

    def at_default(configuration: Configuration) -> int:
        knobs = {name: value for name, value in configuration.knobs.items() if name != VERSION}
        return sum(v in (None, AUTO) or (n in defaults and v == defaults[n]) for n, v in knobs.items())

    return max((c for c in left if c.engine == first), key=at_default)


def _named(table: Table, left: Sequence[Configuration], text: str, library: Library) -> Configuration:
    """The one configuration that ``column=value,…`` singles out; raises `BadInput` with what would."""
    wanted: dict[str, Scalar] = {}
    for part in _parts(text):
        column, value = setting(table, part, "--baseline", library)
        wanted[column] = value
    everything = [rows[0].configuration for rows in table.repeats.values()]
    found = [c for c in left if matches(c, wanted)] or [c for c in everything if matches(c, wanted)]
    if not found:
        raise BadInput(
            f"--baseline {text}: no row of {table.path} has all of that; {_last_that_held(everything, wanted)}"
        )
    if len(found) > 1:
        columns = [name for name in (ENGINE, *table.columns) if len({at(c, name) for c in found}) > 1]
        told = "; ".join(f"{name} is {_listed(dict.fromkeys(at(c, name) for c in found))}" for name in columns)
        example = _written({**wanted, **_telling(found, columns)})
        raise BadInput(f"--baseline {text}: {len(found)} rows have that. Among them {told}. One alone has '{example}'")
    return found[0]


def _parts(text: str) -> list[str]:
    parts = [part for part in next(csv.reader([text], skipinitialspace=True), []) if part.strip()]
    if not parts or any("=" not in part for part in parts):
        raise BadInput(f"--baseline {text!r}: on a replay file the baseline is a row of it: write {_FORM}")
    return parts


def _written(wanted: Mapping[str, Scalar]) -> str:
    line = io.StringIO()
    parts = [f"{name}={'' if value is None else shown(value)}" for name, value in wanted.items()]
    csv.writer(line, lineterminator="").writerow(parts)
    return line.getvalue()


def _telling(found: Sequence[Configuration], columns: Iterable[str]) -> dict[str, Scalar]:
    """What tells the first of some configurations from the others."""
    chosen: dict[str, Scalar] = {}
    others = list(found)
    for column in columns:
        value = at(found[0], column)
        rest = [c for c in others if same(at(c, column), value)]
        if len(rest) < len(others):
            chosen[column], others = value, rest
        if len(others) == 1:
            break
    return chosen


def _last_that_held(everything: Sequence[Configuration], wanted: Mapping[str, Scalar]) -> str:
    left = list(everything)
    for column, value in wanted.items():
        kept = [c for c in left if same(at(c, column), value)]
        if not kept:
            return f"with what stands before it, {column} is {_listed(dict.fromkeys(at(c, column) for c in left))}"
        left = kept
    return ""


def _listed(values: Iterable[Scalar]) -> str:
    words = sorted(map(shown, values), key=lambda word: (len(word), word))
    return ", ".join(words[:_SHOWN]) + (f" … ({len(words)} in all)" if len(words) > _SHOWN else "")


def _check_figures(spec: StudySpec, table: Table, configurations: Sequence[Configuration]) -> None:
    """Every row that ran must have what the study judges by; raises `BadInput`."""
    asked = {"--objective": spec.objective, **{f"--slo {slo}": slo.metric for slo in spec.slos}}
    asked |= {"--pareto": spec.pareto} if spec.pareto else {}
    for number, workload in enumerate(spec.workloads):
        key = table.answers_for(workload, objective=number == 0)
        if key is None:
            raise BadInput(_no_figures(table, workload, objective=number == 0))
        for option, metric in asked.items() if number == 0 else [("--objective", spec.objective)]:
            if metric not in table.metrics[key]:
                where = f"of {workload} " if key != PLAIN else ""
                there = _listed(table.metrics[key])
                raise BadInput(f"{option}: {table.path} has no {metric} {where}in it; its metrics: {there}")
    key = table.answers_for(spec.workloads[0], objective=True)
    rows = (row for c in configurations for row in table.repeats[table.key(c)] if row.failure is None)
    for row in rows:
        figures = row.metrics.get(key or PLAIN, {})
        for metric in asked.values():
            if metric not in figures:
                what = f"{metric} of {key}" if key else metric
                problem = f"{what} is missing, and the row did not fail; give it, or say in 'failure' what happened"
                raise MalformedFile(table.path, problem, row.line)
        if figures[spec.objective] <= 0:
            problem = f"{spec.objective} is {figures[spec.objective]}; where nothing ran, 'failure' says why"
            raise MalformedFile(table.path, problem, row.line)


def _no_figures(table: Table, workload: str, objective: bool) -> str:
    if not table.metrics:
        there = _listed(table.columns)
        return f"{table.path} has no column of a metric, e.g. total_token_throughput; its columns: {there}"
    named = [name for name in table.metrics if name != PLAIN]
    has = f"the workloads that it names: {', '.join(named)}" if named else "it names no workload"
    if objective:
        return f"--workload {workload}: {table.path} has no column of a metric for it; {has}"
    return (
        f"--workload {workload}: {table.path} answers for the first workload only, and {has}; a CSV has columns such "
        f"as '{workload}:total_token_throughput' for another one"
    )
