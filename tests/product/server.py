"""An emulated server that a test runs for itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.product.processes import start

# Without its prefix cache, so that a repeated run is the same load.
COMMAND = ["vllm", "serve", "deepseek-ai/DeepSeek-V3.2", "-tp", "8", "--no-enable-prefix-caching"]


@contextmanager
def emulated(*more: str, command: Sequence[str] = COMMAND) -> Iterator[str]:
    """An emulated vLLM on a free port, at the node's own speed unless told otherwise; gives its
    URL."""
    options = ["emulate", "--hw", "h200", "--port", "0", "--startup-s", "0", "--json", *more]
    with start(*options, "--", *command, out=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            # The one line on stdout comes when it serves.
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()
