"""Everything that the product removes, ends or overwrites stands in one table, with the proof that
it is ours."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "autotune"
PAGE = ROOT / "docs" / "launching.md"
SECTION = "## What is removed, ended or overwritten"

REMOVING = {
    *(
        "unlink",
        "rmtree",
        "rmdir",
        "removedirs",
        "rename",
        "renames",
        "write_text",
        "write_bytes",
        "write_atomically",
    ),
    *(
        "truncate",
        "ftruncate",
        "fallocate",
        "kill",
        "killpg",
        "terminate",
        "send_signal",
        "pidfd_send_signal",
    ),
    *(
        "delete_run",
        "delete_experiment",
        "TemporaryDirectory",
        "mkdtemp",
        "mkstemp",
        "NamedTemporaryFile",
        "extractall",
    ),
    *("copyfile", "copytree", "copy2", "move", "symlink", "symlink_to", "link", "hardlink_to"),
}
"""Names of functions that remove, end, make or overwrite something, whatever module they are of."""
OF_PATHS = {"remove", "replace", "copy"}
"""Names that texts, lists and models have as well: of ``os`` and ``shutil``, and of a path with one
argument."""


def calls_of(source: str) -> Iterator[str]:
    """Find the calls of a module that remove, end or overwrite something."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            if name in REMOVING or is_of_a_path(node, name) or is_written(node, name):
                yield name
        elif isinstance(node, ast.List | ast.Tuple) and "rm" in map(literal, node.elts):
            yield "rm"


def literal(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def is_of_a_path(call: ast.Call, name: str) -> bool:
    if name not in OF_PATHS or not isinstance(call.func, ast.Attribute):
        return False
    owner = getattr(call.func.value, "id", "")
    return owner in ("os", "shutil") or (
        name == "replace" and len(call.args) == 1 and not call.keywords
    )


def is_written(call: ast.Call, name: str) -> bool:
    """Whether a file is opened so that it may change; ``os.open`` by its flags."""
    if name != "open":
        return False
    flags = {
        part.attr
        for argument in call.args
        for part in ast.walk(argument)
        if isinstance(part, ast.Attribute)
    }
    if flags & {"O_CREAT", "O_WRONLY", "O_RDWR", "O_TRUNC"}:
        return True
    values = [
        literal(argument) for argument in (*call.args, *(word.value for word in call.keywords))
    ]
    modes = [
        value
        for value in values
        if isinstance(value, str) and re.fullmatch(r"[rwxab+t]{1,4}", value)
    ]
    return any(set(mode) & set("wxa+") for mode in modes)


@pytest.mark.parametrize(
    "code",
    [
        "path.unlink()",
        "os.unlink(path)",
        "os.remove(path)",
        "shutil.rmtree(path)",
        "draft.replace(path)",
        "os.replace(draft, path)",
        "path.open('wb')",
        "open(path, mode='r+')",
        "open(path, 'a')",
        "os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)",
        "path.write_text(text)",
        "os.kill(pid, 9)",
        "process.terminate()",
        "run([docker, 'rm', name])",
        "write_atomically(path, text)",
    ],
)
def test_a_call_that_removes_is_found(code: str) -> None:
    assert list(calls_of(code)) != []


@pytest.mark.parametrize(
    "code",
    [
        "text.replace('a', 'b')",
        "names.remove(name)",
        "replace(trial, node='a')",
        "open(path)",
        "path.open('rb')",
    ],
)
def test_a_call_that_does_not_is_not(code: str) -> None:
    assert list(calls_of(code)) == []


def rows() -> list[list[str]]:
    """The table's rows: what, where, when, proof."""
    section = PAGE.read_text(encoding="utf-8").partition(SECTION)[2].partition("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line[:2] == "| "
    ]
    return cells[1:]


def test_the_table_has_every_file_that_removes_ends_or_overwrites_something() -> None:
    listed = {name for _, where, _, _ in rows() for name in re.findall(r"`([\w/]+\.py)`", where)}
    found = {
        path.relative_to(PACKAGE).as_posix(): sorted(set(calls))
        for path in PACKAGE.rglob("*.py")
        if (calls := list(calls_of(path.read_text(encoding="utf-8"))))
    }
    print(
        f"{len(rows())} rows, {len(listed)} files, {sum(map(len, found.values()))} kinds of calls"
    )
    missing = {name: calls for name, calls in found.items() if name not in listed}
    assert missing == {}, f"add them to '{SECTION}' of {PAGE.name}, with the proof"
    assert listed - found.keys() == set(), "nothing is removed there any more"


def test_every_row_has_a_proof() -> None:
    assert len(rows()) > 15
    assert [what for what, _, when, proof in rows() if not (what and when and proof)] == []
