"""Puts command lines through an engine's parser, resolution and checks; runs in the engine's own
Python.

    python ask.py ENGINE FOLDER < commands > verdicts

Both are lines of JSON. The first line read is the node, see `gpus.Node`. Imports take a minute and
a command line some hundred milliseconds: each is answered by a forked process, but for those to
warm up with.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import absent
import gpus

Ask = Callable[[list[str]], dict[str, Any]]


def sglang(node: gpus.Node) -> Ask:
    """SGLang: as its launcher does, up to the processes that it would start."""
    absent.stand_in("sglang", node.amd)
    import sglang.srt.arg_groups.pipeline  # noqa: F401
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils.msgspec_utils import msgspec_to_builtins

    def ask(argv: list[str]) -> dict[str, Any]:
        args = prepare_server_args(argv)
        args.resolve_once()
        args.check_server_args()
        return {"documents": {"/server_info": msgspec_to_builtins(args.resolved_dict())}, "log": ""}

    return ask


def vllm(node: gpus.Node) -> Ask:
    """vLLM: as ``vllm serve`` does, up to the engine's processes, and the choice of an attention
    backend in these."""
    absent.stand_in("vllm", node.amd)
    import vllm_parts

    return vllm_parts.prepare(node)


def verdict(ask: Ask, argv: list[str], env: dict[str, str]) -> dict[str, Any]:
    """What the engine says of a command line: accepted with what it resolved, or refused with its
    words."""
    os.environ.update(env)
    text = io.StringIO()
    with contextlib.redirect_stderr(text), contextlib.redirect_stdout(text):
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler):
                handler.setStream(text)
        try:
            return {"reported": ask(argv)}
        except SystemExit:
            return {"refused": text.getvalue().strip().splitlines()[-1:]}
        except BaseException as error:
            return refusal(error)


def refusal(error: BaseException) -> dict[str, Any]:
    """An engine's words, and the line that has them."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    told = f"{type(error).__name__}: {error}"[:600]
    return {"refused": [told, f"{Path(where.filename).name}:{where.lineno} {where.line}"]}


def in_a_fork(work: Callable[[], dict[str, Any]], seconds: int = 0) -> str:
    """What some work gives, as JSON, from a process that begins where this one is and ends after
    some seconds; 0: when it is done."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(seconds)
        try:
            try:
                answer = work()
            except BaseException as error:
                answer = refusal(error)
            with os.fdopen(writing, "w") as out:
                out.write(json.dumps(answer, default=str))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if status == signal.SIGALRM:
        return json.dumps({"slow": seconds})
    return answer or json.dumps({"refused": [f"died with status {status}"]})


def warm_up(ask: Ask, argv: list[str]) -> str:
    """Put a command line through in this process, so that what it imports and reads is there for
    all forks."""
    environment = dict(os.environ)
    gc.unfreeze()
    with contextlib.suppress(SystemExit, Exception):
        ask(argv)
    os.environ.clear()
    os.environ.update(environment)
    gc.collect()
    gc.freeze()
    return json.dumps({})


def main() -> None:
    """Answer every line of standard input."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints is no verdict
    node = gpus.Node(json.loads(sys.stdin.readline()))
    gpus.answer(node, Path(sys.argv[2]))
    ask = {"sglang": sglang, "vllm": vllm}[sys.argv[1]](node)
    print(json.dumps({}), file=out, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if "warm" in command:
            answer = warm_up(ask, command["warm"])
        else:
            node.gpus = command["gpus"]
            answer = in_a_fork(partial(verdict, ask, command["argv"], command["env"]))
        print(answer, file=out, flush=True)


if __name__ == "__main__":
    main()
