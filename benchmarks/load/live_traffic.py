"""Whether the traffic of a server is read back from its metrics: ``python
benchmarks/load/live_traffic.py``.

A trace of known law (lognormal lengths, shared prefixes, Poisson arrivals) is sent to emulated
vLLM, SGLang and TensorRT-LLM one after the other, and, where ``AUTOTUNE_VLLM`` names an environment
of ``examples/vllm_cpu``, to a real vLLM on this CPU. Meanwhile ``live:URL`` watches each. A line per
figure: the trace's, that of `live:`, the error, and ``MISS`` beyond 5 % (10 % for a p95, which lies
within a bucket; TensorRT-LLM publishes means alone). Then a study on the simulated node is asked
twice, with the pages and with the trace, and both recommended commands carry the trace at once.

Takes 6 minutes without the real engine, and 8 with it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, NamedTuple

import httpx
import numpy as np

from autotune.engines.command import Command
from autotune.engines.library import Library
from autotune.load.client.target import Target
from autotune.load.live import read_traffic, workload_of
from autotune.load.server_client import ServerClient
from autotune.load.workloads import Workload
from autotune.servers import StartupTimeouts
from autotune.servers.process import ProcessLauncher

_MODEL = "deepseek-ai/DeepSeek-V3.2"
_BLOCK = 512  # Prompt tokens of a block of the trace
_SGLANG = ("python3", "-m", "sglang.launch_server", "--model-path", _MODEL, "--tp", "8")
_EMULATED = {
    "vllm": ("vllm", "serve", _MODEL, "-tp", "8"),
    "sglang": (*_SGLANG, "--enable-metrics"),
    "tensorrt_llm": ("trtllm-serve", _MODEL, "--tp_size", "8", "--config", "trtllm.yaml"),
}
_LATER_S = 4.0  # Seconds of the load before it is watched
_TOLERATED = {"p95": 10.0}


class Law(NamedTuple):
    """Medians and shapes of lognormal lengths, requests per second, and how long they come."""

    prompt: float
    answer: float
    sigma: float
    longest: int
    rate: float
    seconds: float


NODE = Law(900, 160, 0.6, 12_000, 6.0, 90.0)
CPU = Law(620, 24, 0.25, 1_500, 2.0, 110.0)


def trace(law: Law, path: Path, seed: int) -> dict[str, float]:
    """Write a trace of a law, and return what is to be read back."""
    random = np.random.default_rng(seed)
    count = round(law.rate * law.seconds)
    longest = law.longest - 1
    read = np.clip(random.lognormal(np.log(law.prompt), law.sigma, count), _BLOCK + 1, longest)
    written = np.clip(random.lognormal(np.log(law.answer), law.sigma, count), 2, longest // 4)
    read, written = np.rint(read).astype(int), np.rint(written).astype(int)
    at_s = np.cumsum(random.exponential(1.0, count))
    at_s *= law.seconds / at_s[-1]
    # Half of the prompts begin with one of four common blocks; the rest of each is its own.
    shared = random.random(count) < 0.5
    first = np.where(shared, random.integers(4, size=count), 10 + np.arange(count))
    seen: set[int] = set()
    found = 0
    with path.open("w") as file:
        for number in range(count):
            found += _BLOCK if int(first[number]) in seen else 0
            seen.add(int(first[number]))
            blocks = -(-int(read[number]) // _BLOCK)
            own = [10**6 + 100 * number + place for place in range(1, blocks)]
            row = {
                "timestamp": round(1e3 * at_s[number]),
                "input_length": int(read[number]),
                "output_length": int(written[number]),
                "hash_ids": [int(first[number]), *own],
            }
            file.write(json.dumps(row) + "\n")
    return {**figures(read, written), "rate": law.rate, "hit share": found / int(read.sum())}


def figures(read: np.ndarray, written: np.ndarray) -> dict[str, float]:
    return {
        "prompt mean": float(read.mean()),
        "prompt p95": float(np.quantile(read, 0.95)),
        "answer mean": float(written.mean()),
        "answer p95": float(np.quantile(written, 0.95)),
    }


def told(workload: Workload) -> dict[str, float]:
    """Return the same figures of a workload: of many requests of it."""
    requests = workload.with_prompts(20_000).draw(0, 0)
    (point,) = workload.points
    prefix = workload.prefix.tokens if workload.prefix else 0
    hits = np.minimum(requests.input_tokens, prefix).sum() / requests.input_tokens.sum()
    return {
        **figures(requests.input_tokens, requests.output_tokens),
        "rate": point.arrival.request_rate or float("nan"),
        "hit share": float(hits),
    }


def compare(name: str, truth: dict[str, float], read: dict[str, float]) -> int:
    """Print a line per figure; return the number beyond the tolerated error."""
    misses = 0
    for what, value in truth.items():
        error = 100 * (read[what] / value - 1)
        miss = abs(error) > _TOLERATED.get(what.split()[-1], 5.0)
        misses += miss
        row = f"{name:13} {what:12} {value:10.4g} {read[what]:10.4g} {error:+7.1f} %"
        print(row, "MISS" if miss else "", flush=True)
    return misses


@contextmanager
def emulated(command: Sequence[str], folder: Path) -> Iterator[str]:
    options = ("--hw", "h200", "--speed", "5", "--port", "0", "--startup-s", "0", "--json")
    words = [sys.executable, "-m", "autotune", "emulate", *options, "--", *command]
    (folder / "trtllm.yaml").write_text(
        "{return_perf_metrics: true, enable_iter_perf_stats: true}\n"
    )
    version = ("--engine-version", "1.3.0rc24") if command[0] == "trtllm-serve" else ()
    words[4:4] = version
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=folder
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


@contextmanager
def real(environment: Path, folder: Path) -> Iterator[str]:
    """Start a real vLLM with a tiny model on this CPU."""
    example = Path(__file__).resolve().parents[2] / "examples" / "vllm_cpu"
    subprocess.run(
        [environment / "bin" / "python", example / "tiny_model.py", folder / "tiny"], check=True
    )
    settings = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    program = str(environment / "bin" / "vllm")
    flags = ("--served-model-name", "tiny", "--enforce-eager", "--dtype", "float32")
    command = Command((program, "serve", str(folder / "tiny"), *flags), settings)
    card = Library().engine("vllm")
    with ProcessLauncher().launch(command, folder / "server", card) as server:
        failure = server.wait_ready(StartupTimeouts(total_s=600.0, silence_s=300.0))
        if failure is not None:
            raise SystemExit(f"the real vLLM did not start: {failure.message}")
        yield server.url


async def send(url: str, model: str, path: Path) -> None:
    """Send the requests of a trace at their times, as random tokens with its common blocks."""
    async with httpx.AsyncClient(base_url=url, timeout=None, trust_env=False) as client:
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as sent:
            for line in path.read_text().splitlines():
                row = json.loads(line)
                tokens = np.concatenate(
                    [
                        np.random.default_rng(block).integers(3, 900, _BLOCK)
                        for block in row["hash_ids"]
                    ]
                )
                body = {
                    "model": model,
                    "prompt": tokens[: row["input_length"]].tolist(),
                    "max_tokens": row["output_length"],
                    "ignore_eos": True,
                }
                await asyncio.sleep(began_s + row["timestamp"] / 1e3 - time.monotonic())
                sent.create_task(client.post("/v1/completions", json=body))


def watch(url: str, path: Path, law: Law, folder: Path) -> tuple[Workload, Path]:
    """Send a trace to a server and watch it for most of that time; return the workload and its
    pages."""
    with ServerClient(Target.parse(url)) as client:
        sender = Thread(target=asyncio.run, args=(send(url, client.model(""), path),))
        sender.start()
    time.sleep(_LATER_S)
    window = f"{law.seconds - _LATER_S - 1:.0f}s"
    name, pages = f"live:{url}", folder / "pages"
    workload = workload_of(name, read_traffic(name, window, pages, lambda _: None))
    sender.join()
    print("   ", workload.origin, flush=True)
    return workload, next(pages.iterdir())


def recommended(workload: str, home: Path, seed: int) -> dict[str, Any]:
    """Ask for a command for a workload on the simulated node."""
    asked = ("--model", _MODEL, "--hw", "h200", "--engine", "vllm", "--on", "simulator", "--json")
    words = [*asked, "--workload", workload, "--launches", "16", "--seed", str(seed)]
    # A load that is kept up with tells no throughputs apart: send all at once.
    words += ["--ladder", "8"] if workload.startswith("metrics:") else []
    return _json("run", *words, "--home", str(home))


def carries(command: str, path: Path) -> float:
    """Return the simulated throughput of a command under the whole trace at once."""
    words = shlex.split(command)
    asked = ("--hw", "h200", "--workload", f"trace:{path}:x1000", "--json")
    return float(_json("simulate", *asked, "--", *words)["total_token_throughput"])


def _json(*words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *words], capture_output=True, text=True, check=False
    )
    if done.returncode or not done.stdout:
        raise SystemExit(f"autotune {' '.join(words)} ended with {done.returncode}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--engines", nargs="*", default=[*_EMULATED, "real"])
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    misses = 0
    with TemporaryDirectory() as name:
        folder = Path(name)
        pages: dict[str, Path] = {}
        for engine in asked.engines:
            law, place = (CPU, folder / engine) if engine == "real" else (NODE, folder / engine)
            place.mkdir()
            truth = trace(law, place / "trace.jsonl", asked.seed)
            with ExitStack() as stack:
                if engine == "real":
                    environment = os.environ.get("AUTOTUNE_VLLM")
                    if environment is None:
                        print("real: AUTOTUNE_VLLM is not set, left out")
                        continue
                    url = stack.enter_context(real(Path(environment), place))
                else:
                    url = stack.enter_context(emulated(_EMULATED[engine], place))
                workload, pages[engine] = watch(url, place / "trace.jsonl", law, place)
            misses += compare(engine, truth, told(workload))
        if "vllm" in pages:
            path = folder / "vllm" / "trace.jsonl"
            found = {
                "trace": recommended(f"trace:{path}:x1000", folder / "home-trace", asked.seed),
                "live": recommended(f"metrics:{pages['vllm']}", folder / "home-live", asked.seed),
            }
            speeds = {which: carries(one["command"], path) for which, one in found.items()}
            error = 100 * (speeds["live"] / speeds["trace"] - 1)
            misses += abs(error) > 2.0
            for which, one in found.items():
                print(f"recommended from {which}: {speeds[which]:,.0f} tok/s: {one['command']}")
            print(f"throughput of the one from live {error:+.1f} %", "MISS" * (abs(error) > 2.0))
    print(f"{misses} misses")


if __name__ == "__main__":
    main()
