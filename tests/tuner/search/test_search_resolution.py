"""A load search knows a capacity to within a step: a difference of one step is no effect."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from autotune.load.metrics.formulas import Slo
from autotune.tuner.search.acquisition import model_of
from autotune.tuner.search.gp.kernels import Encoding, Kernels
from autotune.tuner.search.gp.posterior import THOROUGH
from autotune.tuner.search.history import History
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch, Role, Trial
from tests.tuner.search.search_landscapes import command_of, evaluate, make_spec, small

NODE = small()
SPEC = make_spec(
    find_load="concurrency",
    slos=(Slo.parse("p99_ttft_ms<=3000"),),
    objective="capacity_total_token_throughput",
)
WITHIN = math.log(279 / 256) / math.sqrt(12)
"""Standard deviation of what is anywhere between 256 and 279 in flight: 2.5 %."""


def launched(
    number: int, position: int, kept: float, broken: float | None, spec: StudySpec = SPEC
) -> Launch:
    """A launch whose server carries a load, and not the next one."""
    one = NODE.items[position]
    role = Role.SEARCH if number else Role.BASELINE
    trial = Trial(
        number, role, one.configuration, one.engine_version, command_of(one), spec.workloads
    )
    made = evaluate(spec, lambda _: 50.0 * kept, trial)
    metrics = made.result.metrics["chat"]
    found = {"capacity_concurrency": kept, "capacity_broken_at": broken, "p99_ttft_ms": 100.0}
    there = {
        **metrics,
        **found,
        "capacity_total_token_throughput": metrics["total_token_throughput"],
    }
    return replace(made, result=replace(made.result, metrics={"chat": there}))


def history(*launches: tuple[int, float, float | None], spec: StudySpec = SPEC) -> History:
    return History.from_launches(
        spec, NODE, [launched(number, *one, spec) for number, one in enumerate(launches)]
    )


def test_repeats_on_one_step_are_not_exact() -> None:
    same = history(*[(0, 256, 279)] * 4)
    assert same.spread.sd == pytest.approx(WITHIN)
    assert same.spread.sd == pytest.approx(0.0248, abs=1e-4)
    rates = SPEC.model_copy(update={"find_load": None, "objective": "total_token_throughput"})
    assert history(*[(0, 256, 279)] * 4, spec=rates).spread.sd == 0.0, (
        "another objective has no step"
    )


def test_the_step_is_added_to_the_noise_of_launches() -> None:
    noisy = history((0, 256, 279), (0, 304, 331), (0, 235, 256), (0, 279, 304))
    scores = [math.log(one) for one in (256, 304, 235, 279)]
    steps = [math.log(b / a) ** 2 / 12 for a, b in ((256, 279), (304, 331), (235, 256), (279, 304))]
    assert noisy.spread.sd == pytest.approx(
        math.hypot(np.std(scores, ddof=1), math.sqrt(np.mean(steps)))
    )


def test_the_heaviest_load_that_was_tried_has_no_upper_end() -> None:
    assert history(*[(0, 256, None)] * 4).spread.sd == 0.0


def odds(kept: float, repeats: int, *, steps: bool) -> float:
    """The odds, by the model of all launches, that a configuration with this capacity is better
    than one with 256."""
    plain, setting = 1, 3
    others = [(0, 215.0), (5, 235.0), (7, 215.0), (9, 235.0)]
    rows = [*others, *[(plain, 256.0)] * repeats, *[(setting, kept)] * repeats]
    found = history(*((p, load, 1.09 * load if steps else None) for p, load in rows))
    model = model_of(Kernels(Encoding(NODE)), found, THOROUGH)
    (lead,) = model.leads(setting, [plain])
    return lead.odds(0.0)


@pytest.mark.parametrize("repeats", [1, 2])
def test_one_step_is_no_shown_effect_and_four_are(repeats: int) -> None:
    # One launch of either with 3 % noise: 0.86 to 0.93 over ten seeds; a quick sample says 0.86 to 0.98.
    assert odds(279, repeats, steps=False) > 0.85
    assert 0.5 < odds(279, repeats, steps=True) < 0.85
    assert odds(360, repeats, steps=True) > 0.95
