"""Engines from packages: found by their entry points without being imported, and harmless where
they are broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.engines.library import _folder

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("file", "module", "folder"),
    [
        ("alone_x.py", "alone_x", "."),
        ("package_x/__init__.py", "package_x", "package_x"),
        ("package_x/inner/__init__.py", "package_x.inner", "package_x/inner"),
        ("package_x/engine.py", "package_x.engine", "package_x"),
        ("namespace_x/engine.py", "namespace_x.engine", "namespace_x"),
    ],
)
def test_the_folder_of_a_module_is_found_and_nothing_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, module: str, folder: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    for package in (path.parent, *path.parent.parents):
        if package == tmp_path or file.startswith("namespace"):
            break
        (package / "__init__.py").write_text("raise SystemExit('imported')")
    path.write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    found = _folder(module)
    assert found is not None
    assert found.resolve() == (tmp_path / folder).resolve()
    assert module not in sys.modules


def test_a_module_that_is_not_there_has_no_folder() -> None:
    assert _folder("no_such_module_x.engine") is None
    assert _folder("sys") is None


ASK = """
from pathlib import Path
from autotune.servers.doctor import Host, installed
from autotune.engines import engine, names, recognise
from autotune.base.errors import BadInput
from autotune.engines.library import Library
print(*names())
for name in ("cardless", "unloadable", "unparsable"):
    try:
        engine(name)
    except BadInput as error:
        print(error)
print(engine("vllm").name, engine("Capital").name, engine("CAPITAL").card.engine)
print(recognise(["vllm", "serve", "m"]).name)
try:
    recognise(["ollama"])
except BadInput as error:
    print(error)
print(installed("unparsable", Host(Path(), library=Library()))[1])
"""


def test_a_broken_package_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    about = tmp_path / "broken-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[autotune.engines]\ncardless = broken_x:Engine\nunloadable = broken_x:NoSuchClass\n"
        "unparsable = broken_y:Engine\nCapital = autotune_capital:Engine\n"
    )
    (tmp_path / "broken_x.py").write_text("")
    (tmp_path / "broken_y.py").write_text("class Engine(:\n")
    (tmp_path / "autotune_capital.py").write_text("from autotune.engines import Engine\n")
    card = (
        ROOT / "examples" / "llama_server" / "autotune_llama_server" / "llama_server.yaml"
    ).read_text()
    for name in ("unloadable", "unparsable", "Capital"):
        (tmp_path / f"{name}.yaml").write_text(
            card.replace("engine: llama_server", f"engine: {name}")
        )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [ROOT, tmp_path]))}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    known, cardless, unloadable, unparsable, works, recognised, understood, doctor = (
        done.stdout.splitlines()
    )
    assert {"cardless", "unloadable", "vllm"} <= set(known.split())
    assert (
        cardless
        == "the engine 'cardless' has no card: put cardless.yaml next to the module broken_x"
    )
    assert unloadable.startswith("the engine 'unloadable' cannot be loaded (")
    assert unparsable.startswith("the engine 'unparsable' cannot be loaded (SyntaxError: ")
    assert (works, recognised) == ("vllm capital capital", "vllm")
    assert "Known: " in understood
    assert unparsable in understood, "what could not be asked is named where nothing matched"
    assert doctor == unparsable
