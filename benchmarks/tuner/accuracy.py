"""False alarms and power of the built-in check of answers: ``python benchmarks/tuner/accuracy.py``.

Every run is a launch of an emulated engine that is judged against a pair of launches of the
baseline. Launches of one pair and what is judged against them share a group, and groups share
nothing. Without damage a run that fails is a false alarm. Damage replaces a share of the tokens
(``docs/emulator.md``).

    --through http            each launch is a fresh process, asked over HTTP as a study asks it, at 20 times the node's
                              speed, which changes no token but which requests share a batch; 1.5 s
                              of a core each
    --through model           the emulated engine's answers without a server: batches are drawn; 0.3 s each
    --runs 500 --power 100    runs without damage, and with each damage
    --without-logprobs        of engines that give none
    --seed N                  of every launch's noise and damage; batches still differ
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import httpx
from scipy.stats import binomtest

from autotune.engines.library import Library
from autotune.load.client.target import Target
from autotune.node.emulator.completions import AnswerSettings, GreedyAnswer
from autotune.node.emulator.http import text_tokens
from autotune.node.emulator.launch import Emulation, prepare_launch
from autotune.node.emulator.process import emulate
from autotune.tuner.accuracy.builtin import contexts
from autotune.tuner.accuracy.check import Builtin

COMMAND = ("vllm", "serve", "deepseek-ai/DeepSeek-V3.2", "-tp", "8")
DAMAGES = (
    *(f"wrong:{share}" for share in (0.005, 0.01, 0.02, 0.05)),
    *(f"wrong:{share},after:8192" for share in (0.005, 0.01, 0.02, 0.05)),
    *(f"wrong:{share},under-load" for share in (0.005, 0.02)),
)
SPEED = 20.0
PER_PAIR = 20
"""Runs that are judged against one pair of launches of the baseline."""


def serve(library: Library, answers: str, port: int) -> None:
    """Be an emulated engine until a signal."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    emulate(asked_for(library, answers, port), library)


def asked_for(library: Library, answers: str, port: int) -> Emulation:
    """One launch."""
    hardware = library.hardware["h200"]
    return Emulation(COMMAND, hardware, 8, port=port, speed=SPEED, startup_s=0.0, answers=answers)


@contextmanager
def launched(library: Library, answers: str) -> Iterator[str]:
    """A fresh launch, until the block ends; gives its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    # Forked, as loading the modules takes longer than the check.
    process = multiprocessing.get_context("fork").Process(
        target=serve, args=(library, answers, port)
    )
    process.start()
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                httpx.get(f"{url}/health", timeout=5, trust_env=False)
                break
            except httpx.TransportError:
                time.sleep(0.02)
        yield url
    finally:
        process.terminate()
        process.join()


def answers_of(library: Library | None, settings: str) -> dict[str, Any]:
    """What a fresh launch answers, over HTTP; without a library by its model alone."""
    if library is None:
        return modelled(settings)
    with launched(library, settings) as url:
        return Builtin().run(Target.parse(url), COMMAND[2]) | {"seconds": 0.0}


tokens_of = cache(text_tokens)


def modelled(settings: str) -> dict[str, Any]:
    """As `answers_of`: each token finds as many others under way as a batch of all contexts may
    have."""
    launch = AnswerSettings.read(settings).of_launch({})
    batches, answers = random.Random(launch.seed), {}
    for context in contexts():
        answer = GreedyAnswer(launch, tokens_of(context.prompt))
        spoken = [
            answer.next(0 if context.alone else batches.randrange(64, 144))
            for _ in range(context.max_tokens)
        ]
        answers[context.name] = [
            [one.word, one.logprobs[one.word], dict(one.logprobs)]
            if launch.logprobs
            else [one.word]
            for one in spoken
        ]
    return {"kind": "builtin", "logprobs": launch.logprobs, "answers": answers, "seconds": 0.0}


def group(
    library: Library | None, number: int, damages: list[str], asked: argparse.Namespace
) -> list[tuple[str, bool]]:
    """The runs of one pair of the baseline: damage, and whether it failed."""
    usual = "no-logprobs," if asked.without_logprobs else ""
    seeds = iter(
        range((asked.seed * 10_000 + number) * 1000, (asked.seed * 10_000 + number + 1) * 1000)
    )
    pair = [answers_of(library, f"{usual}seed:{next(seeds)}") for _ in range(2)]
    rows = []
    for damage in damages:
        mine = answers_of(library, ",".join(filter(None, (f"{usual}seed:{next(seeds)}", damage))))
        came = Builtin().judge(pair, mine)
        rows.append((damage, came.passed is False))
    return rows


def main() -> None:
    """Launch, judge, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--power", type=int, default=100)
    parser.add_argument("--through", choices=["http", "model"], default="http")
    parser.add_argument("--without-logprobs", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--minutes", type=float, default=600.0, help="after which no further group is begun"
    )
    asked = parser.parse_args()
    runs = [""] * asked.runs + [damage for damage in DAMAGES for _ in range(asked.power)]
    # Each group has some of everything.
    groups = [
        runs[start :: max(1, len(runs) // PER_PAIR)]
        for start in range(max(1, len(runs) // PER_PAIR))
    ]
    library, started = Library() if asked.through == "http" else None, time.perf_counter()
    if library is not None:
        # What is read once here need not be read in every process that is forked.
        assert prepare_launch(asked_for(library, "", 0), library).failure is None
    rows: list[tuple[str, bool]] = []
    # One after the other: the port of a launch is free only until the next one looks for its own.
    pool = ThreadPoolExecutor(1)
    futures = [
        pool.submit(group, library, number, damages, asked) for number, damages in enumerate(groups)
    ]
    with suppress(KeyboardInterrupt):
        for future in as_completed(futures):
            rows += future.result()
            print(
                f"\r{len(rows)} of {len(runs)} runs, {time.perf_counter() - started:.0f} s",
                end="",
                flush=True,
            )
            if time.perf_counter() - started > 60 * asked.minutes:
                break
    # What was begun ends, and nothing more is begun.
    pool.shutdown(cancel_futures=True)
    print("\n| damage | runs | failed | 95 % interval |\n|---|--:|--:|---|")
    for damage in dict.fromkeys(["", *DAMAGES]):
        failed = [fails for name, fails in rows if name == damage]
        if failed:
            low, high = binomtest(sum(failed), len(failed)).proportion_ci(0.95, method="wilson")
            share = f"{100 * sum(failed) / len(failed):.1f} %"
            print(
                f"| {damage or 'none'} | {len(failed)} | {share} | {100 * low:.1f} to {100 * high:.1f} % |"
            )


if __name__ == "__main__":
    main()
