"""What a candidate means to its engine: of a replayed row's columns those that are knobs, or flags, of that engine.

A row is its own identity: its columns may be anything. Knobs of the shared vocabulary are taken as they are, the
engine's own flags (``--tp-size``, ``tp_size``) are read by the parser of its version, other columns are left out. A
knob that no column tells has the engine's default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.engines import Engine, engine
from autotune.engines.options import Option
from autotune.errors import BadInput
from autotune.prepare.candidates import Prepared
from autotune.space.candidates import Candidate
from autotune.space.context import Context
from autotune.space.fingerprint import Normaliser
from autotune.space.schema import Knob, Values
from autotune.trial import Command, FailureKind, Scalar

REPLAY = "replay:"

_TELLING = frozenset(
    {
        *("tensor_parallel", "data_parallel", "expert_parallel", "pipeline_parallel", "decode_context_parallel"),
        *("moe_all_to_all", "kv_cache_dtype", "context_length", "max_running_requests", "max_batched_tokens"),
        *("memory_fraction", "speculative_tokens", "cuda_graph_max_batch", "prefix_caching", "deep_gemm"),
    }
)
"""The shared knobs that the simulator's arithmetic reads."""
_ENOUGH = 2
"""Of these, how many a table must tell of an engine before anything is said of its rows."""
_SHORT = {
    "tp": "tensor_parallel",
    "dp": "data_parallel",
    "ep": "expert_parallel",
    "pp": "pipeline_parallel",
    "moe_ep": "expert_parallel",
}
"""Names that tables use for the layout, where the engine has no option of that name."""
_LAYOUT = ("data_parallel", "pipeline_parallel")
_LARGEST = 1e9
_MOST_DRAFTS = 64


@dataclass(frozen=True, slots=True)
class Meaning:
    """A candidate in our vocabulary.

    Attributes:
        engine: its name; an alias is resolved.
        version: the one whose defaults fill what is not told.
        knobs: effective ones.
        refused: whether it breaks a rule that the engine insists on.
    """

    engine: str
    version: str
    knobs: Mapping[str, Scalar]
    refused: bool = False


def meanings(prepared: Prepared) -> list[Meaning | None]:
    """Per candidate what it means; None where nothing is known of it. Never raises, whatever the rows hold."""
    items = prepared.candidates.items
    if not prepared.spec.on.startswith(REPLAY):
        return [Meaning(c.configuration.engine, c.engine_version, c.configuration.knobs) for c in items]
    by_engine: dict[str, list[Candidate]] = {}
    for candidate in items:
        by_engine.setdefault(candidate.configuration.engine, []).append(candidate)
    found: dict[str, Meaning | None] = {}
    for name, mine in by_engine.items():
        vocabulary = _vocabulary(prepared, name, mine)
        if vocabulary is not None:
            found.update({one.fingerprint: vocabulary.meaning(one.configuration.knobs) for one in mine})
    return [found.get(candidate.fingerprint) for candidate in items]


def _vocabulary(prepared: Prepared, name: str, rows: Sequence[Candidate]) -> _Vocabulary | None:
    """How the rows of an engine are read; None where that says too little, or the engine is not known."""
    try:
        kind = engine(name, prepared.library)
        version = _version(kind, rows[0].engine_version)
    except BadInput:
        return None
    spec = prepared.spec
    columns = {column for row in rows for column in row.configuration.knobs}
    found = _Vocabulary(kind, Context(spec.model, spec.hardware, spec.gpus, version), columns)
    return found if found.telling(rows) >= _ENOUGH else None


def _version(kind: Engine, text: str) -> str:
    try:
        return kind.version(text)
    except BadInput:
        return kind.version()


class _Vocabulary:
    """The columns of a table as one engine's version understands them.

    Attributes:
        knobs: column to the knob that it is.
        options: column to the engine's option that it is.
    """

    def __init__(self, kind: Engine, context: Context, columns: set[str]) -> None:
        self._kind, self._context = kind, context
        self._normaliser = Normaliser(kind.card, context)
        self.knobs: dict[str, str] = {}
        self.options: dict[str, Option] = {}
        by_name = {name: option for option in kind.table(context.version).options for name in _names(option)}
        for column in sorted(columns):
            plain = column.strip().lstrip("-").replace("-", "_").lower()
            if plain in kind.card.knobs:
                self.knobs[column] = plain
            elif plain in by_name:
                self.options[column] = by_name[plain]
            elif _SHORT.get(plain) in kind.card.knobs:
                self.knobs[column] = _SHORT[plain]
        self._plain = self._read([]) or {}
        self._parsed: dict[tuple[str, ...], dict[str, Scalar] | None] = {}

    def telling(self, rows: Sequence[Candidate]) -> int:
        """How many of the shared knobs that matter the rows tell."""
        told = set(self.knobs.values())
        for row in rows:
            if told >= _TELLING or not self.options:
                break
            told |= set(self._flags(row.configuration.knobs) or ())
        return len(told & _TELLING)

    def meaning(self, row: Mapping[str, Scalar]) -> Meaning | None:
        """What a row means; None where a column that matters holds what the engine does not take."""
        flags = self._flags(row)
        if flags is None:
            return None
        told = dict(flags)
        for column, name in self.knobs.items():
            value = row.get(column)
            if value is None:
                continue
            taken, understood = _taken(self._kind.card.knobs[name], value)
            if not understood or not _sane(name, taken):
                return None
            told[name] = taken
        return self._effective(self._spread(told))

    def _spread(self, told: dict[str, Scalar]) -> dict[str, Scalar]:
        """All GPUs are used: what is not told of the layout is what remains."""
        others = [told.get(name, 1) for name in _LAYOUT]
        gpus = self._context.gpus
        if "tensor_parallel" in self._kind.card.knobs and "tensor_parallel" not in told:
            width = math.prod(value for value in others if isinstance(value, int))
            told["tensor_parallel"] = max(1, gpus // max(1, width))
        return told

    def _effective(self, told: Mapping[str, Scalar]) -> Meaning | None:
        try:
            knobs = self._kind.default_knobs(self._context, told)
            scope = self._context.scope(knobs)
            self._normaliser.apply(scope)
            rules = self._normaliser.broken(scope)
        except Exception:
            # Expressions of a card over values that its author did not think of.
            return None
        refused = any(rule.kind is not FailureKind.RULE for rule in rules)
        return Meaning(self._kind.name, self._context.version, {name: scope[name] for name in knobs}, refused)

    # Flags

    def _flags(self, row: Mapping[str, Scalar]) -> dict[str, Scalar] | None:
        """The knobs that a row's flags set; None where the engine's parser refuses them."""
        words: list[str] = []
        for column, option in self.options.items():
            words += _words(option, row.get(column))
        key = tuple(words)
        if key not in self._parsed:
            read = self._read(words)
            differs = None if read is None else {k: v for k, v in read.items() if v != self._plain.get(k)}
            self._parsed[key] = differs
        return self._parsed[key]

    def _read(self, words: Sequence[str]) -> dict[str, Scalar] | None:
        card, version = self._kind.card, self._context.version
        model = self._context.model.id
        argv = (*card.program, *([model] if card.model_flag is None else [card.model_flag, model]), *words)
        try:
            return dict(self._kind.knobs(self._kind.parse(Command(argv), version), self._context).knobs)
        except Exception:
            # Whatever a stranger's table makes of a parser, nothing is known of the row then.
            return None


def _names(option: Option) -> list[str]:
    short = [flag.lstrip("-").replace("-", "_") for flag in option.flags]
    return [name.lower() for name in (*option.names, *short)]


def _words(option: Option, value: Scalar) -> list[str]:
    """A flag as it stands on a command line; empty where it is not set."""
    if value is None or value == "":
        return []
    flag = max(option.flags, key=len)
    if option.action in ("store_true", "store_false", "boolean_optional"):
        switch = _switch(value)
        if switch is None:
            return [flag, str(value)]
        negated = option.action == "boolean_optional" and not switch
        on = switch if option.action != "store_false" else not switch
        return [f"--no-{flag.lstrip('-')}"] if negated else [flag] if on else []
    return [flag, str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)]


def _switch(value: Scalar) -> bool | None:
    """A switch's value however a table writes it; None for what is none."""
    if isinstance(value, str):
        return {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False}.get(
            value.strip().lower(), False if value.strip() == "0" else None
        )
    return bool(value) if value in (0, 1) else None


def _taken(knob: Knob, value: Scalar) -> tuple[Scalar, bool]:
    """A cell as the knob's value, and whether it can be one. Names are taken as they are: tables have their own."""
    known = [v for entry in knob.search for v in (entry.values if isinstance(entry, Values) else [entry])]
    known = [v for v in (*known, *(knob.choices or ())) if v is not None]
    if known and all(isinstance(v, bool) for v in known):
        switch = _switch(value)
        return switch, switch is not None
    if knob.minimum is not None or (known and all(isinstance(v, int | float) for v in known)):
        number = _number(value)
        return number, number is not None and (knob.choices is not None or knob.refuses(number) is None)
    return str(value), not isinstance(value, bool)


def _number(value: Scalar) -> int | float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    if not math.isfinite(number) or abs(number) > _LARGEST:
        return None
    return int(number) if number.is_integer() else number


def _sane(name: str, value: Scalar) -> bool:
    """Whether the arithmetic can take a value: a step of a million drafts is no step."""
    return not (name == "speculative_tokens" and isinstance(value, int | float) and value > _MOST_DRAFTS)
