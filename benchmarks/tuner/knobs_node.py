"""A node whose true scores are known, for studies of settings that the simulator does not read.

A configuration's true throughput is that of a simulated node for the configuration without such
settings, times a hidden effect of each of them. The simulated node's figures are drawn at random
around the packaged ones. The study is one of real servers: it searches those settings, and has the
priors of the calibrated simulator, of physics, and of published effects.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from landscapes_simulated import drawn_away

from autotune.base.evidence import Evidence
from autotune.engines import Candidate, Configuration, EngineSpace, Scalar
from autotune.engines.failure import Failure, FailureKind
from autotune.engines.schema import holding
from autotune.load.metrics.table import scaled
from autotune.load.workloads import load_workload
from autotune.node.calibration import Calibration
from autotune.node.resolve_command import resolve_for
from autotune.node.steady import SteadyNode
from autotune.node.unread import with_unread
from autotune.tuner.backends import noise_factor
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import Prepared, prepare
from autotune.tuner.prepare.predicted_memory import MemoryPlans, promises_kept
from autotune.tuner.search.gp.kernels import Prior
from autotune.tuner.search.priors import priors_of
from autotune.tuner.study.home import library_of
from autotune.tuner.study.options import RunOptions
from autotune.tuner.trial import Launch, State, Trial, TrialResult

WORKLOAD = "sharegpt"
SIMULATED = 60
"""Candidates with the best fast predictions of the hidden node, which are simulated to know its
best."""
CLIMBED = 6
"""The best of these, from which better settings are followed one by one."""
_NEAR = math.log(0.85)

Setting = tuple[str, str, Scalar]
"""Engine, knob, value."""
Effects = Callable[[EngineSpace, Configuration], float]
"""Return the sum of the effects, logarithms, of the settings that the simulator does not read."""


@dataclass(frozen=True)
class HiddenNode:
    """A study's question, and the node's results without the hidden effects.

    Attributes:
        blind: by engine, its space with the knobs that the simulator does not read.
        rows: of simulated configurations by `_key`: metrics, or the failure's words.
        cache: file of the rows.
    """

    prepared: Prepared
    priors: Sequence[Prior]
    calibration: Calibration
    blind: Mapping[str, EngineSpace]
    rows: dict[str, object]
    cache: Path

    @classmethod
    def of(cls, model: str, hardware: str, away: float, cache: Path) -> HiddenNode:
        """Prepare a question of servers in containers, and read the rows simulated earlier."""
        options = RunOptions(
            model, hardware, on="docker", workloads=(WORKLOAD,), screen="off", study="knobs"
        )
        spec = build_spec(options)
        prepared = prepare(spec, library_of(spec), anywhere=True)
        blind = {
            name: with_unread(
                space,
                [
                    space.effective({}),
                    *(
                        prepared.candidates.items[p].configuration
                        for p in prepared.candidates.starts
                        if prepared.candidates.items[p].configuration.engine == name
                    ),
                ],
            )
            for name, space in prepared.spaces.items()
        }
        words = f"{model} {hardware}"
        seed = int.from_bytes(hashlib.sha256(words.encode()).digest()[:4])
        calibration = drawn_away(seed, away)
        asked = json.dumps([words, spec.model.model_dump(mode="json"), calibration.model_dump()])
        name = f"knobs-{hashlib.sha256(asked.encode()).hexdigest()[:12]}.jsonl"
        lines = (cache / name).read_text().splitlines() if (cache / name).is_file() else []
        node = cls(
            prepared,
            priors_of(prepared),
            calibration,
            blind,
            dict(map(json.loads, lines)),
            cache / name,
        )
        node._check()
        return node

    def _check(self) -> None:
        """Delete the rows if the simulator has changed since."""
        baseline = self.prepared.candidates.baseline_candidate.configuration
        known = self.rows.pop(self._key(self._seen(baseline)), None)
        row = self.base(baseline)
        if known is not None and known != json.loads(json.dumps(row)):
            self.cache.unlink()
            self.rows.clear()
            self.base(baseline)

    def _seen(self, configuration: Configuration) -> Configuration:
        return self.blind[configuration.engine].seen(configuration)

    def _key(self, seen: Configuration) -> str:
        """Return a digest of the knobs that the simulator reads."""
        unread = self.blind[seen.engine].unread
        read = sorted((name, value) for name, value in seen.knobs.items() if name not in unread)
        return hashlib.sha256(json.dumps([seen.engine, read]).encode()).hexdigest()[:16]

    def base(self, configuration: Configuration) -> object:
        """Return the metrics without unread settings, or why it does not start."""
        one = self._seen(configuration)
        key = self._key(one)
        if key not in self.rows:
            space = self.blind[one.engine]
            command = space.passed.command(space.engine, one, space.context)
            resolved = resolve_for(space.engine, command, space.context)
            outcome = resolved.with_setup(calibration=self.calibration).simulate(
                load_workload(WORKLOAD, self.prepared.library), 0
            )
            found: object = dict(outcome.metrics)
            if outcome.failure is not None:
                found = [outcome.failure.kind.value, outcome.failure.message]
            self.rows[key] = found
            self.cache.parent.mkdir(parents=True, exist_ok=True)
            with self.cache.open("a") as file:
                file.write(json.dumps([key, found]) + "\n")
        return self.rows[key]

    def score(self, configuration: Configuration, effects: Effects) -> float:
        """Return the logarithm of the true throughput; minus infinity where it does not start."""
        row = self.base(configuration)
        if not isinstance(row, dict):
            return -math.inf
        space = self.blind[configuration.engine]
        return math.log(row[self.prepared.spec.objective]) + effects(space, configuration)

    def launch(self, trial: Trial, seed: int, noise: float, effects: Effects) -> Launch:
        """Return one launch of a study, as a server's."""
        row = self.base(trial.configuration)
        times = {"launch": 200.0, "load": 100.0}
        if not isinstance(row, dict):
            assert isinstance(row, list)
            failure = Failure(FailureKind(row[0]), str(row[1]))
            result = TrialResult(State.FAILED, Evidence.MEASURED, failure, times_s=times)
            return Launch(trial, result)
        spec = self.prepared.spec.with_fields(seed=seed, noise=noise)
        effect = effects(self.blind[trial.configuration.engine], trial.configuration)
        metrics = scaled(row, math.exp(effect) * noise_factor(spec, trial))
        result = TrialResult(
            State.COMPLETE,
            Evidence.MEASURED,
            metrics={name: dict(metrics) for name in trial.workloads},
            times_s=times,
        )
        return Launch(trial, result)

    @cached_property
    def front(self) -> list[Candidate]:
        """Return the candidates that give up nothing and are the fastest here without unread
        settings, the fastest first."""
        spec, candidates = self.prepared.spec, self.prepared.candidates
        load = load_workload(WORKLOAD, self.prepared.library)
        node = SteadyNode(spec.model, spec.hardware, spec.gpus, load, self.calibration)
        best = dict[str, tuple[float, Candidate]]()
        for position, one in enumerate(candidates.items):
            seen = self._seen(one.configuration)
            if position in candidates.given_up or seen.fingerprint in best:
                continue
            found = node.predict(seen.engine, one.engine_version, seen.knobs)
            plain = replace(one, configuration=seen)
            best[seen.fingerprint] = (found.metrics.get(spec.objective, 0.0), plain)
        order = sorted(best.values(), key=lambda row: (-row[0], row[1].fingerprint))[:SIMULATED]
        kept = [one for _, one in order]
        return sorted(kept, key=lambda one: -self.score(one.configuration, no_effects))

    @cached_property
    def _plans(self) -> MemoryPlans:
        return MemoryPlans(self.prepared.spec, self.prepared.library)

    @cached_property
    def _alike(self) -> Mapping[str, list[Configuration]]:
        """Return the candidates that differ in unread settings alone."""
        found = dict[str, list[Configuration]]()
        for one in self.prepared.candidates.items:
            found.setdefault(self._seen(one.configuration).fingerprint, []).append(
                one.configuration
            )
        return found

    @cached_property
    def leader(self) -> Configuration:
        """Return the fastest configuration without unread settings."""
        return self.front[0].configuration

    def best(self, effects: Effects, *, grown: bool = True) -> tuple[float, Configuration]:
        """Return the highest true score, and whose it is: of the front, each with better settings
        one by one; grown: those beside the best too."""
        front = [one.configuration for one in self.front]
        top = self.score(front[0], no_effects)
        near = [one for one in front if self.score(one, no_effects) >= top + _NEAR][:CLIMBED]
        return max((self._climbed(one, effects, grown) for one in near), key=lambda row: row[0])

    def _climbed(
        self, one: Configuration, effects: Effects, grown: bool
    ) -> tuple[float, Configuration]:
        current = (self.score(one, effects), one)
        while True:
            steps = self.steps(current[1], grown=grown)
            found = [(self.score(step, effects), step) for step in steps]
            better = max(found, key=lambda row: row[0], default=current)
            if better[0] <= current[0] + 1e-9:
                return current
            current = better

    def steps(self, one: Configuration, *, grown: bool = True) -> list[Configuration]:
        """Return the configurations with one other value of a knob that is tried beside the best,
        or of a searched one that the simulator does not read; those that give up nothing."""
        space = self.prepared.spaces[one.engine]
        near = [
            other
            for other in self._alike.get(self._seen(one).fingerprint, ())
            if sum(other.knobs.get(name) != value for name, value in one.knobs.items()) == 1
        ]
        listed = list(dict.fromkeys([*(space.beside(one, 1) if grown else ()), *near]))
        kept = self.keeping(listed)
        return [one for one in listed if one in kept]

    def keeping(self, listed: Sequence[Configuration]) -> set[Configuration]:
        """Return the configurations that give up nothing."""
        spaces = self.prepared.spaces
        more = (Candidate(one, spaces[one.engine].context.version) for one in listed)
        # The baseline stands first: it says what is promised.
        rows = [self.prepared.candidates.baseline_candidate, *more]
        given_up, _ = promises_kept(rows, spaces, self._plans)
        return {one for place, one in enumerate(listed, 1) if place not in given_up}

    def plantable(self, leader: Configuration) -> dict[str, list[Scalar]]:
        """Return the knobs that are tried beside a configuration, unread and without a published
        effect there, each with its other values."""
        space, blind = self.prepared.spaces[leader.engine], self.blind[leader.engine]
        found = dict[str, list[Scalar]]()
        scope = space.context.scope
        for step in self.steps(leader):
            for name, knob in space.card.knobs.items():
                changed = step.knobs[name] != leader.knobs[name]
                if not changed or not knob.beside or name not in blind.unread:
                    continue
                if not holding(knob.published, scope(step.knobs), space.context.version):
                    found.setdefault(name, []).append(step.knobs[name])
        return {name: list(dict.fromkeys(values)) for name, values in found.items()}


def no_effects(space: EngineSpace, configuration: Configuration) -> float:
    """Return 0: such settings have no effect."""
    del space, configuration
    return 0.0


def published_effects(space: EngineSpace, configuration: Configuration) -> float:
    """Return the sum of the published effects of knobs that the simulator does not read."""
    scope, version = space.context.scope(configuration.knobs), space.context.version
    return sum(
        math.log(effect.ratio)
        for name, knob in space.card.knobs.items()
        if name in space.unread
        for effect in holding(knob.published, scope, version)[:1]
    )


@dataclass(frozen=True)
class Planted:
    """The effect, a logarithm, of one value of a knob."""

    setting: Setting
    log: float

    def __call__(self, space: EngineSpace, configuration: Configuration) -> float:
        del space
        return self.log if self.has(configuration) else 0.0

    def has(self, configuration: Configuration) -> bool:
        """Return whether a configuration has the value."""
        engine, knob, value = self.setting
        return configuration.engine == engine and configuration.knobs.get(knob) == value


def planted_at(node: HiddenNode, leader: Configuration, seed: int, log: float) -> Planted:
    """Draw a knob that is tried beside the leader, then one of its values.

    Raises:
        LookupError: nothing is tried there.
    """
    values = node.plantable(leader)
    if not values:
        raise LookupError(f"{leader.engine}: nothing without a published effect is tried there")
    generator = np.random.default_rng([59, seed])
    name = sorted(values)[int(generator.integers(len(values)))]
    value = values[name][int(generator.integers(len(values[name])))]
    return Planted((leader.engine, name, value), log)


def settings_of(node: HiddenNode, one: Configuration) -> Iterator[str]:
    """Return a configuration's settings that the simulator does not read, as text."""
    space = node.blind[one.engine]
    default = space.effective({}).knobs
    for name in sorted(space.unread):
        if one.knobs.get(name) != default.get(name):
            yield f"{name}={one.knobs.get(name)}"
