"""A trial on its node: the same evaluation as anywhere else, in a folder of that node."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from autotune.errors import AutotuneError
from autotune.executors import Work
from autotune.executors.ray.folders import TRIAL, own_folder
from autotune.executors.ray.result_queue import Began, Ended, Said, packed
from autotune.executors.ray.searcher import Task

_THREADS = "OMP_NUM_THREADS"
_OOM_SCORE = Path("/proc/self/oom_score_adj")


def evaluate_there(config: dict[str, Any], work: Work, courier: Any, folder: str) -> dict[str, int]:
    """Evaluate a task's trial, and have everything brought to the tuner.

    Args:
        config: ``{"task": Task}``, as Ray Tune passes it on.
        folder: the tuner's working folder; relative paths in commands are meant from there, where it exists here too.
    """
    task: Task = config["task"]
    courier.bring.remote(Began(task.key))
    with (
        environment_of_ray_start(),
        own_folder(TRIAL, task.place.name) as place,
    ):
        here = replace(work, folder=Path(place), notify=lambda text: courier.bring.remote(Said(text)))
        (here.folder / "trials").mkdir()
        with contextlib.chdir(folder if os.path.isdir(folder) else place):
            ended = _ended(task, here)
        files = packed(here.folder / "trials" / f"{task.trial.number:04d}")
        # Waited for: what was brought is safe from the end of this process.
        ray.get(courier.bring.remote(replace(ended, files=files)))
    return {"done": 1}


@contextlib.contextmanager
def environment_of_ray_start() -> Iterator[None]:
    """What a server is to inherit is that of ``ray start``, as far as Ray has changed it.

    That is the number of threads, which Ray sets by its own count of processors: a server would run with one. And when
    memory is short, Linux would end the process of a trial and all below it first (``oom_score_adj``; ``man 5 proc``).
    """
    before = Path("/proc/self/environ").read_bytes().split(b"\0")
    given = any(line.startswith(f"{_THREADS}=".encode()) for line in before)
    taken = None if given else os.environ.pop(_THREADS, None)
    score = _OOM_SCORE.read_text()
    # Refused below what a privileged Ray has set, to one without its privilege; then it stays.
    with contextlib.suppress(OSError):
        _OOM_SCORE.write_text(Path(f"/proc/{os.getppid()}/oom_score_adj").read_text())
    try:
        yield
    finally:
        _OOM_SCORE.write_text(score)
        if taken is not None:
            os.environ[_THREADS] = taken


def _ended(task: Task, work: Work) -> Ended:
    gpu_ids = tuple(str(index) for index in ray.get_gpu_ids())
    try:
        result = work.evaluator()(task.trial)
    except AutotuneError as error:
        return Ended(task.key, problem=str(error))
    except Exception:
        return Ended(task.key, bug=traceback.format_exc())
    return Ended(task.key, replace(result, node=task.place.name, gpu_ids=gpu_ids))
