"""llama-server as an engine of autotune: what is peculiar to its command line; all else is in
``llama_server.yaml``."""

from __future__ import annotations

from autotune.engines.engine import Engine


class LlamaServer(Engine):
    """``llama-server --model FILE.gguf …``; its options have no abbreviations (llama.cpp,
    ``common/arg.cpp``)."""

    abbreviations = False
