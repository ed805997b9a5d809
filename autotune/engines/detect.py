"""Detects an engine's installation: its program, its version, its Python."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from autotune.errors import BadInput
from autotune.space.entry import is_version
from autotune.space.schema import EngineCard

METADATA_S = 60.0
"""An interpreter on a cold network disk takes seconds to start; importlib.metadata itself milliseconds."""
VERSION_S = 120.0
"""``vllm --version`` imports PyTorch first: 14 s of processor time (0.32, CPU build), more from a cold disk."""

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
"""Asks a Python for the version of the first of some distributions that it has; `told_version` reads the answer."""


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


@dataclass(frozen=True, slots=True)
class Installation:
    """An engine that this machine can start.

    Attributes:
        program: how its command line begins; a bare name where it was found on the PATH.
        version: as the installation tells it, local part included (``0.32.0+cpu``).
        python: the interpreter that runs it; None where that cannot be told.
    """

    program: tuple[str, ...]
    version: str
    python: Path | None

    @property
    def release(self) -> str:
        """Return the version that ranges are about: without its local part."""
        return Version(self.version).public


def find(card: EngineCard, binary: Path | None = None) -> Installation:
    """Find an engine on the PATH, or in its own program, a Python that has it, or a virtual environment's folder.

    Raises `BadInput`, one sentence, when it is missing, cannot be executed, is no such engine, or is older than the
    oldest version that is known.
    """
    installed = _on_path(card) if binary is None else _at(card, Path(os.path.abspath(binary.expanduser())))
    oldest = card.versions[0]
    if Version(installed.version).release < Version(oldest).release:
        raise BadInput(
            f"{card.title} {installed.version} ({installed.program[0]}) is too old: {oldest} and newer are known; "
            f"install a newer one, or name another program with --engine-bin {card.engine}=PATH"
        )
    return installed


def lacking_modules(card: EngineCard, installation: Installation) -> list[str]:
    """List the Python modules of a card's rules that an installation cannot import; none where no Python answers."""
    modules = sorted({rule.module for rule in card.rules if rule.module is not None})
    if installation.python is None or not modules:
        return []
    told = output_of([str(installation.python), "-c", _MODULES_SCRIPT, *modules], VERSION_S) or ""
    return [module for module in modules if f"{_LACKING}{module}" in told.splitlines()]


def why_missing(card: EngineCard) -> str | None:
    """Say why this machine cannot start an engine from its PATH; None when it can."""
    try:
        find(card)
    except BadInput as error:
        return str(error)
    return None


def _is_module(form: Sequence[str]) -> bool:
    return form[1:2] == ("-m",)


def _on_path(card: EngineCard) -> Installation:
    problem = f"{card.program[0]!r} is not on the PATH"
    for form in card.forms:
        path = shutil.which(form[0])
        if path is None:
            continue
        python = Path(path) if _is_module(form) else _interpreter(Path(path))
        version = _version(card, (path, *form[1:]), python)
        if version is not None:
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
        inside = [path / "bin" / "python", path / "bin" / "python3", path / "python3"]
        python = next((p for p in inside if p.is_file()), None)
        if python is None:
            raise BadInput(f"{named}: the folder has no bin/python; name a virtual environment or a program")
        path = python
    right = "name the engine's program, its Python, or its virtual environment"
    if not path.exists():
        raise BadInput(f"{named}: no such file; {right}")
    if not path.is_file() or not os.access(path, os.X_OK):
        raise BadInput(f"{named}: is not executable; {right}")
    if _PYTHON.fullmatch(path.name):
        program, python = _program_beside(card, path), path
    else:
        scripts = [form for form in card.forms if not _is_module(form)] or [("",)]
        form = next((form for form in scripts if form[0] == path.name), scripts[0])
        program, python = (str(path), *form[1:]), _interpreter(path)
    version = _version(card, program, python)
    if version is None:
        raise BadInput(f"{named}: is not {card.title}: {_nothing_in(card, path, python)}")
    return Installation(program, version, python)


def _program_beside(card: EngineCard, python: Path) -> tuple[str, ...]:
    """Return the engine's script beside an interpreter, where it is started by one, else its module."""
    usual = card.forms[0]
    script = python.with_name(usual[0])
    if not _is_module(usual) and os.access(script, os.X_OK):
        return (str(script), *usual[1:])
    module = next((form for form in card.forms if _is_module(form)), None)
    if module is None:
        raise BadInput(
            f"--engine-bin {card.engine}={python}: there is no {usual[0]} beside this Python; "
            f"{card.title} is not installed there"
        )
    return (str(python), *module[1:])


def _nothing_in(card: EngineCard, path: Path, python: Path | None) -> str:
    wanted = " or ".join(repr(name) for name in card.installation.distributions) or "the engine"
    if python is None:
        return f"{path} does not tell its version with --version"
    return f"the Python of {path} has no distribution {wanted}" if path != python else f"{path} has no package {wanted}"


def _version(card: EngineCard, program: Sequence[str], python: Path | None) -> str | None:
    """Ask an installation for its version; None when it is not this engine."""
    distributions = card.installation.distributions
    if not distributions:
        # An engine that names no distribution is taken for the newest that is known of it.
        return card.newest
    asked = [str(python), "-c", VERSION_SCRIPT, *distributions]
    version = told_version(output_of(asked, METADATA_S) or "") if python is not None else None
    if version is not None or _is_module(program):
        return version
    # What no Python interpreter runs prints ``0.32.0+cpu``, or ``trtllm-serve, version 1.2.0``.
    names = sorted({card.engine, card.title, Path(program[0]).name, card.program[0], *distributions})
    any_name = "|".join(map(re.escape, names))
    line_of_version = re.compile(rf"(?:(?:{any_name}),?\s+)?(?:version:?\s+)?v?(\d\S*)", re.IGNORECASE)
    lines = (output_of([program[0], "--version"], VERSION_S) or "").splitlines()
    matches = (line_of_version.fullmatch(line.strip()) for line in lines)
    return next((match[1] for match in matches if match and is_version(match[1])), None)


def told_version(output: str) -> str | None:
    """Parse the output of `VERSION_SCRIPT`: the version, local part included; None when there is none."""
    answers = (line.removeprefix(_ANSWER) for line in output.splitlines() if line.startswith(_ANSWER))
    return next((version for version in answers if is_version(version)), None)


def output_of(argv: Sequence[str], timeout_s: float) -> str | None:
    """Run a program and return its stdout; None when it fails, hangs or cannot be started. Its children end with it."""
    try:
        process = subprocess.Popen(
            argv, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except OSError:
        return None
    with process:
        try:
            out, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            # Also what it left behind; while the program itself is not collected, the number is its group's.
            with suppress(ProcessLookupError, PermissionError):
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
    return out.decode("utf-8", "replace") if process.returncode == 0 else None


def _interpreter(script: Path) -> Path | None:
    """Return the Python that a script's first lines name; None when it is no Python script."""
    try:
        with script.open("rb") as stream:
            lines = stream.read(4096).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    if not lines or not lines[0].startswith("#!"):
        return None
    words = lines[0][2:].split()
    if words and Path(words[0]).name == "sh" and len(lines) > 1 and lines[1].startswith("'''exec'"):
        # How pip writes an interpreter's path that is too long for a first line, or has a space.
        quoted = re.match(r"'''exec' (?:\"([^\"]+)\"|(\S+))", lines[1])
        words = [quoted[1] or quoted[2]] if quoted else []
    elif words and Path(words[0]).name == "env":
        rest = [word for word in words[1:] if not word.startswith("-")]
        words = [path] if rest and (path := shutil.which(rest[0])) else []
    return Path(words[0]) if words and _PYTHON.fullmatch(Path(words[0]).name) else None
