"""What a study learns from: launches of earlier studies and of files (``--from``), read, and kept with the study.

What was learned from is copied into the new study's folder, so that a resumed study holds the same priors after the
earlier one has grown or gone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import BadInput, MalformedFile
from autotune.metrics.formulas import METRICS
from autotune.replay import read_table
from autotune.search.objective import weights
from autotune.study.home import write_atomically
from autotune.study.results import RESULTS, parse_rows
from autotune.study.spec import StudySpec
from autotune.study.user_library import library_of
from autotune.trial import Configuration, Launch, State

_FOLDER = "sources"


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one earlier launch says.

    Attributes:
        score: natural logarithm of the objective, more is better; None: the configuration failed.
    """

    configuration: Configuration
    score: float | None


@dataclass(frozen=True, slots=True)
class Source:
    """Earlier launches to learn from.

    Attributes:
        name: for people: ``study v32-night``.
    """

    name: str
    lessons: tuple[Lesson, ...]

    def to_text(self) -> str:
        """JSON lines: the name, then a line per lesson."""
        rows = [
            {"engine": one.configuration.engine, "config": dict(one.configuration.knobs), "score": one.score}
            for one in self.lessons
        ]
        return "".join(json.dumps(row) + "\n" for row in ({"name": self.name}, *rows))

    @classmethod
    def from_text(cls, text: str) -> Source:
        """The inverse of `to_text`; raises ``ValueError`` or ``KeyError``."""
        head, *rows = (json.loads(line) for line in text.splitlines())
        found = (Lesson(Configuration(row["engine"], row["config"]), row["score"]) for row in rows)
        return cls(head["name"], tuple(found))


def sources_of(spec: StudySpec, folder: Path) -> list[Source]:
    """What a study learns from: its own copies where it has them, else the earlier studies and files.

    Args:
        folder: the study's; it need not exist.

    Raises:
        BadInput: a source has no launch that tells of the objective, or is gone; also `MalformedFile`.
    """
    return [_kept(_copy(folder, number)) or _read(Path(path), spec) for number, path in enumerate(spec.sources)]


def keep(sources: Sequence[Source], folder: Path) -> None:
    """Copy what is learned from into the study's folder; copies that are there stay."""
    for number, source in enumerate(sources):
        path = _copy(folder, number)
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, source.to_text())


def _copy(folder: Path, number: int) -> Path:
    return folder / _FOLDER / f"{number}.jsonl"


def _kept(path: Path) -> Source | None:
    if not path.is_file():
        return None
    try:
        return Source.from_text(path.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MalformedFile(path, f"not what a study keeps of an earlier one ({error}); begin a new study") from error


def _read(path: Path, spec: StudySpec) -> Source:
    """The lessons of a study's folder or a file; raises `BadInput` when none of them measured the objective."""
    if path.suffix.lower() == ".csv":
        table = read_table(path, library_of(spec)).rows
        found = [Lesson(row.configuration, _score(spec, row.metrics) if row.failure is None else None) for row in table]
        name, nothing = f"table {path.name}", f"no row of it has {spec.objective}"
    else:
        file = path / RESULTS if path.is_dir() else path
        launches = _launches(file)
        found = [lesson for launch in launches for lesson in _lesson(launch, spec)]
        name, nothing = f"study {file.absolute().parent.name}", _nothing(launches, spec)
    if not any(lesson.score is not None for lesson in found):
        raise BadInput(f"--from {path}: {nothing}")
    return Source(name, tuple(found))


def _launches(file: Path) -> list[Launch]:
    """The launches of a ``results.jsonl``; a last line that is torn, as its study runs on, is left out."""
    try:
        rows = parse_rows(file, file.read_bytes())
    except OSError as error:
        problem = f"it cannot be read ({error}); give a study, a {RESULTS} or a FILE.csv"
        raise BadInput(f"--from {file}: {problem}") from error
    if rows.torn and not rows.launches:
        raise rows.torn
    return rows.launches


def _nothing(launches: Sequence[Launch], spec: StudySpec) -> str:
    """Why no launch is a lesson, in words."""
    if not launches:
        return "it has no finished launch yet; let it run, or learn from another study"
    metrics = [measured for launch in launches for measured in launch.result.metrics.values()]
    has = sorted({name for measured in metrics for name in measured if name in METRICS})
    if not has:
        return f"none of its launches measured {spec.objective}; let it run on, or learn from another study"
    return f"its launches did not measure {spec.objective}; they have {', '.join(has)}"


def _lesson(launch: Launch, spec: StudySpec) -> list[Lesson]:
    """What a launch says; nothing where the measurement, the machine or the metric failed, or a load was cut short."""
    configuration, result = launch.trial.configuration, launch.result
    if result.state is State.FAILED:
        blamed = result.failure is None or result.failure.blames_the_configuration
        return [Lesson(configuration, None)] if blamed else []
    score = None if result.state is not State.COMPLETE or result.shortened else _score(spec, result.metrics)
    return [] if score is None else [Lesson(configuration, score)]


def _score(spec: StudySpec, metrics: Mapping[str, Mapping[str, Any]]) -> float | None:
    """ln(objective), more is better: of our workloads where they were measured, else of the launch's own first one."""
    shares = weights(spec)
    if not all(name in metrics for name in shares):
        shares = dict.fromkeys([*metrics][:1], 1.0)
    values = [(metrics[name].get(spec.objective), weight) for name, weight in shares.items()]
    if not values or not all(_is_positive(value) for value, _ in values):
        return None
    sign = 1.0 if METRICS[spec.objective].maximise else -1.0
    return sign * sum(w * math.log(v) for v, w in values if v is not None)


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
