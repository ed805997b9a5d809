"""Starts emulated servers in processes of their own on free ports, ready when they say so."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from tests.product.processes import Process, start

if TYPE_CHECKING:
    from openai import OpenAI

V32 = "deepseek-ai/DeepSeek-V3.2"
R1 = "deepseek-ai/DeepSeek-R1-0528"
LIMIT_S = 60

COMMANDS = {
    "vllm": ["vllm", "serve", V32, "-tp", "8", "--max-model-len", "81920"],
    "sglang": [
        "python3",
        "-m",
        "sglang.launch_server",
        "--model-path",
        V32,
        "--tp",
        "8",
        "--enable-metrics",
    ],
    "tensorrt_llm": ["trtllm-serve", V32, "--tp_size", "8", "--max_seq_len", "32768"],
}
"""A command line that runs on 8 GPUs, per engine."""


def words(*engine_command: str, options: tuple[str, ...] = ()) -> list[str]:
    """The command line of an emulator, for `start`."""
    return ["emulate", "--hw", "h200", *options, "--", *engine_command]


@dataclass
class EmulatedServer:
    """A server that is up."""

    process: Process
    url: str
    err: list[str]
    clients: ExitStack

    def openai(self, api_key: str = "none") -> OpenAI:
        """A client, closed when the server ends: after an error only the garbage collector finds
        it."""
        from openai import OpenAI

        client = OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, timeout=LIMIT_S)
        return self.clients.enter_context(client)

    def post(self, path: str, **body) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=LIMIT_S, trust_env=False)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=LIMIT_S, trust_env=False)

    def complete(self, prompt, max_tokens: int = 4, **more) -> dict:
        answer = self.post(
            "/v1/completions", prompt=prompt, max_tokens=max_tokens, ignore_eos=True, **more
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    def metric(self, name: str, path: str = "/metrics") -> float:
        """The value of a Prometheus metric, the sum of its rows."""
        row = rf"^{re.escape(name)}(?:{{.*}})? (\S+)$"
        values = re.findall(row, self.get(path).text, re.MULTILINE)
        assert values, name
        return sum(map(float, values))

    def ended(self) -> int:
        """The exit code; waits for the end."""
        return self.process.wait(LIMIT_S)


@contextmanager
def serving(
    *engine_command: str, options: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> Iterator[EmulatedServer]:
    """A server until the block ends; fast unless `options` say otherwise."""
    defaults = ("--port", "0", "--startup-s", "0", "--speed", "50", "--json")
    process = start(
        *words(*engine_command, options=(*defaults, *options)),
        out=subprocess.PIPE,
        err=subprocess.PIPE,
        environment={**os.environ, **(env or {})},
    )
    err: list[str] = []
    reader = threading.Thread(target=lambda: err.extend(process.stderr or ()), daemon=True)
    reader.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"it ended with {process.wait()}: {''.join(err)}"
        with ExitStack() as clients:
            yield EmulatedServer(process, json.loads(line)["url"], err, clients)
    finally:
        process.kill()
        process.wait()
        reader.join(LIMIT_S)
        process.stdout.close()
        process.stderr.close()


@dataclass(frozen=True)
class Ended:
    """A server that did not come up."""

    code: int
    log: str

    @property
    def lines(self) -> list[str]:
        return [line for line in self.log.replace("\r", "\n").splitlines() if line]


def launched(*engine_command: str, options: tuple[str, ...] = ()) -> Ended:
    """Start a server that is expected to end by itself."""
    options = ("--port", "0", "--startup-s", "0", *options)
    with start(
        *words(*engine_command, options=options), out=subprocess.PIPE, err=subprocess.STDOUT
    ) as process:
        log, _ = process.communicate(LIMIT_S)
    return Ended(process.wait(), log)
