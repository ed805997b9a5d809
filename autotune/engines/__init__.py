"""Engines, models and GPUs as data; an engine's command line, and how it fails.

>>> from autotune.engines import recognise, split_command
>>> command = split_command("vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2")
>>> recognise(command.argv).name
'vllm'
"""

from .engine import Engine, ParsedCommand
from .registry import engine, names, recognise, split_command

__all__ = ["Engine", "ParsedCommand", "engine", "names", "recognise", "split_command"]
