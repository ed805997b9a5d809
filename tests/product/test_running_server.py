"""A server that somebody else runs: measured again and again, under its own name, and beside a
recommended command."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.product.cli import autotune, rows
from tests.product.server import emulated

MODEL = "Qwen/Qwen3-32B"
LOAD = ("--workload", "random:64:8:32")
QUESTION = ["run", "--model", MODEL, "--hw", "h100", "--gpus", "2", *LOAD]
SERVED = ["vllm", "serve", MODEL, "-tp", "2", "--max-num-seqs", "64"]
COMPARED = (
    "the baseline",
    "no configuration",
    "no other configuration",
    "significantly",
    "Unchanged",
    "regret",
)
"""Words of a study that compares configurations: this one has nothing to compare with."""


def serving(*more: str, speed: str = "8"):
    """Run an emulated vLLM on two H100."""
    return emulated("--hw", "h100", "--gpus", "2", "--speed", speed, command=[*SERVED, *more])


@pytest.fixture(scope="module")
def chat() -> Iterator[str]:
    """One server under a name of its own, which no study starts or stops."""
    with serving("--served-model-name", "chat") as url:
        yield url


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.mark.e2e
def test_it_is_measured_until_the_budget_is_used(home: Path, chat: str) -> None:
    asked = (*QUESTION, "--on", f"external:{chat}")
    done = autotune(*asked, "--study", "s", home=home)
    again = autotune(*asked, "--study", "t", "--launches", "1", home=home)
    assert (done.code, again.code) == (0, 0), done.err + again.err
    assert f"{chat} serves {MODEL} as chat" in done.err
    assert "95 % interval" in done.out
    assert "5 measurements" in done.out
    assert f"at {chat}" in done.out
    assert "autotune cannot reconfigure this server." in done.out
    way_on = f"autotune run --model {MODEL} --hw h100 --gpus 2 --baseline '<your command>'"
    assert way_on in done.out
    assert f"autotune verify STUDY --on external:{chat}" in done.out
    report = (home / "studies" / "s" / "report.md").read_text()
    head = report.partition("## What was launched?")[0]
    for word in COMPARED:
        assert word not in done.out, word
        assert word not in head, word
    assert "| Verdict" not in report
    found = json.loads((home / "studies" / "s" / "recommendation.json").read_text())
    assert (found["verdict"], found["regret"], found["objective"]["repeats"]) == (
        "indistinguishable",
        None,
        5,
    )
    low, high = found["objective"]["ci95"]
    assert low < found["objective"]["value"] < high
    # Prompts that neither an earlier measurement nor an earlier study sent, so no cache answers.
    seeds = {name: _seeds(home, name) for name in ("s", "t")}
    assert (len(seeds["s"]), len(seeds["t"])) == (5, 1)
    assert not seeds["s"] & seeds["t"]


def _seeds(home: Path, study: str) -> set[int]:
    """Return the seeds of a study's prompts."""
    return {
        json.loads(path.read_text())["seed"]
        for path in (home / "studies" / study / "trials").glob("*/random*8*32.json")
    }


def test_a_limit_that_it_does_not_meet(home: Path, chat: str) -> None:
    limit = ("--slo", "p99_ttft_ms<=0.1", "--launches", "2")
    done = autotune(*QUESTION, "--on", f"external:{chat}", "--study", "s", *limit, home=home)
    assert done.code == 3, done.err
    assert f"{chat} does not meet the limits. Measured: a P99 TTFT of" in done.out
    assert "the server does not meet the limits" in done.err
    for word in COMPARED:
        assert word not in done.out, word


def test_a_server_of_another_model_is_refused(home: Path, chat: str) -> None:
    # The name says nothing; what stands behind it does.
    done = autotune(*QUESTION, "--on", f"external:{chat}", "--model", "Qwen/Qwen3-8B", home=home)
    assert done.code == 2, done.err
    assert f"serves {MODEL}, not Qwen/Qwen3-8B" in done.err
    assert not home.exists()


@pytest.mark.e2e
def test_the_name_of_one_of_several_models(home: Path, chat: str) -> None:
    """``--model NAME --model-id ID`` is the way out that the error names."""
    named = ("--model", "chat", "--model-id", MODEL, "--launches", "1")
    done = autotune(*QUESTION, "--on", f"external:{chat}", "--study", "s", *named, home=home)
    assert done.code == 0, done.err
    assert (
        json.loads((home / "studies" / "s" / "recommendation.json").read_text())["model"] == MODEL
    )


@pytest.mark.e2e
@pytest.mark.parametrize("requests", [64, 128])
def test_a_result_is_verified_on_a_running_server(
    home: Path, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says whether the server is set up as the recommended command is, where the server tells
    it."""
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    pinned = (
        "--engine",
        "vllm",
        "--set",
        f"max_running_requests={requests}",
        "--launches",
        "6",
        "--on",
        "simulator",
    )
    assert autotune(*QUESTION, "--study", "s", *pinned, home=home).code == 0
    with serving() as url:
        done = autotune("verify", "s", "--on", f"external:{url}", "--launches", "2", home=home)
    assert done.code == 0, done.err
    if requests == 64:
        assert "settings that it reports are those of the recommended command" in done.err
    else:
        assert (
            "its settings are not those of the recommended command: max_running_requests 64 (not 128)"
            in done.err
        )
    assert "prediction error" in done.out
    for word in COMPARED[1:]:
        assert word not in done.out, word
    assert [row["role"] for row in rows(home, "s-verified")] == ["baseline"] * 2


@pytest.mark.e2e
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_server_started_with_the_recommended_command_is_the_recommended_one(
    home: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the command leaves to the engine is told, and no difference."""
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    few = ("--engine", engine, "--set", "replicas=1", "--launches", "8", "--on", "simulator")
    assert autotune(*QUESTION, "--study", "s", *few, home=home).code == 0
    argv = json.loads((home / "studies" / "s" / "recommendation.json").read_text())["argv"]
    with emulated("--hw", "h100", "--gpus", "2", "--speed", "8", command=argv) as url:
        done = autotune("verify", "s", "--on", f"external:{url}", "--launches", "1", home=home)
    assert done.code == 0, done.err
    assert "settings that it reports are those of the recommended command" in done.err


@pytest.mark.e2e
def test_a_server_that_reports_nothing(home: Path) -> None:
    """A vLLM without its development mode tells no settings, and nothing is claimed of them."""
    version = ("--engine-version", "0.13.0")
    with emulated("--hw", "h100", "--gpus", "2", "--speed", "8", *version, command=SERVED) as url:
        done = autotune(
            *QUESTION, "--on", f"external:{url}", "--study", "s", "--launches", "1", home=home
        )
    assert done.code == 0, done.err
    assert (
        "it reports no settings, so whether they are the defaults of vLLM 0.13.0 is not checked"
        in done.err
    )
    assert [row["engine_version"] for row in rows(home, "s")] == ["0.13.0"], (
        "the version is the server's own"
    )


SGLANG = ["python3", "-m", "sglang.launch_server", "--model-path", MODEL, "--tp", "2"]
TOLD = {
    # SGLang repeats its words, vLLM tells what they became, TensorRT-LLM tells nothing.
    "sglang": ([*SGLANG, "--chunked-prefill-size", "4096", "--api-key", "sk-1234567890"], 0),
    "vllm": (SERVED, 0),
    "tensorrt_llm": (["trtllm-serve", MODEL, "--tp_size", "2"], 2),
}


@pytest.mark.parametrize("engine", TOLD)
def test_the_command_of_a_running_server_is_the_baseline(
    home: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    monkeypatch.setenv("KEY", "sk-1234567890")
    command, code = TOLD[engine]
    version = {"vllm": "0.32.0", "sglang": "0.5.23", "tensorrt_llm": "1.2.1"}[engine]
    node = ("--hw", "h100", "--gpus", "2", "--engine-version", version)
    with emulated(*node, command=command) as url:
        asked = ("--baseline", f"live:{url}", "--on", "simulator", "--dry-run", "--json")
        done = autotune(*QUESTION, *asked, "--api-key-env", "KEY", home=home)
    assert done.code == code, done.err
    if code:
        assert "TensorRT-LLM does not tell its configuration there; give its command" in done.err
        return
    found = json.loads(done.out)
    assert "sk-1234567890" not in done.out + done.err
    limit = ["--chunked-prefill-size 4096", "--max-num-seqs 64"][engine == "vllm"]
    assert limit in found["baseline"]
    note = next(one for one in found["notes"] if one.startswith("the baseline is"))
    assert f"{version}: " in note


@pytest.mark.e2e
def test_a_server_that_carries_traffic_is_read_and_not_loaded(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    with serving(speed="4") as url, httpx.Client(base_url=url, trust_env=False) as users:
        body = {"model": MODEL, "max_tokens": 40, "ignore_eos": True}

        def ask(number: int) -> None:
            users.post("/v1/completions", json={**body, "prompt": [number] * 300})

        def sent() -> float:
            page = users.get("/metrics").text
            rows = re.findall(r"^vllm:request_success_total.* (\S+)$", page, re.MULTILINE)
            return sum(map(float, rows))

        stop = threading.Event()
        answered = itertools.count()

        def use() -> None:
            while not stop.is_set():
                ask(next(answered))

        user = threading.Thread(target=use)
        user.start()
        where = ("--on", f"external:{url}", "--workload", f"live:{url}", "--window", "5s")
        question = ["run", "--model", MODEL, "--hw", "h100", "--gpus", "2"]
        done = autotune(*question, *where, "--study", "s", home=home)
        more = autotune(*question, *where, "--ladder", "4", home=home)
        stop.set()
        user.join()
        assert done.code == 0, done.err
        assert sent() == next(answered), "only the users' requests"
        assert more.code == 2
        assert "would load it on top" in more.err
    assert "nothing was sent" in done.out
    found = json.loads((home / "studies" / "s" / "recommendation.json").read_text())
    assert (found["evidence"], found["advice"]["evidence"]) == ("emulated", "simulated")
    carried = found["workloads"][f"live:{url}"]["recommended"]
    assert carried["total_output_tokens"] / carried["completed"] == pytest.approx(40, rel=0.1)
    low, high = found["advice"]["request_rate_interval90"]
    assert low < found["advice"]["request_rate"] < high
    assert found["advice"]["request_rate"] > carried["request_throughput"]
    best = found["advice"]["options"][0]
    assert best["options"]["max_running_requests"][0] == 64
    assert best["gain_interval90"][0] < best["gain_percent"] < best["gain_interval90"][1]
    # The command is in the report, and works as it stands.
    report = (home / "studies" / "s" / "report.md").read_text()
    assert found["advice"]["measure"] in report
    words = shlex.split(found["advice"]["measure"])[1:]
    again = autotune(*words, "--launches", "4", "--study", "t", home=home)
    assert again.code == 0, again.err
    repeated = json.loads((home / "studies" / "t" / "recommendation.json").read_text())
    assert repeated["baseline"]["config"]["max_running_requests"] == 64
