"""A bundle: a whole study in one archive, read as values.

``study.yaml``, ``results.jsonl`` and ``recommendation.json`` are the study's own. ``candidates.json`` has what judging
its launches needs of the candidates beside them, so that another machine, or another version's search spaces, judge
alike.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from autotune.errors import BadInput, MalformedFile
from autotune.replay import REPLAY, check_unchanged, content_of, file_of, read_table
from autotune.replay.archive import BEGINNING, unpack
from autotune.replay.candidates import named_row
from autotune.replay.table import same_value
from autotune.space.enumeration import Candidate, CandidateSet
from autotune.space.library import Library
from autotune.space.promises import GivenUp
from autotune.study.recommendation import Exclusion, Recommendation
from autotune.study.results import RESULTS, parse_rows
from autotune.study.spec import StudySpec
from autotune.trial import Configuration, Launch, Scalar

STUDY, CANDIDATES, RECOMMENDATION = "study.yaml", "candidates.json", "recommendation.json"


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class KnownCandidate(_Value):
    """A candidate that was launched, is an engine's default, or is what an engine made of another one."""

    engine: str
    engine_version: str
    config: dict[str, Scalar]
    default: bool = False
    gives_up: tuple[GivenUp, ...] = ()


class KnownCandidates(_Value):
    """The content of ``candidates.json``; fields as of `CandidateSet`.

    Attributes:
        excluded: the engines that were not searched.
    """

    items: tuple[KnownCandidate, ...]
    baseline: int
    as_they_are: bool = False
    excluded: tuple[Exclusion, ...] = ()

    def as_set(self, library: Library) -> CandidateSet:
        """The candidates of a replayed study."""
        items = [Candidate(Configuration(one.engine, one.config), one.engine_version) for one in self.items]
        return CandidateSet(
            items,
            self.baseline,
            tuple(i for i, one in enumerate(self.items) if one.default),
            monotone_memory=library.monotone_memory,
            given_up={i: one.gives_up for i, one in enumerate(self.items) if one.gives_up},
            as_they_are=self.as_they_are,
        )


@dataclass(frozen=True)
class Bundle:
    """A study that was bundled.

    Attributes:
        launches: by number.
        recommendation: what it ended with; None where it had not ended.
    """

    path: Path
    spec: StudySpec
    launches: tuple[Launch, ...]
    known: KnownCandidates
    recommendation: Recommendation | None

    @property
    def bound(self) -> bool:
        """Whether its launches ran on several nodes, so that their names say something."""
        return any(launch.trial.node for launch in self.launches)

    def launches_for(self, spec: StudySpec) -> tuple[Launch, ...]:
        """The launches that a replay's budget has room for; its hours only where they are not the bundle's own."""
        ends_s = accumulate(sum(launch.result.times_s.values()) for launch in self.launches)
        limit_s = float("inf") if spec.hours in (None, self.spec.hours) else 3600 * (spec.hours or 0.0)
        fitting = sum(end_s <= limit_s for end_s in ends_s)
        return self.launches[: min(spec.launches, fitting)]

    def candidates_for(self, spec: StudySpec, library: Library) -> CandidateSet:
        """The candidates under a replay's baseline, ``column=value,…`` where it is not the bundle's own.

        Raises `BadInput` where no launch, or more than one configuration, is that baseline.
        """
        known = self.known
        if spec.baseline is not None and spec.baseline != self.spec.baseline:
            row = named_row(read_table(self.path, library), spec.baseline, library)
            # The row may also name the version.
            same = (
                i
                for i, one in enumerate(known.items)
                if one.engine == row.engine and all(same_value(row.knobs.get(n), v) for n, v in one.config.items())
            )
            known = known.model_copy(update={"baseline": next(same, known.baseline)})
        return known.as_set(library)

    def agreement(self, outcome: Recommendation) -> str:
        """A sentence that says whether a replay ended as the study did."""
        if self.recommendation is None:
            return f"study {self.spec.study} had not ended when it was bundled"
        now, then = (one.recommended for one in (outcome, self.recommendation))
        same = (now and (now.fingerprint, now.argv, now.env)) == (then and (then.fingerprint, then.argv, then.env))
        if same:
            return f"the recommendation is that of study {self.spec.study}"
        return f"study {self.spec.study} recommended another command: {then.command if then else 'nothing feasible'}"


def bundle_of(on: str, sha256: str | None = None) -> Bundle | None:
    """The bundle that ``on`` names; None where it names none.

    Raises `BadInput` where its file cannot be read or has changed since a study began, `MalformedFile` where it is
    damaged, tampered with, or of a newer version.
    """
    if file_of(on) is None:
        return None
    path = Path(on.removeprefix(REPLAY))
    content = content_of(path)
    if not content.startswith(BEGINNING):
        return None
    digest = hashlib.sha256(content).hexdigest()
    check_unchanged(path, digest, sha256)
    return _read(path, content)


@lru_cache(maxsize=2)
def _read(path: Path, content: bytes) -> Bundle:
    return read_bundle(path, content)


def read_bundle(path: Path, content: bytes) -> Bundle:
    """Read a bundle from its bytes; raises `MalformedFile`.

    Args:
        path: for messages.
    """
    manifest, members = unpack(path, content)
    made_by = f"autotune {manifest.get('autotune')}"
    try:
        rows = parse_rows(path, members[RESULTS])
        done = members.get(RECOMMENDATION)
        bundle = Bundle(
            path,
            StudySpec.from_yaml(members[STUDY].decode()),
            tuple(sorted(rows.launches, key=lambda launch: launch.trial.number)),
            KnownCandidates.model_validate_json(members[CANDIDATES]),
            Recommendation.from_json(json.loads(done)) if done else None,
        )
    except (ValidationError, yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = "; ".join(str(error).splitlines()[:2])
        raise MalformedFile(path, f"not a bundle that this version reads ({made_by} made it): {what}") from None
    _check(bundle)
    return bundle


def _check(bundle: Bundle) -> None:
    """Raise `MalformedFile` where the parts of a bundle do not fit each other."""
    known = bundle.known
    fingerprints = {Configuration(one.engine, one.config).fingerprint for one in known.items}
    launched = {launch.trial.configuration.fingerprint for launch in bundle.launches}
    if not bundle.launches or not 0 <= known.baseline < len(known.items):
        raise MalformedFile(bundle.path, "holds no launch, or no baseline")
    if len(fingerprints) < len(known.items) or not launched <= fingerprints:
        raise MalformedFile(bundle.path, f"{CANDIDATES} does not fit {RESULTS}")
    values = [value for one in known.items for value in one.config.values()]
    if not all(math.isfinite(value) for value in values if isinstance(value, float)):
        raise MalformedFile(bundle.path, f"{CANDIDATES} has a value that is not finite")
    if not all(launch.trial.workloads for launch in bundle.launches):
        raise MalformedFile(bundle.path, f"a launch of {RESULTS} has no workload")


def check_measured(bundle: Bundle, spec: StudySpec) -> None:
    """Raise `BadInput` where no launch has a metric that a replay asks for, of the workload that it asks for."""
    complete = [launch.result.metrics for launch in bundle.launches if launch.result.failure is None]
    measured: dict[str, set[str]] = {}
    for metrics in complete:
        for workload, row in metrics.items():
            measured.setdefault(workload, set()).update(row)
    asked = [spec.objective, *(slo.metric for slo in spec.slos), *([spec.pareto] if spec.pareto else [])]
    for number, workload in enumerate(spec.workloads if complete else ()):
        if workload not in measured:
            raise BadInput(f"--workload {workload}: {bundle.path} has none of it, only {', '.join(sorted(measured))}")
        for metric in asked if number == 0 else asked[:1]:
            if metric not in measured[workload]:
                raise BadInput(f"{metric} of {workload}: no launch of {bundle.path} has it")
