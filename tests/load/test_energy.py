"""Energy of the steady part of a load by a counter of known power; without a counter no key, and no
zero."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from time import perf_counter

import numpy as np
import pytest

from autotune.base import redact
from autotune.engines.machine import Gpu
from autotune.load import LoadOptions, measure
from autotune.load.measuring import Energy, Meter, energy_metrics
from autotune.load.metrics.formulas import steady_part
from autotune.load.metrics.records import RequestRecords
from autotune.load.metrics.table import ENERGY
from autotune.load.workloads import load_workload
from autotune.servers.preflight import Node
from autotune.tuner.backends.servers import ServerEvaluator
from tests.load.server import Server
from tests.product.cli import autotune
from tests.tuner.backends.test_launched import LIBRARY, SPEC, trial

WATTS = 700.0
GPUS = tuple(Gpu(i, "NVIDIA H200", "nvidia", 150 * 10**9) for i in range(8))


def known(some: Sequence[Gpu] = GPUS[:1]) -> Callable[[], float]:
    """A source of known power: so many watts a GPU, whenever it is read."""
    return lambda: WATTS * len(some)


def test_a_known_power_is_found_over_the_steady_part() -> None:
    workload = load_workload("random:3:20:60").with_concurrency(4)
    with Server() as server:
        measured = measure(server.url, "m", workload, 0, LoadOptions(warm_up=False, power=known()))
    begin_s, end_s, _, tokens = steady_part(measured.points[0].log.records)
    per_token, watts = (measured.metrics[name] for name in ENERGY[:2])
    assert watts == pytest.approx(WATTS, rel=0.02)
    assert per_token == pytest.approx(WATTS * (end_s - begin_s) / tokens, rel=0.02)
    assert tokens < measured.metrics["total_output_tokens"]  # Ramp and drain are not in it.


@pytest.mark.parametrize("read", [None, lambda: None, lambda: 0.0], ids=["none", "silent", "zero"])
def test_without_a_counter_there_is_no_key(read: Callable[[], float | None] | None) -> None:
    with Server() as server:
        measured = measure(
            server.url,
            "m",
            load_workload("random:3:4:20"),
            0,
            LoadOptions(warm_up=False, power=read),
        )
    assert measured.metrics["completed"] == 20
    assert not set(ENERGY) & set(measured.metrics)


def test_a_sum_needs_all_of_its_parts() -> None:
    some = [Energy(100.0, 50.0, 2.0), Energy(200.0, 50.0, 2.0)]
    assert energy_metrics(some) == {ENERGY[0]: 3.0, ENERGY[1]: 75.0}
    assert energy_metrics([*some, None]) == energy_metrics([]) == {}


def test_readings_that_do_not_cover_the_load_tell_nothing() -> None:
    with Server() as server:
        log = (
            measure(server.url, "m", load_workload("random:3:4:20"), 0, LoadOptions(warm_up=False))
            .points[0]
            .log
        )
    with Meter(known()) as late:
        pass
    assert late.steady_energy(log.records) is None


def test_a_power_that_rises_is_measured_between_the_readings() -> None:
    """A straight line is exact by trapezoids; one end of each interval would be off by 100 W
    here."""
    watts_per_s, read_s, enough = 1000.0, list[float](), Event()

    def rising() -> float:
        read_s.append(perf_counter())
        if len(read_s) == 6:
            enough.set()
        return watts_per_s * (read_s[-1] - read_s[0])

    with Meter(rising) as meter:
        enough.wait()
    first, last = (np.array([moment_s]) for moment_s in (read_s[1], read_s[-2]))
    served = RequestRecords(first, first, last, np.ones(1), np.full(1, 5.0), np.ones(1, dtype=bool))
    begin_s, end_s, *_ = steady_part(served)
    assert (begin_s, end_s) == (read_s[1], read_s[-2])
    energy = meter.steady_energy(served)
    assert energy is not None
    middle_s = (begin_s + end_s) / 2 - read_s[0]
    assert energy.joules / energy.seconds == pytest.approx(watts_per_s * middle_s, abs=30.0)


@pytest.mark.e2e
def test_a_launch_reads_the_gpus_of_its_configuration(tmp_path: Path) -> None:
    """Of 8 GPUs it has 4; the emulated node itself has none, so that nothing is read there."""
    asked = trial("vllm")
    half = replace(asked, configuration=asked.configuration.with_knobs(tensor_parallel=4))
    result = ServerEvaluator(
        SPEC, LIBRARY, tmp_path, node=Node(gpus=lambda: GPUS, power=known, count=8)
    )(half)
    assert result.metrics["random:64:8:16"]["mean_power_w"] == pytest.approx(4 * WATTS, rel=0.02)
    derived = SPEC.derived(result.metrics["random:64:8:16"], asked.configuration)
    assert derived["tokens_per_joule"] == pytest.approx(
        1 / derived["energy_joules_per_output_token"]
    )
    assert not set(ENERGY) & set(
        ServerEvaluator(SPEC, LIBRARY, tmp_path)(asked).metrics["random:64:8:16"]
    )


def test_gpus_that_are_not_known_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(gpus=lambda: GPUS, power=known, count=4)
    assert node.meter(4) is not None
    assert node.meter(5) is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8d3f,GPU-77aa")
    assert node.meter(2) is None


@pytest.mark.parametrize(("on", "option"), [("simulator", "--objective"), ("emulator", "--pareto")])
def test_a_goal_that_nobody_can_measure_is_refused(tmp_path: Path, option: str, on: str) -> None:
    asked = (
        "run",
        "--model",
        "Qwen/Qwen3-32B",
        "--hw",
        "h200",
        "--on",
        on,
        option,
        "tokens_per_joule",
    )
    done = autotune(*asked, home=tmp_path)
    assert done.code == 2
    assert f"{option} tokens_per_joule: {on} has no readable GPU power" in done.err


def test_the_metric_s_name_is_no_secret_s() -> None:
    line = f"{json.dumps({ENERGY[0]: 0.25})} and {ENERGY[0]}=0.25"
    assert redact.text(line) == line
