"""Remove secrets from everything that autotune writes for people: commands, logs, reports, MLflow.

Two signs give a secret away: the name it stands under (``HF_TOKEN=…``, ``--api-key …``) and the
shape of the value itself (``hf_…``, ``sk-…``). Both are looked for in structured values (argv,
environment) and in plain text (logs, YAML, JSON, shell).
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from .values import StringDict, StringMap

MASK = "REDACTED"
"""Replacement of a secret; safe to paste into a shell, JSON or YAML."""

_ALWAYS = {
    "password",
    "passwd",
    "passphrase",
    "secret",
    "secrets",
    "credential",
    "credentials",
    "apikey",
}
# A "key" is a secret only behind these: a sort key, a cache key or a key file is none.
_KEY_OWNERS = {
    "api",
    "secret",
    "access",
    "private",
    "auth",
    "storage",
    "account",
    "master",
    "signing",
    "license",
}
# Names in front of tokens of text, which are no secrets.
_TEXT_TOKENS = {
    "bos",
    "eos",
    "pad",
    "mask",
    "sep",
    "cls",
    "unk",
    "stop",
    "image",
    "special",
    "mtp",
    "per",
    "output",
}

# A log has megabytes: every pattern takes time in proportion to a text's length
# (benchmarks/base/redact.py). So each begins with a literal or a set of characters, which Python looks
# for fast, and no two matches can begin in what one of them repeats; what repeats is possessive.
_SHAPES = [
    re.compile(rf"{prefix}(?<![A-Za-z0-9_-]{prefix})(?:{rest})")
    for prefix, rest in (
        ("hf_", "(?=[A-Za-z]*+[0-9])[A-Za-z0-9]{8,}+|[A-Za-z0-9]{16,}+"),  # Hugging Face
        ("sk-", "[A-Za-z0-9_-]{8,}+"),  # OpenAI and those who copy its keys
        *(
            (prefix, "[A-Za-z0-9_]{16,}+") for prefix in ("ghp_", "gho_", "ghs_", "github_pat_")
        ),  # GitHub
        ("nvapi-", "[A-Za-z0-9_-]{16,}+"),  # NVIDIA NGC
        ("AKIA", "[A-Z0-9]{16}"),  # AWS access key id
    )
]
_BEARER = re.compile(r"([Bb](?<!\w.)(?i:earer)\s++)[A-Za-z0-9._~+/=-]{8,}+")
_URL_PASSWORD = re.compile(r"(://[^/\s:@]*+:)[^/\s@]++(?=@)")
_SEPARATORS = r"(?-i:[_.\-\x80-\U0010ffff]++)"
_VALUE = r"(?!-|\$\{[A-Za-z_]\w*+(?![^\s\"',;}\]]))[^\s\"',;}\]]++"


def _end_of_name() -> str:
    """Write a pattern for the end of a secret's name, by the rule of `is_secret_name`."""
    by_length = [
        [word for word in sorted(_TEXT_TOKENS) if len(word) == n] for n in {*map(len, _TEXT_TOKENS)}
    ]
    no_text_token = "".join(
        rf"(?<!(?<![A-Za-z0-9])(?:{'|'.join(words)})[_.-]token)" for words in by_length
    )
    # "unexpected token: }" is prose; a bare name is a secret only where it is a setting.
    token = rf"(?=[\s\"'=:,])(?:(?<![\w.-]token)(?![\"']?[ \t]*+:)|(?<=[\w.-]token){no_text_token})"
    ends = [
        ("token", token),
        *((word, "") for word in _ALWAYS),
        *((word, f"{_SEPARATORS}keys?") for word in _KEY_OWNERS),
    ]
    first, second = (
        "".join(sorted({c for word, _ in ends for c in word[i] + word[i].upper()})) for i in (0, 1)
    )
    branches = []
    for letter, rows in groupby(
        sorted(ends, key=lambda row: (row[0][1], row)), key=lambda row: row[0][1]
    ):
        rest = "|".join(rf"{word[2:]}(?<={word}){end}" for word, end in rows)
        branches.append(f"[{letter}{letter.upper()}](?i:{rest})")
    return rf"[{first}](?<![A-Za-z0-9].)(?=[{second}])(?:{'|'.join(branches)})"


_NAME = _end_of_name()
_OPTION_NAME = rf"{_NAME}(?:=[\"']?|[\"']?,?\s++(?:-\s++)?[\"']?)(?={_VALUE})"
_OPTION = re.compile(
    rf"(--(?<![\w-]--)(?=[A-Za-z0-9])"
    rf"(?:(?=[A-Za-z0-9]++{_SEPARATORS})(?!{_OPTION_NAME})[A-Za-z0-9]++{_SEPARATORS}(?<!\.--))*+{_OPTION_NAME}){_VALUE}"
)
_SETTING = re.compile(rf"({_NAME}[\"']?[ \t]*+[=:][ \t]*+[\"']?){_VALUE}")
_REFERENCE = re.compile(r"\$\{[A-Za-z_]\w*\}?")
"""``${NAME}`` names a secret's source and is not secret; in a text its last sign may belong to the
next word."""


def is_secret_name(name: str) -> bool:
    """True if a variable or option of this name holds a secret, e.g. ``HF_TOKEN`` or
    ``--api-key``."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    if not words:
        return False
    last = words[-1]
    before = words[-2] if len(words) > 1 else ""
    if last == "token":
        return before not in _TEXT_TOKENS
    return last in _ALWAYS or (last in {"key", "keys"} and before in _KEY_OWNERS)


def env(variables: StringMap) -> StringDict:
    return {
        name: MASK if _is_secret(name, value) else text(value) for name, value in variables.items()
    }


def _is_secret(name: str, value: str) -> bool:
    return is_secret_name(name) and _REFERENCE.fullmatch(value) is None


def argv(arguments: Sequence[str]) -> list[str]:
    """Mask the secret values of arguments; their number is unchanged."""
    return [MASK if hidden else shown for shown, hidden in _split(arguments)]


def hidden(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Return each argument with the option under which it is, or holds, a secret; None without
    one."""
    option = ""
    for argument, masked in zip(arguments, argv(arguments), strict=True):
        option = argument.partition("=")[0] if argument.startswith("-") else option
        yield argument, option if masked != argument else None


def _split(arguments: Sequence[str]) -> list[tuple[str, bool]]:
    """Return each argument (values of a known shape already masked) and whether it follows a secret
    name."""
    rows = []
    under_secret = False
    for argument in arguments:
        if argument.startswith("-"):
            name, equals, value = argument.partition("=")
            under_secret = is_secret_name(name) and not equals
            masked = f"{name}={MASK}" if equals and _is_secret(name, value) else text(argument)
            rows.append((masked, False))
        else:
            rows.append((text(argument), under_secret and _REFERENCE.fullmatch(argument) is None))
    return rows


def secrets_in(arguments: Sequence[str], variables: StringMap) -> set[str]:
    """Collect the secret values of a command, to be masked wherever else they appear, e.g. in its
    log."""
    settings = [*variables.items(), *(argument.partition("=")[::2] for argument in arguments)]
    secrets = {value for name, value in settings if _is_secret(name, value)}
    secrets |= {a for a, (_, hidden) in zip(arguments, _split(arguments), strict=True) if hidden}
    return secrets - {""}


def text(content: str, secrets: Iterable[str] = ()) -> str:
    """Mask every secret in a log, a command, JSON, YAML or prose.

    Known secrets (`secrets_in`) under 4 characters stay: masking them would destroy the text.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 4:
            content = content.replace(secret, MASK)
    for shape in _SHAPES:
        content = shape.sub(MASK, content)
    for pattern in (_BEARER, _URL_PASSWORD, _OPTION, _SETTING):
        content = pattern.sub(lambda match: match[1] + MASK, content)
    return content


def document(value: Any, secrets: Collection[str] = ()) -> Any:
    """Mask every secret in a JSON document: under a secret's name, of a known shape, or known to be
    one."""
    if isinstance(value, Mapping):
        return {
            name: MASK if _hidden(str(name), v) else document(v, secrets)
            for name, v in value.items()
        }
    if isinstance(value, list | tuple):
        words = argv(value) if all(isinstance(item, str) for item in value) else value
        return [document(item, secrets) for item in words]
    return text(value, secrets) if isinstance(value, str) else value


def _hidden(name: str, value: Any) -> bool:
    """Return whether a value of a document is under a secret's name."""
    if isinstance(value, str):
        return bool(value) and _is_secret(name, value)
    return isinstance(value, list | tuple) and bool(value) and is_secret_name(name)
