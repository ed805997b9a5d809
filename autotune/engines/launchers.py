"""Read the text of a typed command: the one command in it that serves, without what launches it.

``read(text, variables, serves) -> Typed``: the command, with a line on each thing that was kept,
translated or dropped. What stands in front of an engine's words is data (``launchers.yaml``).

>>> typed = read("A=1 mpirun -n 1 trtllm-serve ./m", {}, lambda words: words[0] == "trtllm-serve")
>>> typed.command.argv, dict(typed.command.env), typed.notes
(('trtllm-serve', './m'), {'A': '1'}, ('left out: mpirun -n 1 (each launch starts the server alone)',))
"""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePosixPath

from autotune.base import BadInput, StringDict, StringMap, Strings, frozen, redact

from .command import DEVICES, Command, Words
from .entry import Entry, spaces_file, spaces_root
from .shell import SETTING, Script, Simple, Variables, known, unmarked

_SHEBANG = re.compile(r"#!.*\b(?:ba|da|k|z)?sh\b")


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
    told: StringDict = {}
    """Options that matter, to a sentence with their value as ``{}``."""
    nodes: StringDict = {}
    """Options, to a pattern of the values that mean several nodes."""
    script: bool = False
    """The command is the text behind an option with a ``c``."""
    joined: bool = False
    """The words behind it are the text of a script."""
    source: str


class _File(Entry):
    suffixes: list[str]
    quiet: list[str]
    launchers: list[Launcher]


@frozen
class Typed:
    """A command as it was typed.

    Attributes:
        command: what serves.
        notes: a line on each thing that was kept, translated or dropped; none for a plain command.
    """

    command: Command
    notes: Strings = ()


@cache
def _text() -> str:
    return (spaces_root() / "launchers.yaml").read_text()


@cache
def _file() -> _File:
    return _File.model_validate(spaces_file("launchers.yaml"))


def settings_in_front(words: Words) -> tuple[StringDict, list[str]]:
    """Split words into the leading ``NAME=value`` settings and the rest; ``env`` and ``export`` are
    dropped."""
    env: StringDict = {}
    for i, word in enumerate(words):
        if setting := SETTING.fullmatch(word):
            env[setting[1]] = setting[2]
        elif word not in {"env", "export"}:
            return env, list(words[i:])
    return env, []


def in_file(text: str, variables: Variables) -> tuple[str, Variables]:
    """Return the text of the script whose file is named, with its variables."""
    words = text.split()
    with suppress(OSError, ValueError, IndexError):
        path = Path(words[-1])
        if {"bash", "sh", "sbatch"}.issuperset(words[:-1]) and path.is_file():
            content = path.read_bytes().decode(errors="surrogateescape")
            if path.suffix in _file().suffixes or _SHEBANG.match(content):
                return content, {**(variables or {}), "0": str(path)}
    return text, variables


def read(text: str, variables: Variables, serves: Callable[[Words], bool]) -> Typed:
    """Read the one command of a text that serves; raises `BadInput` for several, or none.

    Args:
        serves: whether words are an engine's command.
    """
    script = Script(*in_file(text, variables))
    started = [one for simple in script.found for one in _behind(simple, variables)]
    serving = started if len(started) < 2 else [one for one in started if serves(one.typed)]
    if not serving:
        known(" ".join(one.typed[0] for one in started))  # Name an unknown program.
        names = ", ".join(dict.fromkeys(shlex.join(one.typed[:2]) for one in started))
        among = names and f"no engine's command line is among {_shown(names)}"
        raise BadInput(among or f"the command line names no program: {text[:200]!r}")
    one, servers = _one_of(serving)
    command, notes = _command(one)
    if one.around:
        notes.append(
            f"left out: {redact.text(known(' '.join(one.around)))} (each server has a log of its own)"
        )
    others = dict.fromkeys(
        shlex.join(other.typed[:2])
        for other in started
        if other not in serving and other.typed[0] not in _file().quiet
    )
    if names := ", ".join(others):
        notes.append(f"not run: the script's {_shown(names)}")
    return Typed(replace(command, servers=servers), (*script.notes, *notes))


def _shown(text: str) -> str:
    return redact.text(unmarked(text))


def _one_of(serving: Sequence[Simple]) -> tuple[Simple, tuple[StringMap, ...]]:
    """Return the one server, and what sets each of several that differ in GPUs and port alone."""
    first, gpus = serving[0], set(DEVICES.values())
    if all((one.typed, one.env) == (first.typed, first.env) for one in serving):
        return first, ()
    own = tuple({name: one.env[name] for name in gpus & one.env.keys()} for one in serving)
    alike = []
    for one in serving:
        env = {name: value for name, value in one.env.items() if name not in gpus}
        alike.append(Command(one.typed, env).apart_from_port()[0])
    if any(one != alike[0] for one in alike):
        raise BadInput(
            f"{len(serving)} servers, {' and '.join(repr(_shown(shlex.join(one.typed))) for one in serving[:2])}: "
            "give the command of the one to tune"
        )
    return replace(first, typed=alike[0].argv, env=alike[0].env), own


def _command(one: Simple) -> tuple[Command, list[str]]:
    """Return a command with its files and notes; raises `BadInput` for a word that only a run
    tells."""
    words, notes = list(map(known, one.typed)), list(one.notes)
    env, files = {}, {}
    for name, value in one.env.items():
        try:
            env[name] = known(value)
        except BadInput as error:
            notes.append(f"left out: {name} ({error})")
    for name, content in one.files.items():
        if any(name in word for word in words):
            short = PurePosixPath(name).name
            words = [word.replace(name, short) for word in words]
            files[short] = known(content)
    return Command(tuple(words), env, files), notes


def _behind(simple: Simple, variables: Variables) -> Iterator[Simple]:
    """Yield the command behind the launchers of a simple command; several for a shell's text."""
    words, env, notes = list(simple.typed), dict(simple.env), list(simple.notes)
    text = None
    while words and text is None:
        if launcher := _launcher(words):
            outer = _Front(launcher, words, variables)
            if launcher.script and outer.text is None:
                break
            if launcher.reason:
                outer.notes.insert(
                    0, f"left out: {_shown(shlex.join(outer.words))} ({launcher.reason})"
                )
            words, text = outer.rest, outer.text
            env |= outer.settings
            notes += outer.notes
        else:
            own, words = settings_in_front(words)
            if not own:
                break
            env |= own
    placed = replace(simple, typed=tuple(words), env=env, notes=tuple(notes))
    if text is None or "\0" in text:
        yield from [placed] if words else []
        return
    for inner in Script(text, None if variables is None else {**variables, **env}).found:
        # Its words come from a word of the outer text.
        yield from _behind(
            replace(
                placed,
                typed=inner.typed,
                env={**env, **inner.env},
                files={**simple.files, **inner.files},
                around=(*inner.around, *simple.around),
            ),
            variables,
        )


def _launcher(words: Words) -> Launcher | None:
    """Return the launcher that words begin with, by the name of its program."""
    begin = [PurePosixPath(words[0]).name, *words[1:3]]
    if f"words: [{begin[0]}" not in _text():  # The file takes longer to parse than a plain command.
        return None
    found = (one for one in _file().launchers if one.words == begin[: len(one.words)])
    return max(found, key=lambda one: len(one.words), default=None)


class _Front:
    """The words of a launcher, in front of those that it starts, or of their text."""

    def __init__(self, launcher: Launcher, words: Words, variables: Variables) -> None:
        self.settings: StringDict = {}
        self.notes: list[str] = []
        self.text: str | None = None
        left = list(words[len(launcher.words) :])
        while left and left[0].startswith("-") and (flag := left.pop(0)) != "--":
            flag, equals, value = flag.partition("=")
            count = 0 if equals else launcher.values.get(flag, 0)
            if flag[:2] in launcher.nodes and flag[1] != "-" and flag[2:]:
                flag, value = flag[:2], flag[2:]
            elif count:
                value = " ".join(left[:count])
                del left[:count]
            elif launcher.script and left and re.fullmatch("-[a-z]*c", flag):
                self.text = left[0]
                left = []
            self._take(launcher, flag, value, variables or {})
        del left[: launcher.skip]
        if launcher.until:
            left = left[left.index(launcher.until) + 1 :] if launcher.until in left else []
        self.words, self.rest = words[: len(words) - len(left)], left
        if launcher.joined and (len(left) == 1 or launcher.skip):
            self.text = " ".join(left)

    def _take(self, launcher: Launcher, flag: str, value: str, variables: StringMap) -> None:
        if flag in launcher.settings:
            name, equals, text = value.partition("=")
            if equals or name in variables:
                self.settings[name] = text if equals else variables[name]
        if flag in launcher.told:
            self.notes.append(launcher.told[flag].format(_shown(value)))
        if re.fullmatch(launcher.nodes.get(flag, "(?!)"), value):
            raise BadInput(
                f"{launcher.words[0]} {flag} {value}: several nodes are out of scope; give the "
                "command of a server on one node"
            )
