"""Recorded launches: the rows of a table in the search's order, or a bundled study's launches in
their own order.

A table is a CSV, or a study's ``results.jsonl``. Its rows are the only candidates: no rule judges a
row, and its repeats answer a configuration's launches in turn. Where other numbers of requests in
flight are asked for, a study's rows bring their curves.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from autotune.base import BadInput, Evidence, MalformedFile, StringMap, UnknownName
from autotune.engines import (
    Candidate,
    CandidateSet,
    Command,
    Configuration,
    Context,
    Engine,
    EngineSpace,
    Enumeration,
    Knobs,
    Library,
    Scalar,
    admitted,
    default_of,
    engine,
)
from autotune.engines.machine import node
from autotune.engines.promises import Promised, given_up_by, promises_of
from autotune.load.metrics.table import HEADLINE, curve_of, scaled
from autotune.load.workloads import load_workload
from autotune.node.unread import with_unread, with_unread_settings

from ..replay.bundle import ZIP_BEGINNING, Bundle, check_measured, read_bundle
from ..replay.table import (
    ENGINE,
    PLAIN,
    REPLAY,
    UNKNOWN,
    VERSION,
    Table,
    cell_text,
    check_unchanged,
    content_of,
    digest,
    engine_name,
    parse_value,
    read_table,
    same_value,
    value_at,
)
from ..study.goals import with_goals
from ..study.options import RunOptions
from ..study.recommendation import STAND_IN, Recommendation
from ..study.sentences import sentences
from ..study.spec import AUTO, EngineChoice, StudySpec
from ..trial import Rungs, State, Trial, TrialResult
from . import (
    PHASES,
    AskedOptions,
    Backend,
    EvaluationSetup,
    Evaluator,
    OwnCandidates,
    noise_factor,
    timestamp,
)

KnownEngines = Mapping[str, tuple[Engine, Context]]
"""The table's engines that have an engine card, each with the context of its commands."""
_NO_COMMAND = (
    BadInput,
    ArithmeticError,
    AttributeError,
    LookupError,
    NameError,
    TypeError,
    ValueError,
)
"""Errors of an engine card's expressions for unchecked values."""
_SHOWN = 12
_FORM = (
    "'column=value,…', e.g. 'engine=vllm,tensor_parallel=8'; a part with a comma in it is quoted"
)


class RecordedTable(Backend):
    """A file of recorded launches, requested by the search in its own order."""

    form = "replay:FILE"
    evidence = Evidence.REPLAYED
    noise_by_default = 0.0

    @classmethod
    def parse(cls, on: str) -> RecordedTable:
        return cls(f"{REPLAY}{Path(on.removeprefix(REPLAY)).expanduser().absolute()}")

    @property
    def path(self) -> Path:
        return Path(self.on.removeprefix(REPLAY))

    def evaluator(self, setup: EvaluationSetup) -> Evaluator:
        return partial(self.answer, setup.spec, setup.library)

    def answer(self, spec: StudySpec, library: Library, trial: Trial) -> TrialResult:
        """Answer a launch from the rows; raises `BadInput` if the file has changed.

        The launches of a configuration take its rows in turn: launch ``k`` gets row ``k`` modulo
        their number. A workload that this row lacks is taken from the next row that has it.
        """
        started_at = timestamp()
        table = self.table(spec.table_sha256, library)
        repeats = table.repeats[table.key(trial.configuration)]
        first = trial.launch_index % len(repeats)
        row, *others = [*repeats[first:], *repeats[:first]]
        metrics = {}
        factor = noise_factor(spec, trial)
        for name in () if row.failure else trial.workloads:
            key = table.key_of_workload(name, objective=name == spec.workloads[0])
            if key is None:
                continue
            measured = [one.metrics[key] for one in (row, *others) if key in one.metrics]
            if measured:
                metrics[name] = scaled(measured[0], factor) if spec.noise else dict(measured[0])
        return TrialResult(
            state=State.FAILED if row.failure else State.COMPLETE,
            evidence=self.evidence,
            evidence_of=row.evidence,
            failure=row.failure,
            metrics=metrics,
            times_s=dict.fromkeys(PHASES, 0.0) | dict(row.times_s),
            gpus=spec.gpus,
            node=f"replayed-{spec.hardware.name}",
            started_at=started_at,
        )

    def table(self, sha256: str | None, library: Library) -> Table:
        """Read the table; raises `BadInput` for a changed file."""
        content = digest(self.path)
        check_unchanged(self.path, content, sha256)
        return _read(self.path, content, library.roots[:-1], tuple(library.own_files("engines")))

    def from_file(self, spec: StudySpec, options: RunOptions, library: Library) -> StudySpec:
        if refused := options.needing("launch"):
            raise BadInput(f"{' and '.join(refused)}: a replay launches nothing; remove the option")
        sha256 = digest(self.path)
        table = self.table(sha256, library)
        engines = [engine_name(text, library) for text in options.engines] or list(table.engines)
        for name in engines:
            if name not in table.engines:
                raise UnknownName("engine", name, table.engines, f"They are those of {table.path}.")
        workloads = spec.workloads or (table.workload or "sharegpt",)
        return spec.with_fields(
            table_sha256=sha256,
            engines=tuple(
                EngineChoice(name=n, version=table.version_of(n)) for n in dict.fromkeys(engines)
            ),
            workloads=workloads,
            pins=dict(parse_setting(table, text, "--set", library) for text in options.pins),
            notes=tuple(
                sentences(
                    __file__,
                    "table",
                    table=table,
                    options=options,
                    workload=workloads[0],
                    shortened=shortened,
                    **_translated_values(table, library),
                )
            ),
        )

    def measurable(
        self, spec: StudySpec, rungs: Rungs, library: Library
    ) -> tuple[Rungs, Sequence[str]]:
        table = self.table(spec.table_sha256, library)
        loads = {
            point.get("concurrency")
            for row in table.rows
            for metrics in row.metrics.values()
            for point in curve_of(metrics)
        }
        measured = tuple(rung for rung in rungs if rung in loads)
        if not measured:
            raise BadInput(
                f"no launch in {table.path} was measured at concurrency {_listed(rungs)}; "
                "a study's results.jsonl has the curves of its finals, and a CSV has none"
            )
        notes = []
        if missing := {*rungs} - {*measured}:
            notes.append(
                f"{table.path}: no row is of concurrency {_listed(missing)}; its curves are of "
                f"{_listed(measured)}"
            )
        return measured, notes

    def own_candidates(self, spec: StudySpec, library: Library) -> OwnCandidates:
        table = self.table(spec.table_sha256, library)
        versions = {name: table.version_of(name) for name in table.engines}
        known = known_engines(spec, versions, library)
        commands = {row.configuration: row.command for row in table.rows if row.command}
        candidates = candidates_of(spec, table, known, library)
        if table.of_study and any(row.evidence and row.evidence.predicted for row in table.rows):
            candidates = _with_unseen(spec, candidates, known)
        return OwnCandidates(candidates, known, partial(command_of, commands, known))

    def announcement(self, spec: StudySpec, library: Library, options: AskedOptions) -> str:
        return f"REPLAYED: nothing is launched; all numbers are as recorded in {self.path}."


@lru_cache(maxsize=2)
def _read(path: Path, _sha256: str, overlays: tuple[Path, ...], engines: tuple[Path, ...]) -> Table:
    """Read a table once for the specification, its candidates and all launches."""
    return read_table(path, Library(overlays, engines))


def _translated_values(table: Table, library: Library) -> dict[str, list[str]]:
    """Return values that the engines' cards name differently, and values that they lack."""
    cells = dict.fromkeys(
        (c.engine, *cell) for c in table.configurations for cell in c.knobs.items()
    )
    renamed = list[str]()
    unknown = dict[str, None]()
    for name, column, value in cells:
        with suppress(UnknownName):
            card = library.engine(name)
            value_of_card = card.in_own_words({column: value}).get(column)
            knob = card.knobs.get(column)
            cell = f"{name}'s {column}"
            if (
                value_of_card is not None
                and column != VERSION
                and (knob is None or knob.refuses(value_of_card))
            ):
                unknown[cell if knob is None else f"{cell} {cell_text(value)}"] = None
            elif value_of_card != value != AUTO:
                known = "not set" if value_of_card is None else cell_text(value_of_card)
                renamed.append(f"{cell} {cell_text(value)} is {known}")
    return {"renamed": renamed, "unknown": [*unknown]}


def parse_setting(table: Table, text: str, option: str, library: Library) -> tuple[str, Scalar]:
    """Parse ``column=value``; raises `BadInput` unless a row of the table has it."""
    name, equals, typed_text = (part.strip() for part in text.partition("="))
    if not equals or not name:
        raise BadInput(f"{option} {text!r}: write column=value")
    if name not in (ENGINE, *table.columns):
        raise UnknownName(
            "column", name, (ENGINE, *table.columns), f"They are those of {table.path}."
        )
    typed_text = engine_name(typed_text, library) if name == ENGINE else typed_text
    values = dict.fromkeys(value_at(configuration, name) for configuration in table.configurations)
    equal = [value for value in values if typed_text == ("" if value is None else cell_text(value))]
    # Accept 8.0 and TRUE, too, which somebody may type.
    parsed, lower = parse_value(typed_text), typed_text.lower()
    equal = equal or [
        v for v in values if same_value(v, parsed) or (isinstance(v, str) and v.lower() == lower)
    ]
    if not equal:
        raise BadInput(
            f"{option} {text}: no row of {table.path} has that; {name} is {_listed(values)}"
        )
    return name, equal[0]


def known_engines(spec: StudySpec, versions: StringMap, library: Library) -> KnownEngines:
    """Look up replayed engines by their versions; a version without a card uses the card's
    newest."""
    longest = [0]
    for name in spec.workloads:
        with suppress(BadInput):
            longest.append(load_workload(name, library).longest_request)
    engines = {}
    for name, recorded in versions.items():
        with suppress(BadInput):
            kind = engine(name, library)
            version = kind.known_version(recorded) or kind.version()
            engines[name] = (kind, spec.context(version, max(longest)).as_read(kind.card))
    return engines


def candidates_of(
    spec: StudySpec, table: Table, known: KnownEngines, library: Library
) -> CandidateSet:
    """Return the rows to try, each configuration once, and the baseline; raises `BadInput`."""
    engines = [choice.name for choice in spec.engines]
    remaining = _remaining(table, engines, spec.pins)
    if spec.baseline is None:
        baseline = _closest_to_defaults(remaining, engines, known)
    else:
        baseline = named_row(table, spec.baseline, library, remaining)
    # The user may name a row that is not searched.
    listed = remaining if any(c is baseline for c in remaining) else [*remaining, baseline]
    _check_metrics(spec, table, listed)
    items = tuple(Candidate(c, table.repeats[table.key(c)][0].engine_version) for c in listed)
    position = next(i for i, c in enumerate(listed) if c is baseline)
    context = spec.context("")
    pinned = spec.pins.get("context_length")
    promised = Promised(admitted(baseline, context), pinned if isinstance(pinned, int) else 0)
    marks = {
        name: promises_of(kind.card, context_of_commands, baseline.knobs, spec.pins)
        for name, (kind, context_of_commands) in (known if table.of_study else {}).items()
    }
    return CandidateSet(
        items,
        position,
        monotone_memory=library.monotone_memory,
        given_up=given_up_by(listed, baseline, marks, lambda one: admitted(one, context), promised),
        as_they_are=not table.of_study,
        promised=promised,
    )


def _remaining(table: Table, engines: Sequence[str], pins: Knobs) -> list[Configuration]:
    """Filter the configurations by engine and pinned columns; raises `BadInput` with the filter
    that left none."""
    remaining = [c for c in table.configurations if c.engine in engines]
    if not remaining:
        raise BadInput(
            f"--engine {', '.join(engines)} leaves no row of {table.path}; its engines: "
            f"{_listed(table.engines)}"
        )
    remaining, column = _with_values(remaining, pins)
    if column:
        value = "" if pins[column] is None else cell_text(pins[column])
        raise BadInput(
            f"no candidate remains: --set {column}={value} removes the last of {len(remaining)}, "
            f"in which {column} is {_listed(value_at(c, column) for c in remaining)}"
        )
    return remaining


def _with_values(
    configurations: list[Configuration], wanted: Knobs
) -> tuple[list[Configuration], str | None]:
    """Filter configurations by columns, and name the column that would remove the last; None when
    one remains."""
    for column, value in wanted.items():
        kept = [c for c in configurations if same_value(value_at(c, column), value)]
        if not kept:
            return configurations, column
        configurations = kept
    return configurations, None


def _closest_to_defaults(
    configurations: Sequence[Configuration], engines: Sequence[str], known: KnownEngines
) -> Configuration:
    """Return the row of the default baseline's engine, or else the first, with most knobs at the
    engine's defaults.

    A knob that is not set, or ``auto``, is at its default; one that has no card's default is so
    only then.
    """
    present = {c.engine for c in configurations}
    searched = [name for name in engines if name in present]
    first = next(
        (name for name in searched if name in known and known[name][0].card.default_baseline),
        searched[0],
    )
    defaults: Knobs = {}
    if first in known:
        kind, context = known[first]
        defaults = kind.default_knobs(context)

    def at_default(configuration: Configuration) -> int:
        return sum(
            value in (None, AUTO, defaults.get(name))
            for name, value in configuration.knobs.items()
            if name != VERSION
        )

    return max((c for c in configurations if c.engine == first), key=at_default)


def named_row(
    table: Table, text: str, library: Library, remaining: list[Configuration] | None = None
) -> Configuration:
    """Return the one configuration that ``column=value,…`` selects; raises `BadInput` with a
    selection that would."""
    parts = [part for part in next(csv.reader([text], skipinitialspace=True), []) if part.strip()]
    if not parts or any("=" not in part for part in parts):
        raise BadInput(
            f"--baseline {text!r}: on a replay file the baseline is a row of it: write {_FORM}"
        )
    settings = dict(parse_setting(table, part, "--baseline", library) for part in parts)
    chosen, missing = _with_values(remaining or table.configurations, settings)
    if missing:
        chosen, missing = _with_values(table.configurations, settings)
    if missing:
        raise BadInput(
            f"--baseline {text}: no row of {table.path} has all of that; with the parts before it, "
            f"{missing} is {_listed(value_at(c, missing) for c in chosen)}"
        )
    if len(chosen) > 1:
        differing = (
            f"{name} is {_listed(values)}"
            for name in (ENGINE, *table.columns)
            if len(values := {value_at(c, name) for c in chosen}) > 1
        )
        raise BadInput(
            f"--baseline {text}: {len(chosen)} rows match; add a column that differs: "
            f"{'; '.join(differing)}"
        )
    return chosen[0]


def _listed(values: Iterable[Scalar]) -> str:
    """List different values, the shortest words first, so that whole numbers ascend."""
    words = sorted({*map(cell_text, values)}, key=lambda word: (len(word), word))
    return shortened(words) or "none"


def shortened(words: Sequence[str]) -> str:
    """List the first words, and their total number."""
    return ", ".join(words[:_SHOWN]) + (f" … ({len(words)} in all)" if len(words) > _SHOWN else "")


def _check_metrics(spec: StudySpec, table: Table, configurations: Sequence[Configuration]) -> None:
    """Raise `BadInput` unless every row that ran has the metrics of the goals and the SLOs."""
    for number, workload in enumerate(spec.workloads):
        key = table.key_of_workload(workload, objective=number == 0)
        if not table.metrics:
            columns = _listed(table.columns)
            raise BadInput(
                f"{table.path} has no column of a metric, e.g. {HEADLINE}; its columns: {columns}"
            )
        if key is None:
            named = ", ".join(filter(None, table.metrics))
            has = f"its workloads: {named}" if named else "it has no workload"
            raise BadInput(
                f"--workload {workload}: {table.path} has no column of a metric for it; {has}; a "
                f"CSV has columns such as '{workload}:{HEADLINE}' for it, and those without a "
                "workload are of the first one"
            )
        for option, metric in (
            spec.asked_metrics.items() if number == 0 else [("--objective", spec.objective)]
        ):
            if metric not in table.metrics[key]:
                where = f"of {workload} " if key != PLAIN else ""
                metrics = _listed(table.metrics[key])
                raise BadInput(
                    f"{option}: {table.path} has no {metric} {where}in it; its metrics: {metrics}"
                )
    key = table.key_of_workload(spec.workloads[0], objective=True)
    rows = (row for c in configurations for row in table.repeats[table.key(c)] if not row.failure)
    for row in rows:
        metrics_of_row = row.metrics.get(key or PLAIN, {})
        for metric in spec.asked_metrics.values():
            if metric not in metrics_of_row:
                what = f"{metric} of {key}" if key else metric
                problem = (
                    f"{what} is missing, but the row did not fail; add it, or fill in 'failure'"
                )
                raise MalformedFile(table.path, problem, row.line)
        if metrics_of_row[spec.objective] <= 0:
            problem = f"{spec.objective} is {metrics_of_row[spec.objective]}; if nothing ran, fill in 'failure'"
            raise MalformedFile(table.path, problem, row.line)


def command_of(
    recorded: Mapping[Configuration, Command], known: KnownEngines, candidate: Candidate
) -> Command:
    """Return a candidate's command: as recorded, else as its engine would write it, else a
    placeholder with its engine and columns in the form of a command.

    The engine's own command needs an engine and a version that have a card, and columns that are
    knobs of it or options of its parser; and read back, it must say what the row says. Rows without
    a version are of the context's.
    """
    configuration = candidate.configuration
    version = candidate.engine_version
    if configuration in recorded:
        return recorded[configuration]
    if configuration.engine in known:
        kind, context = known[configuration.engine]
        with suppress(*_NO_COMMAND):
            known_version = context.version if version == UNKNOWN else kind.known_version(version)
            if known_version:
                here = replace(context, version=known_version)
                return _engine_command(configuration, kind, here)
    cells = {n: value for n, value in configuration.knobs.items() if value is not None}
    words = [f"--{name.lstrip('-')}={cell_text(value)}" for name, value in cells.items()]
    return Command((f"{STAND_IN}{configuration.engine}", *words))


def _engine_command(configuration: Configuration, kind: Engine, context: Context) -> Command:
    """Return the engine's command; raises one of `_NO_COMMAND` if there is none."""
    card = kind.card
    values = card.in_own_words(configuration.knobs)
    options = {name: value for name, value in values.items() if name != VERSION}
    set_knobs = {name: options.pop(name) for name in values if name in card.knobs}
    if any(card.knobs[name].refuses(value) for name, value in set_knobs.items()):
        raise BadInput("the engine refuses a value of the row")
    # A knob that the row does not set is not on the command line, even if the engine's defaults on
    # a whole node would set it.
    scope = context.scope(set_knobs)
    unset = {
        name: default_of(card.knobs[name], scope, context.version)
        for name in card.on_node
        if name not in set_knobs
    }
    configuration = Configuration(kind.name, kind.default_knobs(context, {**unset, **set_knobs}))
    plain = kind.parse(kind.command(configuration, context), context.version)
    words = []
    for name, value in options.items():
        option = _option(name)
        # Skip options that every command has.
        if value is False or (option in plain.given and plain.args[option] == value):
            continue
        words.append(name if name.startswith("-") else f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(cell_text(value))
    command = kind.command(configuration, context, words)
    parsed = kind.parse(command, context.version)
    read_back = kind.knobs(parsed, context).knobs
    if any(read_back[name] != value for name, value in set_knobs.items()):
        raise BadInput("the command differs from the row")
    for name, value in options.items():
        # A parser that completes abbreviations would make an option of any column's name.
        option = _option(name)
        default = parsed.args.get(option, False) if name.startswith("-") else parsed.args[option]
        if value is False and default is not False:
            raise BadInput(f"{name} is off in the row, and on by default")
    return command


def _option(column: str) -> str:
    return column.lstrip("-").replace("-", "_")


_OWN = "launches hours seed noise baseline"
"""Options that replace the bundle's as they were typed."""


_bundle = lru_cache(maxsize=2)(read_bundle)


class RecordedBundle(RecordedTable):
    """Replay a bundled study: its launches are returned in their order, without a search."""

    @classmethod
    def parse(cls, on: str) -> RecordedTable:
        """Return a table's backend if the file is no bundle; for an unreadable one, reading it
        gives the error."""
        table = RecordedTable.parse(on)
        with suppress(OSError), table.path.open("rb") as file:
            if file.read(len(ZIP_BEGINNING)) == ZIP_BEGINNING:
                return cls(table.on)
        return table

    def answer(self, spec: StudySpec, library: Library, trial: Trial) -> TrialResult:
        """Answer the launch of a number by the recorded launch of that number.

        Noise is added only where another one is asked for than the bundle's launches have. Raises
        `BadInput` where the file has changed.
        """
        bundle = self.bundle(spec.table_sha256)
        result = bundle.launches[trial.number].result
        if spec.noise != bundle.spec.noise:
            factor = noise_factor(spec, trial)
            result = replace(
                result, metrics={name: scaled(row, factor) for name, row in result.metrics.items()}
            )
        return replace(
            result,
            evidence=self.evidence,
            evidence_of=None if result.origin is self.evidence else result.origin,
            node=result.node if bundle.bound else f"replayed-{spec.hardware.name}",
            # Nothing runs here, so nothing can be left behind.
            pids=(),
            quarantine="",
        )

    def bundle(self, sha256: str | None = None) -> Bundle:
        """Read the bundle; raises `BadInput` if its file is unreadable or has changed since the
        study began.

        Raises `MalformedFile` where it is damaged, tampered with, or of a newer version.
        """
        content = content_of(self.path)
        check_unchanged(self.path, hashlib.sha256(content).hexdigest(), sha256)
        return _bundle(self.path, content)

    def whole_spec(self, options: RunOptions, library: Library) -> StudySpec:
        if refused := options.needing("launch", "search"):
            raise BadInput(
                f"{' and '.join(refused)}: a bundle's launches are replayed in their order, "
                "without a launch or a search; remove the option, or give the study's "
                "results.jsonl as a table"
            )
        bundle = self.bundle()
        taken = bundle.spec
        _check_same(options, taken, library)
        own = {name: getattr(options, name) for name in _OWN.split() if options.says(name)}
        if options.workloads:
            # Weights of the bundle go with its workloads.
            own |= {"workloads": tuple(dict.fromkeys(options.workloads)), "weights": {}}
        goals = with_goals(taken.with_fields(**own, notes=()), options)
        spec = goals.with_fields(
            on=self.on,
            table_sha256=digest(self.path),
            allow=tuple(dict.fromkeys(options.allow)) or taken.allow,
            notes=(*taken.notes, *goals.notes, _note(bundle)),
            # Settings of the machine on which it ran.
            executor="local",
            sampler="gp",
            sources=(),
            **dict.fromkeys(("api_key_env", "api_key_file", "hf_token_file")),
            space=str(options.space.resolve()) if options.space else None,
        )
        if spec.seed < 0:
            raise BadInput(
                f"{bundle.path}: its seed is {spec.seed}; a seed is a whole number of at least 0"
            )
        check_measured(bundle, spec)
        candidates_for(bundle, spec, library)
        return spec

    def own_candidates(self, spec: StudySpec, library: Library) -> OwnCandidates:
        bundle = self.bundle(spec.table_sha256)
        versions = {one.engine: one.engine_version for one in bundle.known.items}
        known = known_engines(spec, versions, library)
        candidates = candidates_for(bundle, spec, library)
        if versions.keys() <= known.keys() and not candidates.as_they_are:
            candidates = replace(
                candidates, without=lambda one: _space(spec, *known[one.engine]).without(one)
            )
        recorded = bundle.launches_for(spec)
        predicted = any(launch.result.origin.predicted for launch in recorded)
        if predicted and not bundle.spec.keeps_unread:
            candidates = _with_unseen(spec, candidates, known)
        commands = {launch.trial.configuration: launch.trial.command for launch in recorded}
        write = partial(command_of, commands, known)
        return OwnCandidates(candidates, known, write, bundle.known.excluded, recorded)

    def conclusion(self, spec: StudySpec, recommendation: Recommendation) -> str:
        return self.bundle(spec.table_sha256).agreement(recommendation)


def candidates_for(bundle: Bundle, spec: StudySpec, library: Library) -> CandidateSet:
    """Return the candidates under a replay's baseline, ``column=value,…`` if it is not the bundle's
    own.

    Raises `BadInput` where no launch, or more than one configuration, is that baseline.
    """
    known = bundle.known
    if spec.baseline is not None and spec.baseline != bundle.spec.baseline:
        row = named_row(read_table(bundle.path, library), spec.baseline, library)
        # The row may also name the version.
        same = (
            i
            for i, one in enumerate(known.items)
            if one.engine == row.engine
            and all(same_value(row.knobs.get(n), v) for n, v in one.config.items())
        )
        known = known.with_fields(baseline=next(same, known.baseline))
    return known.as_set(library)


def _space(spec: StudySpec, kind: Engine, context: Context) -> EngineSpace:
    """Return an engine of a replayed study, which has no candidates of its own."""
    knobs = kind.card.knobs
    pins = {name: v for name, v in spec.pins.items() if name in knobs and v != AUTO}
    return EngineSpace(kind, context, Enumeration(), pins)


def _with_unseen(spec: StudySpec, candidates: CandidateSet, known: KnownEngines) -> CandidateSet:
    """Return candidates, recorded of the simulated node, with those that have a setting which it
    does not read."""
    rows = {i: one.configuration for i, one in enumerate(candidates.items)}
    spaces = {}
    for name, (kind, context) in known.items():
        of_engine = [one for one in rows.values() if one.engine == name]
        space = with_unread(_space(spec, kind, context), of_engine)
        base = rows[candidates.baseline]
        # A value that all rows share was chosen by the user, or is the engine's.
        varied = {n for n in space.unread if len({one.knobs.get(n) for one in of_engine}) > 1}
        space = replace(space, unread=frozenset(varied))
        spaces[name] = space.holding(base) if base.engine == name else space
    return replace(candidates, unseen=with_unread_settings(rows, spaces))


def _check_same(options: RunOptions, taken: StudySpec, library: Library) -> None:
    """Raise `BadInput` if the named model, hardware or GPUs differ from the bundle's."""
    names = set(map(str.lower, taken.model.names))
    if options.model and options.model.lower() not in names:
        model = library.model(options.model_id or options.model)
        if names.isdisjoint(map(str.lower, model.names)):
            raise BadInput(
                f"--model {options.model}: the bundle is of {taken.model.id}; remove the option"
            )
    hardware = taken.hardware.name
    if (
        options.hardware.lower() not in ("", hardware)
        and node(options.hardware, library).name != hardware
    ):
        raise BadInput(f"--hw {options.hardware}: the bundle is of {hardware}; remove the option")
    if options.gpus not in (None, taken.gpus):
        raise BadInput(
            f"--gpus {options.gpus}: the bundle is of {taken.gpus} x {hardware}; remove the option"
        )


def _note(bundle: Bundle) -> str:
    kinds = dict.fromkeys(launch.result.evidence.upper() for launch in bundle.launches)
    return (
        f"{bundle.path}: the {len(bundle.launches)} launches of study {bundle.spec.study} in their "
        f"order, {', '.join(kinds)} when recorded"
    )
