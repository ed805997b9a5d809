"""Candidates made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.engines.command import Configuration, Scalar
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.engines.library import Library
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import Prepared
from autotune.tuner.study.home import library_of
from autotune.tuner.study.options import RunOptions
from autotune.tuner.study.spec import StudySpec

Row = tuple[str, Mapping[str, Scalar]]


def question(**changes: Any) -> StudySpec:
    """A study of V3.2 on the simulator, with some fields changed."""
    request = RunOptions(model="deepseek-ai/DeepSeek-V3.2", hardware="h200", on="simulator")
    return build_spec(request).model_copy(update={"workloads": ("random:1000:200:200",), **changes})


def prepared(rows: Sequence[Row], version: str = "unknown", **changes: Any) -> Prepared:
    """A study whose candidates are these rows: of a replayed table, unless the changes say
    otherwise."""
    spec = question(**{"on": "replay:/nowhere.csv", **changes})
    return Prepared(spec, library_of(spec), candidates(rows, version), {}, (), None)


def candidates(rows: Sequence[Row], version: str = "unknown") -> CandidateSet:
    found = {
        (one := Candidate(Configuration(engine, knobs), version)).fingerprint: one
        for engine, knobs in rows
    }
    return CandidateSet(tuple(found.values()), 0, monotone_memory=Library().monotone_memory)
