"""What is no figure never leaves the evaluator, whoever wrote it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.base.evidence import Evidence
from autotune.engines.failure import Failure, FailureKind
from autotune.load.metrics.table import METRICS
from autotune.tuner.backends import ValidatedEvaluator
from autotune.tuner.study.results import row_of
from autotune.tuner.trial import Launch, Role, State, Trial, TrialResult
from tests.small_study import BASELINE, COMMANDS, metrics, spec

SPEC = spec(workloads=("chat", "long"))
TRIAL = Trial(1, Role.FINAL, BASELINE, "0.32.0", COMMANDS[BASELINE], ("chat", "long"))


@dataclass(frozen=True)
class Says:
    """An evaluator of somebody else."""

    result: TrialResult
    evidence: Evidence = Evidence.MEASURED

    def __call__(self, trial: Trial) -> TrialResult:
        return self.result


def checked(chat, long=None, question=SPEC, **more):
    told = {"chat": chat} | ({} if long is None else {"long": long})
    result = TrialResult(State.COMPLETE, Evidence.MEASURED, metrics=told, **more)
    return ValidatedEvaluator(Says(result), question)(TRIAL)


def test_a_sound_result_passes_as_it_is():
    result = TrialResult(
        State.COMPLETE, Evidence.MEASURED, metrics={"chat": metrics(1.0)}, times_s={"load": 1.0}
    )
    passed = ValidatedEvaluator(Says(result), SPEC)(TRIAL)
    assert passed.metrics["chat"].items() >= result.metrics["chat"].items()
    assert replace(passed, metrics=result.metrics) == result


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (math.nan, "total_token_throughput is nan; a finite number of at least 0 was expected"),
        (math.inf, "total_token_throughput is inf; a finite number"),
        (-3.0, "total_token_throughput is -3.0; a finite number"),
        (0.0, "total_token_throughput is 0: nothing was counted"),
        (np.float32("nan"), "total_token_throughput is nan"),
        ("fast", "total_token_throughput is fast; a finite number"),
        (True, "total_token_throughput is True; a finite number"),
        (None, "its metrics lack the objective, total_token_throughput"),
    ],
)
def test_an_objective_that_is_none_makes_the_trial_invalid(value, said):
    result = checked({**metrics(1.0), "total_token_throughput": value})
    assert result.state is State.INVALID
    assert result.failure.message.startswith(f"chat: {said}")
    assert result.failure.message.endswith("says nothing about the configuration.")
    assert not result.failure.blames_the_configuration


def test_a_workload_that_was_not_measured_and_one_that_is_weighted():
    assert (
        "chat: not measured"
        in ValidatedEvaluator(Says(TrialResult(State.COMPLETE, Evidence.MEASURED)), SPEC)(
            TRIAL
        ).failure.message
    )
    no_objective = {"duration": 1.0}
    assert checked(metrics(1.0), no_objective).state is State.COMPLETE
    weighted = SPEC.model_copy(update={"weights": {"chat": 0.5, "long": 0.5}})
    assert (
        "long: its metrics lack the objective, total_token_throughput"
        in checked(metrics(1.0), no_objective, weighted).failure.message
    )


def test_zero_is_a_figure_where_it_can_be_one_and_a_latency_is_not():
    assert (
        checked({**metrics(1.0), "failed": 0, "cache_hit_rate": 0.0, "p99_itl_ms": 0.0}).state
        is State.COMPLETE
    )
    latency = SPEC.model_copy(update={"objective": "mean_tpot_ms"})
    assert (
        "it was not timed"
        in checked({**metrics(1.0), "mean_tpot_ms": 0.0}, question=latency).failure.message
    )


def test_a_failure_stays_what_it_is():
    failed = TrialResult(
        State.FAILED, Evidence.MEASURED, Failure(FailureKind.CRASHED, "It died."), {"chat": {}}
    )
    assert ValidatedEvaluator(Says(failed), SPEC)(TRIAL) == failed


values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just(object()),
    st.sampled_from([np.float64("inf"), np.float32("nan"), np.int64(7), np.float16(2), Decimal("NaN"), Fraction(1, 3)]),
)  # fmt: skip
nested = st.recursive(
    values, lambda v: st.lists(v, max_size=2) | st.dictionaries(st.text(max_size=2), v, max_size=2)
)
names = st.sampled_from([*METRICS, "total_token_throughput", "own_figure"])


@settings(max_examples=40)
@given(
    st.dictionaries(names, nested, max_size=4),
    st.dictionaries(st.sampled_from(["load", "stop"]), st.floats()),
)
def test_whatever_an_evaluator_says_a_row_is_json_and_a_complete_one_has_its_objective(
    told, times_s
):
    result = checked(told, times_s=times_s)
    row = json.loads(json.dumps(row_of(Launch(TRIAL, result)), allow_nan=False))
    assert all(seconds >= 0 for seconds in row["times_s"].values())
    if result.state is State.COMPLETE:
        assert row["metrics"]["chat"]["total_token_throughput"] > 0
        assert all(row["metrics"]["chat"].get(name, 0) in (None,) or row["metrics"]["chat"].get(name, 0) >= 0
                   for name in METRICS)  # fmt: skip
