"""From the command that a person would type to the one that is launched: address, program, paths, environment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePath

from autotune.engines.detect import cache_folder
from autotune.errors import BadInput
from autotune.space.schema import EngineCard
from autotune.space.serving import Serving

LOG_NAME = "server.log"


def with_serving(argv: Sequence[str], serving: Serving, host: str, port: int) -> tuple[str, ...]:
    """Add the arguments that launched servers need, and replace the address and what other ports are given.

    The address stands last, where it wins over an abbreviation of the same option (``--por 80``) in every engine's
    parser.
    """
    kept: list[str] = []
    words = iter(argv)
    address = {flag: str(port + distance) for flag, distance in serving.port_flags.items()}
    address |= {serving.host_flag: host, serving.port_flag: str(port)}
    for word in words:
        option, equals, _ = word.partition("=")
        if option not in address:
            kept.append(word)
        elif not equals:
            next(words, None)
    needed = [word for word in serving.arguments if word not in kept]
    return (*kept, *needed, *(word for setting in address.items() for word in setting))


def with_known_ports(card: EngineCard, flags: Collection[str]) -> EngineCard:
    """Keep of a card's options for ports those that a version has."""
    known = {flag: distance for flag, distance in card.serving.port_flags.items() if flag in flags}
    return card.model_copy(update={"serving": card.serving.model_copy(update={"port_flags": known})})


def find_program(name: str, environment: Mapping[str, str], title: str) -> str:
    """Find the path of a program; raises `BadInput` when it is missing or cannot be executed."""
    path = shutil.which(name, path=environment.get("PATH", os.defpath))
    if path is not None:
        return os.path.abspath(path)
    if os.sep in name:
        problem = "is not an executable file" if Path(name).exists() else "does not exist"
    else:
        problem = "is not on the PATH"
    raise BadInput(
        f"the program of {title}, {name!r}, {problem}; install {title}, or name its program with --engine-bin"
    )


def absolute_paths(argv: Sequence[str], files: Mapping[str, str]) -> tuple[str, ...]:
    """Make arguments absolute that name an existing path relative to the caller's folder.

    The server runs in the trial's folder, where such a path would lead nowhere. Only words with a slash, and folders
    that hold a ``config.json``, are taken for paths: ``serve`` stays a word though a folder may have that name.
    """
    return tuple(word if word in files else _absolute(word) for word in argv)


def _absolute(word: str) -> str:
    option, equals, value = word.partition("=")
    if word.startswith("-") and equals:
        return f"{option}={_absolute(value)}"
    path = Path(word)
    if word.startswith(("-", "{", "[")) or path.is_absolute() or len(word) > 1024:
        return word
    # Not by the path's own methods, which raise for a folder that may not be looked into.
    is_path = ("/" in word and os.path.exists(word)) or os.path.isfile(path / "config.json")
    return os.path.abspath(word) if is_path else word


def prepare_folder(folder: Path, files: Mapping[str, str]) -> Path:
    """Make a trial's folder with the command's files; returns its log. Raises `BadInput` when it cannot be written."""
    for name in files:
        path = PurePath(name)
        if path.is_absolute() or ".." in path.parts:
            raise BadInput(f"the command's file {name!r} would lie outside the trial's folder; use a plain file name")
    log = folder / LOG_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        # For its user alone: engines print the prompts that they were sent.
        os.close(os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
    except OSError as error:
        where = error.filename or folder
        raise BadInput(
            f"the trial's folder {folder} cannot be written ({where}: {error.strerror}); choose another --home, "
            "or make room there"
        ) from error
    return log


def cache_variables(
    caches: Mapping[str, str], engine: str, version: str, gpu: str, given: Mapping[str, str]
) -> dict[str, str]:
    """Make the folders that keep compiled kernels from one launch to the next; returns the variables that name them.

    A first start compiles kernels for 10 to 20 minutes. Its results are good for the same engine, version and kind of
    GPU only, so each of these has folders of its own. What the command (`given`) or the user's environment sets is
    left as it is. `caches` has a folder's name by variable. Raises `BadInput` where a folder cannot be made.
    """
    variables = {}
    for variable, name in caches.items():
        if variable in given or os.environ.get(variable):
            continue
        folder = cache_folder("jit").joinpath(_safe(engine), _safe(version), _safe(gpu), name)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(
                f"the cache folder {folder} cannot be made ({error.strerror}); set XDG_CACHE_HOME to a folder that can "
                f"be written, or {variable} to one of your own"
            ) from error
        variables[variable] = str(folder)
    return variables


def _safe(name: str) -> str:
    """Turn a name from a user's file into the name of one folder."""
    safe = "".join(c if c.isalnum() or c in "._-+" else "-" for c in name)
    return safe if safe.strip(".") else f"-{safe}"
