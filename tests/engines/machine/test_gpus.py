from __future__ import annotations

from pathlib import Path

import pytest

from autotune.engines.machine import Gpu, driver_version, gpus, has, power_of
from tests.engines.machine.machines import GIB, amd, busy, nvidia, write


def test_nvidia_gpus_are_counted(tmp_path: Path) -> None:
    nvidia(tmp_path, 8)
    assert gpus(tmp_path) == tuple(Gpu(i, "NVIDIA H200", "nvidia", 0, 0, ()) for i in range(8))
    assert has("h200", 8, tmp_path)
    assert not has("h200", 9, tmp_path)
    assert not has("mi300x", 1, tmp_path)
    assert driver_version("nvidia", tmp_path) == "570.86.15"


@pytest.mark.parametrize(
    ("product", "there"), [("NVIDIA H200 NVL", True), ("NVIDIA GH200 480GB", False)]
)
def test_a_kind_is_a_whole_word_of_the_name(tmp_path: Path, product: str, there: bool) -> None:
    nvidia(tmp_path, 1, product)
    assert has("H200", 1, tmp_path) is there
    assert not has("h20", 1, tmp_path)


def test_amd_gpus_with_their_memory_and_who_holds_it(tmp_path: Path) -> None:
    amd(tmp_path, 12)
    busy(tmp_path, pid=4711, gpu=10, held=100 * GIB)
    seen = gpus(tmp_path)
    assert [gpu.index for gpu in seen] == list(range(12))
    assert {gpu.memory_total_bytes for gpu in seen} == {192 * GIB}
    assert [(gpu.index, gpu.memory_used_bytes) for gpu in seen if gpu.busy_pids] == [
        (10, 100 * GIB)
    ]
    assert seen[10].busy_pids == (4711,)
    assert has("mi300x", 12, tmp_path)


@pytest.mark.parametrize(
    ("kind", "devices"),
    # vLLM 0.33, platforms/rocm.py; AMD's GIM driver: in a virtual machine, and the MI300X HF.
    [
        ("mi300x", ["0x74a1", "0x74b5", "0x74a9", "0x74bd"]),
        ("mi308x", ["0x74a2", "0x74b6"]),
        ("mi325x", ["0x74a5", "0x74b9"]),
        ("mi350x", ["0x75a0", "0x75b0"]),
        ("mi355x", ["0x75a3", "0x75b3"]),
    ],
)
def test_a_board_that_does_not_tell_its_name_is_known_by_its_device(
    kind: str, devices: list[str], tmp_path: Path
) -> None:
    amd(tmp_path, len(devices), name="")
    for index, device in enumerate(devices):
        (tmp_path / f"sys/class/drm/card{index + 1}/device/device").write_text(device)
    assert has(kind, len(devices), tmp_path)


def test_graphics_of_a_desktop_and_files_that_make_no_sense(tmp_path: Path) -> None:
    card = "sys/class/drm/card0/device"
    write(
        tmp_path,
        {
            f"{card}/vendor": "0x1002",
            f"{card}/device": "0x1638",
            f"{card}/mem_info_vram_total": 512 * 2**20,
        },
    )
    assert gpus(tmp_path) == ()
    amd(tmp_path, 1)
    write(tmp_path, {"sys/class/drm/card1/device/mem_info_vram_total": "nonsense"})
    assert [(gpu.memory_total_bytes, gpu.memory_used_bytes) for gpu in gpus(tmp_path)] == [(0, 0)]


def test_the_power_of_amd_gpus_is_that_of_their_files(tmp_path: Path) -> None:
    amd(tmp_path, 3)
    seen = gpus(tmp_path)
    assert power_of(seen, tmp_path) is None  # An older driver.
    for card, name in ((1, "power1_average"), (2, "power1_input"), (2, "power1_cap")):
        write(
            tmp_path,
            {f"sys/class/drm/card{card}/device/hwmon/hwmon{card}/{name}": 600_500_000 + card},
        )
    read = power_of(seen[:2], tmp_path)
    assert read is not None
    assert read() == pytest.approx(1201.000003)
    assert power_of(seen, tmp_path) is None  # The third does not tell.
    write(tmp_path, {"sys/class/drm/card1/device/hwmon/hwmon1/power1_average": "nonsense"})
    assert read() is None


def test_a_machine_without_gpus_has_none(tmp_path: Path) -> None:
    assert gpus(tmp_path) == ()
    assert power_of((), tmp_path) is None
    assert not has("h200", 1, tmp_path)
    assert driver_version("nvidia", tmp_path) is None
