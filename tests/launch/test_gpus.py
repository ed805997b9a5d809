from __future__ import annotations

from pathlib import Path

from autotune.launch.gpus import has, present


def nvidia(root: Path, count: int) -> None:
    for index in range(count):
        folder = root / f"proc/driver/nvidia/gpus/0000:{index:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H200\nIRQ: {index}\n")


def test_nvidia_gpus_are_counted(tmp_path: Path) -> None:
    nvidia(tmp_path, 8)
    assert present(tmp_path) == ["NVIDIA H200"] * 8
    assert has("h200", 8, tmp_path)
    assert not has("h200", 9, tmp_path)
    assert not has("mi300x", 1, tmp_path)


def test_amd_gpus_are_counted(tmp_path: Path) -> None:
    for index in range(2):
        folder = tmp_path / f"sys/class/drm/card{index}/device"
        folder.mkdir(parents=True)
        (folder / "product_name").write_text("AMD Instinct MI300X OAM\n")
    assert has("mi300x", 2, tmp_path)


def test_a_machine_without_gpus_has_none(tmp_path: Path) -> None:
    assert present(tmp_path) == []
    assert not has("h200", 1, tmp_path)
