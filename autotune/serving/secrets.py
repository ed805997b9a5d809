"""Secrets, by the name of their source.

What is written down (the study's question, commands, rows) says where a secret comes from: ``${NAME}`` in a command
stands for an environment variable, a file is named by its path. Values are read when a server is launched, and are
known to nobody but the server, the client and whoever masks them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune import redact
from autotune.errors import BadInput
from autotune.space.serving import Serving
from autotune.trial import Command, Failure, reference_in

_INHERITED = 8
"""An inherited variable with a secret's name may hold "none" or "EMPTY": only longer values are masked."""


def read_secret(variable: str | None, file: str | None, option: str) -> str | None:
    """Read a secret from an environment variable or a file; None when neither is named.

    `option` is the options' common beginning, e.g. ``--api-key``. Raises `BadInput` where the variable is not set, or
    the file cannot be read or is empty.
    """
    if variable is not None:
        where, without = f"{option}-env {variable}", "this environment variable is not set"
        value = os.environ.get(variable, "").strip()
    elif file is not None:
        where, without = f"{option}-file {file}", "the file is empty"
        try:
            value = Path(file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{where}: cannot be read ({getattr(error, 'strerror', 'no text')})") from error
    else:
        return None
    if not value:
        raise BadInput(f"{where}: {without}")
    if not (value.isascii() and value.isprintable()):
        raise BadInput(f"{where}: holds characters that no HTTP header can carry; one line of ASCII is wanted")
    return value


def secret_sources(
    on: str, key_variable: str | None, key_file: str | None, token_file: str | None, *, foreign: bool, launches: bool
) -> dict[str, Any]:
    """Name the sources of a study's secrets for its spec, by absolute paths: it may be resumed from elsewhere.

    Raises `BadInput` for a source that is not there, or that the study has no use for: a key is for a `foreign` server,
    a token for one that the study `launches`.
    """
    key_named = key_variable is not None or key_file is not None
    if key_variable is not None and key_file is not None:
        raise BadInput("--api-key-env and --api-key-file exclude each other: a server takes one key")
    if key_named and not foreign:
        raise BadInput(
            f"--api-key-env and --api-key-file are for --on external:URL, and this study runs on {on}; a server that "
            "autotune launches takes its key from the command, e.g. --engine-arg vllm='--api-key ${NAME}'"
        )
    if token_file is not None and not launches:
        raise BadInput(f"--hf-token-file is for servers that autotune launches, and this study runs on {on}")
    read_secret(key_variable, key_file, "--api-key")
    read_secret(None, token_file, "--hf-token")
    return {"api_key_env": key_variable, "api_key_file": _absolute(key_file), "hf_token_file": _absolute(token_file)}


def _absolute(path: str | None) -> str | None:
    return None if path is None else os.path.abspath(os.path.expanduser(path))


def refuse_secrets(argv: Sequence[str], env: Mapping[str, str], option: str) -> None:
    """Raise `BadInput` when a command line holds a secret's value, which would be written down with it."""
    named = [name for name, value in env.items() if redact.env({name: value})[name] != value]
    named += [option or "a word" for _, option in redact.hidden(argv) if option is not None]
    if not named:
        return
    right = "leave it out and export it" if named[0] in env else f"write {named[0]} '${{NAME}}' and export NAME"
    raise BadInput(
        f"{option}: it holds a secret ({named[0]}), and what stands there is kept in the study's files; {right}: it is "
        "read from the environment when a server is launched"
    )


def resolve_references(command: Command, environment: Mapping[str, str]) -> tuple[Command, set[str]]:
    """Fill in the values of ``${NAME}`` in a command; also returns its secrets, which are to be masked everywhere.

    Raises `BadInput` for a variable that is not set.
    """
    values = set[str]()

    def fill(word: str) -> str:
        prefix, name = reference_in(word)
        if name is None:
            return word
        if not environment.get(name):
            raise BadInput(f"the command refers to ${{{name}}}, and this environment variable is not set")
        values.add(environment[name])
        return f"{prefix}{environment[name]}"

    env = {name: fill(value) for name, value in command.env.items()}
    given = replace(command, argv=tuple(map(fill, command.argv)), env=env)
    return given, values | redact.secrets_in(given.argv, given.env)


def inherited_secrets(environment: Mapping[str, str]) -> set[str]:
    """Collect the secrets in the environment that a server inherits."""
    return {value for value in redact.secrets_in((), environment) if len(value) >= _INHERITED}


def masked(failure: Failure | None, secrets: Iterable[str]) -> Failure | None:
    """Mask the secrets in a failure, which quotes what a server printed."""
    if failure is None:
        return None
    message, line = (redact.text(text, secrets) for text in (failure.message, failure.log_excerpt))
    return replace(failure, message=message, log_excerpt=line)


def api_key_of(argv: Sequence[str], environment: Mapping[str, str], serving: Serving) -> str | None:
    """Find the bearer token that a launched server wants of its clients; None when it wants none."""
    words = iter(argv)
    for word in words:
        option, equals, value = word.partition("=")
        if option == serving.api_key_flag:
            return value if equals else next(words, None)
        if equals and option == serving.api_key_variable:
            return value
    return environment.get(serving.api_key_variable or "") or None
