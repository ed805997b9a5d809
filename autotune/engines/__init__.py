"""Engines, models and GPUs as data, and an engine's command line.

It hides YAML, three parsers and their versions. Public: `engine`, `recognise`, `split_command`,
`library.Library`, `command.Command`, `command.Configuration`, `failure.Failure`, `machine.node`.

>>> from autotune.engines import recognise, split_command
>>> command = split_command("vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2")
>>> recognise(command.argv).name
'vllm'
"""

from .cards import HardwareCard, ModelCard
from .command import Command, Configuration, Knobs, Scalar, gpus_of
from .context import Context
from .engine import Engine, ParsedCommand
from .entry import Entry
from .enumeration import Candidate, CandidateSet
from .failure import Failure, FailureKind
from .library import Library
from .registry import command_of, engine, names, recognise, split_command, typed_command
from .schema import EngineCard
from .space import EngineSpace

__all__ = [
    "Candidate",
    "CandidateSet",
    "Command",
    "Configuration",
    "Context",
    "Engine",
    "EngineCard",
    "EngineSpace",
    "Entry",
    "Failure",
    "FailureKind",
    "HardwareCard",
    "Knobs",
    "Library",
    "ModelCard",
    "ParsedCommand",
    "Scalar",
    "command_of",
    "engine",
    "gpus_of",
    "names",
    "recognise",
    "split_command",
    "typed_command",
]
