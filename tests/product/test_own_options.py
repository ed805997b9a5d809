"""Commands in production as baselines on the emulator: what is recommended starts with all of their
own options."""

from __future__ import annotations

import json
import sqlite3
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from autotune.outputs.export import FORMATS
from tests.product.cli import Finished, new_home, rows
from tests.product.cli import autotune as run
from tests.production_commands import COMMANDS, Production, with_files

pytestmark = pytest.mark.e2e

KEY, TOKEN = "planted-key-of-no-known-shape", "hf_planted0token0of0known0shape"
LOAD = "random:64:4:16"


def autotune(*arguments: str, home: Path) -> Finished:
    return run(*arguments, home=home, MY_KEY=KEY, HF_TOKEN=TOKEN)


def recommendation(home: Path, study: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (home / "studies" / study / "recommendation.json").read_text()
    )
    return found


@pytest.mark.parametrize("one", COMMANDS, ids=lambda one: one.name)
def test_the_recommended_command_starts_with_all_of_it(tmp_path: Path, one: Production) -> None:
    home = new_home(tmp_path)
    with_files(tmp_path)
    node = ("--model", one.model, "--hw", one.hardware, "--gpus", str(one.gpus), "--on", "emulator")
    asked = (
        *node,
        "--workload",
        LOAD,
        "--launches",
        "5",
        "--study",
        "s",
        "--baseline",
        one.command,
    )
    done = autotune("run", *asked, home=home)
    assert done.code == 0, done.err
    started = [row for row in rows(home, "s") if row["state"] == "complete"]
    others = [row for row in started if row["fingerprint"] != rows(home, "s")[0]["fingerprint"]]
    assert others, "a candidate was launched, and served"
    for row in others:
        assert one.carried[row["engine"]].replace("./", "") in " ".join(row["argv"]).replace(
            "./", ""
        )
    told = recommendation(home, "s")
    assert told["fingerprint"] in {row["fingerprint"] for row in started}
    if told["fingerprint"] != started[0]["fingerprint"]:
        assert one.carried[told["engine"]] in " ".join(told["argv"])
        assert one.carried[told["engine"]] == "" or told["kept"] or told["translated"]
    print(
        one.name,
        told["engine"],
        told["kept"],
        told["translated"],
        [row["engine"] for row in told["excluded"]],
    )


def contents(path: Path) -> list[bytes]:
    """Return what a file holds: an archive's or a database's parts too."""
    found = [path.read_bytes()]
    if tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            found += [
                file.read()
                for member in archive
                if (file := archive.extractfile(member)) is not None
            ]
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as packed:
            found += [packed.read(name) for name in packed.namelist()]
    elif path.suffix == ".db":
        with sqlite3.connect(path) as database:
            found.append("\n".join(database.iterdump()).encode())
    return found


def assert_nothing_planted(folder: Path, *said: str) -> None:
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert not any(
            secret.encode() in part for secret in (KEY, TOKEN) for part in contents(path)
        ), path
    assert not any(secret in text for secret in (KEY, TOKEN) for text in said)


def test_a_key_of_the_user_s_command_opens_every_server_and_stands_nowhere(tmp_path: Path) -> None:
    """A study, what follows it, every export and the MLflow database: the key is a reference, and
    it is needed."""
    home = new_home(tmp_path)
    model = "Qwen/Qwen3-8B"
    typed = (
        f"HF_TOKEN='${{HF_TOKEN}}' VLLM_API_KEY='${{MY_KEY}}' vllm serve {model} --served-model-name chat "
        "--port 9000 --max-num-seqs 1"
    )
    said: list[str] = []

    def succeed(*arguments: str) -> Finished:
        done = autotune(*arguments, home=home)
        assert done.code == 0, done.err
        said.extend((done.out, done.err))
        return done

    node = ("--model", model, "--hw", "h100", "--gpus", "1", "--on", "emulator", "--workload", LOAD)
    engines = ("--engine", "vllm", "--engine", "sglang")
    done = succeed("run", *node, *engines, "--launches", "4", "--study", "s", "--baseline", typed)
    launched = rows(home, "s")
    assert {row["engine"] for row in launched} == {"vllm", "sglang"}
    assert all(row["metrics"][LOAD]["completed"] == 16 for row in launched), (
        "each wanted the key, and was given it"
    )
    told = recommendation(home, "s")
    assert told["verdict"] == "better", "the baseline serves one request at a time"
    assert "Kept from your command: " in " ".join(done.out.split())
    if told["engine"] == "sglang":
        assert "VLLM_API_KEY=${MY_KEY} (set) → --api-key ${MY_KEY}" in told["translated"]
    succeed("resume", "s", "--launches", "7")
    succeed("report", "s", "--format", "html")
    succeed("verify", "s", "--on", "emulator")
    other = {"vllm": "0.32.0", "sglang": "0.5.9"}[recommendation(home, "s")["engine"]]
    compared = autotune(
        "regress", "s", "--engine", f"{recommendation(home, 's')['engine']}=={other}", home=home
    )
    assert "verdict: " in compared.out, compared.err
    said += [compared.out, compared.err]
    succeed("bundle", "s", "-o", str(tmp_path / "s.bundle"))
    out = tmp_path / "exports"
    out.mkdir()
    exported = {
        form: autotune("export", "s", "--to", form, "-o", str(out / form), home=home)
        for form in FORMATS
    }
    said += [text for one in exported.values() for text in (one.out, one.err)]
    refused = [one.err for one in exported.values() if one.code]
    others = [text for text in refused if " is for " not in text and "--find-load" not in text]
    assert others == [], "but another engine's config file, and the load that was not searched for"
    assert len(exported) - len(refused) >= 9
    script = (home / "studies" / "s" / "serve.sh").read_text()
    assert "${MY_KEY:?" in script, "the script asks for it"
    assert "--port 9000" in script
    assert "--served-model-name chat" in script
    assert "chat" in (out / "dstack").read_text(), "other programs ask for the served name"
    assert_nothing_planted(tmp_path, *said)


def test_the_end_compares_what_both_commands_give_value_by_value(tmp_path: Path) -> None:
    home = new_home(tmp_path)
    typed = (
        "vllm serve Qwen/Qwen3-8B --max-num-seqs 1 --no-enable-prefix-caching --max-model-len 32768"
    )
    node = (
        "--model",
        "Qwen/Qwen3-8B",
        "--hw",
        "h100",
        "--gpus",
        "1",
        "--engine",
        "vllm",
        "--on",
        "simulator",
    )
    # Otherwise both stay as the user's command has them, as no search moves them.
    given_up = ("--set", "context_length=auto", "--set", "prefix_caching=true")
    asked = ("run", *node, "--workload", LOAD, "--launches", "4", "--baseline", typed, *given_up)
    done = autotune(*asked, "--study", "s", home=home)
    said = " ".join(done.out.split())
    assert (
        "Changed: context 40,960 (baseline: 32,768), prefix caching on (baseline: off). Same bf16 KV cache"
        in said
    )
    values = {
        row["what"]: (row["baseline"], row["recommended"])
        for row in recommendation(home, "s")["promised"]
    }
    assert values["context"] == ("32,768", "40,960")
    assert values["prefix caching"] == ("off", "on")
    nothing = autotune(*asked, "--study", "n", "--slo", "p99_ttft_ms<=0.06", home=home)
    assert nothing.code == 3
    assert not any(word in nothing.out for word in ("Same ", "Changed: ", "Unchanged", "Kept from"))
