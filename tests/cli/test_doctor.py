"""`autotune doctor` as a user runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.engines.stand_ins import executable, python_with
from tests.product.cli import autotune


def stand_in(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!{sys.executable}\n{text}\n")
    (folder / name).chmod(0o755)


def test_it_reports_and_succeeds_where_nothing_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    home = tmp_path / "home"
    done = autotune("doctor", "--json", home=home)
    assert done.code == 0, done.err
    assert done.json["ready"] == {"process": False, "docker": False}
    missing = {
        check["name"]: check for check in done.json["checks"] if check["status"] == "missing"
    }
    assert {"engine", "Docker command"} <= set(missing)
    assert all(check["to_do"] and check["source"] for check in missing.values())
    assert not home.exists()


def test_what_is_there_makes_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(tmp_path / "bin" / "vllm", f"#!{python_with(tmp_path, vllm='0.32.0')}\n")
    stand_in(tmp_path / "bin", "docker", "print('28.1.1')")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    done = autotune("doctor", "--json", home=tmp_path / "home")
    checks = {check["name"]: check["status"] for check in done.json["checks"]}
    assert checks["engine vllm"] == "ok"
    assert "engine" not in checks
    assert checks["Docker daemon"] == "ok"
    if "missing" not in checks.values():
        assert done.json["ready"] == {"process": True, "docker": True}


def test_a_named_program_is_the_one_that_run_would_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`process` is ready with the option exactly where `run --engine-bin` begins a study."""
    program = executable(
        tmp_path / "opt" / "bin" / "vllm", f"#!{python_with(tmp_path / 'opt', vllm='0.32.0')}\n"
    )
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    home = tmp_path / "home"

    def checks(*options: str) -> dict[str, str]:
        done = autotune("doctor", "--json", *options, home=home)
        assert done.code == 0, done.err
        of_process = {
            one["name"]: one["status"] for one in done.json["checks"] if "process" in one["targets"]
        }
        assert done.json["ready"]["process"] is ("missing" not in of_process.values())
        return of_process

    bare = checks()
    assert (bare["engine"], bare["engine vllm"]) == ("missing", "warning")
    named = checks("--engine-bin", f"vllm={program}")
    assert named["engine vllm"] == "ok"
    assert "engine" not in named
    # Another program is none: with it no study would begin, whatever else is there.
    wrong = checks("--engine-bin", f"vllm={program}", "--engine-bin", f"sglang={program}")
    assert wrong["engine vllm"] == "ok"
    assert wrong["engine"] == "missing"
    for text, why in (
        ("vllm=/nowhere", "no such file"),
        ("vllm", "write engine=path"),
        ("bogus=/bin/sh", "bogus"),
    ):
        refused = autotune("doctor", "--engine-bin", text, home=home)
        assert (refused.code, why in refused.err) == (2, True), refused.err


def test_the_table_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    done = autotune("doctor", home=tmp_path / "home")
    assert done.code == 0, done.err
    assert done.out.startswith("this machine: ")
    for words in (
        "--on process: not ready",
        "--on docker: not ready",
        "→ install one in a virtual environment",
    ):
        assert words in done.out


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    done = autotune("doctor", home=tmp_path / "home")
    assert done.code == 2
    assert "not a folder" in done.err
