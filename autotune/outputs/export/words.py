"""Words of a command in which no secret stands: what was one is the name of a variable to take it from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from autotune import redact
from autotune.trial import reference_in

_NUMBER = re.compile(r"-(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?")


def variable_of(name: str) -> str:
    """The environment variable that stands for the secret under an option's or a variable's name: ``API_KEY``."""
    variable = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").upper() or "SECRET"
    return variable if not variable[0].isdigit() else f"_{variable}"


def without_secrets(argv: Sequence[str]) -> list[str]:
    """As many words, with ``${NAME}`` in place of a secret; a word that holds one in its midst is a secret itself."""
    words: list[str] = []
    for word, option in redact.hidden(argv):
        name, equals, _ = word.partition("=")
        reference = f"${{{variable_of(option)}}}" if option is not None else word
        words.append(f"{name}={reference}" if option is not None and equals and word.startswith("-") else reference)
    return words


def settings_without_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """The variables, with ``${NAME}`` in place of a secret."""
    secret = {name for name, value in redact.env(env).items() if value != env[name]}
    return {name: f"${{{variable_of(name)}}}" if name in secret else value for name, value in env.items()}


def doubled(text: str) -> str:
    """Text in which Kubernetes, Compose and dstack replace no variable."""
    return text.replace("$", "$$")


def required(variable: str) -> str:
    """A variable's value to a shell and to Compose, which stop with a message where it is not set."""
    return f"${{{variable}:?set {variable} to the secret that this command needs}}"


def asked_for(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """The variables that the words refer to, each once, in their order."""
    found = (reference_in(word)[1] for word in (*env.values(), *argv))
    return list(dict.fromkeys(name for name in found if name))


def groups(argv: Sequence[str]) -> list[list[str]]:
    """The program's words, then each option with its values; words before the first option are the program's too."""
    # In `python3 -m module` the -m is none of the server's options.
    program = 3 if list(argv[1:2]) == ["-m"] else 1
    split: list[list[str]] = [list(argv[:program])]
    for word in argv[program:]:
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            split.append([word])
        else:
            split[-1].append(word)
    return split
