"""SGLang: a plain ``argparse`` parser; its peculiarities are in its YAML and its tables."""

from __future__ import annotations

from collections.abc import Sequence

from .command import Command
from .engine import Engine, expand_file


class SGLang(Engine):
    """``python3 -m sglang.launch_server --model-path MODEL …``."""

    flags_in_file = ">=0.5.8"  # https://github.com/sgl-project/sglang/pull/16638

    def prepare(self, arguments: Sequence[str], version: str, command: Command) -> Sequence[str]:
        """Insert the options of a ``--config`` file before the given ones."""
        return expand_file(arguments, command.files, 0)
