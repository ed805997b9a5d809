"""The rules of the house that a program can check."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts import house
from tests import conftest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(
    path
    for folder in ("autotune", "tests", "scripts", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*.py")
)


def test_no_circle_of_imports() -> None:
    """Counts imports inside functions, for types only, and of packages' `__init__`."""
    grimp = pytest.importorskip("grimp")
    graph = grimp.build_graph("autotune", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()


def test_a_figure_above_its_ceiling_is_found_and_so_is_one_without() -> None:
    sources = {
        "autotune/load/a.py": "price = 1\nspec.find_load\n",
        "autotune/run.py": "def accuracy(rungs: int) -> None: ...\n",
        "tests/b.py": "price\n",
    }
    figures = house.measure(sources)
    assert figures["tokens"] == {"autotune": 17, "load": 6, "run": 11, "tests": 1}
    known = {mode: count for mode, count in figures["modes"].items() if count}
    assert known == {"accuracy": 1, "ladder": 1, "load search": 1, "price": 1}
    assert house.above(figures, figures) == []
    less = {**figures, "modes": {**figures["modes"], "price": 0}}
    assert house.above(figures, less) == ["modes.price: 1 > 0"]
    with pytest.raises(ValueError, match="lines_of_a_file"):
        house.above(figures, {"tokens": {}})


def test_the_names_by_which_a_mode_is_counted_are_names_of_the_package() -> None:
    """A name that is renamed has to be renamed in the list, too: no mode leaves its count so."""
    texts = [text for path, text in house.read_sources().items() if path.startswith("autotune/")]
    there = set[str]().union(*map(house.names_in, texts))
    gone = {mode: set(names) - there for mode, names in house.MODES.items()}
    assert gone == {mode: set() for mode in house.MODES}


def test_an_import_up_is_no_floor() -> None:
    down = {("run", "load"): 1, ("load", "base"): 2}
    assert house.floors_of(["base", "load", "run"], down) == [["run"], ["load"], ["base"]]
    with pytest.raises(ValueError, match="a circle"):
        house.floors_of(["base", "load", "run"], {**down, ("base", "run"): 1})


def test_the_picture_of_the_rooms_is_drawn_from_the_imports() -> None:
    package = {
        path: text for path, text in house.read_sources().items() if path.startswith("autotune/")
    }
    assert house.picture_of(package) == house.PICTURE.read_text(), (
        "python scripts/house.py --picture"
    )


FORBIDDEN = [
    ("load", "autotune.tuner.trial", "rooms import from the rooms below them"),
    ("node", "autotune.servers.server", "rooms import from the rooms below them"),
    ("tuner/study", "autotune.tuner.search.history", "inside the tuner, imports point down"),
]


@pytest.mark.parametrize(("folder", "imported", "contract"), FORBIDDEN)
def test_an_import_from_a_room_above_fails(
    folder: str, imported: str, contract: str, tmp_path: Path
) -> None:
    shutil.copytree(
        ROOT / "autotune", tmp_path / "autotune", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "autotune" / folder / "upward.py").write_text(f"import {imported}\n")
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [program, "--no-cache"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{contract} BROKEN" in done.stdout


def test_air_comments_and_docstrings_are_no_tokens_of_code() -> None:
    dense = "def f(a, b):\n    return a, b\n"
    airy = (
        '"""Module."""\n\n\ndef f(\n    a, b\n):\n    """Return both.\n\n    Twice.\n    """\n    # why\n'
        "    return a, b\n"
    )
    assert house.tokens_of(dense) == house.tokens_of(airy) == 12
    assert house.tokens_of('NAME = "text"\n"""What it names."""\n') == 3


def test_what_runs_outside_the_tests_imports_names_that_there_are() -> None:
    """Benchmarks, scripts and examples run by hand, long after a name has moved."""
    folders = ("benchmarks", "scripts", "examples")
    trees = {
        path: ast.parse(path.read_text())
        for path in SOURCES
        if path.relative_to(ROOT).parts[0] in folders
    }
    asked = {
        (str(path.relative_to(ROOT)), node.module, alias.name)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "autotune"
        for alias in node.names
    }
    assert len(asked) > 100
    assert [
        (path, module, name) for path, module, name in sorted(asked) if not is_there(module, name)
    ] == []


def is_there(module: str, name: str) -> bool:
    return hasattr(import_module(module), name) or find_spec(f"{module}.{name}") is not None


def test_ci_runs_the_command_of_the_readme_then_the_linters_the_site_and_the_rest_of_the_tests() -> (
    None
):
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert "set -euo pipefail" in lines
    command, linters, site, rest = lines[-4:]
    assert " -m pytest" in command
    assert f"\n{command}\n" in (ROOT / "README.md").read_text()
    assert linters == "scripts/lint.sh"
    checks = {"ruff check .", "ruff format --check .", "mypy", "lint-imports"}
    checks |= {"python scripts/house.py", "python scripts/prose.py"}
    assert {check for check in checks if f'"{check}"' in (ROOT / linters).read_text()} == checks
    assert "zensical build --strict" in site
    assert "zensical build --strict" in (ROOT / "Makefile").read_text()
    assert rest == f"{command.partition('&& ')[2].partition('&& ')[2]} -m e2e"


def test_files_of_whole_studies_exist_and_are_marked() -> None:
    missing = [
        name for name in (*conftest.E2E, *conftest.LONG) if not (ROOT / "tests" / name).is_file()
    ]
    assert missing == []
    words = [
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "e2e",
        "tests/product/test_faults.py",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "left_behind_or_changed_by_faults[" in done.stdout, done.stdout
    assert "[100]" not in done.stdout, "slow tests have a command of their own"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_nothing_of_a_study_is_committed() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "mlruns"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    assert listed.stdout.split() in ([], ["mlruns/.gitkeep"])


def test_a_command_does_not_wait_for_scipys_statistics() -> None:
    """They take a second to import, and only checks of answers and fits need them."""
    code = "import sys, autotune.cli.tuning, autotune.run; sys.exit('scipy.stats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


KEEP_ITEMS = {
    "range",
    "zip",
    "enumerate",
    "sorted",
    "reversed",
    "list",
    "tuple",
    "set",
    "product",
    "pairwise",
}
"""Functions whose result has items where all their arguments have some."""


def has_items(iterable: ast.expr, known: set[str]) -> bool:
    """True if a loop over this has a round: over a literal, a constant in capitals, or what keeps
    their items.

    Args:
        known: local names that have items.
    """
    match iterable:
        case ast.Constant():
            return True
        case (
            ast.Tuple(elts=items)
            | ast.List(elts=items)
            | ast.Set(elts=items)
            | ast.Dict(values=items)
        ):
            return bool(items)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.isupper() or name in known
        case ast.BinOp(left=left, right=right):
            return has_items(left, known) or has_items(right, known)
        case ast.Call(func=ast.Attribute(value=owner, attr="items" | "values" | "keys" | "split")):
            return has_items(owner, known)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=parts) if (
            name in KEEP_ITEMS
        ):
            # All parts of a zip are of one length.
            return (any if name == "zip" else all)(has_items(part, known) for part in parts)
    return False


def is_check(node: ast.AST) -> bool:
    """True for an assertion, and for a call of pytest's that is one."""
    function = node.func if isinstance(node, ast.Call) else None
    return isinstance(node, ast.Assert) or (
        isinstance(function, ast.Attribute) and function.attr in ("raises", "warns", "fail")
    )


def surely(node: ast.AST, known: set[str]) -> Iterator[ast.AST]:
    """The nodes of a test without the bodies of loops that may have no round, and without `all`
    over such."""
    match node:
        case ast.While(test=test):
            yield from surely(test, known)
            return
        case ast.For(iter=iterable, orelse=after) if not has_items(iterable, known):
            for child in after:
                yield from surely(child, known)
            return
        case ast.Assert(
            test=ast.Call(func=ast.Name(id="all"), args=[ast.GeneratorExp(generators=loops)])
        ):
            if not all(has_items(loop.iter, known) for loop in loops):
                return
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if has_items(value, known):
            known.add(name)
    yield node
    for child in ast.iter_child_nodes(node):
        yield from surely(child, known)


def empty_passes(source: str) -> list[str]:
    """The tests of a file that assert only in loops over what may be empty."""
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    tests = (
        node
        for node in functions
        if node.name.startswith("test_") and any(map(is_check, ast.walk(node)))
    )
    return [test.name for test in tests if not any(map(is_check, surely(test, set())))]


@pytest.mark.parametrize(
    ("body", "passes"),
    [
        ("for x in found(): assert x", True),
        ("while busy(): assert x", True),
        ("assert all(x for x in found())", True),
        ("for x, y in zip(ROWS, found(), strict=True): assert x", False),
        ("for x in (1, 2): assert x", False),
        ("for x in found():\n  assert x\n assert found()", False),
    ],
)
def test_a_test_that_nothing_to_look_at_would_pass_is_found(body: str, passes: bool) -> None:
    assert bool(empty_passes(f"def test_x():\n {body}")) is passes


def test_every_test_asserts_outside_of_loops_that_may_have_no_round() -> None:
    files = [path for path in SOURCES if path.name.startswith("test_")]
    assert len(files) > 100
    found = {
        str(path.relative_to(ROOT)): names
        for path in files
        if (names := empty_passes(path.read_text()))
    }
    assert found == {}
