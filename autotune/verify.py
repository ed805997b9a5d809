"""`verification`: the study that measures the predictions of another one on real servers.

Its only candidates are commands of the other study: the baseline, what was recommended, and the next best, of each
engine and layout the best one first, as near twins share the simulator's error. All are launched once, then the finals
put the best to the test against the baseline, as in every study.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from autotune.backends import Backend, backend_named, backend_of, forms
from autotune.comparison import Sheet
from autotune.engines.choose import choose, engine_of, named_binaries
from autotune.engines.space import EngineSpace
from autotune.engines.translate import translate
from autotune.errors import BadInput
from autotune.loadgen.workloads import load_workload
from autotune.machine import has
from autotune.notify import Notify
from autotune.prepare.candidates import prepare, typed_candidate
from autotune.search.budget import RESERVE
from autotune.search.decide.sequential_test import mean
from autotune.search.decide.verdict import evidence, judge
from autotune.search.history import History
from autotune.space.context import RANKS
from autotune.space.library import LOCAL, Library
from autotune.study.home import Home, library_of
from autotune.study.options import RegressOptions, VerifyOptions
from autotune.study.recommendation import Choice, Recommendation
from autotune.study.spec import EngineChoice, PredictedCommand, StudySpec, Verified, verified_name
from autotune.trial import Command, Evidence

_PREDICTED = (Evidence.SIMULATED, Evidence.EMULATED)
_LEAST_FINALS = 2


@dataclass(frozen=True, slots=True)
class Known:
    """A command of a finished study, with what it achieved there, on a real node by the simulator's own error."""

    role: Literal["baseline", "recommended", "next best"]
    choice: Choice
    interval90: tuple[float, float] | None = None


def verification(home: Home, options: VerifyOptions, notify: Notify) -> StudySpec:
    """The study that measures another one's predictions; raises `BadInput` where there are none, or no way to."""
    spec, done = home.spec(options.study), home.recommendation(options.study)
    _check_predicts(home, spec, done)
    library = library_of(spec)
    backend = _backend(options, spec)
    notify("looking for the commands that were best")
    known = list(_known(home, spec))
    if backend.foreign:
        known = [one for one in known if one.role == "recommended"] or known[:1]
    versions = {one.choice.engine: one.choice.engine_version for one in known}
    label = done.label if done else ""
    asked = moved(spec, backend, versions, options, library, notify)
    notes = (f"measures what study {options.study} predicted ({label})", *asked.notes)
    asked = asked.model_copy(update={"study": verified_name(options.study), "notes": notes})
    commands, _ = launchable(known, asked, options.top, library, notify)
    launches = len(commands) + RESERVE if options.launches is None else options.launches
    if not backend.foreign and launches < len(commands) + _LEAST_FINALS:
        raise BadInput(
            f"--launches {launches}: {len(commands)} commands are launched once and two of them again; give at least "
            f"{len(commands) + _LEAST_FINALS}, or a smaller --top"
        )
    return asked.model_copy(
        update={
            "launches": launches,
            "baseline": None if backend.foreign else commands[0].command,
            "baseline_files": {} if backend.foreign else commands[0].files,
            "verifies": Verified(study=options.study, label=label, commands=commands),
        }
    )


def asked_backend(options: VerifyOptions | RegressOptions, spec: StudySpec) -> Backend:
    """Return the backend that was asked for, else the study's own."""
    return backend_of(spec) if options.on is None else backend_named(options.on)


def moved(
    spec: StudySpec,
    backend: Backend,
    versions: Mapping[str, str | None],
    options: VerifyOptions | RegressOptions,
    library: Library,
    notify: Notify,
) -> StudySpec:
    """Return a study whose given commands are launched on a backend, with the engines that are there.

    Args:
        versions: of the engines, where they can be chosen; None: that of the image or installation.
        options: programs and images.

    Raises `BadInput` for an engine that is not there.
    """
    cards = [library.engine(name) for name in versions]
    known = {name: version for name, version in versions.items() if version is not None}
    images = backend.images(options.images, cards, known, spec.hardware, library)
    wanted = {} if backend.installed else known | {name: version for name, (version, _) in images.items()}
    binaries = named_binaries(options.engine_bins, library)
    chosen = choose(list(versions), (None, {}), binaries, backend.elsewhere, library, notify, wanted)
    return spec.model_copy(
        update={
            "on": backend.on,
            "engines": tuple(EngineChoice(name=name, version=chosen.versions[name]) for name in versions),
            "installed": dict(chosen.installed),
            "images": {name: image for name, (_, image) in images.items()},
            "calibration": spec.calibration if backend.predicted else None,
            "notes": chosen.notes,
            **{"hours": None, "sources": (), "table_sha256": None, "recipe": None, "noise": 0.0, "finals_from": 0},
            **{"engine_args": {}, "executor": "local", "sampler": "gp", "screened": ()},
        }
    )


def _check_predicts(home: Home, spec: StudySpec, done: Recommendation | None) -> None:
    """Raise `BadInput` for a study whose commands cannot be verified."""
    study = spec.study
    if done is None:
        so_far = f"study {study!r} has not ended, so it predicts nothing yet"
        raise BadInput(f"{so_far}; go on with:\n{home.resume_command(study)}")
    if done.recommended is None:
        raise BadInput(f"study {study!r} recommends nothing ({done.stop_reason}), so there is no command to measure")
    if done.origin is Evidence.MEASURED:
        raise BadInput(f"study {study!r} was measured on real servers already; only predictions are verified")
    if done.recommended.stand_in:
        raise BadInput(f"study {study!r} replayed a table that tells no commands, so none can be launched")


def _backend(options: VerifyOptions, spec: StudySpec) -> Backend:
    """Return the backend of the commands; by default this machine, where it has the hardware and their engine."""
    if options.on is None:
        here = spec.hardware.name == LOCAL or has(spec.hardware.name, spec.gpus)
        if not here:
            raise BadInput(
                f"this machine has no {spec.gpus} x {spec.hardware.name}, so nothing can be measured on it; run this "
                "on such a machine, or try it with --on emulator (real processes and HTTP at simulated times)"
            )
        return backend_named("process")
    backend = backend_named(options.on)
    if backend.virtual:
        raise BadInput(f"--on {options.on}: predictions are measured on {forms(virtual=False)}")
    return backend


def _known(home: Home, spec: StudySpec) -> Iterator[Known]:
    """The commands of a finished study: the baseline, the recommended one, and the others, the best first."""
    launches = home.launches(spec.study)
    prepared = prepare(spec, library_of(spec), anywhere=True)
    try:
        history = History.of(spec, prepared.candidates, launches).adjusted()
    except KeyError:
        raise BadInput(
            f"study {spec.study!r}: its launches are no candidates any more, as the search spaces or autotune itself "
            "have changed; simulate it again"
        ) from None
    judgement, base = judge(history), history.candidates.baseline
    sheet = Sheet(history, launches, judgement)
    ran = [p for p in history.by_position if history.feasible(p) and not history.broken(p)]
    ran.sort(key=lambda p: -mean(evidence(history, p)))
    first = [p for p in (base, judgement.winner) if p is not None and history.scores(p)]
    seen: dict[tuple[object, ...], int] = {}
    turns: dict[int, int] = {}
    for position in dict.fromkeys([*first, *ran]):
        one = history.candidates.items[position].configuration
        layout = one.engine, *(one.knobs.get(name) for name in RANKS)
        turns[position] = seen[layout] = seen.get(layout, 0) + 1
    predicted = launches[0].result.origin in _PREDICTED
    for position in dict.fromkeys([*first, *sorted(ran, key=turns.__getitem__)]):
        role: Literal["baseline", "recommended", "next best"]
        role = "baseline" if position == base else "recommended" if position == judgement.winner else "next best"
        yield Known(role, sheet.choice(position), sheet.interval90(position) if predicted else None)


def launchable(
    known: Sequence[Known], spec: StudySpec, top: int, library: Library, notify: Notify
) -> tuple[tuple[PredictedCommand, ...], list[str]]:
    """The first commands that can be launched, in the words of the engines' versions here, no two of one configuration.

    Raises `BadInput` where the baseline or the recommended one cannot.
    """
    longest = max(load_workload(name, library).longest_request for name in spec.sent)
    versions = {one.name: one.version for one in spec.engines}
    spaces: dict[str, EngineSpace] = {}
    found: dict[str, PredictedCommand] = {}
    notes: list[str] = []
    for one in known:
        if len(found) - (known[0].role == "baseline") >= top and one.role == "next best":
            break
        choice = one.choice
        try:
            kind = engine_of(choice.engine, spec.installed, library, notify)
            command = Command(tuple(choice.engine_argv), dict(choice.env), dict(choice.files))
            if "/" in command.argv[0] and (arguments := kind.arguments(command.argv)) is not None:
                command = replace(command, argv=(*kind.program, *arguments))  # another installation's
            command, said = translate(kind, command, versions[kind.name])
            candidate, space, _ = typed_candidate(spec, library, command, spaces, longest)
        except BadInput as error:
            if one.role == "next best":
                continue
            raise BadInput(
                f"the {one.role} command cannot be launched on {spec.on}: {error}; emulated servers stand in for real "
                "ones with --on emulator"
            ) from error
        spaces.setdefault(kind.name, space)
        predicted = PredictedCommand(
            role=one.role,
            engine=kind.name,
            command=replace(command, files={}).shell(),
            files=dict(command.files),
            fingerprint=candidate.fingerprint,
            predicted=choice.objective.value,
            interval90=one.interval90,
        )
        found.setdefault(candidate.fingerprint, predicted)
        notes += said
    return tuple(found.values()), list(dict.fromkeys(notes))
