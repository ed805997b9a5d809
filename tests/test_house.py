"""The rules of the house that a program can check."""

from __future__ import annotations

import shutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAX_LINES = 350
SOURCES = sorted(
    path
    for folder in ("autotune", "tests", "scripts", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*.py")
)


def run_tool(name: str, *arguments: str) -> None:
    tool = Path(sys.executable).with_name(name)
    if not tool.exists():
        pytest.skip(f"{name} is not installed in this environment")
    done = subprocess.run([tool, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{name} {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"


def test_ruff_finds_nothing() -> None:
    run_tool("ruff", "check", ".")


def test_the_format_is_ruff_s() -> None:
    run_tool("ruff", "format", "--check", ".")


def test_types_are_strict() -> None:
    run_tool("mypy")


def test_imports_point_down_and_heavy_libraries_have_one_importer() -> None:
    run_tool("lint-imports")


def test_no_circle_of_imports() -> None:
    """Counts imports inside functions, for types only, and of packages' `__init__`."""
    grimp = pytest.importorskip("grimp")
    graph = grimp.build_graph("autotune", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_long(path: Path) -> None:
    assert path.read_text().count("\n") <= MAX_LINES


def test_ci_runs_the_command_of_the_readme() -> None:
    command = (ROOT / ".ci" / "run").read_text().splitlines()[-1]
    assert " -m pytest" in command
    assert command in (ROOT / "README.md").read_text()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_nothing_of_a_study_is_committed() -> None:
    listed = subprocess.run(["git", "ls-files", "mlruns"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    assert listed.stdout.split() in ([], ["mlruns/.gitkeep"])


def test_a_command_does_not_wait_for_scipys_statistics() -> None:
    """They take a second to import, and only checks of answers and fits need them."""
    code = "import sys, autotune.cli.tuning, autotune.run; sys.exit('scipy.stats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
