"""Changes of a deployment's text by place: patterns say where one may stand, and the text that
reads as wanted is kept."""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress

from autotune.base import BadInput, Json, StringDict, StringMap
from autotune.engines import Command, Engine, Words, flag_of, name_of
from autotune.engines.kept import grouped
from autotune.engines.options import readers, readings

from .forms import facts

_WORD = re.compile(r"(?:--?)?[A-Za-z/][\w./=+-]*")
Step = tuple[str, StringDict, list[str]]
"""An edit: its kind, what it is about, and the words of the command after it."""


def _in_quotes(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


_WRITINGS: tuple[Callable[[str], str], ...] = (
    str,
    shlex.quote,
    lambda text: _in_quotes(shlex.quote(text)),
    _in_quotes,
    json.dumps,
)


def edited(text: str, kind: str, values: StringMap) -> Iterator[str]:
    """Yield the texts that an edit may give."""
    quoted = value if _WORD.fullmatch(value := values["VALUE"]) else json.dumps(value)
    for find, put in facts().edits[kind]:
        pattern = _filled(_filled(find, facts().parts), values)
        for match in re.finditer(pattern, text):
            for write in _WRITINGS:
                new = _filled(
                    match.expand(put), {**values, "VALUE": write(value), "QUOTED": quoted}
                )
                yield f"{text[: match.start()]}{new}{text[match.end() :]}"


def _filled(text: str, values: StringMap) -> str:
    for name, value in values.items():
        text = text.replace(f"<{name}>", value)
    return text


def steps(kind: Engine, version: str, old: Words, new: Words) -> Iterator[Step]:
    """Yield the edits that give the arguments `old` the knobs of `new`, a word at a time."""
    now, asked = grouped(old), by_name(kind, version, new)
    equals = any("=" in group[0] for group in now[1:])
    added = []
    for name, (groups, value) in by_name(kind, version, old).items():
        wanted, other = asked.pop(name, ([], None))
        if wanted and value == other:
            continue
        if [len(_values(group)) for group in (*groups, *wanted)] == [1, 1]:
            own, flag, [text] = groups[0], flag_of(groups[0][0]), _values(wanted[0])
            words = [f"{flag}={text}"] if "=" in own[0] else [flag, text]
            now[now.index(own)] = words
            yield "set_option", _about(own, text), _joined(now)
            continue
        for group in groups:
            now.remove(group)
            yield "drop_option", _about(group), _joined(now)
        added += wanted
    for group in added + [group for groups, _ in asked.values() for group in groups]:
        flag, values = flag_of(group[0]), _values(group)
        words = [f"{flag}={values[0]}"] if equals and len(values) == 1 else [flag, *values]
        written = list[str]()
        now.append(written)
        for word in words:
            edit, before = ("add_value", written) if written else ("add_option", now[-2])
            about = _about(before, word)
            written.append(word)
            yield edit, about, _joined(now)


def _joined(groups: list[list[str]]) -> list[str]:
    return [word for group in groups for word in group]


def _values(group: Words) -> list[str]:
    _, equals, value = group[0].partition("=")
    return [value] if equals else list(group[1:])


def _about(group: Words, value: str = "") -> StringDict:
    return {"NAME": re.escape(flag_of(group[0])), "N": str(len(group) - 1), "VALUE": value}


def by_name(kind: Engine, version: str, words: Words) -> dict[str, tuple[list[list[str]], object]]:
    """Return the groups of each option that sets a knob, and its value as the engine reads it."""
    emitted = {
        name_of(flag_of(word).partition(".")[0])
        for knob in kind.card.knobs.values()
        for one in knob.emit
        for word in one.args
        if word.startswith("-")
    }
    named = {option.dest: option for option in kind.table(version).options}
    found = dict[str, list[list[str]]]()
    for group in grouped(words)[1:]:
        for name in _given(kind, version, group):
            if name in named and (
                emitted.intersection((name, *named[name].names))
                or readers(kind, version, named[name].paths)
            ):
                found.setdefault(name, []).append(group)
    return {
        name: (groups, _given(kind, version, _joined(groups)).get(name))
        for name, groups in found.items()
    }


def _given(kind: Engine, version: str, words: Words) -> Json:
    with suppress(BadInput):
        return kind.given(kind.prepare(words, version, Command(())), version)
    return {}


def knob_variables(kind: Engine, version: str) -> set[str]:
    """Return the variables that knobs are read from or written to."""
    paths = (path for found in readings(kind, version).values() for path in found)
    emitted = (name for knob in kind.card.knobs.values() for one in knob.emit for name in one.env)
    return {path.split(".")[1] for path in paths if path.startswith("env.")} | set(emitted)
