"""Engines, models and GPUs as data, and an engine's command line.

It hides YAML, three parsers and their versions. Public: `engine`, `recognise`, `split_command`,
`library.Library`, `command.Command`, `command.Configuration`, `failure.Failure`, `machine.node`.

>>> from autotune.engines import recognise, split_command
>>> command = split_command("vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2")
>>> recognise(command.argv).name
'vllm'
"""

from .engine import Engine, ParsedCommand
from .registry import engine, names, recognise, split_command

__all__ = ["Engine", "ParsedCommand", "engine", "names", "recognise", "split_command"]
