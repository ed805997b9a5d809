"""A real engine for tests: examples/llama_server, in a virtual environment of its own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer

import httpx
import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "llama_server"
MODEL = "tiny"
LIMIT_S = 60


def environment(cache: Path) -> Path:
    """The interpreter of a virtual environment with the example's requirements; made once per
    requirements.

    Skips the test when the packages cannot be installed, as without a network.
    """
    script, requirements = EXAMPLE / "install.sh", EXAMPLE / "requirements.txt"
    # The environment's llama-server names this checkout's serve.py.
    what = [
        script.read_bytes(),
        requirements.read_bytes(),
        str(EXAMPLE).encode(),
        sys.version.encode(),
    ]
    key = hashlib.sha256(b"".join(what)).hexdigest()[:12]
    made = cache / key
    if not made.exists():
        # Made beside its place and moved there whole: neither an interruption nor a second run
        # leaves half of one.
        fresh = cache / f"{key}.{os.getpid()}"
        try:
            environ = {**os.environ, "PYTHON": sys.executable}
            done = subprocess.run(
                ["sh", script, fresh], env=environ, capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                pytest.skip(
                    f"the packages of {requirements} cannot be installed: {done.stderr.strip()[-300:]}"
                )
            with suppress(OSError):  # another run was quicker
                fresh.rename(made)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return made / "bin" / "python"


def make_model(python: Path, file: Path, *options: str) -> Path:
    """Write the tiny model."""
    subprocess.run([python, EXAMPLE / "tiny_gguf.py", file, *options], check=True)
    return file


@contextmanager
def llama_server(python: Path, model: Path, *options: str) -> Iterator[str]:
    """The server on a free loopback port until the block ends; gives its URL once it is ready."""
    log = model.with_suffix(".log")
    command = [
        python,
        EXAMPLE / "serve.py",
        "--model",
        model,
        "--alias",
        MODEL,
        "--port",
        "0",
        *options,
    ]
    with (
        log.open("w") as err,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            # The one line on stdout comes when it listens, and the pipe's end when it died; in the
            # end by our hand.
            too_late = Timer(LIMIT_S, process.kill)
            too_late.start()
            line = process.stdout.readline()
            too_late.cancel()
            assert line, f"it ended with {process.wait(LIMIT_S)}: {log.read_text()[-2000:]}"
            url = line.split()[-1]
            assert httpx.get(f"{url}/health", timeout=LIMIT_S, trust_env=False).status_code == 200
            yield url
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(LIMIT_S)
            process.kill()
