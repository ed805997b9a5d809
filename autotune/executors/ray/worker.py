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
from autotune.executors import EvaluationSetup
from autotune.executors.ray.result_queue import TRIAL_FOLDER, Ended, Message, Started, own_folder, pack
from autotune.executors.ray.searcher import Task

_THREADS = "OMP_NUM_THREADS"
_OOM_SCORE = Path("/proc/self/oom_score_adj")


def run_trial(config: dict[str, Any], setup: EvaluationSetup, queue: Any, folder: str) -> dict[str, int]:
    """Evaluate a task's trial, and put its result and files into the queue.

    Args:
        config: ``{"task": Task}``, as Ray Tune passes it on.
        queue: the actor of `result_queue.ResultQueue`.
        folder: the tuner's working folder, to which relative paths in commands refer, where it exists here too.
    """
    task: Task = config["task"]
    queue.put.remote(Started(task.key))
    with environment_of_ray_start(), own_folder(TRIAL_FOLDER, task.node.name) as own:
        setup = replace(setup, folder=Path(own), notify=lambda text: queue.put.remote(Message(text)))
        (setup.folder / "trials").mkdir()
        with contextlib.chdir(folder if os.path.isdir(folder) else own):
            ended = _evaluate(task, setup)
        files = pack(setup.folder / "trials" / f"{task.trial.number:04d}")
        # Waited for: what is in the queue outlives this process.
        ray.get(queue.put.remote(replace(ended, files=files)))
    return {"done": 1}


@contextlib.contextmanager
def environment_of_ray_start() -> Iterator[None]:
    """Restore what a server inherits to that of ``ray start``, as far as Ray has changed it.

    That is the number of threads, which Ray sets by its own count of processors: a server would run with one. And when
    memory is short, Linux would end the process of a trial and all below it first (``oom_score_adj``; ``man 5 proc``).
    """
    before = Path("/proc/self/environ").read_bytes().split(b"\0")
    given = any(line.startswith(f"{_THREADS}=".encode()) for line in before)
    threads = None if given else os.environ.pop(_THREADS, None)
    score = _OOM_SCORE.read_text()
    # Refused below what a privileged Ray has set, to one without its privilege; then it stays.
    with contextlib.suppress(OSError):
        _OOM_SCORE.write_text(Path(f"/proc/{os.getppid()}/oom_score_adj").read_text())
    try:
        yield
    finally:
        _OOM_SCORE.write_text(score)
        if threads is not None:
            os.environ[_THREADS] = threads


def _evaluate(task: Task, setup: EvaluationSetup) -> Ended:
    gpu_ids = tuple(str(index) for index in ray.get_gpu_ids())
    try:
        result = setup.evaluator()(task.trial)
    except AutotuneError as error:
        return Ended(task.key, problem=str(error))
    except Exception:
        return Ended(task.key, bug=traceback.format_exc())
    return Ended(task.key, replace(result, node=task.node.name, gpu_ids=gpu_ids))
