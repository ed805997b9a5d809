"""A bundled study, asked again: its launches are answered in their order, and nothing is searched."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from autotune.backends import Evaluator, OwnCandidates, noise_factor
from autotune.backends.table import RecordedTable, command_writer, known_engines, named_row
from autotune.engines import Engine
from autotune.engines.space import EngineSpace
from autotune.errors import BadInput
from autotune.machine import node
from autotune.metrics.table import scaled
from autotune.notify import Watch, silent
from autotune.replay.bundle import BEGINNING, Bundle, check_measured, read_bundle
from autotune.replay.table import check_unchanged, content_of, digest, read_table, same_value
from autotune.space.context import Context
from autotune.space.enumeration import CandidateSet, Enumeration
from autotune.space.library import Library
from autotune.study.goals import with_goals
from autotune.study.options import RunOptions
from autotune.study.recommendation import Recommendation
from autotune.study.spec import AUTO, StudySpec
from autotune.trial import Evidence, Trial, TrialResult

_OWN = ("launches", "hours", "seed", "noise", "baseline")
"""Options that replace the bundle's as they were typed."""


class RecordedBundle(RecordedTable):
    """See `autotune.backends.Backend`."""

    @classmethod
    def of(cls, on: str) -> RecordedTable:
        """A table's backend where the file is no bundle; of one that cannot be read, reading it tells."""
        table = RecordedTable.of(on)
        try:
            with table.path.open("rb") as file:
                is_bundle = file.read(len(BEGINNING)) == BEGINNING
        except OSError:
            return table
        return cls(table.on) if is_bundle else table

    def evaluator(self, spec: StudySpec, library: Library, folder: Path, notify: Watch = silent) -> Evaluator:
        return Recorded(self, spec)

    def bundle(self, sha256: str | None = None) -> Bundle:
        """Read the bundle; raises `BadInput` where its file cannot be read or has changed since the study began.

        Raises `MalformedFile` where it is damaged, tampered with, or of a newer version.
        """
        content = content_of(self.path)
        check_unchanged(self.path, hashlib.sha256(content).hexdigest(), sha256)
        return _read(self.path, content)

    def whole_spec(self, options: RunOptions, library: Library) -> StudySpec:
        if given := options.needing("launch", "search"):
            raise BadInput(
                f"{' and '.join(given)}: a bundle's launches are answered in their order, and nothing is launched or "
                "searched; leave it out, or give the study's results.jsonl as a table"
            )
        bundle = self.bundle()
        taken = bundle.spec
        _check_same(options, taken, library)
        own = {name: getattr(options, name) for name in _OWN if options.says(name)}
        # Weights of the bundle go with its workloads.
        own |= {"workloads": tuple(dict.fromkeys(options.workloads)), "weights": {}} if options.workloads else {}
        goals = with_goals(taken.model_copy(update={**own, "notes": ()}), options)
        spec = goals.model_copy(
            update={
                "on": self.on,
                "table_sha256": digest(self.path),
                "allow": tuple(dict.fromkeys(options.allow)) or taken.allow,
                "notes": (*taken.notes, *goals.notes, _note(bundle)),
                # What belongs to the machine on which it ran.
                **{"executor": "local", "sampler": "gp", "sources": (), "fetch": False},
                **{"api_key_env": None, "api_key_file": None, "hf_token_file": None},
                "space": str(options.space.resolve()) if options.space else None,
            }
        )
        if spec.seed < 0:
            raise BadInput(f"{bundle.path}: its seed is {spec.seed}; a seed is a whole number of at least 0")
        check_measured(bundle, spec)
        candidates_for(bundle, spec, library)
        return spec

    def own_candidates(self, spec: StudySpec, library: Library) -> OwnCandidates:
        bundle = self.bundle(spec.table_sha256)
        known = known_engines(spec, {one.engine: one.engine_version for one in bundle.known.items}, library)
        candidates = candidates_for(bundle, spec, library)
        if {one.engine for one in bundle.known.items} <= known.keys() and not candidates.as_they_are:
            candidates = replace(candidates, without=lambda one: _space(spec, *known[one.engine]).without(one))
        recorded = bundle.launches_for(spec)
        commands = {launch.trial.configuration: launch.trial.command for launch in recorded}
        return OwnCandidates(candidates, known, command_writer(commands, known), bundle.known.excluded, recorded)

    def conclusion(self, spec: StudySpec, recommendation: Recommendation) -> str:
        return self.bundle(spec.table_sha256).agreement(recommendation)


@lru_cache(maxsize=2)
def _read(path: Path, content: bytes) -> Bundle:
    return read_bundle(path, content)


@dataclass(frozen=True, slots=True)
class Recorded:
    """Evaluates from a bundle: the launch of a number gets the result of the launch in that place.

    Noise is added only where another one is asked for than the bundle's launches have. Raises `BadInput` where the
    file has changed.
    """

    backend: RecordedBundle
    spec: StudySpec
    evidence: Evidence = Evidence.REPLAYED

    def __call__(self, trial: Trial) -> TrialResult:
        bundle = self.backend.bundle(self.spec.table_sha256)
        result = bundle.launches[trial.number].result
        if self.spec.noise != bundle.spec.noise:
            factor = noise_factor(self.spec.noise, self.spec.seed, trial)
            result = replace(result, metrics={name: scaled(row, factor) for name, row in result.metrics.items()})
        # Nothing runs here, so that nothing can be left behind on a node either.
        node = result.node if bundle.bound else f"replayed-{self.spec.hardware.name}"
        was = None if result.origin is self.evidence else result.origin
        return replace(result, evidence=self.evidence, evidence_of=was, node=node, pids=(), quarantine="")


def candidates_for(bundle: Bundle, spec: StudySpec, library: Library) -> CandidateSet:
    """The candidates under a replay's baseline, ``column=value,…`` where it is not the bundle's own.

    Raises `BadInput` where no launch, or more than one configuration, is that baseline.
    """
    known = bundle.known
    if spec.baseline is not None and spec.baseline != bundle.spec.baseline:
        row = named_row(read_table(bundle.path, library), spec.baseline, library)
        # The row may also name the version.
        same = (
            i
            for i, one in enumerate(known.items)
            if one.engine == row.engine and all(same_value(row.knobs.get(n), v) for n, v in one.config.items())
        )
        known = known.model_copy(update={"baseline": next(same, known.baseline)})
    return known.as_set(library)


def _space(spec: StudySpec, kind: Engine, context: Context) -> EngineSpace:
    """An engine of a replayed study, which has no candidates of its own."""
    pins = {name: value for name, value in spec.pins.items() if name in kind.card.knobs and value != AUTO}
    return EngineSpace(kind, context, Enumeration(), pins)


def _check_same(options: RunOptions, taken: StudySpec, library: Library) -> None:
    """Raise `BadInput` where model, hardware or GPUs were named and are not the bundle's."""
    names = {taken.model.id.lower(), *(alias.lower() for alias in taken.model.aliases)}
    if options.model and options.model.lower() not in names:
        model = library.model(options.model_id or options.model)
        if names.isdisjoint({model.id.lower(), *(alias.lower() for alias in model.aliases)}):
            raise BadInput(f"--model {options.model}: the bundle is of {taken.model.id}; leave it out")
    hardware = taken.hardware.name
    if options.hardware.lower() not in ("", hardware) and node(options.hardware, library).name != hardware:
        raise BadInput(f"--hw {options.hardware}: the bundle is of {hardware}; leave it out")
    if options.gpus not in (None, taken.gpus):
        raise BadInput(f"--gpus {options.gpus}: the bundle is of {taken.gpus} x {hardware}; leave it out")


def _note(bundle: Bundle) -> str:
    kinds = ", ".join(dict.fromkeys(launch.result.evidence.value.upper() for launch in bundle.launches))
    count = len(bundle.launches)
    return f"{bundle.path}: the {count} launches of study {bundle.spec.study} in their order, {kinds} when recorded"
