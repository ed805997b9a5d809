"""`autotune bench` beside a plain client: a real engine, llama-server on a CPU, and an emulated
one."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.product.llama import MODEL, environment, llama_server, make_model
from tests.product.processes import start
from tests.product.server import COMMAND, emulated

STREAMS, PROMPTS, ANSWER = 4, 12, 96
ROUNDS = 3
WORDS = ["the", "server", "counts", "tokens", "bakelo", "momi", "dagi", "é", "你好", "🙂"]

Counts = tuple[int, int, float]


def plain_client(url: str, model: str, prompts: Sequence[str]) -> Counts:
    """Prompt tokens, generated tokens, both per second: a thread per stream, a new connection per
    request."""

    def send(prompt: str) -> tuple[float, float, int, int]:
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": ANSWER,
            "ignore_eos": True,
            "temperature": 0,
        }
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        with closing(HTTPConnection(urlsplit(url).netloc)) as connection:
            sent_s = perf_counter()
            connection.request(
                "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
            )
            events = [
                (perf_counter(), line)
                for line in connection.getresponse()
                if line.startswith(b"data: {")
            ]
        last_s, last = events[-1]
        usage = json.loads(last[6:])["usage"]
        return sent_s, last_s, usage["prompt_tokens"], usage["completion_tokens"]

    with ThreadPoolExecutor(STREAMS) as threads:
        sent, ended, read, written = zip(*threads.map(send, prompts), strict=True)
    return sum(read), sum(written), (sum(read) + sum(written)) / (max(ended) - min(sent))


def new_prompts(round_: int, folder: Path) -> tuple[list[str], str]:
    """Prompts, and the name of the workload that holds the same."""
    draw = random.Random(round_)
    prompts = [" ".join(draw.choices(WORDS, k=draw.randint(5, 25))) for _ in range(PROMPTS)]
    file = folder / f"prompts-{round_}.jsonl"
    file.write_text(
        "".join(json.dumps({"prompt": text, "output_tokens": ANSWER}) + "\n" for text in prompts)
    )
    return prompts, f"jsonl:{file}"


class Bench:
    """One `autotune bench` in a process of its own."""

    def __init__(self, url: str, model: str, workload: str, folder: Path) -> None:
        self._file = folder / "result.json"
        self._file.unlink(missing_ok=True)
        options = [
            "--workload",
            workload,
            "--concurrency",
            str(STREAMS),
            "--save-result",
            str(self._file),
            "--json",
        ]
        words = ["bench", "--url", url, "--model", model, *options]
        self.process = start(*words, out=subprocess.PIPE, err=subprocess.PIPE)

    def result(self) -> dict[str, Any]:
        """What it saved, once it has ended: well, or with the word that it did not keep up and does
        not count."""
        out, err = self.process.communicate()
        assert self.process.returncode in (0, 4), err
        result = json.loads(self._file.read_text())
        assert json.loads(out)["total_token_throughput"] == result["total_token_throughput"]
        assert result["client_bound"] == (self.process.returncode == 4), err
        return result

    def wait_for_load(self, url: str) -> None:
        """Until a slot of llama-server works on one of the counted requests; those of the warm-up
        ask for less."""
        with httpx.Client(base_url=url, trust_env=False) as http:
            while self.process.poll() is None:
                slots = http.get("/slots").json()
                if any(
                    slot["is_processing"] and slot["params"]["max_tokens"] == ANSWER
                    for slot in slots
                ):
                    return
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(0.005)


def check_sane(found: dict[str, Any], requests: int) -> None:
    """What must hold of a load without failures in which every answer is equally long."""
    assert found["outcomes"] == {"ok": requests}
    assert (found["completed"], found["failed"]) == (requests, 0)
    assert found["total_output_tokens"] == requests * ANSWER
    tokens = found["total_input_tokens"] + found["total_output_tokens"]
    assert found["total_token_throughput"] * found["duration"] == pytest.approx(tokens)
    assert 0 < found["median_ttft_ms"] < found["median_e2el_ms"] <= found["duration"] * 1e3
    assert found["mean_ttft_ms"] + (ANSWER - 1) * found["mean_tpot_ms"] == pytest.approx(
        found["mean_e2el_ms"]
    )
    # No more than so many in flight, so their times add up to no more than that many durations.
    assert found["mean_e2el_ms"] * requests <= STREAMS * found["duration"] * 1e3
    assert not found.get("cache_hit_rate")


def rounds(once: Callable[[int], tuple[dict[str, Any], Counts]]) -> list[tuple[float, float]]:
    """Throughput by `autotune bench` and by the plain client, in three rounds in which bench says
    that it kept up.

    On a machine so busy that it did not, it says so, and the round is had again.
    """
    found: list[tuple[float, float]] = []
    for round_ in range(4 * ROUNDS):
        ours, (read, written, throughput) = once(round_)
        check_sane(ours, PROMPTS)
        assert (ours["total_input_tokens"], ours["total_output_tokens"]) == (read, written)
        if not ours["client_bound"]:
            found.append((ours["total_token_throughput"], throughput))
        if len(found) == ROUNDS:
            break
    print("bench / plain client, tok/s:", *(f"{a:.1f}/{b:.1f}={a / b:.4f}" for a, b in found))
    return found


@pytest.fixture(scope="session")
def llama(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A llama-server with twice as many slots as a client has streams, without its prompt cache."""
    python = environment(request.config.cache.mkdir("llama_server"))
    model = make_model(python, tmp_path_factory.mktemp("llama") / "tiny.gguf")
    slots = ["--parallel", str(2 * STREAMS), "--ctx-size", str(2 * STREAMS * 1024)]
    with llama_server(python, model, *slots, "--threads", "1", "--no-cache-prompt") as url:
        yield url


def test_bench_and_a_plain_client_agree_on_a_real_server(llama: str, tmp_path: Path) -> None:
    """Both load it at the same time, half of the slots each.

    The server's speed is the processor's: with other work on the machine it moves by more than a
    tenth from second to second, so runs in turn would compare the seconds. Two clients at once
    share every batch the server computes; one that sends late, reads late or counts wrongly still
    falls behind the other.
    """

    def once(round_: int) -> tuple[dict[str, Any], Counts]:
        prompts, workload = new_prompts(round_, tmp_path)
        bench = Bench(llama, MODEL, workload, tmp_path)
        bench.wait_for_load(llama)
        counted = plain_client(llama, MODEL, prompts)
        return bench.result(), counted

    assert median(ours / plain for ours, plain in rounds(once)) == pytest.approx(1, abs=0.03)


def test_a_real_server_takes_token_ids(llama: str, tmp_path: Path) -> None:
    found = Bench(llama, MODEL, f"random:50:{ANSWER}:{PROMPTS}", tmp_path).result()
    check_sane(found, PROMPTS)
    assert found["total_input_tokens"] == PROMPTS * 50
    assert found["evidence"] == "measured"


def test_bench_and_a_plain_client_agree_on_an_emulated_engine(tmp_path: Path) -> None:
    """In turn, as its pace is the simulated node's. A busy machine delays and never hastens: the
    quickest of each."""
    model = COMMAND[2]
    prompts, workload = new_prompts(0, tmp_path)
    with emulated("--speed", "3") as url:

        def once(_: int) -> tuple[dict[str, Any], Counts]:
            return Bench(url, model, workload, tmp_path).result(), plain_client(url, model, prompts)

        ours, plain = zip(*rounds(once), strict=True)
    assert max(ours) / max(plain) == pytest.approx(1, abs=0.03)
