"""Schema of ``search_spaces/<engine>/engine.yaml``: all knowledge of an engine, as data.

A *knob* has a name of the shared vocabulary (or, where only one engine has it, the engine's own
flag name with underscores), the values that may be tried, its default, how it is written into a
command line (`emit`) and how it is read back from one (`read`). *Rules* say which combinations fail
or are pointless, *effects* which settings the engine itself changes or ignores. Version ranges are
PEP 440 specifiers (``>=0.5.20,<0.6``), ``*`` = all.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypeVar

from packaging.version import Version
from pydantic import AfterValidator, BeforeValidator, Field, PositiveFloat

from autotune.base import Json, StringDict, Strings

from .command import Scalar
from .entry import (
    Entry,
    Explained,
    KnownVersion,
    NonEmpty,
    Sourced,
    Versioned,
    VersionRange,
    in_range,
)
from .expression import Expression, Scope, Template, evaluate
from .failure import FailureKind
from .serving import ContainerImage, LogPattern, ProgressMark, ResolvedSource, Serving


class Conditional(Versioned):
    """An entry that applies under a condition."""

    when: Expression = "True"

    def holds(self, scope: Scope, version: str) -> bool:
        """Return whether the entry applies to a version in a scope."""
        return self.is_for(version) and (self.when == "True" or bool(evaluate(self.when, scope)))


Held = TypeVar("Held", bound=Conditional)


def holding(entries: Iterable[Held], scope: Scope, version: str) -> list[Held]:
    """List the entries that apply to a version in a scope."""
    return [entry for entry in entries if entry.holds(scope, version)]


class Addition(Conditional):
    """An addition to the command line. ``args`` and the leaves of ``env`` and ``config`` are
    templates."""

    args: list[Template] = []
    env: dict[str, Template] = {}
    config: Json = {}
    """Dotted keys of the engine's own config file, with their values."""
    reason: str = ""
    source: str = ""


class ForcedAcceptance(Addition):
    """Switch that forces an engine's number of accepted drafted tokens; its templates see it as
    `forced`."""

    counts_drafts: bool = False
    """The number excludes the token that comes without drafting."""
    whole: bool = False
    """The switch takes whole numbers only."""
    read: Expression
    """The number in a command line, of ``args`` and ``env``; None = not forced."""

    def counted(self, length: float) -> float:
        """Return tokens per step as the engine counts them; the nearest valid number other than
        0."""
        number = round(length - self.counts_drafts, 2)
        return max(1, int(number + 0.5)) if self.whole else number


class RandomWeights(Addition):
    """Switch that starts an engine with random weights and routes tokens to experts uniformly."""

    read: Expression
    """Condition on ``args``, ``env`` and ``config``: true if a command line has the switch."""


class Case(Conditional):
    """A value, or a template of one, under a condition; in a list of cases the first that holds
    applies."""

    value: bool | int | float | Template | None = None


class Values(Conditional):
    """Values to search under a condition; in a list the first that holds applies."""

    values: list[Scalar]


def _default_cases(default: Any) -> Any:
    return default if isinstance(default, list) else [{"value": default}]


def _searched_cases(search: Any) -> Any:
    plain = isinstance(search, list) and search and not isinstance(search[0], dict)
    return [{"values": search}] if plain else search


class Reading(Versioned):
    """Reading of a knob from a command line, in a range of versions."""

    value: Expression


# An expression alone is the reading of all versions.
Readings = Annotated[
    list[Reading], BeforeValidator(lambda r: [{"value": r}] if isinstance(r, str) else r)
]


GiveUpKind = Literal[
    "shorter-context", "no-prefix-caching", "lossy", "coarse-streaming", "no-memory-reserve"
]
"""Kinds of trade-offs for speed."""


class GiveUp(Entry):
    """Promise to users of the server that some values of a knob break, e.g. a lossless KV cache.

    A shorter `context_length` needs no mark: see `autotune.engines.promises.Promised`.
    """

    kind: GiveUpKind
    when: Expression
    """Condition on the value; beside the knobs it sees `default`, the knob's own, and `baseline`,
    its knobs."""
    what: Template
    """The trade-off, as a sentence."""
    keeps: Expression = "default"
    """The value without a trade-off."""


class PublishedEffect(Conditional):
    """Published effect of a knob's value on the throughput: a reason to try it.

    Of a knob's list the first that holds counts.
    """

    when: Expression
    """Condition on the configuration, the knob's own value included."""
    ratio: PositiveFloat
    """Throughput, as a multiple of that with the knob's default."""
    load: str
    """Model, GPUs and load of the measurement."""
    source: str


class Knob(Entry):
    """One knob of an engine.

    `emit` is applied when the knob's value differs from its default; an entry's own ``when``
    narrows it further. `read` gives the knob's value from ``args`` (parsed options by argparse
    destination and by every long spelling, hyphens as underscores), ``env``, ``config`` (the
    engine's own config file) and ``servers`` (how many the command starts), beside ``model``,
    ``hardware``, ``gpus`` and ``workload``; None stands for "not given", which is the default. Of a
    list of readings the first whose versions hold counts; where none does, the version cannot set
    the knob. Nor can one before `since`: `search`, `emit`, `read` and `resolved` are about the
    versions from it on.

    `resolved` gives the value that a running engine says it has, from what the card's `resolved`
    sources tell, each under its name; None is again the default. Of several readings the first that
    is told counts: one that needs a name which no source gives tells nothing. Where nothing is
    told, the knob is taken as it was asked for.
    """

    help: str
    since: KnownVersion | None = None
    """First version that has the knob; None: all have it."""
    default: Annotated[list[Case], BeforeValidator(_default_cases)] = [Case()]
    """A value, or cases."""
    search: Annotated[list[Values], BeforeValidator(_searched_cases)]
    """The values that enumeration tries, or cases of them."""
    beside: Annotated[list[Values], BeforeValidator(_searched_cases)] = []
    """More values, or cases of them, that are tried beside the best launched configurations only:
    they do not multiply the candidates. A case sees that configuration's knobs, later ones too."""
    choices: list[Scalar] | None = None
    """Every value `--set` may pin; None: any value."""
    words: list[str] = []
    """Words beside numbers that leave the value to the engine, once it knows its memory."""
    minimum: float = -math.inf
    """Least number; the engine refuses less."""
    maximum: float = math.inf
    active: Expression = "True"
    """Condition; where it is false, the knob keeps its default."""
    emit: list[Addition] = []
    emit_default: bool = False
    """Write the value even if it equals the default."""
    read: Readings
    resolved: Readings = []
    becomes: Readings = []
    """Share that weights and KV cache get; for `memory_fraction` alone."""
    monotone_memory: bool = False
    """A larger value never needs less GPU memory."""
    gives_up: list[GiveUp] = []
    published: list[PublishedEffect] = []
    source: str = ""

    def exists_in(self, version: str) -> bool:
        """Return whether a version has the knob; without it, the knob has its default."""
        return not self.since or in_range(version, f">={self.since}")

    def expressions(self, readings: list[Reading], version: str) -> Iterator[str]:
        """List the expressions of some of its readings in a version; none without the knob."""
        held = (reading.value for reading in readings if reading.is_for(version))
        return held if self.exists_in(version) else iter(())

    def refuses(self, value: Scalar) -> str | None:
        """Explain why a value is refused; None if it is allowed. A knob with bounds takes numbers,
        or None."""
        if self.choices is not None and value not in self.choices:
            known = ("null" if choice is None else str(choice) for choice in self.choices)
            return f"known values: {', '.join(known)}"
        low = f" of at least {self.minimum:g}" if self.minimum > -math.inf else ""
        high = f" of at most {self.maximum:g}" if self.maximum < math.inf else ""
        free = (*self.words, *(case.value for case in self.default if case.value is None))
        if not (low or high) or value in free:
            return None
        # A count: no value that is tried has a fraction.
        whole = not any(isinstance(v, float) for entry in self.search for v in entry.values)
        right = f"a {'whole ' if whole else ''}number{low}{' and' if low and high else ''}{high}"
        if (
            isinstance(value, bool)
            or (whole and isinstance(value, float))
            or not isinstance(value, int | float)
        ):
            return right
        if not abs(value) < 2**31:
            return f"{right}, below 2^31"  # engines count in 32 bits
        return None if self.minimum <= value <= self.maximum else right


_NO = {"--": "--no-"}
_OFF = {
    "boolean_optional": _NO,
    "enable_disable": {**_NO, "--enable-": "--disable-", "--disable-": "--enable-"},
}


class Option(Versioned):
    """Option of the engine's command line, as declared by its own parser."""

    flags: NonEmpty
    """Every spelling, as on a command line."""
    dest: str = Field(default_factory=lambda option: name_of(option["flags"][0]))
    """Where the engine stores the value."""
    action: Literal[
        "store", "store_true", "store_false", "boolean_optional", "enable_disable", "append"
    ] = "store"
    """``enable_disable``: vLLM's switch that also takes its inverse, ``--disable-x`` for
    ``--enable-x``."""
    type: Literal["str", "int", "float", "json", "json_or_str", "human_int", "bool"] = "str"
    """``human_int``: 64k is 64000."""
    nargs: str | int | None = None
    choices: list[Any] = []
    const: Any = None
    default: Any = None
    """Default of the parser; None also where the engine computes it."""

    @property
    def names(self) -> Strings:
        """Return the names of the value in expressions: the destination and every long spelling."""
        return (self.dest, *(name_of(flag) for flag in self.flags if flag.startswith("--")))

    @property
    def negations(self) -> list[str]:
        """Return the spellings that switch it off."""
        return [
            off + flag.removeprefix(on)
            for flag in self.flags
            for on, off in _OFF.get(self.action, {}).items()
            if flag.startswith(on)
        ]

    @property
    def spellings(self) -> list[str]:
        """Return every spelling, with those that switch it off."""
        return [*self.flags, *self.negations]

    @property
    def paths(self) -> frozenset[str]:
        """Return where expressions find the value, e.g. ``args.tp_size``."""
        return frozenset(f"args.{name}" for name in self.names)

    @property
    def long_flag(self) -> str:
        """Return the first long spelling, else the first of all."""
        return next((flag for flag in self.flags if flag.startswith("--")), self.flags[0])


def name_of(flag: str) -> str:
    """Return an option's name in expressions, e.g. ``tp_size`` of ``--tp-size``."""
    return flag.lstrip("-").replace("-", "_")


class Rule(Versioned, Explained):
    """A combination that fails, or that is useless (kind ``rule``: it would run, but is never worth
    a launch)."""

    name: str
    forbid: Expression
    """Condition; true = the combination is forbidden."""
    module: str | None = None
    """Python module; the rule holds only where the engine's own Python cannot import it."""
    kind: FailureKind
    message: str
    """The engine's telling line, or what would be wrong."""


class Effect(Conditional, Explained):
    """A setting that the engine changes by itself: if ``when`` holds, the knobs in ``set`` have
    these values."""

    name: str
    when: Expression
    set: Json = {}
    """Knob to value or template; empty: a known issue of these versions."""


class NoEffectOption(Conditional, Explained):
    """Options without an effect on the engine's speed: they have another purpose, or none.

    The condition is on the configuration; elsewhere the options count.
    """

    flags: NonEmpty
    """Long spellings; those of a table in options/."""


class NamedOptions(Versioned, Explained):
    """Options of one class, by name: of the command line, the environment, or the engine's config
    file."""

    names: NonEmpty
    """Names as written, keys of an option's value behind a dot; * stands for any letters."""
    values: list[Scalar] = []
    """Values of this class; empty: any."""

    def has(self, name: str, value: object) -> bool:
        fits = (
            not self.values or (value if isinstance(value, Scalar) else str(value)) in self.values
        )
        return fits and any(fnmatchcase(name, pattern) for pattern in self.names)


class Reads(Conditional):
    """Figures of the architecture that an engine reads otherwise than the card says them.

    Expressions see what a rule sees, without knobs.
    """

    when: Expression
    figures: dict[str, float | str] = {}
    """In place of the checkpoint's; a text is a template."""
    source: str


class Loaded(Reads):
    """Change of the model, or of a GPU's memory, that options of a command line make while it is
    loaded.

    Expressions see the effective knobs, and ``args``, ``env`` and ``config`` as a knob's reading
    does.
    """

    gb: Expression = "0"
    """GB (10^9 bytes) more, below 0: less, on each GPU."""
    reason: Template


class Start(Sourced):
    """A configuration known to be good: a head start for the search."""

    name: str
    when: Expression = "True"
    set: Json


class NotSearched(Conditional, Explained):
    """A way to serve that no candidate has: `when` sees model, node and load, and no knobs."""

    what: str


class Recipe(Conditional):
    """Command published for a model on a node, and for a load; it stands on `gpus` GPUs several
    times, if it takes fewer."""

    name: str
    when: Expression
    """Condition on model, hardware, gpus and workload alone: the knobs are in the command."""
    command: str
    """Command as published; {model} stands for the model's id or path, and further holes for what
    follows from the load."""
    config: Json = {}
    """Content of the config file that the command names, with such holes."""
    source: str


class Requirement(Versioned, Explained):
    """Requirement of the engine on model and hardware; if it does not hold, the engine is excluded
    with the reason."""

    expect: Expression


class InstallationFacts(Entry):
    """Signs of an installation of the engine, and the way to query its options."""

    distributions: list[str] = []
    """Python distributions that are the engine; the first that is there tells the version."""
    help: list[str] | None = None
    """Arguments after the program to print every option; None: its parser is not asked."""


class Renamed(Sourced):
    """An option, a key of the config file, or an environment variable that became an option, with
    the versions of each name."""

    kind: Literal["flag", "environment", "key"]
    """Kind of the old name; the new one of a variable is a flag. Keys are named in refusals, not translated."""
    old: str
    new: str
    old_versions: VersionRange
    """Versions in which the old name works."""
    new_versions: VersionRange
    """Versions in which the new name works."""
    values: StringDict = {}
    """Values that were renamed too, old to new."""


class Removed(Entry):
    """Options that are gone, and what is written instead."""

    since: str
    """First release without them."""
    back: str = "9999"
    """First release that takes them again."""
    flags: list[str]
    instead: str = "delete it"


class Counterpart(Versioned):
    """Option that is no knob; options of one `meaning` replace each other between engines."""

    meaning: str
    flags: list[str] = []
    """Its spellings, or dotted keys of the config file."""
    variable: str | None = None
    """Environment variable that does the same."""
    args: list[str] | None = None
    """Words written for it, ``{value}`` for its values; None: the flag and its values."""
    also: StringDict = {}
    """Flag to value, written where the command lacks the flag."""
    values: StringDict = {}
    """Its values to those that all engines' cards share."""
    form: str | None = None
    """Regular expression of the values that have a counterpart."""
    file: bool = False
    """The value may name a file, also as name=path."""
    source: str


class Dispensable(Explained):
    """Options that another engine's command does without; `tuned`: so do this engine's own
    candidates."""

    flags: list[str] = []
    """Spellings, or dotted keys of the config file."""
    variables: list[str] = []
    """Environment variables, ``*`` at the end for any rest."""
    tuned: bool = False


class Word(Sourced):
    """A value in a column of tables, and its name in the card."""

    column: str
    word: Scalar
    means: Scalar = None
    """Value in the card; None: the engine's own choice."""


class EngineCard(Entry):
    """Content of ``search_spaces/<engine>/engine.yaml``."""

    engine: Annotated[str, AfterValidator(str.lower)]
    title: str
    program: list[str]
    """How the command line begins."""
    versions: NonEmpty
    """Known versions, oldest first; each with a table in options/, or `options`."""
    options: list[Option] = []
    """Options of an engine with few; they are its tables."""
    programs: list[list[str]] = []
    """Other ways in which its command line may begin."""
    model_flag: str | None = None
    """Option that names the model; None: it is the first positional argument."""
    config_flag: list[Case] = []
    """Option that names the engine's own config file."""
    config_file: str = ""
    """Name of the config file that a command brings along."""
    installation: InstallationFacts = InstallationFacts()
    renamed: list[Renamed] = []
    removed: list[Removed] = []
    words: list[Word] = []
    """Words of tables, where a knob refuses the value or there is none."""
    on_node: Json
    """The engine's defaults on all GPUs: knob to value or template."""
    requires: list[Requirement] = []
    architectures: list[str] = []
    """Model classes that it has; empty: not known which."""
    always: list[Addition] = []
    forced_acceptance: list[ForcedAcceptance] = []
    """Switches; the first of a version counts."""
    random_weights: list[RandomWeights] = []
    """Switches; the first that holds counts."""
    knobs: dict[str, Knob]
    effects: list[Effect] = []
    no_effect: list[NoEffectOption] = []
    """Options reported as without effect on a command line."""
    neutral: list[NamedOptions] = []
    """Further options without effect on speed and memory, which nobody expects of them."""
    simulated: list[NamedOptions] = []
    """Options that the simulator models, beside those that its knobs are read from."""
    reads: list[Reads] = []
    """Figures that this engine reads otherwise than the model's card has them; all that hold count."""
    loaded: list[Loaded] = []
    """Changes of the model; each that holds counts."""
    refusals: list[Rule] = []
    """Rules over `args`, `env` and `config` as well: values that end the start."""
    counterparts: list[Counterpart] = []
    """Counterparts; the first of a meaning that holds counts."""
    dispensable: list[Dispensable] = []
    variables: list[str] = []
    """Environment variables that no other engine reads, ``*`` at the end for any rest."""
    rules: list[Rule] = []
    starts: list[Start] = []
    not_searched: list[NotSearched] = []
    recipes: list[Recipe] = []
    """Recipes; the first that holds is `--baseline recipe`."""
    serving: Serving = Serving()
    resolved: list[ResolvedSource] = []
    kv_cache_tokens: list[ResolvedSource] = []
    """Patterns whose group is the tokens that one replica's KV cache holds, or its GiB on a rank
    (`gib`)."""
    progress: list[ProgressMark] = []
    """Marks in the order of a start."""
    default_baseline: bool = False
    """The engine comes first, so that its default is the baseline."""
    checkpoint_files: bool = False
    """A model is a folder with weight files, or a Hugging Face id that is looked for in its cache;
    options `load_format`, `download_dir` and `revision` mean there what they mean in vLLM."""
    images: list[ContainerImage] = []
    """Container images with the engine; the first that fits counts."""
    failures: list[LogPattern] = []

    @property
    def forms(self) -> list[Strings]:
        """Return the words that its command line may start with, the usual ones first."""
        return [tuple(self.program), *map(tuple, self.programs)]

    @property
    def releases(self) -> list[str]:
        """Return the known versions but release candidates, unless there is nothing else."""
        return [one for one in self.versions if not Version(one).is_prerelease] or self.versions

    @property
    def newest(self) -> str:
        return self.releases[-1]

    def in_own_words(self, row: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return a table's values in the card's names, without those that leave the choice to the
        engine.

        ``auto`` does so where it is no value of the knob's own. What the card has no word for stays
        as it is.
        """
        found: dict[str, Scalar] = {}
        for name, value in row.items():
            knob = self.knobs.get(name)
            means = value
            if knob and value == "auto" and "auto" not in (*(knob.choices or ()), *knob.words):
                continue
            if not knob or knob.refuses(value):
                means = next(
                    (one.means for one in self.words if (one.column, one.word) == (name, value)),
                    value,
                )
            if means is not None:
                found[name] = means
        return found


class NarrowedEngine(Entry):
    """Part of one engine's space to try: the named knobs with these values; others have their
    default."""

    search: dict[str, list[Scalar]]
    starts: list[Start] = []


class Narrowing(Entry):
    """A space file that narrows the packaged spaces; other engines are not searched."""

    narrow: dict[str, NarrowedEngine]
