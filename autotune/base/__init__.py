"""Errors, evidence, child processes, redaction, files written safely.

It hides the operating system; every room uses it. Public: `errors`, `evidence.Evidence`,
`files.write_atomically`, `child.run_program`, `redact.text`, `values.frozen`, `arrays`.

>>> from autotune.base.errors import BadInput
>>> raise BadInput("--gpus 0: a whole number above 0 is needed")  # exit code 2, without a traceback
"""

from .child import Environment, run_program
from .errors import (
    AutotuneError,
    BadInput,
    CannotGoOn,
    ClientFailed,
    Interrupted,
    LoadFailed,
    MalformedFile,
    NothingFeasible,
    RefusedCommand,
    StudyLocked,
    Terminated,
    UnknownName,
)
from .evidence import Evidence, Evidenced
from .files import beside, expanded, sync_folder, write_atomically
from .notify import Notify, Stage, Watch, silent
from .values import (
    FloatDict,
    FloatMap,
    Interval,
    Json,
    JsonObject,
    StringDict,
    StringMap,
    Strings,
    by_key,
    frozen,
)

__all__ = [
    "AutotuneError",
    "BadInput",
    "CannotGoOn",
    "ClientFailed",
    "Environment",
    "Evidence",
    "Evidenced",
    "FloatDict",
    "FloatMap",
    "Interrupted",
    "Interval",
    "Json",
    "JsonObject",
    "LoadFailed",
    "MalformedFile",
    "NothingFeasible",
    "Notify",
    "RefusedCommand",
    "Stage",
    "StringDict",
    "StringMap",
    "Strings",
    "StudyLocked",
    "Terminated",
    "UnknownName",
    "Watch",
    "beside",
    "by_key",
    "expanded",
    "frozen",
    "run_program",
    "silent",
    "sync_folder",
    "write_atomically",
]
