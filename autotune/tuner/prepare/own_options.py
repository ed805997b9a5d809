"""The user's own command, ``--baseline``: with ``--engine-arg``, and what its candidates keep of
it."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.base import BadInput, frozen, silent
from autotune.engines import (
    RANKS,
    Command,
    Context,
    Engine,
    EngineCard,
    EngineSpace,
    Kept,
    Library,
    enumerate_engine,
    recognise,
    settings_in_front,
    split_command,
)
from autotune.engines.command import Knobs
from autotune.engines.expression import names
from autotune.engines.installed import engine_of
from autotune.engines.kept import (
    OwnOption,
    counterparts_in,
    given_options,
    kept_by,
    keys_of,
    missing_files,
    own_options,
    translated_for,
    with_engine_args,
    without_dropped,
)
from autotune.engines.space import given_paths, knobs_set
from autotune.servers.command import refuse_secrets

from ..backends import backend_of
from ..study.loads import context_of
from ..study.spec import StudySpec, is_local


@frozen
class OwnOptions:
    """Options that the user's command sets and no knob reads; without a command, none.

    Attributes:
        command: as it is launched: with the engine's ``--engine-arg``.
        kind, version: the command's engine.
        options, dropped: those to be kept, and those of ``--drop``.
        notes: on ``--engine-arg``, and on files that are not here.
    """

    command: Command | None = None
    kind: Engine | None = None
    version: str = ""
    options: Sequence[OwnOption] = ()
    dropped: Sequence[OwnOption] = ()
    notes: Sequence[str] = ()
    recipe: bool = False

    def kept_by(self, kind: Engine, version: str) -> Kept:
        """Return what an engine's candidates have of it; raises `BadInput` where one has no
        counterpart."""
        if self.kind is None:
            return Kept()
        if kind.name == self.kind.name:
            return kept_by(self.options, self.dropped)
        if self.recipe:
            return Kept(
                translated=tuple(f"{one.text} → nothing (of a recipe)" for one in self.options)
            )
        return translated_for(
            kind, version, counterparts_in(self.kind.card, self.version), self.options, self.dropped
        )

    def knobs(self, kind: Engine, context: Context) -> Knobs:
        """Return the knobs that the command sets; none of another engine's."""
        if self.command is None or self.kind is None or self.kind.name != kind.name:
            return {}
        parsed = kind.parse(self.command, context.version)
        knobs = kind.knobs(parsed, context).knobs
        own = knobs_set(kind, parsed, context, given_paths(kind, parsed))
        # A number that none of its kind may be is refused with the baseline.
        return {
            name: knobs[name]
            for name in own
            if kind.card.knobs[name].choices or not kind.card.knobs[name].refuses(knobs[name])
        }

    def why_lost(self, kind: Engine, version: str) -> str | None:
        """Explain why an engine cannot keep all of it; None if it can."""
        try:
            self.kept_by(kind, version)
        except BadInput as error:
            return str(error)
        return None


def own_options_of(spec: StudySpec, library: Library) -> OwnOptions:
    """Read the user's command; raises `BadInput` if it is malformed, names a missing file, or lacks
    a ``--drop``.

    A vendor's recipe is nobody's own command: other engines need nothing of it.
    """
    if spec.drop and spec.baseline is None:
        raise BadInput(
            f"--drop {spec.drop[0]}: without a command of your own as --baseline there is nothing "
            "to drop"
        )
    if spec.baseline is None:
        return OwnOptions()
    try:
        typed = replace(split_command(spec.baseline), files=spec.baseline_files)
        kind, version = engine_in_study(spec, library, typed, {})
        context = context_of(spec, version, library).as_read(kind.card)
        kept = spec.recipe is None or spec.keeps_set
        own = own_options(kind, typed, context) if kept else []
    except BadInput as error:
        raise BadInput(f"--baseline: {error}") from error
    text = spec.engine_args.get(kind.name, "")
    env, typed_words = settings_in_front(shlex.split(text))
    try:
        words, keys = kind.with_file(typed_words, version, spec.passed_files)
        asked = given_options(kind, kind.prepare(words, version, Command(tuple(words))), version)
        asked += [OwnOption((name,), env={name: value}) for name, value in env.items()]
        asked += keys_of(keys)
        command, notes = with_engine_args(kind, typed, asked, version)
    except BadInput as error:
        raise BadInput(f"--engine-arg {kind.name}={shlex.quote(text)}: {error}") from error
    # Secrets on the command line itself were refused before: these are in files.
    for one in (*own, *asked):
        refuse_secrets(one.words, {}, "--baseline or --engine-arg, in its --config file")
    options, dropped = without_dropped(own, spec.drop)
    # Only --engine-arg counts for candidates where both set an option.
    options = [one for one in options if not any(one.among(other.names) for other in asked)]
    if lost := missing_files(kind.card, options):
        missing = f"--baseline: {', '.join(lost)}: no such file on this machine"
        if backend_of(spec).on_gpus and is_local(spec.executor):
            raise BadInput(f"{missing}; give the path of one that is here")
        notes = [*notes, f"{missing}; a real server would not start without it"]
    return OwnOptions(
        command, kind, version, options, dropped, notes, recipe=spec.recipe is not None
    )


def engine_in_study(
    spec: StudySpec, library: Library, command: Command, spaces: Mapping[str, EngineSpace]
) -> tuple[Engine, str]:
    """Return the engine of a command, that of its space if there is one, and its version in the
    study."""
    named = recognise(command.argv, library).name
    here = spaces.get(named)
    kind = here.engine if here else engine_of(named, spec.installed, library, silent)
    version = next((one.version for one in spec.engines if one.name == named), None)
    return kind, version or backend_of(spec).version_of(kind, spec)


def with_own_knobs(
    space: EngineSpace, card: EngineCard, fixed: Knobs, own: Knobs
) -> tuple[EngineSpace, list[str]]:
    """Enumerate an engine's candidates with the knobs of the user's command, with notes.

    Its value of a knob that is searched is tried, too; that of another knob is every candidate's,
    but in layouts that refuse it.
    """
    context, knobs = space.context, dict(card.knobs)
    free = enumerate_engine(card, context, fixed).configurations
    searched = {
        name
        for name in own
        if len({one.knobs[name] for one in free}) > 1
        if any(len(case.values) > 1 for case in knobs[name].search)
    }
    if searched & {*RANKS}:  # They are one choice together.
        searched |= own.keys() & {*RANKS}
    for name in searched:
        search = [
            case.with_fields(values=[*dict.fromkeys([*case.values, own[name]])])
            for case in knobs[name].search
        ]
        knobs[name] = knobs[name].with_fields(search=search)
    card = card.with_fields(knobs=knobs)
    held = {name: value for name, value in own.items() if name not in searched}
    found = enumerate_engine(card, context, {**fixed, **held})
    notes = []
    if text := ", ".join(f"{name}={value}" for name, value in held.items()):
        notes.append(
            f"kept from --baseline, as not searched (--set NAME=auto: the engine's own): {text}"
        )
    if lost := {one.layout for one in free} - {one.layout for one in found.configurations}:
        removing = [rule for rule in card.rules if found.removed.get(rule.name)]
        rules = [rule for rule in removing if names(rule.forbid) & held.keys()]
        refused = held.keys() & names(*(rule.forbid for rule in rules)) or held.keys()
        others = {name: value for name, value in held.items() if name not in refused}
        more = enumerate_engine(card, context, {**fixed, **others}).configurations
        found.configurations += [one for one in more if one.layout in lost]
        why, what = ", ".join(rule.name for rule in rules), ", ".join(sorted(refused))
        notes.append(f"{what} of --baseline left out of {len(lost)} layouts that refuse it: {why}")
    return replace(space, space=found, own=own, held={**space.held, **held}), notes
