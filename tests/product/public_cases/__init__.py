"""Cases from public threads and files: what a practitioner expects, beside what is read.

``python -m tests.product.public_cases [public|given]`` prints them as a table, and "N of M right".
A case that is wrong today has ``not_yet`` with the reason in its YAML file; its test fails when the
case becomes right, until the line is removed.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from autotune.base import AutotuneError
from autotune.engines import recognise, split_command
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.study.options import RunOptions
from tests.product.cli import SHARED, here

_HERE = Path(__file__).parent
FOLDERS = {"public": _HERE / "inputs", "given": SHARED / "data" / "cases"}
_TOLERANCE = 1e-3  # Relative: files and screens round to three or four digits


@dataclass(frozen=True)
class Case:
    """A case.

    Attributes:
        baseline: a command or deployment for ``--baseline``: ``{file}`` its path, ``{text}`` its
            content.
        run: a command line of autotune, with ``{file}`` and ``{folder}``; or several, of which the
            first that ends well counts.
        expect: what is read, by kind: see `_unlike` and `_missing`.
        not_yet: why it is wrong today; empty if it is right.
    """

    id: str
    kind: str
    source: str
    about: str
    expect: dict[str, Any]
    file: str = ""
    model: str = "Qwen/Qwen3-8B"
    hardware: str = "h100"
    baseline: str = ""
    run: str | list[str] = ""
    not_yet: str = ""
    folder: Path = field(default=_HERE)

    @property
    def path(self) -> Path:
        return self.folder / self.file

    def filled(self, text: str) -> str:
        content = self.path.read_text() if "{text}" in text else ""
        for name, value in (("file", self.path), ("folder", self.folder), ("text", content)):
            text = text.replace("{" + name + "}", str(value))
        return text


@dataclass(frozen=True)
class Outcome:
    """What became of a case: ``right``, ``wrong`` or ``refused``, and what was read."""

    verdict: str
    read: str


def cases(name: str) -> list[Case]:
    """Read the cases of ``public.yaml`` or ``given.yaml``."""
    rows = yaml.safe_load((_HERE / f"{name}.yaml").read_text())
    return [Case(**row, folder=FOLDERS[name]) for row in rows]


def outcome_of(case: Case, home: Path) -> Outcome:
    """Run a case through the product; `home` is an empty home folder."""
    return _read_baseline(case) if case.baseline else _run(case, home)


def _read_baseline(case: Case) -> Outcome:
    """Give a command or deployment as the baseline, and read what the study keeps of it."""
    said: list[str] = []
    options = RunOptions(
        model=case.model, hardware=case.hardware, baseline=case.filled(case.baseline)
    )
    try:
        spec = build_spec(options, said.append)
        command = replace(split_command(spec.baseline or ""), files=spec.baseline_files)
        kind = recognise(command.argv)
        version = next(one.version for one in spec.engines if one.name == kind.name)
        parsed = kind.parse(command, version)
    except AutotuneError as error:
        return _refused(case, str(error))
    read = {
        "engine": kind.name,
        "version": version,
        "model": parsed.model,
        "env": dict(command.env),
        "config": dict(parsed.config),
        "args": {name: parsed.args[name] for name in sorted(parsed.given & set(parsed.args))},
    }
    problems = list(_unlike(case.expect, {**read, "args": dict(parsed.args)}))
    kept = "\n".join([str(spec), *said])
    problems += [f"kept {text!r}" for text in case.expect.get("absent", ()) if text in kept]
    problems += _missing(case, "\n".join([*spec.notes, *said]))
    shown = ", ".join(f"{name} {value}" for name, value in read.items() if value)
    return Outcome("wrong", "; ".join(problems)) if problems else Outcome("right", shown)


def _run(case: Case, home: Path) -> Outcome:
    """Run command lines of autotune until one ends well, and look for values in its JSON."""
    lines = [case.run] if isinstance(case.run, str) else case.run
    for line in lines:
        done = here(*shlex.split(case.filled(line)), home=home)
        if not done.code:
            break
    else:
        return _refused(case, done.err + done.out)
    leaves = list(_leaves(json.loads(done.out))) if done.out.startswith("{") else []
    problems = []
    shown = []
    for name, expected in case.expect.get("values", {}).items():
        found = [value for path, value in leaves if name in path]
        for one in expected if isinstance(expected, list) else [expected]:
            if any(_is(value, one) for value in found):
                shown.append(f"{name} {one}")
            else:
                problems.append(f"{name} is {found[:2] or 'not there'}, not {one}")
    problems += _missing(case, done.out + done.err)
    if "refused" in case.expect:
        problems.append("not refused")
    return Outcome("wrong" if problems else "right", "; ".join(problems or shown))


def _refused(case: Case, error: str) -> Outcome:
    """Judge a refusal: right only where one is expected, and with the expected words."""
    text = " ".join(error.split())
    expected = case.expect.get("refused")
    if expected and re.search(expected, text) and not _missing(case, text):
        return Outcome("right", f"refused: {text}")
    return Outcome("wrong" if expected else "refused", text)


def _missing(case: Case, said: str) -> list[str]:
    """List the patterns of ``says`` that nothing said matches, and those of ``never`` that do."""
    text = " ".join(said.split())
    never = [p for p in case.expect.get("never", ()) if re.search(p, text)]
    says = [p for p in case.expect.get("says", ()) if not re.search(p, text)]
    return [f"does not say {p!r}" for p in says] + [f"says {p!r}" for p in never]


def _unlike(expected: dict[str, Any], read: dict[str, Any]) -> Iterator[str]:
    """Compare engine, version, model, settings, and options by the engine's own destination."""
    if "refused" in expected:
        yield "not refused"
    for name in ("engine", "version", "model"):
        if name in expected and read[name] != expected[name]:
            yield f"{name} is {read[name]}, not {expected[name]}"
    for part in ("args", "env", "config"):
        for name, value in expected.get(part, {}).items():
            if read[part].get(name) != value:
                yield f"{name} is {read[part].get(name)}, not {value}"


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """List every number of a JSON document with its path."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, part in items:
        if isinstance(part, dict | list):
            yield from _leaves(part, f"{path}.{name}")
        elif isinstance(part, int | float) and not isinstance(part, bool):
            yield f"{path}.{name}", part


def _is(value: float, expected: float | str) -> bool:
    """Compare with a number, or a range such as ``10..20``."""
    if isinstance(expected, str):
        low, high = map(float, expected.split(".."))
        return low <= value <= high
    return math.isclose(value, expected, rel_tol=_TOLERANCE)
