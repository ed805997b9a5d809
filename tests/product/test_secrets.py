"""Secrets are planted everywhere, studies run for real, and nothing that is written or printed
holds one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.product.cli import Finished, new_home, rows
from tests.product.cli import autotune as run
from tests.product.server import COMMAND, emulated

KEY = "planted-key-of-no-known-shape"
TOKEN = "hf_planted0token0of0known0shape"
FILED = "planted-token-in-a-file"
PLANTED = (KEY, TOKEN, FILED)
QUESTION = [
    "run",
    "--model",
    COMMAND[2],
    "--hw",
    "h200",
    "--workload",
    "random:64:4:32",
    "--launches",
    "1",
]
SPACE = """narrow: {vllm: {search: {}}, sglang: {search: {}}}
"""


def autotune(*arguments: str, home: Path) -> Finished:
    return run(*arguments, home=home, MY_KEY=KEY, HF_TOKEN=TOKEN)


def assert_nothing_planted(home: Path, *said: str) -> None:
    """In no file of the home folder, databases and compressed files read as such, and in nothing
    that was printed."""
    for path in home.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not any(secret.encode() in content for secret in PLANTED), path
    with sqlite3.connect(home / "mlflow.db") as database:
        dumped = "\n".join(database.iterdump())
    assert not any(secret in text for secret in PLANTED for text in (dumped, *said))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_launched_server_gets_its_key_and_nobody_else_does(tmp_path: Path, engine: str) -> None:
    home, file, space = new_home(tmp_path), tmp_path / "token", tmp_path / "space.yaml"
    file.write_text(f"{FILED}\n")
    space.write_text(SPACE)
    command = {
        "vllm": f"vllm serve {COMMAND[2]} -tp 8 --api-key ${{MY_KEY}}",
        "sglang": f"python3 -m sglang.launch_server --model-path {COMMAND[2]} --tp 8 --api-key ${{MY_KEY}}",
    }
    done = autotune(
        *(
            *QUESTION,
            "--space",
            str(space),
            "--on",
            "emulator",
            "--study",
            "s",
            "--engine",
            engine,
            "--baseline",
            command[engine],
        ),
        *("--engine-arg", f"{engine}=--api-key ${{MY_KEY}}", "--hf-token-file", str(file)),
        home=home,
    )
    assert done.code == 0, done.err
    (row,) = rows(home, "s")
    assert row["metrics"]["random:64:4:32"]["completed"] == 32, (
        "a server that wants a key was given it by the client"
    )
    assert_nothing_planted(home, done.out, done.err)
    folder = home / "studies" / "s"
    assert "${MY_KEY}" in (folder / "study.yaml").read_text(), "enough to run it again"
    assert "${MY_KEY:?" in (folder / "serve.sh").read_text(), "the script asks for it"
    log = (folder / "trials" / "0000" / "server.log").read_bytes()
    assert b"REDACTED" in log, "the server did print its arguments"


def test_an_external_server_s_key(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with emulated(command=[*COMMAND, "--api-key", KEY]) as url:
        asked = [*QUESTION, "--on", f"external:{url}", "--study", "s"]
        without = autotune(*asked, home=home)
        assert without.code == 2
        assert "--api-key-env NAME" in without.err
        assert not home.exists()
        wrong = autotune(*asked, "--api-key-env", "HF_TOKEN", home=home)
        assert wrong.code == 2
        assert "refuses this API key" in wrong.err
        done = autotune(*asked, "--api-key-env", "MY_KEY", home=home)
        assert done.code == 0, done.err
    (row,) = rows(home, "s")
    assert row["metrics"]["random:64:4:32"]["completed"] == 32
    assert_nothing_planted(
        home, *(text for run in (without, wrong, done) for text in (run.out, run.err))
    )
    assert "api_key_env: MY_KEY" in (home / "studies" / "s" / "study.yaml").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--on", "emulator", "--engine-arg", f"vllm=--api-key {KEY}"],
            "--engine-arg vllm: it holds a secret (--api-key)",
        ),
        (
            ["--on", "emulator", "--baseline", f"HF_TOKEN={TOKEN} vllm serve m"],
            "--baseline: it holds a secret (HF_TOKEN)",
        ),
        (
            ["--on", "emulator", "--baseline", f"vllm serve {COMMAND[2]} --api-key=${{NO_SUCH}}"],
            "refers to ${NO_SUCH}",
        ),
        (["--on", f"external:http://me:{KEY}@127.0.0.1:1"], "--api-key-env NAME"),
        (["--on", "emulator", "--set", f"kv_cache_dtype={TOKEN}"], "no engine takes this value"),
    ],
)
def test_a_literal_secret_is_refused_and_not_repeated(
    tmp_path: Path, options: list[str], words: str
) -> None:
    home, space = tmp_path / "home", tmp_path / "space.yaml"
    space.write_text(SPACE)
    done = autotune(*QUESTION, "--space", str(space), *options, home=home)
    assert done.code == 2, done.err
    assert words in done.err
    assert not any(secret in done.out + done.err for secret in PLANTED)
    assert not home.exists()
