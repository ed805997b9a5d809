"""A configuration of an engine, and the command line that starts it."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from autotune.base import StringDict, StringMap, Strings, frozen

from .entry import spaces_file

Scalar = bool | int | float | str | None
"""A knob's value; ``None`` means the engine's choice."""
Knobs = Mapping[str, Scalar]
"""Values of knobs, by name."""
Words = Sequence[str]
"""Words of a command line."""


def flag_of(word: str) -> str:
    """Return the option in a word of a command line, without a value behind ``=``."""
    return word.partition("=")[0]


def plain(value: object) -> str:
    """Return a value as people type it: ``true``, not ``True``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


PORT = 8000
"""Port of the first server of a command in files for people."""


RANKS = ("replicas", "tensor_parallel", "data_parallel", "pipeline_parallel")
"""Knobs whose product is the number of GPUs of a configuration."""
DEVICES = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}
"""Vendor to the environment variable that selects a machine's GPUs."""
_ADDED = frozenset(spaces_file("added_knobs.yaml").items())
"""Knobs with their values that a fingerprint leaves out."""


@dataclass(frozen=True)
class Configuration:
    """One engine and a value for each of its knobs, defaults spelled out.

    Two spellings of one effective configuration become equal through `space.context.effective`;
    `fingerprint` identifies a configuration by its content.
    """

    engine: str
    knobs: Knobs

    @cached_property
    def fingerprint(self) -> str:
        """Return 12 hex digits that depend on the engine and the knobs, not on their order."""
        knobs = sorted(item for item in self.knobs.items() if item not in _ADDED)
        text = json.dumps([self.engine, knobs], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def layout(self) -> tuple[Scalar, ...]:
        """Return the engine and how its ranks and experts are spread over the GPUs."""
        return self.engine, *map(self.knobs.get, (*RANKS, "expert_parallel"))

    def with_knobs(self, **changes: Scalar) -> Configuration:
        return Configuration(self.engine, {**self.knobs, **changes})

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self.fingerprint == other.fingerprint


def gpus_of(configuration: Configuration, most: int) -> int:
    """Count the GPUs of a configuration's servers, at most ``most``; one that names no size takes
    all."""
    sizes = _sizes(configuration.knobs)
    return min(most, math.prod(sizes)) if sizes else most


def gpus_of_a_server(configuration: Configuration, most: int) -> int:
    """Count the GPUs of one of a configuration's replicas: at most `most` for all of them."""
    return gpus_of(configuration, most) // replicas_of(configuration.knobs)


def _sizes(knobs: Knobs) -> list[int]:
    return [size for name in RANKS if isinstance(size := knobs.get(name), int) and size > 0]


def replicas_of(knobs: Knobs) -> int:
    """Count the servers of a configuration: one for an engine without such a knob."""
    return int(knobs.get("replicas") or 1)


def gpu_settings_of_servers(knobs: Knobs, vendor: str) -> tuple[StringDict, ...]:
    """Return the settings of each server of a configuration, its own GPUs; empty for a single
    server."""
    count = replicas_of(knobs)
    each, variable = math.prod(_sizes(knobs)) // count, DEVICES.get(vendor)
    ranges = [range(i * each, (i + 1) * each) for i in range(count)] if count > 1 else []
    return tuple({variable: ",".join(map(str, own))} if variable else {} for own in ranges)


def port_of_gpus(first: int) -> str:
    """Return the port of each of several servers in a shell's loop over their GPUs: `first` plus
    its first GPU."""
    return f'"$(({first} + ${{gpus%%,*}}))"'


def numbers_of(servers: Sequence[StringMap]) -> list[str]:
    """Return the GPUs of each of several servers, or without GPUs its own number, for such a
    loop."""
    return [next(iter(own.values()), str(i)) for i, own in enumerate(servers)]


_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def referenced(value: str) -> str | None:
    """Return the environment variable that a value refers to, ``KEY`` for ``${KEY}``; None for a
    plain value."""
    match = _REFERENCE.fullmatch(value)
    return match[1] if match else None


def reference_in(word: str) -> tuple[str, str | None]:
    """Split off a reference's variable: ``--key=${A}`` is ``("--key=", "A")``; None without one."""
    option, equals, value = word.rpartition("=")
    name = referenced(value)
    return (f"{option}{equals}", name) if name else (word, None)


def written(word: str, plain: Callable[[str], str], reference: Callable[[str], str]) -> str:
    """Write a word in the notation of `plain` text, and of the `reference` to a variable at its
    end."""
    prefix, variable = reference_in(word)
    if variable is None:
        return plain(word)
    return f"{plain(prefix) if prefix else ''}{reference(variable)}"


def _quoted(word: str) -> str:
    """Quote a word for a shell; a reference stays one."""
    return written(word, shlex.quote, '"${{{}}}"'.format)


@frozen
class Command:
    """Command line that a person would type to start a server, and the files that it needs.

    Attributes:
        argv: program and arguments.
        env: the environment variables to set, besides the inherited ones.
        files: file name (relative, as it stands in ``argv``) to content.
        container: the words in front that run it in a container, ``docker run … IMAGE``; they set
            `env` there. Empty for a process of this machine.
        servers: where several are started, what each sets besides: which GPUs are its own. Empty:
            one server.
    """

    argv: Strings
    env: StringMap = {}
    files: StringMap = {}
    container: Strings = ()
    servers: tuple[StringMap, ...] = ()

    @property
    def replicas(self) -> int:
        return len(self.servers) or 1

    def gpus_each(self, gpus: int) -> int:
        """Divide GPUs among the servers."""
        return gpus // self.replicas

    @property
    def words(self) -> Strings:
        """Return all words of the command line, the container's words first."""
        return (*self.container, *self.argv)

    def on_loopback(self) -> Command:
        """Return the command with ``--host 127.0.0.1`` unless it sets the address: vLLM listens on
        all by default.

        What stands for somebody else's server, or for a replayed row, stays as it is.
        """
        named = any(flag_of(word) == "--host" for word in self.argv)
        is_none = self.argv[0].startswith(("external:", "replayed:"))
        return self if named or is_none else replace(self, argv=(*self.argv, "--host", "127.0.0.1"))

    def apart_from_port(self) -> tuple[Command, int]:
        """Return the command without ``--port``, and the port that it gives; `PORT` where it gives
        none."""
        words, kept, port = iter(self.argv), list[str](), PORT
        for word in words:
            flag, equals, value = word.partition("=")
            if flag == "--port":
                given = value if equals else next(words, "")
                port = int(given) if given.isdecimal() else port
            else:
                kept.append(word)
        return replace(self, argv=tuple(kept)), port

    def typed(self) -> list[str]:
        """Return the words of the command line, ``NAME=value`` settings first."""
        return [*(f"{name}={value}" for name, value in self.env.items()), *self.argv]

    def shell(self) -> str:
        """Return one copyable block for a POSIX shell; here-documents write its files."""
        lines = [
            f"cat > {shlex.quote(name)} <<'AUTOTUNE_EOF'\n{text.rstrip()}\nAUTOTUNE_EOF"
            for name, text in self.files.items()
        ]
        # A container's words set its variables; a reference they name without a value, which comes
        # from outside.
        words = [
            f"{name}={_quoted(value)}"
            for name, value in self.env.items()
            if not self.container or referenced(value)
        ]
        command, first_port = self.apart_from_port() if self.servers else (self, PORT)
        typed = " ".join([*words, *map(_quoted, command.words)])
        if not self.servers:
            return "\n".join([*lines, typed])
        chosen = "".join(f"{name}=$gpus " for name in self.servers[0])
        lines += [
            f"# {self.replicas} servers; put a load balancer in front, with the least-requests policy:",
            f"for gpus in {' '.join(numbers_of(self.servers))}; do",
            f"  {chosen}{typed} --port {port_of_gpus(first_port)} &",
            "done; wait",
        ]
        return "\n".join(lines)


def on_all_gpus(command: Command, knobs: Knobs, gpus: int, vendor: str) -> Command:
    """Repeat a command of one server for all `gpus` GPUs, as often as its layout (`knobs`) fits."""
    count = gpus // min(gpus, math.prod(_sizes(knobs)))
    return replace(command, servers=gpu_settings_of_servers({**knobs, "replicas": count}, vendor))


@frozen
class Resolved:
    """Configuration that the engine reports for its arguments.

    Attributes:
        fingerprint: of the effective configuration with the knobs that the engine says it has; a
            knob that it does not tell is taken as it was asked for.
        differs: knob to what was asked for and what the engine has, where these differ.
        source: what it was read from.
        notes: knob to one sentence on the difference, for people (Markdown).
    """

    fingerprint: str
    differs: Mapping[str, tuple[Scalar, Scalar]] = {}
    source: str = ""
    notes: StringMap = {}

    def applied_to(self, asked: Configuration) -> Configuration:
        """Return the configuration that the engine has."""
        return asked.with_knobs(**{name: got for name, (_, got) in self.differs.items()})
