"""A process that answers lines of JSON, one line each: an engine in its own Python, or the
product."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.base.errors import BadInput


class JsonProcess:
    """Starts with its first line and waits for the answer to it, in `hello`; raises `BadInput`
    where it ends first."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        work: Path,
        log: Path,
        first: Mapping[str, Any],
    ) -> None:
        self._log = log.open("w")
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=dict(env),
            cwd=work,
        )
        try:
            self.hello = self.tell(first)
        except BadInput:
            raise BadInput(f"{argv[:3]} did not start:\n{log.read_text()[-1500:]}") from None

    def tell(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise BadInput("the engine's process ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process: its input ends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()


def engine_environment(sources: Path, work: Path) -> dict[str, str]:
    """Variables of an engine's process: its sources first on the path, no GPU of this machine, no
    network and no messages home."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(work),
        "PYTHONPATH": str(sources),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        # A node reaches NVIDIA's store of kernels, which is asked for by the network.
        "VLLM_HAS_FLASHINFER_CUBIN": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
