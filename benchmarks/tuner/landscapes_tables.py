"""Landscapes that are tables of somebody else's figures: kernels, the performance-lab documents,
tuning tables."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
from landscape import Absent, Landscape, Sources, believed, study_of

from autotune.engines.command import Configuration, Scalar
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.engines.failure import Failure, FailureKind
from autotune.engines.library import Library
from autotune.node.fit.reading import read_file
from autotune.tuner.study.spec import EngineChoice

MODELS = {"kernels-r1": "deepseek-ai/DeepSeek-R1-0528", "kernels-v32": "deepseek-ai/DeepSeek-V3.2"}
METRIC = "total_token_throughput"
_LOAD = "random:3200:800:1024"
"""What `kernel_tables.py` has predicted: tokens in, tokens out, requests at once."""


def kernels(name: str, sources: Sources) -> Landscape:
    """A table that `kernel_tables.py` wrote; the prior is physics with nothing fitted on the same
    knobs and load."""
    path = next((p for p in sources.kernel_tables if p.stem == name), None)
    if path is None:
        raise Absent(
            f"give --kernel-tables FOLDER/{name}.csv; benchmarks/tuner/kernel_tables.py writes it"
        )
    rows = _rows(path)
    spec = study_of(
        name, MODELS[name], list(dict.fromkeys(str(row["engine"]) for row in rows)), _LOAD
    )
    versions = {choice.name: choice.version for choice in spec.engines}
    items: list[Candidate] = []
    truth: list[float] = []
    failures: dict[int, Failure] = {}
    for row in rows:
        if row.pop("failure"):
            failures[len(items)] = Failure(
                FailureKind.OUT_OF_MEMORY, "no request fits beside the weights"
            )
        value, engine = row.pop(METRIC), str(row.pop("engine"))
        truth.append(float(value) if isinstance(value, int | float) else math.nan)
        items.append(Candidate(Configuration(engine, row), versions[engine]))
    words = f"measured kernels of {spec.model.id}, 8xh200, {_LOAD}, added up by aiconfigurator-core; prior: physics alone"
    candidates = CandidateSet(
        tuple(items), _baseline(items), monotone_memory=Library().monotone_memory
    )
    priors = believed(spec, candidates)
    return Landscape(name, words, "useful", spec, candidates, np.array(truth), priors, failures)


def tuning(name: str, sources: Sources) -> Landscape:
    """A measured tuning table of another field: names and numbers of which nothing is known; no
    prior.

    The baseline is the first row that ran.
    """
    stem = name.partition(":")[2]
    path = sources.tuning_tables / f"{stem}.csv" if sources.tuning_tables else Path()
    if not path.is_file():
        raise Absent(f"give --tuning-tables FOLDER, with {stem}.csv in it")
    items: list[Candidate] = []
    truth: list[float] = []
    for row in _rows(path):
        failed, value, engine = row.pop("failure"), row.pop(METRIC), str(row.pop("engine"))
        truth.append(math.nan if failed or not isinstance(value, int | float) else float(value))
        items.append(Candidate(Configuration(engine, row), "1"))
    values = np.array(truth)
    engines = tuple(
        EngineChoice(name=engine, version="1") for engine in {c.configuration.engine for c in items}
    )
    # A study names a model; nothing reads it here.
    spec = study_of(name.replace(":", "-"), MODELS["kernels-r1"], ()).model_copy(
        update={"engines": engines}
    )
    # As in a study of the product over a table of engines without a card.
    candidates = CandidateSet(
        tuple(items), int(np.flatnonzero(np.isfinite(values))[0]), as_they_are=True
    )
    return Landscape(
        name, f"measured GPU kernel variants ({stem}); no prior", "none", spec, candidates, values
    )


def _rows(path: Path) -> list[dict[str, Scalar]]:
    with path.open(newline="") as file:
        return [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> Scalar:
    """A cell: empty is not set, whole numbers are integers."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None


def _baseline(items: list[Candidate]) -> int:
    """vLLM on all GPUs as it comes: tensor parallel 8, no expert parallelism, 8192 tokens a step,
    256 requests."""
    wanted: dict[str, Scalar] = {
        "tensor_parallel": 8,
        "expert_parallel": 1,
        "kv_cache_dtype": "bfloat16",
    }
    wanted |= {"max_batched_tokens": 8192, "max_running_requests": 256}
    for position, item in enumerate(items):
        knobs = item.configuration.knobs
        if item.configuration.engine == "vllm" and all(
            knobs.get(k) == v for k, v in wanted.items()
        ):
            return position
    raise ValueError("the table has no row of vLLM's defaults")


def measured(sources: Sources) -> Landscape:
    """The commands of the DeepSeek-V3.2 document on ShareGPT; those that are one configuration are
    averaged."""
    if sources.measured is None or not sources.measured.is_file():
        raise Absent(
            "give --measured FILE, the table of the performance lab's rows (docs/calibration.md)"
        )
    found: dict[str, Candidate] = {}
    logs: dict[str, list[float]] = {}
    failed: dict[str, Failure] = {}
    for row in read_file(sources.measured).rows:
        setup, configuration = row.resolved.setup, row.resolved.effective.configuration
        if setup.model.id != MODELS["kernels-v32"] or row.workload.name != "sharegpt":
            continue
        key = configuration.fingerprint
        found.setdefault(key, Candidate(configuration, setup.version))
        if row.metrics:
            logs.setdefault(key, []).append(math.log(row.metrics[METRIC]))
        else:
            failed[key] = row.resolved.failure or Failure(FailureKind.CRASHED, str(row.failure))
    items = tuple(found.values())
    truth = [math.exp(np.mean(logs[key])) if key in logs else math.nan for key in found]
    spec = study_of(
        "measured",
        MODELS["kernels-v32"],
        list(dict.fromkeys(c.configuration.engine for c in items)),
    )
    words = "the measured commands of the DeepSeek-V3.2 document on ShareGPT; prior: physics with nothing fitted"
    failures = {i: failed[key] for i, key in enumerate(found) if key not in logs}
    # The document's first command is its baseline: vLLM with tensor parallel 8.
    candidates = CandidateSet(items, 0, monotone_memory=Library().monotone_memory)
    priors = believed(spec, candidates)
    return Landscape(
        "measured", words, "useful", spec, candidates, np.array(truth), priors, failures
    )
