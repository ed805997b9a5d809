"""Choose the engines of a study: the installed ones if launches start here, else those of the
bundled tables."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from autotune.base.errors import BadInput
from autotune.base.notify import Notify

from .command import Command
from .detect import InstalledEngine, find, lacking_modules, options_of, stand_in
from .engine import Engine
from .library import Library
from .registry import engine, recognise, split_command
from .rewrite import translate, translate_arguments


@dataclass(frozen=True, slots=True)
class Chosen:
    """The engines of a study by name, and the user's options for them, translated to their
    versions."""

    installed: Mapping[str, InstalledEngine]
    versions: Mapping[str, str]
    baseline: str | None
    engine_args: Mapping[str, str]
    notes: tuple[str, ...]


def named_binaries(texts: Sequence[str], library: Library) -> dict[str, Path]:
    """Parse ``--engine-bin ENGINE=PATH`` into programs by engine; raises `BadInput`, also for a
    path without a file."""
    binaries: dict[str, Path] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or not path.strip():
            raise BadInput(
                f"--engine-bin {text!r}: write engine=path, e.g. sglang=/opt/sglang/bin/python"
            )
        owner, program = library.engine(name.strip()).engine, Path(path.strip())
        if not program.expanduser().exists():
            raise BadInput(f"--engine-bin {owner}={program}: no such file")
        binaries[owner] = program
    return binaries


def choose(
    wanted: Sequence[str],
    asked: tuple[str | None, Mapping[str, str]],
    binaries: Mapping[str, Path],
    elsewhere: str,
    library: Library,
    notify: Notify,
    asked_versions: Mapping[str, str],
) -> Chosen:
    """Find the engines at their launch location, and translate the user's options.

    Args:
        asked: the baseline, and the arguments to pass through by engine, as they were typed.
        elsewhere: where engines are started, if that is not from this machine's installation;
            empty: it is.
        asked_versions: by name, the version that was asked for, or that the engine's container
            image has.

    Raises `BadInput` where a program is named that would not be used, or another version is
    installed.
    """
    baseline, engine_args = asked
    command, owner = _recognised(baseline, library)
    names = dict.fromkeys(filter(None, (*wanted, owner)))
    kinds = {name: engine(name, library) for name in names}
    installed: dict[str, InstalledEngine] = {}
    notes = _unused("--engine-arg", engine_args, kinds)
    if not elsewhere:
        notes += _unused("--engine-bin", binaries, kinds)
        binaries, more = _with_baseline_s(command, owner, binaries, library)
        notes += more
        for name in names:
            found = _found(kinds[name], binaries.get(name), asked_versions.get(name), notify)
            if found:
                kinds[name], installed[name], warnings = found
                notes += warnings
    elif binaries:
        where = f"launches on {elsewhere} start no engine of this machine"
        raise BadInput(f"--engine-bin would not be used: {where}; remove it, or add --on process")
    versions = {name: kind.version(asked_versions.get(name)) for name, kind in kinds.items()}
    for name, kind in kinds.items():
        words = shlex.split(engine_args.get(name, ""))
        words += command.argv if command and name == owner else ()
        if warning := kind.borrowing(versions[name], words):
            notes.append(warning)
    if command:
        translated, more = translate(kinds[owner], command, versions[owner])
        baseline = translated.shell() if more else baseline
        notes += more
    passed: dict[str, str] = {}
    for name, text in engine_args.items():
        if name in kinds:
            passed[name], more = translate_arguments(kinds[name], text, versions[name])
            notes += more
    return Chosen(installed, versions, baseline, passed, tuple(dict.fromkeys(notes)))


def _recognised(baseline: str | None, library: Library) -> tuple[Command | None, str]:
    """Parse a baseline, and name its engine; nothing for a command of no engine, which is refused
    later."""
    if baseline is not None:
        with suppress(BadInput):
            command = split_command(baseline)
            return command, recognise(command.argv, library).name
    return None, ""


def _unused(option: str, given: Iterable[str], kinds: Container[str]) -> list[str]:
    """List a note for each engine of an option that the study does not start."""
    return [
        f"{option} {name} is not used: {name} is neither searched nor the baseline"
        for name in given
        if name not in kinds
    ]


def _found(
    kind: Engine, program: Path | None, asked: str | None, notify: Notify
) -> tuple[Engine, InstalledEngine, list[str]] | None:
    """Return an installed engine, its fields for the study, and warnings; None if it is not
    installed.

    Raises `BadInput` where a named program is no such engine, or another version was asked for than
    is installed.
    """
    try:
        there = find(kind.card, program)
    except BadInput:
        if program:
            raise
        return None
    table, warning = options_of(kind, there, notify)
    here = kind.installed(there.program, table)
    if asked is not None and Version(here.version(asked)) != Version(there.release):
        raise BadInput(
            f"--engine {kind.name}=={asked}: {kind.card.title} {there.version} is installed "
            f"({there.program[0]}); name that version's program with --engine-bin {kind.name}=PATH"
        )
    lacking = tuple(lacking_modules(kind.card, there))
    kept = InstalledEngine(
        program=there.program, version=there.version, asked=warning is None, lacking=lacking
    )
    return here, kept, [warning] if warning else []


def _with_baseline_s(
    baseline: Command | None, owner: str, binaries: Mapping[str, Path], library: Library
) -> tuple[Mapping[str, Path], list[str]]:
    """Add the program in the baseline's path to the named ones, with a note.

    Raises `BadInput` when it is not there, or another than ``--engine-bin`` names: their figures
    would be of two installations.
    """
    typed = baseline.argv[0] if baseline else ""
    if "/" not in typed:
        return binaries, []
    path, kind = Path(os.path.abspath(os.path.expanduser(typed))), engine(owner, library)
    if not os.access(path, os.X_OK) or path.is_dir():
        raise BadInput(f"--baseline: {typed}: this program does not exist on this machine")
    if owner not in binaries:
        note = f"{kind.card.title} starts from {path.parent}, the folder of the baseline's program"
        return {**binaries, owner: path}, [note]
    named = find(kind.card, binaries[owner]).program[0]
    if Path(named).parent.resolve() != path.parent.resolve():
        raise BadInput(
            f"--baseline: it starts {path}, but --engine-bin {owner} names {named}: "
            "two installations cannot be compared; name the same one in both"
        )
    return binaries, []


def from_here(command: Command, kind: Engine) -> Command:
    """Replace a command's bare program name by the installed program; a path stays as it is."""
    arguments = kind.arguments(command.argv)
    if arguments is None or "/" in command.argv[0]:
        return command
    typed, program = command.argv[: len(command.argv) - len(arguments)], kind.program
    if typed[1:] == program[1:]:
        return replace(command, argv=(*program, *arguments))
    # As it was typed: by its script, or as a module of its Python.
    is_module, was_module = (words[1:2] == ("-m",) for words in (typed, program))
    if is_module is was_module and (is_module or Path(program[0]).name == typed[0]):
        return replace(command, argv=(program[0], *typed[1:], *arguments))
    beside = Path(shutil.which(program[0]) or program[0]).with_name(
        "python3" if is_module else typed[0]
    )
    # Where there is none the usual way takes the same arguments.
    words = (str(beside), *typed[1:]) if os.access(beside, os.X_OK) else program
    return replace(command, argv=(*words, *arguments))


def engine_of(
    name: str, installed: Mapping[str, InstalledEngine], library: Library, notify: Notify
) -> Engine:
    """Load an engine as installed at the study's start; raises `BadInput` if it is gone or
    different now."""
    kind = engine(name, library)
    chosen = installed.get(kind.name)
    if not chosen:
        return kind
    named = Path(chosen.program[0])
    now = find(kind.card, named if named.is_absolute() else None)
    if now.version != chosen.version:
        raise BadInput(
            f"{kind.card.title} ({named}) is now {now.version}, but the study began with "
            f"{chosen.version}: their figures cannot be compared; begin a new study, or install "
            "that version again"
        )
    if chosen.asked:
        table, _ = options_of(kind, replace(now, program=chosen.program), notify)
    else:
        table = stand_in(kind, now.release)
    return kind.installed(chosen.program, table)
