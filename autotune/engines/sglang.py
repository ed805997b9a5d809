"""SGLang: a plain ``argparse`` parser; its peculiarities are in its YAML and its tables."""

from .command import Command, Words
from .engine import Engine, expand_file


class SGLang(Engine):
    """``python3 -m sglang.launch_server --model-path MODEL …``."""

    flags_in_file = ">=0.5.8"  # https://github.com/sgl-project/sglang/pull/16638

    def prepare(self, arguments: Words, version: str, command: Command) -> Words:
        """Insert the options of a ``--config`` file before the given ones."""
        return expand_file(arguments, command.files, 0)
