"""Which GPUs a process sees, by its environment, and what a launch passes on."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from autotune.base.errors import BadInput
from autotune.engines.machine import Gpu
from autotune.servers.preflight import Node
from autotune.servers.visible import HIP, ROCR, VISIBLE, among_visible, visible_gpus

CASES = yaml.safe_load(Path(__file__).with_name("visible.yaml").read_text())


def settings(typed: str) -> dict[str, str]:
    pairs = (word.partition("=") for word in shlex.split(typed))
    return {f"{name}_VISIBLE_DEVICES": value for name, _, value in pairs}


@pytest.fixture(autouse=True)
def _nothing_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VISIBLE:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("case", CASES["read"])
def test_an_environment_is_read_as_the_driver_reads_it(case: dict[str, str]) -> None:
    visible = visible_gpus(case["vendor"], settings(case["shell"]))
    assert (None if visible is None else ",".join(visible.words)) == case["words"]


@pytest.mark.parametrize("case", CASES["passed"])
def test_a_server_is_given_its_gpus_by_every_variable_that_is_set(
    case: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings(case["shell"]).items():
        monkeypatch.setenv(name, value)
    assert among_visible(settings(case["own"])) == settings(case["passed"])


def test_too_few_gpus_are_told_before_a_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = [Gpu(i, "MI300X", "amd", 10**11, 10**11, (1,)) for i in range(4)]
    idle = [Gpu(i, "MI300X", "amd", 10**11) for i in range(4, 8)]
    node = Node(gpus=lambda: [*busy, *idle], count=4)
    monkeypatch.setenv(ROCR, "4,5,6,7")
    monkeypatch.setenv(HIP, "0,1,2,3")
    assert node.unfit(tmp_path) is None
    assert set(node.used()) == {4, 5, 6, 7}
    monkeypatch.setenv(HIP, "0,1,2,")
    failure = node.unfit(tmp_path)
    assert failure is not None
    assert failure.lasting
    assert "HIP_VISIBLE_DEVICES=0,1,2, leaves 3 GPUs visible, but 4 are needed" in failure.message
    with pytest.raises(BadInput, match="GPU 3 is needed"):
        among_visible({HIP: "2,3"})
