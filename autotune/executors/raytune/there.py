"""A trial on its node: the same evaluation as anywhere else, in a folder of that node."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from autotune.errors import AutotuneError
from autotune.executors import Work
from autotune.executors.raytune.courier import Began, Ended, Said, packed
from autotune.executors.raytune.tuning import Task

FOLDER = "autotune-trial-"
"""How the folders of running trials begin."""


def evaluate_there(config: dict[str, Any], work: Work, courier: Any, folder: str) -> dict[str, int]:
    """Evaluate a task's trial, and have everything brought to the tuner.

    Args:
        config: ``{"task": Task}``, as Ray Tune passes it on.
        folder: the tuner's working folder; relative paths in commands are meant from there, where it exists here too.
    """
    task: Task = config["task"]
    courier.bring.remote(Began(task.key))
    with tempfile.TemporaryDirectory(prefix=_prefix(task)) as place:
        here = replace(work, folder=Path(place), tell=lambda text: courier.bring.remote(Said(text)))
        (here.folder / "trials").mkdir()
        with contextlib.chdir(folder if os.path.isdir(folder) else place):
            ended = _ended(task, here)
        files = packed(here.folder / "trials" / f"{task.trial.number:04d}")
        # Waited for: what was brought is safe from the end of this process.
        ray.get(courier.bring.remote(replace(ended, files=files)))
    return {"done": 1}


def _prefix(task: Task) -> str:
    """How the folder of a trial begins; those that dead processes of this machine left are removed."""
    here = f"{FOLDER}{_safe(platform.node())}-"
    for left in Path(tempfile.gettempdir()).glob(f"{here}*"):
        pid = left.name.removeprefix(here).partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left, ignore_errors=True)
    return f"{here}{os.getpid()}-{_safe(task.place.name)}-"


def _safe(name: str) -> str:
    return re.sub(r"[^\w.]+", "_", name)


def _ended(task: Task, work: Work) -> Ended:
    gpu_ids = tuple(str(index) for index in ray.get_gpu_ids())
    try:
        result = work.evaluator()(task.trial)
    except AutotuneError as error:
        return Ended(task.key, problem=str(error))
    except Exception:
        return Ended(task.key, bug=traceback.format_exc())
    return Ended(task.key, replace(result, node=task.place.name, gpu_ids=gpu_ids))
