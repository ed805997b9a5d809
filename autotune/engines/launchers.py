"""Read the text of a typed command: the one command in it that serves, without what launches it.

``read(text, variables, serves) -> Typed``: the command, with a line on each thing that was kept,
translated or dropped. What stands in front of an engine's words is data (``launchers.yaml``).

>>> typed = read("A=1 mpirun -n 1 trtllm-serve ./m", {}, lambda words: words[0] == "trtllm-serve")
>>> typed.command.argv, dict(typed.command.env), typed.notes
(('trtllm-serve', './m'), {'A': '1'}, ('left out: mpirun -n 1 (each launch starts the server alone)',))
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePosixPath

from autotune.base import BadInput, redact

from .command import DEVICES, Command, Words
from .entry import Entry, parse_yaml, spaces_root
from .shell import Script, Simple, Variables, known, unmarked

_SETTING = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


class Launcher(Entry):
    """A program that starts the command behind its own options."""

    words: list[str]
    """The program, and words that must follow."""
    reason: str = ""
    """Why it is left out; empty: nothing is said."""
    values: dict[str, int] = {}
    """Options with values of their own words, to how many."""
    skip: int = 0
    """Words between its options and the command: a container, a duration."""
    until: str = ""
    """The word behind which the command begins."""
    settings: list[str] = []
    """Options whose value is a variable of the command."""
    told: dict[str, str] = {}
    """Options that matter, to a sentence with their value as ``{}``."""
    nodes: dict[str, str] = {}
    """Options, to a pattern of the values that mean several nodes."""
    script: bool = False
    """The command is the text behind an option with a ``c``."""
    joined: bool = False
    """The words behind it are the text of a script."""
    deployment: bool = False
    """It describes a deployment: ``docker run``."""
    source: str


class _File(Entry):
    quiet: list[str]
    launchers: list[Launcher]


@dataclass(frozen=True, slots=True)
class Typed:
    """A command as it was typed.

    Attributes:
        command: what serves.
        notes: a line on each thing that was kept, translated or dropped; none for a plain command.
        simple: the simple command that it stands in.
    """

    command: Command
    notes: tuple[str, ...] = ()
    simple: Simple | None = None


@cache
def _file() -> _File:
    text = (spaces_root() / "launchers.yaml").read_text()
    return _File.model_validate(parse_yaml(text))


def settings_in_front(words: Words) -> tuple[dict[str, str], list[str]]:
    """Split words into the leading ``NAME=value`` settings and the rest; ``env`` and ``export`` are
    dropped."""
    env: dict[str, str] = {}
    rest = list(words)
    while rest:
        match = _SETTING.fullmatch(rest[0])
        if match:
            env[match[1]] = match[2]
        elif rest[0] not in {"env", "export"}:
            break
        rest.pop(0)
    return env, rest


@dataclass(frozen=True, slots=True)
class _Started:
    """A command that a simple command starts, behind its launchers."""

    simple: Simple
    words: tuple[str, ...]
    env: Mapping[str, str]
    notes: tuple[str, ...] = ()
    deployment: bool = False


def read(text: str, variables: Variables, serves: Callable[[Words], bool]) -> Typed:
    """Read the one command of a text that serves; raises `BadInput` for several, or none.

    Args:
        serves: whether words are an engine's command.
    """
    script = Script(text, variables)
    started = [one for simple in script.found for one in _behind(simple, variables)]
    serving = started if len(started) < 2 else [one for one in started if _serves(one, serves)]
    if not serving:
        names = ", ".join(dict.fromkeys(shlex.join(one.words[:2]) for one in started))
        among = f"no engine's command line is among {_shown(names)}" if names else ""
        raise BadInput(among or f"the command line names no program: {text[:200]!r}")
    one, servers = _one_of(serving)
    command, notes = _command(one)
    around = " ".join(one.simple.around)
    if around:
        notes.append(f"left out: {_shown(around)} (each server has a log of its own)")
    others = dict.fromkeys(other.words[0] for other in started if other not in serving)
    if names := ", ".join(name for name in others if name not in _file().quiet):
        notes.append(f"not run: the script's {_shown(names)}")
    return Typed(replace(command, servers=servers), (*script.notes, *notes), one.simple)


def _serves(one: _Started, serves: Callable[[Words], bool]) -> bool:
    return one.deployment or serves(one.words)


def _shown(text: str) -> str:
    return redact.text(unmarked(text))


def _one_of(serving: Sequence[_Started]) -> tuple[_Started, tuple[Mapping[str, str], ...]]:
    """Return the one server, and what sets each of several that differ in GPUs and port alone."""
    first, *others = serving
    if all((one.words, one.env) == (first.words, first.env) for one in others):
        same = {one.simple.span for one in others} == {first.simple.span}
        if not same:
            return first, ()
    alike = [Command(one.words, one.env).apart_from_port()[0] for one in serving]
    own = [{n: one.env[n] for n in DEVICES.values() if n in one.env} for one in serving]
    rest = [
        (
            one.argv,
            {name: value for name, value in one.env.items() if name not in set(DEVICES.values())},
        )
        for one in alike
    ]
    if any(one != rest[0] for one in rest):
        shown = " and ".join(repr(_shown(shlex.join(one.words))) for one in serving[:2])
        raise BadInput(f"{len(serving)} servers, {shown}: give the command of the one to tune")
    if not others:
        return first, ()
    return replace(first, words=rest[0][0], env=rest[0][1]), tuple(own)


def _command(one: _Started) -> tuple[Command, list[str]]:
    """Return the command that was started; raises `BadInput` for a word that only a run tells."""
    words, notes = list(map(known, one.words)), list(one.notes)
    if one.deployment:
        raise BadInput(
            f"{shlex.join(words[:2])} describes a container: give the engine's command behind its "
            "image"
        )
    env, files = {}, {}
    for name, value in one.env.items():
        try:
            env[name] = known(value)
        except BadInput as error:
            notes.append(f"left out: {name} ({error})")
    for name, content in one.simple.files.items():
        if any(name in word for word in words):
            short = PurePosixPath(name).name
            words = [word.replace(name, short) for word in words]
            files[short] = known(content)
    if not words:
        raise BadInput(f"the command line names no program: {shlex.join(one.simple.typed)!r}")
    return Command(tuple(words), env, files), notes


def _behind(simple: Simple, variables: Variables) -> Iterator[_Started]:
    """Yield what a simple command starts behind its launchers; several for another shell's text."""
    words, env, notes = simple.typed, dict(simple.env), list[str]()
    launcher = None
    while words:
        launcher = _launcher(words)
        if launcher is None and (setting := _SETTING.fullmatch(words[0])):
            env[setting[1]] = setting[2]
            words = words[1:]
            continue
        if launcher is None or launcher.deployment:
            break
        options = _Options(launcher, words, variables)
        if launcher.script and options.text is None:
            break
        if launcher.reason:
            notes.append(f"left out: {_shown(shlex.join(options.words))} ({launcher.reason})")
        env |= options.settings
        notes += options.notes
        words = options.rest
        if options.text is not None and "\0" not in options.text:
            known_here = None if variables is None else {**variables, **env}
            for inner in Script(options.text, known_here).found:
                # Its words come from a word of the outer text.
                placed = replace(
                    inner,
                    span=simple.span,
                    env={**env, **inner.env},
                    files={**simple.files, **inner.files},
                    around=(*inner.around, *simple.around),
                )
                for one in _behind(placed, variables):
                    yield replace(one, notes=(*notes, *one.notes))
            return
    if words:
        yield _Started(simple, tuple(words), env, tuple(notes), launcher is not None)


def _launcher(words: Words) -> Launcher | None:
    """Return the launcher that words begin with, by the name of its program."""
    if not words:
        return None
    begin = (PurePosixPath(words[0]).name, *words[1:3])
    known_ones = (one for one in _file().launchers if tuple(one.words) == begin[: len(one.words)])
    return max(known_ones, key=lambda one: len(one.words), default=None)


class _Options:
    """The words of a launcher, in front of those that it starts."""

    def __init__(self, launcher: Launcher, words: Words, variables: Variables) -> None:
        self.settings: dict[str, str] = {}
        self.notes: list[str] = []
        self.text: str | None = None
        left = list(words[len(launcher.words) :])
        while left and left[0].startswith("-") and (flag := left.pop(0)) != "--":
            flag, equals, value = flag.partition("=")
            if not equals and flag[1:2] != "-" and flag[:2] in launcher.nodes and flag[2:]:
                flag, value = flag[:2], flag[2:]
            elif not equals and launcher.values.get(flag):
                value = " ".join(left[: launcher.values[flag]])
                del left[: launcher.values[flag]]
            elif launcher.script and re.fullmatch("-[a-z]*c", flag) and left:
                self.text = left.pop(0)
                left = []
            self._take(launcher, flag, value, variables)
        del left[: launcher.skip]
        if launcher.until:
            left = left[left.index(launcher.until) + 1 :] if launcher.until in left else []
        self.words, self.rest = words[: len(words) - len(left)], left
        if launcher.joined and (len(left) == 1 or launcher.skip):
            self.text = " ".join(left)

    def _take(self, launcher: Launcher, flag: str, value: str, variables: Variables) -> None:
        if flag in launcher.settings:
            name, equals, text = value.partition("=")
            if equals or name in (variables or {}):
                self.settings[name] = text if equals else (variables or {})[name]
        if flag in launcher.told:
            self.notes.append(launcher.told[flag].format(_shown(value)))
        if re.fullmatch(launcher.nodes.get(flag, "(?!)"), value):
            raise BadInput(
                f"{launcher.words[0]} {flag} {value}: several nodes are out of scope; give the "
                "command of a server on one node"
            )
