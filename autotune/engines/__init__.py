"""Engines, models and GPUs as data, and an engine's command line.

It hides YAML, three parsers and their versions. Public: `engine`, `recognise`, `split_command`,
`library.Library`, `command.Command`, `command.Configuration`, `failure.Failure`, `machine.node`.

>>> from autotune.engines import recognise, split_command
>>> command = split_command("vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2")
>>> recognise(command.argv).name
'vllm'
"""

from .cards import HardwareCard, ModelCard, weight_bytes_per_gpu
from .command import RANKS, Command, Configuration, Knobs, Resolved, Scalar, Words, flag_of, gpus_of
from .context import Context, broken_rules, default_of, effective
from .engine import RULE, Engine, ParsedCommand
from .entry import Entry, is_version, parse_yaml, spaces_root
from .enumeration import Candidate, CandidateSet, Enumeration, enumerate_engine
from .failure import Failure, FailureKind, without_numbers
from .kept import Kept
from .library import LOCAL, Library, server_environment
from .promises import GivenUp, admitted
from .registry import (
    command_of,
    engine,
    names,
    recognise,
    settings_in_front,
    split_command,
    typed_command,
)
from .schema import EngineCard, name_of
from .space import CONTRADICTS, EngineSpace

__all__ = [
    "CONTRADICTS",
    "LOCAL",
    "RANKS",
    "RULE",
    "Candidate",
    "CandidateSet",
    "Command",
    "Configuration",
    "Context",
    "Engine",
    "EngineCard",
    "EngineSpace",
    "Entry",
    "Enumeration",
    "Failure",
    "FailureKind",
    "GivenUp",
    "HardwareCard",
    "Kept",
    "Knobs",
    "Library",
    "ModelCard",
    "ParsedCommand",
    "Resolved",
    "Scalar",
    "Words",
    "admitted",
    "broken_rules",
    "command_of",
    "default_of",
    "effective",
    "engine",
    "enumerate_engine",
    "flag_of",
    "gpus_of",
    "is_version",
    "name_of",
    "names",
    "parse_yaml",
    "recognise",
    "server_environment",
    "settings_in_front",
    "spaces_root",
    "split_command",
    "typed_command",
    "weight_bytes_per_gpu",
    "without_numbers",
]
