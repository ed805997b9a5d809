"""The simulated node as a landscape: real candidates, and coefficients drawn away from the packaged
ones."""

from __future__ import annotations

import hashlib
import json
import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

import numpy as np
from landscape import Landscape, Sources, believed
from pydantic import TypeAdapter

from autotune.base.arrays import Floats
from autotune.engines.enumeration import CandidateSet
from autotune.engines.failure import Failure
from autotune.engines.library import Library
from autotune.load.workloads import load_workload
from autotune.node.calibration import OWN, Calibration, packaged_calibration, packaged_physics
from autotune.node.resolve_command import resolve_for
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import Prepared, prepare
from autotune.tuner.study.home import library_of
from autotune.tuner.study.options import RunOptions

DRAWN = 0.5
"""Standard deviation of ln(drawn / packaged) of every fitted figure of every engine: a factor of
1.65 either way."""


@dataclass(frozen=True)
class _Case:
    """A study on 8xh200: its workload, and the seed of the coefficients."""

    model: str
    workload: str
    seed: int


SIMULATED = {
    "v32": _Case("deepseek-ai/DeepSeek-V3.2", "sharegpt", 32),
    "r1": _Case("deepseek-ai/DeepSeek-R1-0528", "medium", 1),
}

_FULL = (
    "context_length",
    "prefix_caching",
    "memory_fraction",
    "enable_chunked_prefill",
    "tokens_per_block",
)
"""Knobs that are held at their default to make a grid of some 2000 candidates out of 37,000."""

_CHECKED = 5
"""Kept launches that are simulated again, to see whether the arithmetic is still the same."""


def drawn_away(seed: int, sd: float = DRAWN, node: str = "h200") -> Calibration:
    """The packaged calibration with every figure of every engine multiplied by a log-normal factor
    of its own.

    What has a factor for a user's own node is drawn there, the other figures in the engine's
    factor. `composed` keeps each within its physical range.
    """
    packaged, physics = packaged_calibration(), packaged_physics()
    factors = {level: {group: dict(found) for group, found in groups.items()} for level, groups in
               packaged.factors.items()}  # fmt: skip
    generator = np.random.default_rng(seed)
    for engine in ("sglang", "tensorrt_llm", "vllm"):
        for name, figure in sorted(physics.figures.items()):
            factor = math.exp(sd * float(generator.standard_normal()))
            level = (
                OWN if figure.spread.get(OWN) else "engine" if figure.spread.get("engine") else None
            )
            if level is not None:
                group = f"{engine} {node}" if level == OWN else engine
                figures = factors.setdefault(level, {}).setdefault(group, {})
                figures[name] = figures.get(name, 1.0) * factor
    return packaged.model_copy(update={"factors": factors})


def simulated(name: str, sources: Sources) -> Landscape:
    """The landscape of one case; its table is computed once and kept."""
    case = SIMULATED[name]
    prepared = _prepared(case)
    truth, failures = _table(name, prepared, case, sources)
    return Landscape(
        name=name,
        words=(
            f"the simulated 8xh200 node, {case.model.split('/')[1]}, workload {case.workload}, its coefficients drawn "
            "away from the packaged ones; prior: physics with nothing fitted"
        ),
        kind="useful",
        spec=prepared.spec,
        candidates=prepared.candidates,
        truth=truth,
        priors=believed(prepared.spec, prepared.candidates),
        failures=failures,
    )


def _prepared(case: _Case) -> Prepared:
    """What a study of the product would choose from, thinned."""
    request = RunOptions(
        model=case.model,
        hardware="8xh200",
        on="simulator",
        workloads=(case.workload,),
        study="search-benchmark",
    )
    spec = build_spec(request)
    spec = spec.model_copy(update={"calibration": drawn_away(case.seed).model_dump(mode="json")})
    whole = prepare(spec, library_of(spec))
    return replace(whole, candidates=_thinned(whole.candidates))


def _thinned(whole: CandidateSet) -> CandidateSet:
    """The candidates that have an engine's default in the knobs of `_FULL`, besides baseline,
    defaults and starts."""
    kept = {whole.baseline, *whole.defaults, *whole.starts}
    usual = {
        whole.items[p].configuration.engine: whole.items[p].configuration.knobs
        for p in whole.defaults
    }
    for position, item in enumerate(whole.items):
        knobs, default = item.configuration.knobs, usual[item.configuration.engine]
        if all(knobs.get(name) == default.get(name) for name in _FULL):
            kept.add(position)
    order = sorted(kept)
    place = {position: i for i, position in enumerate(order)}
    return CandidateSet(
        tuple(whole.items[p] for p in order),
        place[whole.baseline],
        tuple(place[p] for p in whole.defaults),
        tuple(place[p] for p in whole.starts),
        whole.monotone_memory,
    )


def _table(
    name: str, prepared: Prepared, case: _Case, sources: Sources
) -> tuple[Floats, dict[int, Failure]]:
    """Throughputs and failures, computed where the kept ones are of other candidates, figures or
    arithmetic."""
    items = prepared.candidates.items
    asked = [str(case), DRAWN, prepared.spec.calibration, [c.fingerprint for c in items]]
    key = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]
    path = sources.cache / f"{name}-{key}.json"
    _state.clear()
    _state.update(prepared=prepared, library=library_of(prepared.spec))
    rows = json.loads(path.read_text()) if path.is_file() else None
    if rows is None or any(
        list(_one(p)) != rows[p] for p in range(0, len(items), len(items) // _CHECKED)
    ):
        print(f"computing the table of {name}, {len(items)} simulated launches", flush=True)
        with ProcessPoolExecutor(sources.jobs, mp_context=get_context("fork")) as pool:
            rows = list(pool.map(_one, range(len(items)), chunksize=16))
        sources.cache.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(rows))
        partial.replace(path)
    truth = np.array([math.nan if value is None else value for value, _ in rows])
    return truth, {
        i: TypeAdapter(Failure).validate_python(failure)
        for i, (_, failure) in enumerate(rows)
        if failure is not None
    }


_state: dict[str, object] = {}
"""What the forked processes inherit."""


def _one(position: int) -> tuple[float | None, object]:
    prepared, library = _state["prepared"], _state["library"]
    assert isinstance(prepared, Prepared)
    assert isinstance(library, Library)
    candidate = prepared.candidates.items[position]
    space = prepared.spaces[candidate.configuration.engine]
    command, version = prepared.command_of(candidate), candidate.engine_version
    resolved = resolve_for(space.engine, command, replace(space.context, version=version))
    resolved = resolved.with_setup(calibration=_calibration(library))
    outcome = resolved.simulate(load_workload(prepared.spec.workloads[0], library), 0)
    if outcome.failure is not None:
        return None, outcome.failure.to_json()
    return float(outcome.metrics["total_token_throughput"]), None


def _calibration(library: Library) -> Calibration:
    if "calibration" not in _state:
        _state["calibration"] = Calibration.model_validate(library.calibration)
    found = _state["calibration"]
    assert isinstance(found, Calibration)
    return found
