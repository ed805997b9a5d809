"""Turn the command that a person would type into the launched one: address, program, paths,
secrets.

Stored texts (the study's question, commands, rows) say where a secret comes from:
``${NAME}`` in a command stands for an environment variable, a file is named by its path. Values are
read when a server is launched, and are known to nobody but the server, the client and whoever masks
them.
"""

import os
import shutil
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from autotune.base import BadInput, Environment, StringDict, StringMap, Strings, redact
from autotune.engines import Command, EngineCard, Failure
from autotune.engines.command import flag_of, reference_in
from autotune.engines.installed import cache_folder
from autotune.engines.serving import Serving

from .watchdog import append_line

LOG_NAME = "server.log"


def with_serving(argv: Sequence[str], serving: Serving, host: str, port: int) -> Strings:
    """Add the arguments that launched servers need, unless an option is given, and replace the
    address and other given ports.

    The address stands last, where it wins over an abbreviation of the same option (``--por 80``) in
    every engine's parser.
    """
    kept = []
    words = iter(argv)
    address = {flag: str(port + distance) for flag, distance in serving.port_flags.items()}
    address |= {serving.host_flag: host, serving.port_flag: str(port)}
    for word in words:
        option, equals, _ = word.partition("=")
        if option not in address:
            kept.append(word)
        elif not equals:
            next(words, None)
    # An abbreviation is given, too.
    given = {flag_of(word) for word in kept if word.startswith("--") and word != "--"}
    return (
        *kept,
        *[
            word
            for word in serving.arguments
            if not any(flag_of(word).startswith(option) for option in given)
        ],
        *(word for setting in address.items() for word in setting),
    )


def of_version(card: EngineCard, version: str, flags: Collection[str]) -> EngineCard:
    """Return a card with what launches of one version, with these options, get: ports and limits."""
    serving = card.serving
    limits = [limit for limit in serving.limits if limit.is_for(version)]
    raised = [word for one in limits for word in one.arguments if flag_of(word) in flags]
    settings = [setting for one in limits for setting in one.environment.items()]
    fitting = {
        "port_flags": {flag: port for flag, port in serving.port_flags.items() if flag in flags},
        "arguments": [*serving.arguments, *raised],
        "environment": {**dict(settings), **serving.environment},
    }
    return card.model_copy(update={"serving": serving.model_copy(update=fitting)})


def find_program(name: str, environment: Environment, title: str) -> str:
    """Find the path of a program; raises `BadInput` if it is missing or not executable."""
    path = shutil.which(name, path=environment.get("PATH", os.defpath))
    if path is not None:
        return os.path.abspath(path)
    if os.sep in name:
        problem = "is not an executable file" if Path(name).exists() else "does not exist"
    else:
        problem = "is not on the PATH"
    raise BadInput(
        f"the program of {title}, {name!r}, {problem}; install {title}, or name its program with "
        "--engine-bin"
    )


def absolute_paths(argv: Sequence[str], files: StringMap) -> Strings:
    """Make arguments absolute that name an existing path relative to the caller's folder.

    The server runs in the trial's folder, where such a path would lead nowhere. Only words with a
    slash, and folders that hold a ``config.json``, are taken for paths: ``serve`` stays a word
    though a folder may have that name.
    """
    return tuple(word if word in files else _absolute(word) for word in argv)


def _absolute(word: str) -> str:
    option, equals, value = word.partition("=")
    # Values of adapters, name=path, too.
    if equals and (word.startswith("-") or "/" in value) and not option.startswith(("{", "[")):
        return f"{option}={_absolute(value)}"
    path = Path(word)
    if word.startswith(("-", "{", "[")) or path.is_absolute() or len(word) > 1024:
        return word
    # Path's own methods would raise for a folder without permission.
    is_path = (("/" in word or path.suffix) and os.path.exists(word)) or os.path.isfile(
        path / "config.json"
    )
    return os.path.abspath(word) if is_path else word


def server_logs(folder: Path) -> dict[str, Path]:
    """Return the logs of a launch's servers by their names in its folder."""
    return {str(path.relative_to(folder)): path for path in folder.rglob(LOG_NAME)}


def prepare_folder(folder: Path, files: StringMap) -> Path:
    """Make a trial's folder with the command's files; returns its log. Raises `BadInput` if it is
    not writable."""
    for name in files:
        path = PurePath(name)
        if path.is_absolute() or ".." in path.parts:
            raise BadInput(
                f"the command's file {name!r} would be outside the trial's folder; use a plain "
                "file name"
            )
    log = folder / LOG_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        # Only its user may read it: engines print the prompts that they receive.
        os.close(os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
        if log.stat().st_size:
            append_line(
                log,
                f"[autotune: launched again at {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} "
                "UTC; what stands above is of an earlier "
                "launch of this trial]",
            )
    except OSError as error:
        raise BadInput(
            f"the trial's folder {folder} is not writable ({error.filename or folder}: "
            f"{error.strerror}); choose "
            "another --home, or free disk space there"
        ) from error
    return log


def cache_variables(
    caches: StringMap, engine: str, version: str, gpu: str, given: Environment
) -> StringDict:
    """Make the folders that cache compiled kernels between launches; returns the variables that
    name them.

    A first start compiles kernels for 10 to 20 minutes. Its results are good for the same engine,
    version and kind of GPU only, so each of these has folders of its own. What the command
    (`given`) or the user's environment sets is left as it is. `caches` has a folder's name by
    variable. Raises `BadInput` where a folder cannot be made.
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
                f"the cache folder {folder} cannot be created ({error.strerror}); set "
                f"XDG_CACHE_HOME to a writable folder, or set {variable}"
            ) from error
        variables[variable] = str(folder)
    return variables


def _safe(name: str) -> str:
    """Turn a name from a user's file into the name of one folder."""
    safe = "".join(c if c.isalnum() or c in "._-+" else "-" for c in name)
    return safe if safe.strip(".") else f"-{safe}"


_INHERITED = 8
"""Least length of a masked inherited value: a variable with a secret's name may hold "none"."""


def read_secret(variable: str | None, file: str | None, option: str) -> str | None:
    """Read a secret from the variable or file named by options of this prefix; None for neither.
    Raises `BadInput`."""
    if variable is not None:
        where = f"{option}-env {variable}"
        without = "this environment variable is not set"
        value = os.environ.get(variable, "").strip()
    elif file is not None:
        where = f"{option}-file {file}"
        without = "the file is empty"
        try:
            value = Path(file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(
                f"{where}: cannot be read ({getattr(error, 'strerror', 'no text')})"
            ) from error
    else:
        return None
    if not value:
        raise BadInput(f"{where}: {without}")
    if not (value.isascii() and value.isprintable()):
        raise BadInput(f"{where}: invalid characters for an HTTP header; use one line of ASCII")
    return value


def refuse_secrets(argv: Sequence[str], env: Environment, option: str) -> None:
    """Raise `BadInput` for a command line with a secret's value, which the study's files would
    store."""
    named = [name for name, value in env.items() if redact.env({name: value})[name] != value]
    named += [option or "a word" for _, option in redact.hidden(argv) if option is not None]
    if not named:
        return
    right = (
        "remove it and export it"
        if named[0] in env
        else f"write {named[0]} '${{NAME}}' and export NAME"
    )
    raise BadInput(
        f"{option}: it holds a secret ({named[0]}) and is stored in the study's files; {right}: "
        "the secret is read from the environment when a server is launched"
    )


def resolve_references(command: Command, environment: Environment) -> tuple[Command, set[str]]:
    """Fill in the values of ``${NAME}`` in a command, also returned as secrets; raises `BadInput`
    for an unset one."""
    values = set[str]()

    def fill(word: str) -> str:
        prefix, name = reference_in(word)
        if name is None:
            return word
        if not environment.get(name):
            raise BadInput(
                f"the command refers to ${{{name}}}, but this environment variable is not set"
            )
        values.add(environment[name])
        return f"{prefix}{environment[name]}"

    resolved = replace(
        command,
        argv=tuple(map(fill, command.argv)),
        env={name: fill(value) for name, value in command.env.items()},
    )
    return resolved, values | redact.secrets_in(resolved.argv, resolved.env)


def inherited_secrets(environment: Environment) -> set[str]:
    """Collect the secrets in the environment that a server inherits."""
    return {value for value in redact.secrets_in((), environment) if len(value) >= _INHERITED}


def masked(failure: Failure | None, secrets: Iterable[str]) -> Failure | None:
    """Mask the secrets in a failure, which quotes what a server printed."""
    if failure is None:
        return None
    message, line = (redact.text(text, secrets) for text in (failure.message, failure.log_excerpt))
    return replace(failure, message=message, log_excerpt=line)


def api_key_of(argv: Sequence[str], environment: Environment, serving: Serving) -> str | None:
    """Return the bearer token that a launched server requires of its clients; None without one."""
    words = iter(argv)
    for word in words:
        option, equals, value = word.partition("=")
        if option == serving.api_key_flag:
            return value if equals else next(words, None)
        if equals and option == serving.api_key_variable:
            return value
    return environment.get(serving.api_key_variable or "") or None
