"""Acceptance of drafted tokens, per engine version: what is reported is what the client saw being
accepted."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest

from autotune.engines.command import Command
from autotune.engines.library import Library
from autotune.engines.registry import engine as engine_of
from autotune.load import LoadOptions, load_workload, measure
from autotune.load.client.target import Target
from autotune.load.metrics.table import Metrics
from autotune.load.prefix_cache import DraftReader
from autotune.load.server_client import ServerClient
from autotune.node.server import UNFORCED
from tests.node.emulator.servers import R1, serving

TOKENS, FORCED = 2, 2.2
ENGINES = Library().engines
VERSIONS = [
    (engine, version) for engine in ("vllm", "sglang") for version in ENGINES[engine].versions
]
ENDS = {
    (engine, ENGINES[engine].versions[place]) for engine in ("vllm", "sglang") for place in (0, -1)
}
SHORT = {
    *((*one, 1) for one in ENDS),
    *((engine, ENGINES[engine].newest, 8) for engine in ("vllm", "sglang")),
}
CASES = [
    pytest.param(*one, ranks, marks=() if (*one, ranks) in SHORT else pytest.mark.e2e)
    for one in VERSIONS
    for ranks in (1, 8)
]
"""The short test command has the ends of the versions, and the newest with ranks, whose figures add
up by version."""
WITHOUT_RATE = ("0.4.3.post2", "0.5.3")


def command(engine: str, ranks: int) -> list[str]:
    """A server with MTP and so many ranks of attention data parallelism."""
    if engine == "vllm":
        layout = (
            ["-tp", "8"]
            if ranks == 1
            else ["-tp", "1", "-dp", str(ranks), "--enable-expert-parallel"]
        )
        drafts = json.dumps({"method": "deepseek_mtp", "num_speculative_tokens": TOKENS})
        return [
            "vllm",
            "serve",
            R1,
            *layout,
            "--max-model-len",
            "32768",
            "--speculative-config",
            drafts,
        ]
    layout = (
        ["--tp", "8"] if ranks == 1 else ["--tp", "8", "--dp", str(ranks), "--enable-dp-attention"]
    )
    drafted = ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", str(TOKENS)]
    drafted += ["--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(TOKENS + 1)]
    start = ["python3", "-m", "sglang.launch_server", "--model-path", R1, "--enable-metrics"]
    return [*start, *layout, *drafted, "--max-running-requests", "256"]


def told_and_seen(
    engine: str, version: str, ranks: int, servers: int, known: str | None
) -> tuple[Metrics, Metrics]:
    """The acceptance of a second load by the servers' pages, and by the client: each step is an
    event of its tokens.

    Versions that can be forced to an acceptance are.
    """
    options, kind, words = ("--engine-version", version), engine_of(engine), command(engine, ranks)
    if kind.switch(version) is not None:
        words = kind.with_forced_acceptance(Command(tuple(words)), version, FORCED).typed()
    with ExitStack() as running:
        urls = [running.enter_context(serving(*words, options=options)).url for _ in range(servers)]
        client = running.enter_context(ServerClient(Target.parse(",".join(urls))))
        drafts = DraftReader(client, [ENGINES[engine]] if known else ENGINES.values(), known)
        load = load_workload("random:64:240:64").with_concurrency(32)
        for seed in (1, 2):
            measured = measure(
                ",".join(urls), R1, load, seed, LoadOptions(drafts=drafts, warm_up=False, workers=1)
            )
            assert not measured.failure
    log = measured.points[0].log
    tokens, events = log.records.output_tokens.sum(), log.chunks.sum()
    steps = events - len(log)  # the first event is the prefill's
    seen = {
        "spec_decode_acceptance_length": (tokens - len(log)) / steps,
        "spec_decode_acceptance_rate": 100 * (tokens - events) / (TOKENS * steps),
    }
    return {name: value for name, value in measured.metrics.items() if name in seen}, seen


@pytest.mark.parametrize(("engine", "version", "ranks"), CASES)
def test_the_acceptance_told_is_that_of_the_tokens_seen(
    engine: str, version: str, ranks: int
) -> None:
    told, seen = told_and_seen(engine, version, ranks, 1, version)
    if version in WITHOUT_RATE:
        del seen["spec_decode_acceptance_rate"]
    # Where the engine counts what it accepted beyond the end of an answer, a step of a hundred
    # does.
    exact = engine == "sglang" and version == "0.5.23"
    assert told == pytest.approx(seen, rel=1e-9 if exact else 0.015)
    expected = FORCED if engine_of(engine).switch(version) is not None else UNFORCED
    assert seen["spec_decode_acceptance_length"] == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("engine", "version"),
    [
        ("vllm", "0.33.0"),
        pytest.param("sglang", "0.5.6.post2", marks=pytest.mark.e2e),
        ("sglang", "0.5.23"),
    ],
)
def test_of_two_servers_it_is_that_of_one(engine: str, version: str) -> None:
    told, seen = told_and_seen(engine, version, 1, 2, version)
    assert told == pytest.approx(seen, rel=0.015)


def test_a_rate_whose_meaning_is_not_known_is_not_told() -> None:
    told, seen = told_and_seen("sglang", "0.5.6.post2", 8, 1, None)
    del seen["spec_decode_acceptance_rate"]
    assert told == pytest.approx(seen, rel=0.015)
