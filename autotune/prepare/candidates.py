"""From a `StudySpec` to its candidates: per engine, with the baseline, and why engines are left out."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.engines import Engine, recognise, settings_in_front, split_command
from autotune.engines.accepted_options import RULE, accepted
from autotune.engines.choose import engine_of, from_here
from autotune.errors import BadInput
from autotune.loadgen.workloads import load_workload
from autotune.notify import Notify, silent
from autotune.prepare.engine_space import EngineSpace
from autotune.prepare.recipes import good_starts
from autotune.prepare.refusals import check_baseline, too_heavy, unavailable, unpinnable
from autotune.prepare.replayed import what_was_recorded
from autotune.replay import file_of
from autotune.replay.candidates import command_of as replayed_command
from autotune.serving.docker_run import in_container, no_image, version_of
from autotune.serving.external import connect
from autotune.serving.secrets import read_secret, resolve_references
from autotune.space.context import Context
from autotune.space.enumeration import Candidate, CandidateSet, Enumeration, enumerate_engine, why_empty
from autotune.space.expression import evaluate, fill_value
from autotune.space.fingerprint import effective, unsuited
from autotune.space.library import Library
from autotune.space.promises import UNASKED, promises_of
from autotune.space.schema import NarrowedEngine
from autotune.study.recommendation import Exclusion
from autotune.study.spec import AUTO, StudySpec
from autotune.trial import Command, Configuration, Launch, Scalar

PROMISES = "promises"
"""The name under which the combinations are counted that give up what is not given up unasked."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The candidates of a study and how their servers are started.

    Attributes:
        spec: with notes on what was left out besides its own.
        spaces: by engine, only those that are searched; of a replayed table those with an engine card.
        baseline_command: ``--baseline``, to be launched as typed; None without one.
        recorded: of a bundle, the launches that are answered one after the other.
    """

    spec: StudySpec
    library: Library
    candidates: CandidateSet
    spaces: Mapping[str, EngineSpace]
    excluded: tuple[Exclusion, ...]
    baseline_command: Command | None
    recorded: Sequence[Launch] = ()

    def command_of(self, candidate: Candidate) -> Command:
        """The command of a candidate's server; the user's own baseline as typed."""
        if self.baseline_command is not None and candidate is self.candidates.items[self.candidates.baseline]:
            return self._placed(self.baseline_command, candidate.configuration.engine)
        configuration = candidate.configuration
        if file_of(self.spec.on) is not None:
            same = (one.trial.command for one in self.recorded if one.trial.configuration == configuration)
            if (command := next(same, None)) is not None:
                return command
            known = self.spaces.get(configuration.engine)
            return replayed_command(candidate, known.engine if known else None, known.context if known else None)
        space = self.spaces[configuration.engine]
        env, extra = settings_in_front(shlex.split(self.spec.engine_args.get(configuration.engine, "")))
        command = space.engine.command(configuration, space.context, extra)
        command = replace(command, env={**command.env, **env})
        return self._placed(command, configuration.engine)

    def counts(self) -> dict[str, int]:
        """Count the candidates of each engine that is searched."""
        if file_of(self.spec.on) is not None:
            return dict(Counter(candidate.configuration.engine for candidate in self.candidates.items))
        return {name: len(space.space.configurations) for name, space in self.spaces.items()}

    def _placed(self, command: Command, engine_name: str) -> Command:
        """The command where the study runs: in its engine's container, or as it is."""
        if self.spec.on != "docker":
            return command
        image, card = self.spec.images.get(engine_name), self.library.engine(engine_name)
        if image is None:
            raise BadInput(no_image(card, self.spec.hardware))
        return in_container(command, image, card, self.spec.hardware)


def prepare(spec: StudySpec, library: Library, notify: Notify = silent, *, anywhere: bool = False) -> Prepared:
    """Enumerate what may be tried; raises `BadInput` when nothing may be.

    Args:
        notify: called before something that takes long.
        anywhere: also what cannot be run where the study's trials run.
    """
    if file_of(spec.on) is not None:
        return _replayed(spec, library)
    longest = max(load_workload(name, library).longest_request for name in spec.workloads)
    if spec.on.startswith("external:"):
        return _external(spec, library, longest)
    spaces: dict[str, EngineSpace] = {}
    excluded: list[Exclusion] = []
    notes: list[str] = []
    heavy = ""
    for choice in spec.engines:
        context = Context(spec.model, spec.hardware, spec.gpus, choice.version, longest)
        kind = engine_of(library.engine(choice.name).engine, spec.installed, library, notify)
        reason = unsuited(kind.card, context) or unpinnable(kind.card, spec.pins)
        if reason is None and not anywhere:
            reason = unavailable(spec, kind)
        if reason is None:
            space, refusals, reason = _searched(kind, context, spec, library)
            notes += [f"{kind.card.title} {context.version}: {text}" for text in refusals]
        if reason is None and not anywhere and (told := too_heavy(space.space.configurations, context)) is not None:
            heavy, reason = f" ({told[0]})", told[1]
        if reason is None:
            spaces[kind.name] = space
        else:
            excluded.append(Exclusion(engine=kind.name, reason=reason))
    if not spaces:
        by_reason = {e.reason: ", ".join(o.engine for o in excluded if o.reason == e.reason) for e in excluded}
        reasons = "; ".join(f"{engines}: {reason}" for reason, engines in by_reason.items())
        raise BadInput(f"no engine is left to try on {spec.hardware.name}{heavy}: {reasons}")
    spec = spec.model_copy(update={"notes": (*spec.notes, *notes)})
    return _with_baseline(spec, library, spaces, tuple(excluded), longest, anywhere=anywhere)


def _searched(
    kind: Engine, context: Context, spec: StudySpec, library: Library
) -> tuple[EngineSpace, list[str], str | None]:
    """Enumerate what an engine's parser accepts; with what it refuses, and the reason where nothing is left."""
    space = _engine_space(kind, context, spec.pins, library.narrowed.get(kind.name))
    _leave_out_unasked(spec, space)
    left, counts = accepted(kind, context, space.space.configurations)
    space.space.configurations = left
    if counts:
        space.space.removed[RULE] = sum(counts.values())
    refusals = [f"{count} candidates are left out, {RULE}: {refusal}" for refusal, count in counts.items()]
    if left:
        return space, refusals, None
    why = "; ".join(["", *refusals]) or why_empty(kind.card, space.space, space.pins)
    if not refusals and PROMISES in space.space.removed:
        why = ": all serve less context than --min-context, or switch prefix caching off without --allow"
    return space, refusals, f"no valid configuration remains{why}"


def _external(spec: StudySpec, library: Library, longest: int) -> Prepared:
    """Prepare a study of a server that somebody else runs: the only candidate, and its own baseline."""
    # Asks only whether it answers and serves the model: better now than after a study has begun.
    key = read_secret(spec.api_key_env, spec.api_key_file, "--api-key")
    server = connect(spec.on.removeprefix("external:"), spec.model.id, key)
    choice = next((e for e in spec.engines if e.name == server.owner), spec.engines[0])
    kind = engine_of(choice.name, {}, library, silent)
    context = Context(spec.model, spec.hardware, spec.gpus, choice.version, longest)
    configuration = Configuration(kind.name, {"url": spec.on.removeprefix("external:")})
    candidate = Candidate(configuration, choice.version)
    spaces = {kind.name: EngineSpace(kind, context, Enumeration([configuration], 1), {})}
    # Its command line is unknown; the stand-in names its address.
    return Prepared(spec, library, CandidateSet((candidate,), 0), spaces, (), Command((spec.on,)))


def _replayed(spec: StudySpec, library: Library) -> Prepared:
    """Prepare a replay: what was recorded are the only candidates, and no rule judges them."""
    candidates, known, excluded, recorded = what_was_recorded(spec, library)
    spaces = {name: EngineSpace(kind, context, Enumeration(), {}) for name, (kind, context) in known.items()}
    return Prepared(spec, library, candidates, spaces, excluded, None, recorded)


def _engine_space(
    kind: Engine, context: Context, pins: Mapping[str, Scalar], narrowed: NarrowedEngine | None
) -> EngineSpace:
    """Enumerate an engine's candidates under the pins that it has, narrowed where a space file says so.

    A pin ``auto`` is the engine's default, unless it has a value of that name.
    """
    card = kind.card
    pins = {name: value for name, value in pins.items() if name in card.knobs}
    auto = {n for n, value in pins.items() if value == AUTO and value not in (card.knobs[n].choices or ())}
    defaults = kind.default_knobs(context, {n: value for n, value in pins.items() if n not in auto})
    pins = {name: defaults[name] for name in pins}
    fixed: Mapping[str, Scalar] = pins
    if narrowed is not None:
        on_node = {name: fill_value(value, context.scope({})) for name, value in card.on_node.items()}
        fixed = {n: value for n, value in {**on_node, **pins}.items() if n in pins or n not in narrowed.search}
        # A knob that is searched no more has its default, which may depend on the knobs that are.
        knobs = {n: knob.model_copy(update={"search": narrowed.search.get(n, [])}) for n, knob in card.knobs.items()}
        card = card.model_copy(update={"knobs": knobs})
    single = {n for n, values in narrowed.search.items() if len(values) == 1} if narrowed else set()
    return EngineSpace(kind, context, enumerate_engine(card, context, fixed), pins, frozenset({*pins, *single}))


def _leave_out_unasked(spec: StudySpec, space: EngineSpace) -> None:
    """Leave out what gives up more than the user allows for any gain: it could never be recommended."""
    unasked, floor = UNASKED - frozenset(spec.allow), spec.min_context or 0
    given_up, configurations = promises_of(space.card, space.context, {}, space.chosen), space.space.configurations
    contexts = (c.knobs.get("context_length") for c in configurations)
    long = [c for c, n in zip(configurations, contexts, strict=True) if not isinstance(n, int) or n >= floor]
    kept = [c for c in long if not any(one.kind in unasked for one in given_up(c))]
    space.space.configurations = kept
    if len(kept) < len(configurations):
        space.space.removed[PROMISES] = len(configurations) - len(kept)


def _starts(space: EngineSpace, narrowed: NarrowedEngine | None) -> list[Configuration]:
    """The good starts of the space file, else of the card with its vendors' recipes, that apply."""
    scope = space.context.scope(space.engine.default_knobs(space.context))
    starts = [s for s in (narrowed.starts if narrowed else space.card.starts) if evaluate(s.when, scope)]
    recipes = () if narrowed else good_starts(space.engine, space.context)
    return [*(space.effective({name: fill_value(v, scope) for name, v in s.set.items()}) for s in starts), *recipes]


def _with_baseline(
    spec: StudySpec,
    library: Library,
    spaces: dict[str, EngineSpace],
    excluded: tuple[Exclusion, ...],
    longest: int,
    *,
    anywhere: bool,
) -> Prepared:
    if spec.baseline is not None:
        try:
            command = replace(split_command(spec.baseline), files=spec.baseline_files)
            if not anywhere and (reason := unavailable(spec, recognise(command.argv, library))) is not None:
                raise BadInput(reason)
            baseline, space = _parse_baseline(spec, library, command, spaces, longest)
            command = from_here(command, space.engine) if spec.on == "process" else command
        except BadInput as error:
            raise BadInput(f"--baseline: {error}") from error
        spaces.setdefault(baseline.configuration.engine, space)
    else:
        command = None
        space = next(iter(spaces.values()))
        baseline = Candidate(space.effective({}), space.context.version)
    items = {baseline.fingerprint: baseline}
    for space in spaces.values():
        for configuration in space.space.configurations:
            candidate = Candidate(configuration, space.context.version)
            items.setdefault(candidate.fingerprint, candidate)
    listed = tuple(items.values())
    positions = {candidate.fingerprint: i for i, candidate in enumerate(listed)}
    defaults = [space.effective({}) for space in spaces.values()]
    starts = [start for name, space in spaces.items() for start in _starts(space, library.narrowed.get(name))]
    known = baseline.configuration.knobs
    told = {name: promises_of(s.card, s.context, known, s.chosen) for name, s in spaces.items()}
    candidates = CandidateSet(
        listed,
        0,
        _positions(defaults, positions),
        _positions(starts, positions),
        library.monotone_memory,
        {i: given for i, c in enumerate(listed) if i and (given := told[c.configuration.engine](c.configuration))},
        without=lambda configuration: spaces[configuration.engine].without(configuration),
    )
    prepared = Prepared(spec, library, candidates, spaces, excluded, command)
    _check_commands(prepared)
    return prepared


def _positions(configurations: Sequence[Configuration], positions: Mapping[str, int]) -> tuple[int, ...]:
    """Positions of configurations among the candidates; one that breaks a rule is none of them."""
    return tuple(dict.fromkeys(positions[c.fingerprint] for c in configurations if c.fingerprint in positions))


def _check_commands(prepared: Prepared) -> None:
    """Parse one command of each engine, so that an option passed through is refused before the first launch.

    The baseline that the user gave has been parsed, and gets none of these options.
    """
    candidates = list(prepared.candidates.items)
    if prepared.baseline_command is not None:
        _check_references(prepared, candidates.pop(prepared.candidates.baseline), "--baseline: ")
    # The last of equal keys stays: the first candidate of each engine.
    for name, candidate in {c.configuration.engine: c for c in reversed(candidates)}.items():
        passed = prepared.spec.engine_args.get(name)
        engine, version = prepared.spaces[name].engine, candidate.engine_version
        try:
            if not engine.table(version).borrowed:
                engine.parse(prepared.command_of(candidate), version)
        except BadInput as error:
            # Without what is passed through, every candidate's command has been parsed.
            raise BadInput(f"--engine-arg {name}={passed!r}: {error}" if passed else str(error)) from error
        _check_references(prepared, candidate, "")


def _check_references(prepared: Prepared, candidate: Candidate, prefix: str) -> None:
    if prepared.spec.on != "simulator":
        try:
            resolve_references(prepared.command_of(candidate), os.environ)
        except BadInput as error:
            raise BadInput(f"{prefix}{error}") from error


def _parse_baseline(
    spec: StudySpec, library: Library, command: Command, spaces: Mapping[str, EngineSpace], longest: int
) -> tuple[Candidate, EngineSpace]:
    named = recognise(command.argv, library).name
    kind = spaces[named].engine if named in spaces else engine_of(named, spec.installed, library, silent)
    version = next((c.version for c in spec.engines if c.name == kind.name), None)
    if version is None:
        image = spec.images.get(kind.name)
        version = kind.version() if image is None else version_of(image, kind, spec.hardware)
    context = Context(spec.model, spec.hardware, spec.gpus, version, longest)
    space = spaces.get(kind.name) or EngineSpace(kind, context, Enumeration(), {})
    parsed = kind.parse(command, version)
    known = parsed.model in (spec.model.id, *spec.model.aliases)
    if not known and library.model(parsed.model).architecture != spec.model.architecture:
        raise BadInput(f"it serves {parsed.model!r}, the study is about {spec.model.id!r}")
    raw = kind.knobs(parsed, context)
    for name, value in raw.knobs.items():
        knob = kind.card.knobs[name]
        if knob.choices is None and (reason := knob.refuses(value)):
            raise BadInput(f"{name}={value}: {kind.card.title} wants {reason}")
    configuration = effective(kind.card, raw, context).configuration
    check_baseline(kind.card, configuration, context)
    return Candidate(configuration, version), space
