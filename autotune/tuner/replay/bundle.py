"""Bundle: a whole study in one archive, checked before use, and never unpacked to disk.

A zip with ``manifest.json``, which lists every other member with its size and SHA-256. The same
members make the same bytes. ``study.yaml``, ``results.jsonl`` and ``recommendation.json`` are the
study's own. ``candidates.json`` has the other candidates that judging its launches needs, so that
another machine, or another version's search spaces, judge alike.
"""

import hashlib
import json
import math
import re
import zlib
from collections.abc import Mapping
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile, ZipInfo

import yaml

from autotune.base import BadInput, Json, JsonObject, MalformedFile, by_key, frozen
from autotune.engines import (
    Candidate,
    CandidateSet,
    Configuration,
    Entry,
    GivenUp,
    Library,
    Scalar,
    is_version,
)

from ..study.recommendation import Exclusion, Recommendation
from ..study.results import RESULTS, parse_rows
from ..study.spec import StudySpec
from ..trial import Launch

STUDY = "study.yaml"
CANDIDATES = "candidates.json"
RECOMMENDATION = "recommendation.json"
SCHEMA = 1
"""Version of the members and the manifest; this version cannot read larger ones."""
MANIFEST = "manifest.json"
ZIP_BEGINNING = b"PK"
"""First bytes of a zip, which no table of launches starts with."""

_MOST_MEMBERS = 10_000
_MOST_BYTES = 256 * 2**20  # Limit of all members together; a small file can claim to hold far more
_NAME = re.compile(r"[A-Za-z0-9][\w.=-]*(/[A-Za-z0-9][\w.=-]*)*", re.ASCII)
_NO_TABLE = "It is no text, so no table either: that is a CSV in UTF-8, or a study's results.jsonl"
_BROKEN = (
    BadZipFile,
    zlib.error,
    OSError,
    EOFError,
    ValueError,
    LookupError,
    RuntimeError,
    OverflowError,
)
"""Errors of `zipfile` and `json` for content that is not our archive."""


class KnownCandidate(Entry):
    """A candidate that was launched, is an engine's default, or is the effective configuration of
    another one."""

    engine: str
    engine_version: str
    config: dict[str, Scalar]
    default: bool = False
    unseen: bool = False
    gives_up: tuple[GivenUp, ...] = ()


class KnownCandidates(Entry):
    """Content of ``candidates.json``; fields as in `CandidateSet`, and the engines that were not
    searched."""

    items: tuple[KnownCandidate, ...]
    baseline: int
    as_they_are: bool = False
    excluded: tuple[Exclusion, ...] = ()

    def as_set(self, library: Library) -> CandidateSet:
        """Return the candidates of a replayed study."""
        items = self.items
        return CandidateSet(
            [Candidate(Configuration(c.engine, c.config), c.engine_version) for c in items],
            self.baseline,
            tuple(i for i, one in enumerate(items) if one.default),
            monotone_memory=library.monotone_memory,
            given_up={i: one.gives_up for i, one in enumerate(items) if one.gives_up},
            as_they_are=self.as_they_are,
            unseen=frozenset(i for i, one in enumerate(items) if one.unseen),
        )


@frozen
class Bundle:
    """A bundled study: its launches by number; no recommendation if it is unfinished."""

    path: Path
    spec: StudySpec
    launches: tuple[Launch, ...]
    known: KnownCandidates
    recommendation: Recommendation | None

    @property
    def bound(self) -> bool:
        """Return whether its launches ran on several nodes, so that their names carry
        information."""
        return any(launch.trial.node for launch in self.launches)

    def launches_for(self, spec: StudySpec) -> tuple[Launch, ...]:
        """Return the launches within a replay's budget; hours count if they differ from the
        bundle's."""
        fitting = self.launches[: spec.launches]
        if spec.hours in (None, self.spec.hours):
            return fitting
        ends_s = accumulate(launch.result.seconds for launch in fitting)
        return fitting[: sum(end_s <= 3600 * spec.hours for end_s in ends_s)]

    def agreement(self, outcome: Recommendation) -> str:
        """Report in a sentence whether a replay agrees with the study."""
        if self.recommendation is None:
            return f"study {self.spec.study} had not ended when it was bundled"
        then = self.recommendation.recommended
        now, before = (
            (one.fingerprint, one.argv, one.env) if one else None
            for one in (outcome.recommended, then)
        )
        if now == before:
            return f"the recommendation is the same as in study {self.spec.study}"
        command = then.command if then else "nothing feasible"
        return f"study {self.spec.study} recommended another command: {command}"


def read_bundle(path: Path, content: bytes) -> Bundle:
    """Read a bundle from its bytes; raises `MalformedFile` naming the path."""
    manifest, members = unpack(path, content)
    try:
        rows = parse_rows(path, members[RESULTS])
        done = members.get(RECOMMENDATION)
        bundle = Bundle(
            path,
            StudySpec.from_yaml(members[STUDY].decode()),
            tuple(sorted(rows.launches, key=lambda launch: launch.number)),
            KnownCandidates.model_validate_json(members[CANDIDATES]),
            Recommendation.from_json(json.loads(done)) if done else None,
        )
    except (
        yaml.YAMLError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        problem = "; ".join(str(error).splitlines()[:2])
        raise MalformedFile(
            path,
            f"not a bundle that this version reads (autotune {manifest.get('autotune')} made it): "
            f"{problem}",
        ) from None
    _check(bundle)
    return bundle


def _check(bundle: Bundle) -> None:
    """Raise `MalformedFile` if the parts of a bundle do not fit each other."""
    known = bundle.known
    fingerprints = {Configuration(one.engine, one.config).fingerprint for one in known.items}
    launched = {launch.fingerprint for launch in bundle.launches}
    if not bundle.launches or not 0 <= known.baseline < len(known.items):
        raise MalformedFile(bundle.path, "it has no launch, or no baseline")
    if len(fingerprints) < len(known.items) or not launched <= fingerprints:
        raise MalformedFile(bundle.path, f"{CANDIDATES} does not fit {RESULTS}")
    values = [value for one in known.items for value in one.config.values()]
    if not all(math.isfinite(value) for value in values if isinstance(value, float)):
        raise MalformedFile(bundle.path, f"{CANDIDATES} has a value that is not finite")
    if not all(launch.trial.workloads for launch in bundle.launches):
        raise MalformedFile(bundle.path, f"a launch of {RESULTS} has no workload")
    versions = {one.engine_version for one in known.items}
    versions |= {one.trial.engine_version for one in bundle.launches}
    for version in versions - {"", "unknown"}:
        if not is_version(version):
            raise MalformedFile(bundle.path, f"{version!r:.40} is no version of an engine")


def check_measured(bundle: Bundle, spec: StudySpec) -> None:
    """Raise `BadInput` if no launch has a metric that a replay needs, for its workload."""
    results = [launch.result for launch in bundle.launches if not launch.result.failure]
    measured = by_key(
        (workload, metric)
        for result in results
        for workload, row in result.metrics.items()
        for metric in row
    )
    asked = list(spec.asked_metrics.values())
    for number, workload in enumerate(spec.workloads if results else ()):
        if workload not in measured:
            raise BadInput(
                f"--workload {workload}: {bundle.path} has only {', '.join(sorted(measured))}"
            )
        for metric in asked if number == 0 else asked[:1]:
            if metric not in measured[workload]:
                raise BadInput(f"{metric} of {workload}: no launch of {bundle.path} has it")


def pack(about: JsonObject, members: Mapping[str, bytes]) -> bytes:
    """Write an archive, with further keys of the manifest; raises `BadInput` if it is larger than
    `unpack` accepts."""
    if len(members) >= _MOST_MEMBERS or sum(map(len, members.values())) > _MOST_BYTES - 2**20:
        raise BadInput(
            f"a bundle of more than {_MOST_BYTES:,} bytes could not be read again; leave out the prompts"
        )
    manifest = {
        "schema": SCHEMA,
        **about,
        "members": {name: _facts(members[name]) for name in sorted(members)},
    }
    buffer = BytesIO()
    with ZipFile(buffer, "w") as archive:
        for name, content in {MANIFEST: json.dumps(manifest, indent=1).encode(), **members}.items():
            # Write no date: the default is the earliest that the format has.
            info = ZipInfo(name)
            info.compress_type = ZIP_DEFLATED
            info.create_system = 3
            info.external_attr = 0o644 << 16
            archive.writestr(info, content)
    return buffer.getvalue()


def unpack(path: Path, content: bytes) -> tuple[Json, dict[str, bytes]]:
    """Return an archive's manifest and members; raises `MalformedFile` if it is damaged, altered,
    or too new."""
    try:
        with ZipFile(BytesIO(content)) as archive:
            infos = archive.infolist()
            if len(infos) > _MOST_MEMBERS or sum(info.file_size for info in infos) > _MOST_BYTES:
                raise MalformedFile(
                    path, f"holds more than {_MOST_MEMBERS:,} members or {_MOST_BYTES:,} bytes"
                )
            members = {info.filename: _read(archive, info) for info in infos}
    except _BROKEN as error:
        raise MalformedFile(
            path, f"cut short, damaged, or no bundle ({error}); copy it again. {_NO_TABLE}"
        ) from None
    if len(members) < len(infos):
        raise MalformedFile(path, "tampered with: several members have one name")
    manifest = _manifest(path, members)
    listed = manifest["members"]
    for name in {*listed, *members} - {MANIFEST}:
        if not _NAME.fullmatch(name):
            raise MalformedFile(
                path, f"tampered with: the member {name!r} would be outside of its folder"
            )
        if name not in members or listed.get(name) != _facts(members[name]):
            raise MalformedFile(path, f"tampered with: {name!r} does not match its {MANIFEST}")
    return manifest, members


def _read(archive: ZipFile, info: ZipInfo) -> bytes:
    """Read a member; raises ``ValueError`` if it is larger than declared."""
    with archive.open(info) as stream:
        content = stream.read(info.file_size + 1)
    if len(content) != info.file_size:
        raise ValueError(f"{info.filename} has another size than declared")
    return content


def _manifest(path: Path, members: Mapping[str, bytes]) -> Json:
    try:
        manifest = json.loads(members.get(MANIFEST, b""))
        schema = int(manifest["schema"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise MalformedFile(
            path, f"no bundle of a study: it has no {MANIFEST} of one. {_NO_TABLE}"
        ) from None
    if schema > SCHEMA:
        raise MalformedFile(
            path,
            f"made by a newer version (autotune {manifest.get('autotune')}, schema {schema}; this one "
            f"reads {SCHEMA}): update autotune",
        )
    if not isinstance(manifest.get("members"), dict):
        raise MalformedFile(path, f"tampered with: {MANIFEST} lists no members")
    return dict(manifest)


def _facts(content: bytes) -> Json:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
