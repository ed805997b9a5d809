"""Enumerate a study's candidates: per engine, with the baseline, excluded engines with reasons, and
the weights."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from packaging.version import InvalidVersion

from autotune.base import BadInput, Notify, by_key, frozen, silent
from autotune.engines import (
    CONTRADICTS,
    RANKS,
    RULE,
    Candidate,
    CandidateSet,
    Command,
    Configuration,
    Context,
    Engine,
    EngineCard,
    EngineSpace,
    Enumeration,
    FailureKind,
    GivenUp,
    Kept,
    Knobs,
    Library,
    ModelCard,
    ParsedCommand,
    Scalar,
    broken_rules,
    effective,
    enumerate_engine,
    gpus_of,
    name_of,
    recognise,
    split_command,
    weight_bytes_per_gpu,
)
from autotune.engines.context import as_failure, normalised, search_values, unsuited
from autotune.engines.enumeration import why_empty
from autotune.engines.expression import evaluate, fill_value
from autotune.engines.installed import engine_of
from autotune.engines.options import Loading, loading
from autotune.engines.promises import UNASKED, promises_of
from autotune.engines.schema import Values, holding
from autotune.engines.space import NOTHING, PassedThrough, passed_through
from autotune.node.unread import with_unread, with_unread_settings
from autotune.servers.command import resolve_references
from autotune.servers.weights import weights_problem

from ..backends import Backend, OwnCandidates, backend_of
from ..study.loads import context_of
from ..study.recommendation import Exclusion, NoEffect
from ..study.sentences import sentences
from ..study.spec import AUTO, StudySpec, is_local
from ..trial import Launch, Trial
from .left_out import PROMISES, leave_out_refused, leave_out_unasked, leave_out_unjudged
from .nearby import Nearby
from .own_options import OwnOptions, engine_in_study, own_options_of, with_own_knobs
from .predicted_memory import MemoryPlans, leave_out_by_memory, promises_kept
from .recipes import known_recipes
from .variables import inheriting


@frozen
class Prepared:
    """The candidates of a study and the start of their servers.

    Attributes:
        spec: its notes also say what was left out.
        spaces: by engine, only those that are searched; of a replayed table those with an engine
            card.
        baseline_command: ``--baseline``, to be launched as typed; None without one.
        write: writes the command of a given candidate; None: candidates come from the spaces.
        recorded: the launches of a bundle, which are answered one after the other.
        kept: by engine, the options of the user's own command that its candidates keep.
    """

    spec: StudySpec
    library: Library
    candidates: CandidateSet
    spaces: Mapping[str, EngineSpace]
    excluded: tuple[Exclusion, ...]
    baseline_command: Command | None
    write: Callable[[Candidate], Command] | None = None
    recorded: Sequence[Launch] = ()
    kept: Mapping[str, Kept] = {}

    @property
    def backend(self) -> Backend:
        return backend_of(self.spec)

    @property
    def gpus_needed(self) -> list[int]:
        """List the numbers of GPUs that candidates take, ascending."""
        chosen = (candidate.configuration for candidate in self.candidates.items)
        return sorted({gpus_of(configuration, self.spec.gpus) for configuration in chosen})

    def with_note(self, note: str) -> Prepared:
        return replace(self, spec=self.spec.with_fields(notes=(*self.spec.notes, note)))

    def command_of(self, candidate: Candidate) -> Command:
        """Return the command of a candidate's server; the user's baseline as typed."""
        configuration = candidate.configuration
        typed = self.baseline_command
        if typed and candidate is self.candidates.baseline_candidate:
            command = typed
        elif self.write:
            command = self.write(candidate)
        else:
            space = self.spaces[configuration.engine]
            command = space.passed.command(space.engine, configuration, space.context)
        card = self.library.engines.get(configuration.engine)
        if card is None:
            return command
        command = inheriting(command, card, self.spec, self.library)
        return self.backend.as_launched(command, card, self.spec)

    def counts(self) -> dict[str, int]:
        """Count the candidates of each searched engine."""
        if self.write:
            return dict(Counter(one.configuration.engine for one in self.candidates.items))
        return {name: len(space.space.configurations) for name, space in self.spaces.items()}

    @property
    def not_searched(self) -> list[Exclusion]:
        """List the ways to serve that no candidate has, with the reasons."""
        return [
            Exclusion(engine=name, reason=f"{one.what}, as {one.reason} ({one.source})")
            for name, space in self.spaces.items()
            for one in holding(
                space.card.not_searched, space.context.scope({}), space.context.version
            )
        ]

    def first_of_each_engine(self) -> list[Candidate]:
        """Return the first candidate of every engine."""
        # Reversed, because the last of equal keys stays.
        by_engine = {one.configuration.engine: one for one in reversed(self.candidates.items)}
        return list(by_engine.values())


def prepare(
    spec: StudySpec, library: Library, notify: Notify = silent, *, anywhere: bool = False
) -> Prepared:
    """Enumerate the candidates, with `anywhere` also those that cannot run here; raises `BadInput`
    for none."""
    backend = backend_of(spec)
    if backend.predicted and not anywhere:
        spec.model.check_predicted()
    if given := backend.own_candidates(spec, library):
        return _given(spec, library, given)
    if spec.verifies:
        return _verified(spec, library, anywhere=anywhere)
    own = own_options_of(spec, library)
    spaces = {}
    excluded = []
    notes = list(own.notes)
    heavy, plans = "", MemoryPlans(spec, library)
    in_study = context_of(spec, "", library)
    for choice in spec.engines:
        here = spec.installed.get(choice.name)
        lacking = here.lacking if here else ()
        kind = engine_of(library.engine(choice.name).engine, spec.installed, library, notify)
        context = replace(in_study, version=choice.version, lacking=lacking).as_read(kind.card)
        reason = (
            unsuited(kind.card, context)
            or unpinnable(kind.card, spec.pins)
            or own.why_lost(kind, choice.version)
            or (None if anywhere else backend.why_unavailable(kind, spec))
        )
        if reason is None:
            space, engine_notes, reason = _searched(kind, context, spec, library, own)
            notes += engine_notes
            plans.set_model(space)
        if reason is None and not anywhere:
            weights = too_heavy(space.space.configurations, space.context, plans)
            if weights:
                heavy, reason = f" ({weights[0]})", weights[1]
        reason = reason or leave_out_by_memory(spec, space, plans)
        if reason is None:
            spaces[kind.name] = space
        else:
            excluded.append(Exclusion(engine=kind.name, reason=reason))
    if not spaces:
        check_layouts(spec, [library.engine(choice.name) for choice in spec.engines])
        engines = by_key((one.reason, one.engine) for one in excluded)
        reasons = (f"{', '.join(names)}: {reason}" for reason, names in engines.items())
        raise BadInput(f"no engine can run on {spec.hardware.name}{heavy}: {'; '.join(reasons)}")
    notes += unknown_parts(spec.model, [space.card for space in spaces.values()])
    spec = spec.with_fields(notes=(*spec.notes, *notes))
    baseline, command = _baseline(spec, library, own, spaces, anywhere=anywhere)
    candidates = _candidates(spec, library, spaces, baseline, plans)
    kept = {name: own.kept_by(one.engine, one.context.version) for name, one in spaces.items()}
    prepared = Prepared(spec, library, candidates, spaces, tuple(excluded), command, kept=kept)
    _check_commands(prepared)
    return prepared


def _searched(
    kind: Engine, context: Context, spec: StudySpec, library: Library, own: OwnOptions
) -> tuple[EngineSpace, list[str], str | None]:
    """Enumerate the configurations accepted by an engine's parser; with notes, and the reason if
    there are none."""
    space, unread = _engine_space(kind, context, spec, library, own)
    enumeration = space.space
    leave_out_unasked(spec, space)
    unjudged = leave_out_unjudged(spec, space, library)
    # Launch recipes to compare with, even with values that are not searched or not allowed; another
    # form may be recommended.
    recipes = _recipe_forms(space, library)
    enumeration.configurations += [
        one for one in dict.fromkeys(recipes) if one not in enumeration.configurations
    ]
    refused = leave_out_refused(space)
    refusals = [f"{n} candidates are removed, {RULE}: {text}" for text, n in refused.items()]
    title, removed = kind.card.title, enumeration.removed
    notes = [f"{title} {context.version}: {note}" for note in [*unread, *unjudged, *refusals]]
    notes += [
        f"{title}: {removed[rule.name]} combinations are removed: {rule.reason}"
        for rule in kind.card.rules
        if rule.module and removed.get(rule.name)
    ]
    if passed := ", ".join(f"{name}={value}" for name, value in space.passed.pins.items()):
        notes.append(f"{space.passed.option} pins {passed}")
    if enumeration.configurations:
        return space, notes, None
    why = "; ".join(["", *refusals]) or why_empty(kind.card, enumeration, space.pins)
    if not refusals and PROMISES in removed:
        why = (
            ": all serve less context than --min-context, or switch prefix caching off without "
            "--allow"
        )
    if CONTRADICTS in removed:
        why = f": {space.passed.option} contradicts them all"
    return space, notes, f"no valid configuration remains{why}"


def _verified(spec: StudySpec, library: Library, *, anywhere: bool) -> Prepared:
    """Prepare a study whose only candidates are given commands, the baseline's first."""
    assert spec.verifies
    spaces: dict[str, EngineSpace] = {}
    commands: dict[Candidate, Command] = {}
    for one in spec.verifies.commands:
        command = replace(split_command(one.command), files=one.files)
        command = inheriting(command, recognise(command.argv, library).card, spec, library)
        candidate, command = typed_candidate(spec, library, command, spaces, anywhere=anywhere)
        commands.setdefault(candidate, command)
    listed = list(commands)
    given_up, promised = promises_kept(listed, spaces, MemoryPlans(spec, library))
    candidates = CandidateSet(
        listed, 0, (), (), library.monotone_memory, given_up, as_they_are=True, promised=promised
    )
    prepared = Prepared(spec, library, candidates, spaces, (), None, commands.__getitem__)
    _check_commands(prepared)
    return prepared


def _given(spec: StudySpec, library: Library, given: OwnCandidates) -> Prepared:
    """Prepare a study whose candidates come from its backend: no rule applies to them."""
    spaces = {
        name: EngineSpace(kind, context, Enumeration(), {})
        for name, (kind, context) in given.engines.items()
    }
    candidates = given.candidates
    candidates = replace(candidates, recipes=_named_recipes(spaces, library, candidates))
    spec = spec.with_fields(notes=(*spec.notes, *given.notes))
    return Prepared(
        spec, library, candidates, spaces, given.excluded, None, given.command_of, given.recorded
    )


def _engine_space(
    kind: Engine, context: Context, spec: StudySpec, library: Library, own: OwnOptions
) -> tuple[EngineSpace, list[str]]:
    """Enumerate an engine's candidates under its pins, narrowed by a space file; with notes.

    A pin ``auto`` is the engine's default, unless it has a value of that name. Options that are
    passed through pin their knobs too. Knobs that the evidence cannot see keep the engine's
    default, or the value of the user's baseline.
    """
    card, narrowed = kind.card, library.narrowed.get(kind.name)
    set_pins = {
        name: value
        for name, value in spec.pins.items()
        if name in card.knobs and (value != AUTO or AUTO in (card.knobs[name].choices or ()))
    }
    defaults = kind.default_knobs(context, set_pins)
    pins = {name: defaults[name] for name in spec.pins if name in card.knobs}
    text, kept = spec.engine_args.get(kind.name, ""), own.kept_by(kind, context.version)
    passed = NOTHING
    if text or kept != Kept():
        passed = passed_through(kind, context, text, pins, kept, spec.passed_files)
        pins |= passed.pins
        context = _as_loaded(kind, context, passed, {**defaults, **pins})
    chosen = {*pins}
    if narrowed:
        chosen |= {n for n, values in narrowed.search.items() if len(values) == 1}
    mine = {n: value for n, value in own.knobs(kind, context).items() if n not in chosen}
    words = {name: value for name, value in mine.items() if value in card.knobs[name].words}
    fixed: Knobs = words | pins
    if narrowed:
        on_node = {n: defaults[n] for n in card.on_node if n not in narrowed.search}
        fixed = {**on_node, **fixed}
        values = {n: [Values(values=own)] for n, own in narrowed.search.items() if own}
        card = _searching(card, values)
    asked = {
        n: [Values(values=[v for v in spec.among[n] if not knob.refuses(v)])]
        if n in spec.among
        else knob.search
        for n, knob in card.knobs.items()
    }
    card = _searching(card, asked)
    space = EngineSpace(kind, context, Enumeration(), pins, frozenset(chosen), passed)
    if backend_of(spec).predicted:
        space = with_unread(space, [space.effective({}), *_starts(space, library)])
    notes = []
    if spec.keeps_unread:
        if not spec.keeps_set:
            space = replace(space, held={n: v for n, v in mine.items() if n in space.unread})
        scope = context.scope(space.effective({}).knobs)
        read = {n: knob.search for n, knob in card.knobs.items() if n not in space.unread}
        left_out = [
            n
            for n, knob in card.knobs.items()
            if n not in read and len(search_values(knob, scope, context.version)) > 1
        ]
        if left_out:
            names = ", ".join(left_out)
            notes.append(f"not searched, as the simulator does not read them: {names}")
        card = _searching(card, read)
        fixed = {**space.held, **fixed}
    if spec.keeps_set and mine:
        # Nobody has asked for the trade-offs of a vendor's recipe.
        unasked = _unasked(space)(space.effective(mine)) if spec.recipe else ()
        notes += [f"only --allow {o.kind} keeps {o.knob}={o.to} of the recipe" for o in unasked]
        mine = {n: v for n, v in mine.items() if n not in {one.knob for one in unasked}}
        space, more = with_own_knobs(space, card, fixed, mine)
        return space, [*notes, *more]
    return replace(space, space=enumerate_engine(card, context, fixed)), notes


def _as_loaded(kind: Engine, context: Context, passed: PassedThrough, knobs: Knobs) -> Context:
    """Return the context with the model as the passed options make the engine load it; raises
    `BadInput` if refused."""
    settings = Configuration(kind.name, knobs)
    parsed = kind.parse(passed.command(kind, settings, context), context.version)
    loaded = loading(kind, parsed, context, settings)
    if failure := loaded.failure:
        raise BadInput(f"{passed.option}: {failure.log_excerpt} {failure.message}")
    return loaded.context


def _searching(card: EngineCard, search: Mapping[str, Sequence[Values]]) -> EngineCard:
    """Return a card that searches some knobs; another one has its default, which may depend on
    those."""
    knobs = {n: knob.with_fields(search=search.get(n, [])) for n, knob in card.knobs.items()}
    return card.with_fields(knobs=knobs)


def _starts(space: EngineSpace, library: Library) -> list[Configuration]:
    """Return the applicable good starts of the space file, else of the card with its vendors'
    recipes."""
    scope = space.context.scope(space.engine.default_knobs(space.context))
    source = library.narrowed.get(space.engine.name) or space.card
    starts = [
        space.effective(
            {n: fill_value(v, scope) for n, v in start.set.items() if n not in space.unread}
        )
        for start in source.starts
        if evaluate(start.when, scope)
    ]
    return [*starts, *_recipe_forms(space, library)]


def _unasked(space: EngineSpace) -> Callable[[Configuration], Sequence[GivenUp]]:
    """Make a function that lists trade-offs of `UNASKED` which ``--allow`` does not name."""
    kinds = UNASKED - {*space.context.allowed}
    return promises_of(space.card, space.context, {}, space.chosen, kinds)


def _recipe_forms(space: EngineSpace, library: Library) -> list[Configuration]:
    """Return each recipe as published, and without what the evidence cannot see and trade-offs of
    `UNASKED` that are not allowed."""
    unasked = _unasked(space)
    forms = []
    for read in _recipes(space, library).values():
        left_out = {*space.unread, *(one.knob for one in unasked(read))}
        kept = {name: value for name, value in read.knobs.items() if name not in left_out}
        forms += [read, space.effective(kept)]
    return forms


def _recipes(space: EngineSpace, library: Library) -> dict[str, Configuration]:
    """Return the vendor's recipes that agree with the pins, name to configuration; none if a space
    file narrows."""
    if space.engine.name in library.narrowed:
        return {}
    return {
        name: one
        for name, one in known_recipes(space.engine, space.context).items()
        if all(one.knobs[knob] == value for knob, value in space.pins.items())
    }


def _named_recipes(
    spaces: Mapping[str, EngineSpace], library: Library, candidates: CandidateSet
) -> dict[int, str]:
    """Return the candidates that are a vendor's recipe, position to its name."""
    return {
        candidates.position(one.fingerprint): name
        for space in spaces.values()
        for name, one in _recipes(space, library).items()
        if one.fingerprint in candidates
    }


def _baseline(
    spec: StudySpec,
    library: Library,
    own: OwnOptions,
    spaces: dict[str, EngineSpace],
    *,
    anywhere: bool,
) -> tuple[Candidate, Command | None]:
    """Return the baseline, with its command if that is the user's; its engine's space is added to
    `spaces`."""
    if own.command is None:
        space = next(iter(spaces.values()))
        return Candidate(_defaults(space), space.context.version), None
    try:
        return typed_candidate(spec, library, own.command, spaces, anywhere=anywhere)
    except BadInput as error:
        raise BadInput(f"--baseline: {error}") from error


def _defaults(space: EngineSpace) -> Configuration:
    """Return the engine's defaults on all GPUs, by the fewest servers that start."""
    context, gpus = space.context, space.context.gpus
    alone = space.effective({})
    if all(rule.kind is FailureKind.RULE for rule in broken_rules(space.card, alone, context)):
        return alone
    several = (space.effective({"replicas": n}) for n in range(2, gpus + 1) if gpus % n == 0)
    return next((one for one in several if not broken_rules(space.card, one, context)), alone)


def _candidates(
    spec: StudySpec,
    library: Library,
    spaces: Mapping[str, EngineSpace],
    baseline: Candidate,
    plans: MemoryPlans,
) -> CandidateSet:
    """List the baseline and all engines' configurations, with what is known of them."""
    items = {baseline.fingerprint: baseline}
    defaults, starts = list[Configuration](), list[Configuration]()
    for space in spaces.values():
        for configuration in space.space.configurations:
            candidate = Candidate(configuration, space.context.version)
            items.setdefault(candidate.fingerprint, candidate)
        defaults.append(space.effective({}))
        starts += _starts(space, library)
    listed = tuple(items.values())
    given_up, promised = promises_kept(listed, spaces, plans)
    candidates = CandidateSet(
        listed,
        0,
        monotone_memory=library.monotone_memory,
        given_up=given_up,
        without=lambda configuration: spaces[configuration.engine].without(configuration),
        promised=promised,
        growth=Nearby(spec, library, spaces, plans, listed),
    )
    recipes = _named_recipes(spaces, library, candidates)
    # Only recipes have such settings where the others were enumerated without them.
    asked = recipes if spec.keeps_unread else range(len(listed))
    return replace(
        candidates,
        defaults=_positions(defaults, candidates),
        starts=_positions(starts, candidates),
        recipes=recipes,
        unseen=with_unread_settings({i: listed[i].configuration for i in asked}, spaces),
    )


def _positions(
    configurations: Sequence[Configuration], candidates: CandidateSet
) -> tuple[int, ...]:
    """Return positions of configurations among the candidates; a configuration that breaks a rule
    has none."""
    names = dict.fromkeys(one.fingerprint for one in configurations)
    return tuple(candidates.position(name) for name in names if name in candidates)


def _check_commands(prepared: Prepared) -> None:
    """Check the references to the environment in one command of each engine, and in the typed
    baseline."""
    if prepared.backend.virtual:
        return
    baseline = prepared.spec.baseline
    if baseline and prepared.baseline_command:
        try:
            resolve_references(split_command(baseline), os.environ)
        except BadInput as error:
            raise BadInput(f"--baseline: {error}") from error
    for candidate in prepared.first_of_each_engine():
        resolve_references(prepared.command_of(candidate), os.environ)


def typed_candidate(
    spec: StudySpec,
    library: Library,
    command: Command,
    spaces: dict[str, EngineSpace],
    *,
    anywhere: bool = False,
) -> tuple[Candidate, Command]:
    """Read a typed command, with the program that it starts here; raises `BadInput` if it cannot
    run.

    The space of an engine that is not among `spaces` is added there.
    """
    backend = backend_of(spec)
    kind = recognise(command.argv, library)
    if not anywhere and (reason := backend.why_unavailable(kind, spec)):
        raise BadInput(reason)
    kind, version = engine_in_study(spec, library, command, spaces)
    context = context_of(spec, version, library).as_read(kind.card)
    parsed = kind.parse(command, version)
    known = parsed.model in (spec.model.id, *spec.model.aliases)
    if not known and library.model(parsed.model).architecture != spec.model.architecture:
        raise BadInput(f"it serves {parsed.model!r}, but the study tunes {spec.model.id!r}")
    raw = kind.knobs(parsed, context)
    for name, value in raw.knobs.items():
        knob = kind.card.knobs[name]
        if knob.choices is None and (reason := knob.refuses(value)):
            raise BadInput(f"{name}={value}: {kind.card.title} wants {reason}")
    loaded = loading(kind, parsed, context, raw)
    configuration = effective(kind.card, raw, loaded.context)
    check_baseline(kind.card, configuration, loaded)
    space = EngineSpace(kind, context, Enumeration(), {}, frozenset(spec.pins))
    spaces.setdefault(kind.name, space)
    return Candidate(configuration, version), backend.typed_command(command, kind)


def too_heavy(
    configurations: Sequence[Configuration], context: Context, plans: MemoryPlans
) -> tuple[str, str] | None:
    """Report that the weights alone fill a GPU in every layout of an engine: total size, and size
    on one GPU.

    None where a layout may hold them, where neither a plan nor the files' size is known, and on a
    CPU.
    """
    hardware, gpus = context.hardware, context.gpus
    memory = hardware.driver_memory_gb or hardware.memory_gb
    total = weight_bytes_per_gpu(context.model.architecture, 1, 1, 1, mtp=False) / 1e9
    least = min((plans.weights_of(one, context) for one in configurations), default=0.0) / 1e9
    if least <= memory:
        return None
    where = f"{gpus} x {hardware.name}"
    return (
        f"{total:,.0f} GB of weights, {gpus * hardware.memory_gb:,.0f} GB of memory on {where}",
        f"even in the best layout a GPU needs {least:.1f} GB for weights and has {memory:.1f} GB",
    )


def check_baseline(card: EngineCard, configuration: Configuration, loaded: Loading) -> None:
    """Raise `BadInput` for a baseline that its engine's card refuses."""
    context = loaded.context
    where = f"{card.title} {context.version}"
    if reason := unsuited(card, context):
        raise BadInput(f"{where} cannot serve it: {reason}")
    rules = broken_rules(card, configuration, context)
    refused = (as_failure(rule) for rule in rules if rule.kind is not FailureKind.RULE)
    if failure := next(refused, loaded.failure):
        raise BadInput(
            f"{where} would refuse it ({failure.kind.value}): {failure.log_excerpt}; "
            f"{failure.message}"
        )


def unknown_parts(model: ModelCard, cards: Sequence[EngineCard]) -> list[str]:
    """Warn of a model that is not predicted or not described, and of a model class that is missing
    in an engine's list of model classes."""
    lacking = [
        card.title
        for card in cards
        if card.architectures and not {*card.architectures} & {*model.architectures}
    ]
    return sentences(__file__, "unknown_parts", model=model, lacking=lacking)


def check_layouts(spec: StudySpec, cards: Sequence[EngineCard]) -> None:
    """Raise `BadInput` for a number of GPUs that no layout of any engine uses, with the possible
    sizes."""
    numbers = set()
    for card in cards:
        scope = spec.context(card.newest).scope({"replicas": 1})
        ranks = [card.knobs[name] for name in RANKS if name in card.knobs]
        for layout in product(*(search_values(knob, scope, card.newest) for knob in ranks)):
            numbers.add(math.prod(size for size in layout if isinstance(size, int)))
    if spec.gpus not in numbers and not spec.pins.keys() & set(RANKS):
        fitting = ", ".join(str(n) for n in sorted(numbers) if n <= spec.hardware.gpus)
        raise BadInput(f"--gpus {spec.gpus}: no layout has {spec.gpus} GPUs; use one of {fitting}")


def unpinnable(card: EngineCard, pins: Knobs) -> str | None:
    """Explain why an engine cannot take a pin; None if it takes all pins of its knobs."""
    for name, value in pins.items():
        knob = card.knobs.get(name)
        if knob and value != AUTO and (reason := knob.refuses(value)):
            return f"it cannot take {name}={value} ({reason})"
    return None


def no_effect_by_rule(prepared: Prepared, trial: Trial) -> list[NoEffect]:
    """Return the settings of a launch's command, and the pins, without effect."""
    space = prepared.spaces.get(trial.configuration.engine)
    if space is None:
        # A replayed table may have engines without a card.
        return []
    baseline = prepared.candidates.baseline_candidate.configuration
    typed = prepared.baseline_command and trial.configuration == baseline
    pinned = [] if typed else _overridden(space, space.pins, trial.configuration)
    try:
        parsed = space.engine.parse(trial.command, trial.engine_version)
    except (BadInput, InvalidVersion):
        # The command is of a server that somebody else runs, of a replayed version, or has options
        # that only the installed version knows.
        return pinned
    read = space.engine.knobs(parsed, space.context)
    without_effect = list(_flags_without_effect(space, trial, parsed, read))
    if typed:
        defaults = space.engine.default_knobs(space.context)
        settings = {n: value for n, value in read.knobs.items() if value != defaults[n]}
        without_effect += _overridden(space, settings, effective(space.card, read, space.context))
    return without_effect + pinned


def _flags_without_effect(
    space: EngineSpace, trial: Trial, parsed: ParsedCommand, read: Configuration
) -> Iterator[NoEffect]:
    # Leave what a replayed row does not set to the engine; it may have columns that are no knobs.
    known = {name: value for name, value in trial.configuration.knobs.items() if value is not None}
    scope = space.context.scope({**read.knobs, **known})
    for option in holding(space.card.no_effect, scope, trial.engine_version):
        for flag in option.flags:
            name = name_of(flag)
            if name in parsed.given:
                value = parsed.args[name]
                shown = value if isinstance(value, Scalar) else str(value)
                yield NoEffect(knob=flag, values=[shown], reason=option.reason)


def _overridden(
    space: EngineSpace, settings: Knobs, configuration: Configuration
) -> list[NoEffect]:
    """Return the settings that have another value in an effective configuration."""
    return [
        NoEffect(knob=name, values=[value], reason=_why(space, configuration, name, value))
        for name, value in settings.items()
        if configuration.knobs.get(name) != value
    ]


def _why(space: EngineSpace, configuration: Configuration, name: str, value: Scalar) -> str:
    """Explain why a knob's value has no effect on a configuration."""
    _, effects = normalised(space.card, configuration.with_knobs(**{name: value}), space.context)
    reason = next((effect.reason for effect in effects if name in effect.set), None)
    return reason or f"it has no effect unless `{space.card.knobs[name].active}`"


def check_weights(prepared: Prepared) -> None:
    """Raise `BadInput` where weights are incomplete on this machine; on Ray each node checks its
    own."""
    if is_local(prepared.spec.executor) and (problem := missing_weights(prepared)):
        raise BadInput(problem)


def missing_weights(prepared: Prepared) -> str:
    """Describe the missing weights on this machine and the way to fetch them; empty for none or
    uncertain."""
    spec, backend = prepared.spec, prepared.backend
    if not backend.on_gpus:
        return ""
    first = [prepared.candidates.baseline_candidate, *prepared.first_of_each_engine()]
    problems = (
        weights_problem(
            prepared.command_of(one),
            prepared.spaces[one.configuration.engine].engine,
            one.engine_version,
            spec.model,
            spec.installed.values(),
            contained=backend.contained,
        )
        for one in first
    )
    return next(filter(None, problems), "")
