from __future__ import annotations

from pathlib import Path

import pytest

from autotune.base.errors import BadInput, UnknownName
from autotune.engines.library import Library, packaged
from autotune.engines.machine import generation_of, local_node, node
from tests.engines.machine.machines import GIB, amd, nvidia, processor, write

LIBRARY = Library()


def test_gpus_of_a_known_kind_have_that_kind_s_figures(tmp_path: Path) -> None:
    amd(tmp_path, 4)
    card, packaged = local_node(LIBRARY, tmp_path), LIBRARY.node("mi300x")
    assert (card.name, card.gpus) == ("mi300x", 4)
    assert card.model_copy(update={"gpus": 8, "source": packaged.source}) == packaged
    assert "4 x AMD Instinct MI300X OAM" in card.source


def test_a_known_kind_with_another_memory_keeps_the_memory_that_is_read(tmp_path: Path) -> None:
    amd(tmp_path, 1, memory=24 * GIB)
    card = local_node(LIBRARY, tmp_path)
    assert card.memory_gb == pytest.approx(24 * GIB / 1e9, abs=0.1)
    assert "instead of 192 GB" in card.source


def test_a_known_kind_whose_memory_is_not_told_keeps_the_card_s(tmp_path: Path) -> None:
    nvidia(tmp_path, 2)
    assert local_node(LIBRARY, tmp_path).memory_gb == LIBRARY.node("h200").memory_gb


def test_other_gpus_get_what_can_be_read_and_say_that_their_rates_are_none_of_theirs(
    tmp_path: Path,
) -> None:
    amd(tmp_path, 2, name="AMD Instinct MI250X", memory=64 * GIB)
    card = local_node(LIBRARY, tmp_path)
    assert (card.name, card.vendor, card.generation, card.gpus) == ("local", "amd", "cdna2", 2)
    assert card.memory_gb == pytest.approx(68.7)
    assert "placeholders" in card.source


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-blackwell-server"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA H20-3e", "h20-3e"),
        ("NVIDIA H800", "h800"),
        ("NVIDIA A800-SXM4-80GB", "a800"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GB10", "gb10"),
    ],
)
def test_a_gpu_has_the_card_whose_name_says_most_of_it(
    product: str, name: str, tmp_path: Path
) -> None:
    nvidia(tmp_path, 2, product)
    card = local_node(LIBRARY, tmp_path)
    assert (card.name, card.gpus, card.generation) == (name, 2, generation_of(product))


@pytest.mark.parametrize(
    ("product", "name"),
    [("AMD Instinct MI308X", "mi308x"), ("AMD Instinct MI350X", "mi350x")],
)
def test_an_amd_gpu_has_the_card_of_its_name(product: str, name: str, tmp_path: Path) -> None:
    amd(tmp_path, 2, name=product)
    card = local_node(LIBRARY, tmp_path)
    assert (card.name, card.generation) == (name, generation_of(product))


def test_a_card_of_one_s_own_that_says_more_wins(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        packaged("hardware", "h100").read_text().replace("name: h100\n", "name: h100-80gb\n")
    )
    nvidia(tmp_path, 1, "NVIDIA H100 80GB HBM3")
    assert local_node(Library(files=(own,)), tmp_path).name == "h100-80gb"


def test_gpus_without_a_card_have_a_generation() -> None:
    named = {
        "NVIDIA GeForce RTX 3090": "ampere",
        "NVIDIA RTX A5000": "ampere",
        "NVIDIA GeForce RTX 4080": "ada",
    }
    named |= {
        "NVIDIA GeForce RTX 5080": "rtx_blackwell",
        "NVIDIA B100": "blackwell",
        "Tesla T4": "unknown",
    }
    assert {product: generation_of(product) for product in named} == named


def test_other_gpus_whose_memory_is_not_told_are_refused_with_a_way_out(tmp_path: Path) -> None:
    nvidia(tmp_path, 1, "NVIDIA A40")
    with pytest.raises(BadInput, match=r"A40.*YAML file"):
        local_node(LIBRARY, tmp_path)


def test_no_gpu_is_one_device_with_the_memory_that_may_be_had(tmp_path: Path) -> None:
    processor(tmp_path, cores=4, memory_kb=64 * 2**20)
    write(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": 16 * GIB})
    card = local_node(LIBRARY, tmp_path)
    assert (card.name, card.vendor, card.gpus) == ("local", "cpu", 1)
    assert card.memory_gb == pytest.approx(16 * GIB / 1e9, abs=0.1)
    assert "Test 9000" in card.source
    assert "rule of thumb" in card.source


def test_every_other_name_is_looked_up(tmp_path: Path) -> None:
    processor(tmp_path)
    assert node("Local", LIBRARY, tmp_path).vendor == "cpu"
    assert node("8xh200", LIBRARY, tmp_path) == LIBRARY.node("h200")
    with pytest.raises(UnknownName, match="'local' is this machine"):
        node("locale", LIBRARY, tmp_path)


def test_this_machine_has_a_card() -> None:
    assert local_node().memory_gb > 0
