"""Engines that are installed here, with their programs, versions, Pythons and options; and the
engines of a study.

The options are asked of the engine's own parser; a version without a table borrows the nearest
one's. A study has the installed engines if launches start here, else those of the bundled tables.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from autotune.base import (
    BadInput,
    Notify,
    StringMap,
    Strings,
    expanded,
    frozen,
    run_program,
    write_atomically,
)

from . import ask_parser
from .command import Command, Words
from .engine import Engine
from .entry import Entry, is_version
from .library import Library
from .option_table import OptionTable
from .registry import engine, recognise, split_command
from .rewrite import translate, translate_arguments
from .schema import EngineCard, Option


class InstalledEngine(Entry):
    """An engine found on this machine: the start of its command line, its version with the local
    part.

    Attributes:
        asked: whether its own help tells its options; else a shipped table stands in.
        lacking: Python modules that some configurations need and that it cannot import.
    """

    program: Strings
    version: str
    asked: bool = True
    lacking: Strings = ()


METADATA_S = 60.0
"""An interpreter on a cold network disk takes seconds to start; importlib.metadata itself
milliseconds."""
VERSION_S = 120.0
"""``vllm --version`` imports PyTorch first: 14 s of processor time (0.32, CPU build), more from a
cold disk."""

_PYTHON = re.compile(r"python(\d+(\.\d+)*)?")
_ANSWER = "engine-version="
# Not isolated (-I): PYTHONPATH and the user's packages count, as they will when the engine starts.
VERSION_SCRIPT = f"""
import sys
from importlib import metadata
for name in sys.argv[1:]:
    try:
        print("{_ANSWER}" + metadata.version(name))
        break
    except metadata.PackageNotFoundError as error:
        print(error, file=sys.stderr)
else:
    sys.exit(1)
"""
"""Script that prints the version of the first installed distribution of a list, for
`parsed_version`."""


_LACKING = "engine-lacks="
# Imported, not only looked for: a library built for another PyTorch is there, and of no use.
_MODULES_SCRIPT = f"""
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception:
        print("{_LACKING}" + name)
"""


@frozen
class Installation:
    """An engine that this machine can start.

    Attributes:
        program: how its command line begins; a bare name where it was found on the PATH.
        version: as the installation tells it, local part included (``0.32.0+cpu``).
        python: the interpreter that runs it; None where that cannot be told.
    """

    program: Strings
    version: str
    python: Path | None

    @property
    def release(self) -> str:
        """Return the version for ranges: without its local part."""
        return Version(self.version).public


def find(card: EngineCard, binary: Path | None = None) -> Installation:
    """Find an engine on the PATH, or by its program, a Python with it, or a virtual environment's
    folder.

    Raises `BadInput`, one sentence, when it is missing, cannot be executed, is no such engine, or
    is older than the oldest version that is known.
    """
    installed = _at(card, Path(os.path.abspath(binary.expanduser()))) if binary else _on_path(card)
    oldest = card.versions[0]
    if Version(installed.version).release < Version(oldest).release:
        raise BadInput(
            f"{card.title} {installed.version} ({installed.program[0]}) is too old: {oldest} and "
            "newer are known; install a newer one, or name another program with "
            f"--engine-bin {card.engine}=PATH"
        )
    return installed


def lacking_modules(card: EngineCard, installation: Installation) -> list[str]:
    """List the Python modules of a card's rules that an installation cannot import; none if no
    Python answers."""
    modules = sorted({rule.module for rule in card.rules if rule.module})
    if installation.python is None or not modules:
        return []
    output = _output_of([str(installation.python), "-c", _MODULES_SCRIPT, *modules], VERSION_S)
    lacking = set(_answers(output, _LACKING))
    return [module for module in modules if module in lacking]


def why_missing(card: EngineCard) -> str | None:
    """Explain why this machine cannot start an engine from its PATH; None if it can."""
    try:
        find(card)
    except BadInput as error:
        return str(error)
    return None


def _is_module(form: Words) -> bool:
    return form[1:2] == ("-m",)


def _on_path(card: EngineCard) -> Installation:
    problem = f"{card.program[0]!r} is not on the PATH"
    for form in card.forms:
        path = shutil.which(form[0])
        if not path:
            continue
        python = Path(path) if _is_module(form) else _interpreter(Path(path))
        version = _version(card, (path, *form[1:]), python)
        if version:
            return Installation(form, version, python)
        if form == card.forms[0]:
            problem = _nothing_in(card, Path(path), python)
    raise BadInput(
        f"{card.title} is not installed: {problem}; install it, "
        f"or name its program with --engine-bin {card.engine}=PATH"
    )


def _at(card: EngineCard, path: Path) -> Installation:
    named = f"--engine-bin {card.engine}={path}"
    if path.is_dir():
        inside = [path / name for name in ("bin/python", "bin/python3", "python3")]
        python = next((p for p in inside if p.is_file()), None)
        if not python:
            raise BadInput(
                f"{named}: the folder has no bin/python; name a virtual environment or a program"
            )
        path = python
    right = "name the engine's program, its Python, or its virtual environment"
    if not path.exists():
        raise BadInput(f"{named}: no such file; {right}")
    if not path.is_file() or not os.access(path, os.X_OK):
        raise BadInput(f"{named}: is not executable; {right}")
    if _PYTHON.fullmatch(path.name):
        program = _program_beside(card, path)
        python = path
    else:
        scripts = [form for form in card.forms if not _is_module(form)] or [("",)]
        form = next((form for form in scripts if form[0] == path.name), scripts[0])
        program = (str(path), *form[1:])
        python = _interpreter(path)
    version = _version(card, program, python)
    if not version:
        raise BadInput(f"{named}: is not {card.title}: {_nothing_in(card, path, python)}")
    return Installation(program, version, python)


def _program_beside(card: EngineCard, python: Path) -> Strings:
    """Return the engine's script next to an interpreter if the card has one, else its module."""
    usual = card.forms[0]
    script = python.with_name(usual[0])
    if not _is_module(usual) and os.access(script, os.X_OK):
        return (str(script), *usual[1:])
    module = next((form for form in card.forms if _is_module(form)), None)
    if not module:
        raise BadInput(
            f"--engine-bin {card.engine}={python}: there is no {usual[0]} next to this Python; "
            f"{card.title} is not installed there"
        )
    return (str(python), *module[1:])


def _nothing_in(card: EngineCard, path: Path, python: Path | None) -> str:
    wanted = " or ".join(map(repr, card.installation.distributions)) or "the engine"
    if not python:
        return f"{path} does not print its version with --version"
    if path == python:
        return f"{path} has no package {wanted}"
    return f"the Python of {path} has no distribution {wanted}"


def _version(card: EngineCard, program: Words, python: Path | None) -> str | None:
    """Query the version of an installation; None if it is not this engine."""
    distributions = card.installation.distributions
    if not distributions:
        # An engine that names no distribution is taken for the newest that is known of it.
        return card.newest
    asked = [str(python), "-c", VERSION_SCRIPT, *distributions]
    version = parsed_version(_output_of(asked, METADATA_S)) if python else None
    if version or _is_module(program):
        return version
    # Another program prints ``0.32.0+cpu``, or ``trtllm-serve, version 1.2.0``.
    names = sorted(
        {card.engine, card.title, Path(program[0]).name, card.program[0], *distributions}
    )
    line_of_version = re.compile(
        rf"(?:(?:{'|'.join(map(re.escape, names))}),?\s+)?(?:version:?\s+)?v?(\d\S*)", re.IGNORECASE
    )
    lines = _output_of([program[0], "--version"], VERSION_S).splitlines()
    matches = (line_of_version.fullmatch(line.strip()) for line in lines)
    return next((match[1] for match in matches if match and is_version(match[1])), None)


def parsed_version(output: str) -> str | None:
    """Parse the output of `VERSION_SCRIPT`: the version, local part included; None for none."""
    return next(filter(is_version, _answers(output, _ANSWER)), None)


def _answers(output: str, mark: str) -> Iterator[str]:
    """Yield the text behind a mark in each line of an output that begins with it."""
    for line in output.splitlines():
        if line.startswith(mark):
            yield line.removeprefix(mark)


def _output_of(argv: Words, timeout_s: float) -> str:
    """Run a program and return its stdout; empty if it fails, hangs or cannot start."""
    done = run_program(argv, timeout_s, folder="/")
    return "" if done.returncode else done.stdout


def _interpreter(script: Path) -> Path | None:
    """Return the Python in a script's first lines; None if it is no Python script."""
    try:
        with script.open("rb") as stream:
            lines = stream.read(4096).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    if not lines or not lines[0].startswith("#!"):
        return None
    words = lines[0][2:].split()
    if words and Path(words[0]).name == "sh" and len(lines) > 1 and lines[1].startswith("'''exec'"):
        # Because pip writes a path like this if it is too long for a first line, or has a space.
        quoted = re.match(r"'''exec' (?:\"([^\"]+)\"|(\S+))", lines[1])
        words = [quoted[1] or quoted[2]] if quoted else []
    elif words and Path(words[0]).name == "env":
        rest = [word for word in words[1:] if not word.startswith("-")]
        words = [path] if rest and (path := shutil.which(rest[0])) else []
    return Path(words[0]) if words and _PYTHON.fullmatch(Path(words[0]).name) else None


PARSER_S = 300.0
"""An engine imports PyTorch and its kernels before it parses its options: 20 to 60 s, more from a
cold disk."""
_PREFIX = re.compile(r"\d+(\.\d+)?")


def options_of(
    engine: Engine, installed: Installation, notify: Notify
) -> tuple[OptionTable, str | None]:
    """Find the table of an installation's options; with a warning if another version's is used.

    Its parser's answer is kept below `cache_folder`. Where the parser cannot be asked, the shipped
    table of its version, or of the nearest one, stands in.
    """
    if engine.card.installation.help is None:
        return stand_in(engine, installed.release), None
    near = engine.by_distance(installed.release)[0]
    shipped = engine.table(near)
    identity = json.dumps([installed.program, installed.version])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    path = cache_folder("options") / f"{engine.name}-{installed.release}-{digest}.json"
    # A file that is damaged, or of another version, is as good as none.
    with suppress(OSError, ValueError):
        document = json.loads(path.read_text(encoding="utf-8"))
        known = isinstance(document, dict) and document.get("version") == installed.version
        if known and (table := _table(document.get("options"), shipped, installed)):
            return table, None
    notify(
        f"asking {engine.card.title} {installed.release} for its options "
        "(once; this takes up to a minute)"
    )
    rows = _asked(engine, installed)
    if table := _table(rows, shipped, installed):
        document = {"program": installed.program, "version": installed.version, "options": rows}
        # Without a cache the engine is asked again next time; that is no reason to fail.
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(document))
        return table, None
    bundled = "the bundled table"
    if near != installed.release:
        bundled += f" of {near}, the nearest one,"
    return stand_in(engine, installed.release), (
        f"{engine.card.title} {installed.release} did not report its options "
        f"({' '.join(installed.program)}); {bundled} is used instead, so different options are "
        "only noticed when a server starts"
    )


def cache_folder(kind: str) -> Path:
    """Return ``$XDG_CACHE_HOME/autotune/<kind>``, by default below ``~/.cache`` (XDG Base Directory
    0.8)."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = expanded("~", "XDG_CACHE_HOME") / ".cache"
    return base / "autotune" / kind


def stand_in(engine: Engine, version: str) -> OptionTable:
    """Read the bundled table of a version, or borrow the nearest one's; then no key of a config
    file is refused."""
    table = engine.table(engine.by_distance(version)[0])
    return table if table.version == version else table.borrowed_by(version)


@cache
def as_measured(engine: Engine, text: str) -> tuple[Engine, str]:
    """Load an engine of a measured version, and the version in the form that ranges compare.

    A version that is not known keeps its own number, so that defaults, rules and figures see what
    was measured; only its options are borrowed (`Engine.table`). A prefix (``0.11``) is the known
    version that it begins. Words behind the number are left out (``0.17.post1.dev (pytorch
    backend)``). Raises `BadInput` where the text begins with no version.
    """
    word = (text.split() or [""])[0].strip().removeprefix("v").rstrip(".")
    known = engine.known_version(word)
    if known and (_PREFIX.fullmatch(word) or Version(known) == Version(word)):
        return engine, known
    try:
        version = str(Version(word))
    except InvalidVersion as error:
        raise BadInput(
            f"{text!r} is no version of {engine.name}; write it as the engine prints it"
        ) from error
    return engine.installed(engine.program, engine.table(version)), version


def _asked(engine: Engine, installed: Installation) -> Any:
    """Run the program under `ask_parser`; None if no Python runs it, or it fails."""
    if not installed.python:
        return None
    script, *words = installed.program
    program = [shutil.which(script) or script, *words]
    if engine.card.program[1:2] == ["-m"]:
        # A script may choose among several servers by the model; the module is the one.
        program = engine.card.program[1:]
    elif words[:1] == ["-m"]:
        program = words
    # `--help` and the like would print and end.
    program += [word for word in engine.card.installation.help or () if not word.startswith("-")]
    source = Path(ask_parser.__file__).read_text(encoding="utf-8")
    output = _output_of([str(installed.python), "-c", source, *program], PARSER_S)
    return next(map(json.loads, _answers(output, ask_parser.MARK)), None)


def _table(rows: Any, near: OptionTable, installed: Installation) -> OptionTable | None:
    """Build a table from an answer of `ask_parser`, with types only known from `near`; None if it
    is malformed."""
    if not isinstance(rows, list) or not rows:
        return None
    known = {flag: option for option in near.options for flag in option.flags}
    options = []
    try:
        for row in rows:
            new = Option(flags=row["flags"])
            before = next((known[flag] for flag in new.flags if flag in known), new)
            valued = row["action"] in {"store", "append"}
            kind = (row["type"] or before.type) if valued else "str"
            # A default that is no plain value stays as it is in the near version.
            default = before.default if row["default"] is None else row["default"]
            default = default or None if row["action"] == "store_true" else default
            options.append(Option.model_validate({**row, "type": kind, "default": default}))
    except (KeyError, TypeError, ValueError):
        return None
    # Another version may have other keys, and no parser knows them: none is refused.
    keys = near.file_keys if near.version == installed.release else ()
    return OptionTable(near.engine, installed.release, tuple(options), keys)


@frozen
class ChosenEngines:
    """The engines of a study by name, and the user's options for them, translated to their
    versions."""

    installed: Mapping[str, InstalledEngine]
    versions: StringMap
    baseline: str | None
    engine_args: StringMap
    notes: Strings


def named_binaries(texts: Sequence[str], library: Library) -> dict[str, Path]:
    """Parse ``--engine-bin ENGINE=PATH`` into programs by engine; raises `BadInput`, also for a
    path without a file."""
    binaries = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or not path.strip():
            raise BadInput(
                f"--engine-bin {text!r}: write engine=path, e.g. sglang=/opt/sglang/bin/python"
            )
        owner = library.engine(name.strip()).engine
        program = Path(path.strip())
        if not program.expanduser().exists():
            raise BadInput(f"--engine-bin {owner}={program}: no such file")
        binaries[owner] = program
    return binaries


def choose(
    wanted: Sequence[str],
    asked: tuple[str | None, StringMap],
    binaries: Mapping[str, Path],
    elsewhere: str,
    library: Library,
    notify: Notify,
    asked_versions: StringMap,
) -> ChosenEngines:
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
    command = None if baseline is None else split_command(baseline)
    owner = recognise(command.argv, library).name if command else ""
    names = dict.fromkeys(filter(None, (*wanted, owner)))
    kinds = {name: engine(name, library) for name in names}
    installed = {}
    notes = unused("--engine-arg", engine_args, kinds)
    if not elsewhere:
        notes += unused("--engine-bin", binaries, kinds)
        binaries, more = _with_baseline_s(command, owner, binaries, library)
        notes += more
        for name in names:
            found = _found(kinds[name], binaries.get(name), asked_versions.get(name), notify)
            if found:
                kinds[name], installed[name], warnings = found
                notes += warnings
    elif binaries:
        raise BadInput(
            f"--engine-bin would not be used: launches on {elsewhere} start no engine of this machine; "
            "remove it, or add --on process"
        )
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
    passed = {}
    for name, text in engine_args.items():
        if name in kinds:
            passed[name], more = translate_arguments(kinds[name], text, versions[name])
            notes += more
    return ChosenEngines(installed, versions, baseline, passed, tuple(dict.fromkeys(notes)))


def unused(option: str, given: Iterable[str], kinds: Container[str]) -> list[str]:
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
    path = Path(os.path.abspath(os.path.expanduser(typed)))
    kind = engine(owner, library)
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


def with_installed_program(command: Command, kind: Engine) -> Command:
    """Replace a command's bare program name by the installed program; a path stays as it is."""
    arguments = kind.arguments(command.argv)
    if arguments is None or "/" in command.argv[0]:
        return command
    typed = command.argv[: len(command.argv) - len(arguments)]
    program = kind.program
    if typed[1:] == program[1:]:
        return replace(command, argv=(*program, *arguments))
    # Keep the typed way of starting it: by its script, or as a module of its Python.
    is_module, was_module = (words[1:2] == ("-m",) for words in (typed, program))
    if is_module is was_module and (is_module or Path(program[0]).name == typed[0]):
        return replace(command, argv=(program[0], *typed[1:], *arguments))
    beside = Path(shutil.which(program[0]) or program[0]).with_name(
        "python3" if is_module else typed[0]
    )
    # Without that program the usual way takes the same arguments.
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
