"""Read launches of earlier studies and files (``--from``), store them with the study, and compute
priors from them.

The launches are copied into the new study's folder, so that a resumed study has the same priors
after the earlier study has changed or was deleted.

An earlier study may have another model, engine version, node or load. The search's Gaussian process
is fitted to its launches over the knobs that they vary; its prediction of the candidates is a
`Prior`. Failed launches lower the probability that candidates start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from autotune.base import BadInput, JsonObject, MalformedFile, frozen, write_atomically
from autotune.engines import Candidate, CandidateSet, Configuration, Scalar
from autotune.load.metrics.table import METRICS

from ...replay.table import read_table
from ...study.home import library_of
from ...study.results import RESULTS, parse_rows
from ...study.spec import StudySpec
from ...trial import Launch, State
from ..feasibility import p_starts
from ..gp.kernels import Encoding, Kernels, Prior, one_thread
from ..gp.posterior import Posterior
from ..objective import score_of, weights

_FOLDER = "sources"


@frozen
class Observation:
    """One earlier launch; score: the logarithm of the objective, more is better, None for a
    configuration that failed."""

    configuration: Configuration
    score: float | None


@frozen
class Source:
    """Earlier launches of one study or file; the name is shown to people: ``study v32-night``."""

    name: str
    observations: tuple[Observation, ...]

    def to_text(self) -> str:
        """Return JSON lines: the name, then one line per launch."""
        rows = [
            {
                "engine": one.configuration.engine,
                "config": dict(one.configuration.knobs),
                "score": one.score,
            }
            for one in self.observations
        ]
        return "".join(json.dumps(row) + "\n" for row in ({"name": self.name}, *rows))

    @classmethod
    def from_text(cls, text: str) -> Source:
        """Return the inverse of `to_text`; raises ``ValueError`` or ``KeyError``."""
        head, *rows = (json.loads(line) for line in text.splitlines())
        found = (
            Observation(Configuration(row["engine"], row["config"]), row["score"]) for row in rows
        )
        return cls(head["name"], tuple(found))


def sources_of(spec: StudySpec, folder: Path) -> list[Source]:
    """Return a study's sources: the copies in its folder if there are any, else the originals.

    Args:
        folder: the study's; it need not exist.

    Raises:
        BadInput: no launch of a source measured the objective, or the source does not exist; also
            `MalformedFile`.
    """
    return [
        _kept(_copy(folder, number)) or _read(Path(path), spec)
        for number, path in enumerate(spec.sources)
    ]


def keep(sources: Sequence[Source], folder: Path) -> None:
    """Copy the sources into the study's folder; existing copies are not overwritten."""
    for number, source in enumerate(sources):
        path = _copy(folder, number)
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, source.to_text())


def prior_of(source: Source, candidates: CandidateSet) -> Prior | None:
    """Return the prediction of the candidates from earlier launches; None without any of their
    engines.

    Knobs that no engine's earlier launches varied have no effect in it. Candidates of an engine
    without earlier launches have no prediction.
    """
    values: dict[tuple[str, str], set[tuple[type, Scalar]]] = {}
    for one in source.observations:
        for name, value in one.configuration.knobs.items():
            values.setdefault((one.configuration.engine, name), set()).add((type(value), value))
    columns = sorted({name for (_, name), several in values.items() if len(several) > 1})
    keys = [_row(candidate.configuration, columns) for candidate in candidates.items]
    rows = [_row(one.configuration, columns) for one in source.observations]
    distinct = list(dict.fromkeys([*keys, *rows]))
    positions = {key: i for i, key in enumerate(distinct)}
    items = [
        Candidate(Configuration(key[0], dict(zip(columns, key[1], strict=True))), "")
        for key in distinct
    ]
    encoding = Encoding(CandidateSet(items, 0))
    launched = [
        (positions[row], one.score) for row, one in zip(rows, source.observations, strict=True)
    ]
    ran = [p for p, score in launched if score is not None]
    broken = [p for p, score in launched if score is None]
    with one_thread():
        scores = np.array([score for _, score in launched if score is not None])
        every = np.arange(len(distinct))
        mean = Posterior(Kernels(encoding), ran, scores - scores.mean()).mean(every)
        odds = p_starts(encoding, ran, broken)
    own = np.array([positions[key] for key in keys])
    known = np.isin(
        [key[0] for key in keys], [one.configuration.engine for one in source.observations]
    )
    if not known.any():
        return None
    mean = np.where(known, mean[own], np.nan)
    odds = np.where(known, odds[own], 1)
    return Prior(source.name, mean, odds if broken else None)


def _row(configuration: Configuration, columns: Sequence[str]) -> tuple[str, tuple[Scalar, ...]]:
    return configuration.engine, tuple(configuration.knobs.get(name) for name in columns)


def _copy(folder: Path, number: int) -> Path:
    return folder / _FOLDER / f"{number}.jsonl"


def _kept(path: Path) -> Source | None:
    if not path.is_file():
        return None
    try:
        return Source.from_text(path.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MalformedFile(
            path, f"not a study's copy of an earlier one ({error}); start a new study"
        ) from error


def _read(path: Path, spec: StudySpec) -> Source:
    """Read a study's folder or a file; raises `BadInput` if no launch measured the objective."""
    if path.suffix.lower() == ".csv":
        table = read_table(path, library_of(spec)).rows
        found = [
            Observation(
                row.configuration, _score(spec, row.metrics) if row.failure is None else None
            )
            for row in table
        ]
        name = f"table {path.name}"
        nothing = f"no row of it has {spec.objective}"
    else:
        file = path / RESULTS if path.is_dir() else path
        launches = _launches(file)
        found = [one for launch in launches for one in _observations(launch, spec)]
        name = f"study {file.absolute().parent.name}"
        nothing = _why_unusable(launches, spec)
    if not any(one.score is not None for one in found):
        raise BadInput(f"--from {path}: {nothing}")
    return Source(name, tuple(found))


def _launches(file: Path) -> list[Launch]:
    """Return the launches of a ``results.jsonl``; an incomplete last line is skipped."""
    try:
        rows = parse_rows(file, file.read_bytes())
    except OSError as error:
        problem = f"it cannot be read ({error}); give a study, a {RESULTS} or a FILE.csv"
        raise BadInput(f"--from {file}: {problem}") from error
    if rows.torn and not rows.launches:
        raise rows.torn
    return rows.launches


def _why_unusable(launches: Sequence[Launch], spec: StudySpec) -> str:
    """Return why no launch can be used, in words."""
    if not launches:
        return "it has no finished launch yet; let it run, or learn from another study"
    metrics = [measured for launch in launches for measured in launch.result.metrics.values()]
    has = sorted({name for measured in metrics for name in measured if name in METRICS})
    if not has:
        return f"none of its launches measured {spec.objective}; let it run on, or learn from another study"
    return f"its launches did not measure {spec.objective}; they have {', '.join(has)}"


def _observations(launch: Launch, spec: StudySpec) -> list[Observation]:
    """Return a launch's observation; empty if it failed by another cause than its configuration, or
    did not measure the metric."""
    configuration = launch.trial.configuration
    result = launch.result
    if launch.without_meaning:
        return []
    if result.state is State.FAILED:
        blamed = result.failure is None or result.failure.blames_the_configuration
        return [Observation(configuration, None)] if blamed else []
    score = _score(spec, result.metrics)
    return [] if score is None else [Observation(configuration, score)]


def _score(spec: StudySpec, metrics: Mapping[str, JsonObject]) -> float | None:
    """Return ln(objective), more is better: the weighted mean over the study's workloads if all were
    measured, else of the launch's first workload."""
    shares = weights(spec)
    if not all(name in metrics for name in shares):
        shares = dict.fromkeys([*metrics][:1], 1.0)
    scores = [
        (share, score_of(spec.objective, metrics[name].get(spec.objective)))
        for name, share in shares.items()
    ]
    parts = [share * score for share, score in scores if score is not None]
    return sum(parts) if parts and len(parts) == len(scores) else None
