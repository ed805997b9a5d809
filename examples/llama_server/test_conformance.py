"""autotune's conformance suite over this engine; run it where the package is installed."""

from __future__ import annotations

from pathlib import Path

from conformance import EngineConformance

HERE = Path(__file__).resolve().parent


class TestLlamaServer(EngineConformance):
    engine = "llama_server"
    space = HERE / "space"
    models = ("tiny.gguf",)
    nodes = ("cpu",)
