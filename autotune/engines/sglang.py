"""SGLang: a plain ``argparse`` parser; every peculiarity is in its YAML and its tables."""

from __future__ import annotations

from autotune.engines.engine import Engine


class SGLang(Engine):
    """``python3 -m sglang.launch_server --model-path MODEL …``."""
