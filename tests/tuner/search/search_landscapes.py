"""Small made-up nodes: candidates, a throughput that is a plain function of the knobs, and the loop
of a study."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from autotune.base.evidence import Evidence
from autotune.engines.cards import Architecture, ModelCard
from autotune.engines.command import Command, Configuration
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.engines.failure import Failure, FailureKind
from autotune.engines.library import Library
from autotune.load.metrics.formulas import Slo
from autotune.tuner.search.entry import Entry
from autotune.tuner.search.gp.kernels import Prior
from autotune.tuner.search.history import History
from autotune.tuner.search.study import Study
from autotune.tuner.study.spec import EngineChoice, StudySpec
from autotune.tuner.trial import Launch, Role, State, Trial, TrialResult
from tests import small_study

Throughput = Callable[[Configuration], float | None]
"""Tokens per second of a configuration, None where it runs out of memory."""

MODEL = ModelCard(
    id="example/tiny",
    family="tiny",
    architecture=Architecture(
        layers=2,
        hidden_size=64,
        vocab_size=100,
        heads=4,
        kv_heads=4,
        head_dim=16,
        intermediate_size=128,
        context_limit=4096,
    ),
    source="made up",
)
HARDWARE = small_study.HARDWARE.model_copy(update={"name": "toy"})


def make_spec(**changes: object) -> StudySpec:
    """A spec over the toy node; keywords replace fields."""
    fields: dict[str, object] = {
        "study": "toy",
        "model": MODEL,
        "hardware": HARDWARE,
        "gpus": 8,
        "engines": (
            EngineChoice(name="vllm", version="0.11"),
            EngineChoice(name="sglang", version="0.5.6"),
        ),
        "workloads": ("chat",),
        "launches": 30,
    }
    return StudySpec(**{**fields, **changes})  # type: ignore[arg-type]


def grid() -> CandidateSet:
    """288 + 144 configurations of two engines; the second has a knob that the first does not
    know."""
    items = []
    for tp, dp in ((8, 1), (4, 2), (2, 4), (1, 8), (4, 1), (2, 2)):
        for tokens, running, kv, graph in itertools.product(
            (2048, 4096, 8192, 16384), (64, 256, 1024), ("auto", "fp8"), (False, True)
        ):
            shared = {
                "tensor_parallel": tp,
                "data_parallel": dp,
                "max_batched_tokens": tokens,
                "max_running_requests": running,
                "kv_cache_dtype": kv,
            }
            items.append(
                Candidate(Configuration("vllm", {**shared, "torch_compile": graph}), "0.11")
            )
            if graph:
                items.append(
                    Candidate(Configuration("sglang", {**shared, "dp_attention": dp > 1}), "0.5.6")
                )
    baseline = _find(items, "vllm", 8, 1, 2048, 256, "auto")
    default = _find(items, "sglang", 8, 1, 8192, 256, "auto")
    starts = (
        _find(items, "sglang", 4, 2, 8192, 256, "auto"),
        _find(items, "vllm", 4, 2, 8192, 1024, "auto"),
    )
    return CandidateSet(
        tuple(items), baseline, (baseline, default), starts, Library().monotone_memory
    )


def small() -> CandidateSet:
    """24 configurations of one engine."""
    items = [
        Candidate(
            Configuration(
                "vllm",
                {
                    "tensor_parallel": 8 // dp,
                    "data_parallel": dp,
                    "max_batched_tokens": tokens,
                    "max_running_requests": running,
                    "kv_cache_dtype": kv,
                },
            ),
            "0.11",
        )
        for dp, tokens, running, kv in itertools.product(
            (1, 4, 8), (2048, 8192), (64, 1024), ("auto", "fp8")
        )
    ]
    return CandidateSet(tuple(items), 0, (0,), (9, 3), Library().monotone_memory)


def history_of(
    candidates: CandidateSet,
    scores: Mapping[int, float],
    pending: Sequence[int] = (),
    **changes: object,
) -> History:
    """A search whose launches of these positions were measured so, and others run."""
    entries = [
        Entry(n, Role.SEARCH, p, score, violations={})
        for n, (p, score) in enumerate(scores.items())
    ]
    running = [Entry(len(scores) + n, Role.SEARCH, p, pending=True) for n, p in enumerate(pending)]
    return History(make_spec(**changes), candidates, (*entries, *running))


def _find(
    items: list[Candidate], engine: str, tp: int, dp: int, tokens: int, running: int, kv: str
) -> int:
    for i, item in enumerate(items):
        k = item.configuration.knobs
        found = (
            item.configuration.engine,
            k["tensor_parallel"],
            k["data_parallel"],
            k["max_batched_tokens"],
        )
        if found == (engine, tp, dp, tokens) and (
            k["max_running_requests"],
            k["kv_cache_dtype"],
        ) == (running, kv):
            return i
    raise AssertionError


def ridge(configuration: Configuration) -> float:
    """Best at dp 4, 8192 tokens, 1024 requests, fp8, SGLang; effects multiply and layout and batch
    interact."""
    k = configuration.knobs
    dp, tokens, running = (
        float(k[n]) for n in ("data_parallel", "max_batched_tokens", "max_running_requests")
    )  # type: ignore[arg-type]
    score = math.log(1000) - 0.25 * (math.log2(dp) - 2) ** 2 - 0.08 * (math.log2(tokens) - 13) ** 2
    score += 0.15 * math.log2(running / 64) * (0.3 if dp == 1 else 0.6) + 0.1 * (
        k["kv_cache_dtype"] == "fp8"
    )
    score += 0.12 * (configuration.engine == "sglang") + 0.04 * bool(k.get("torch_compile"))
    return math.exp(score - 0.2 * (float(k["tensor_parallel"]) * dp < 8))  # type: ignore[arg-type]


def walled(configuration: Configuration) -> float | None:
    """The ridge, but everything with 1024 running requests and fp8 fails: the best lies behind the
    wall."""
    k = configuration.knobs
    return (
        None
        if k["max_running_requests"] == 1024 and k["kv_cache_dtype"] == "fp8"
        else ridge(configuration)
    )


def flat(configuration: Configuration) -> float:
    """Nothing matters."""
    return 1000.0


def best_of(candidates: CandidateSet, throughput: Throughput) -> float:
    return max(v for c in candidates.items if (v := throughput(c.configuration)) is not None)


def scores(candidates: CandidateSet, throughput: Throughput) -> np.ndarray:
    """Logarithms of the truth, for building priors."""
    values = [throughput(c.configuration) for c in candidates.items]
    return np.array([math.log(v) if v is not None else -math.inf for v in values])


def evaluate(spec: StudySpec, throughput: Throughput, trial: Trial) -> Launch:
    """One launch: log-normal noise fixed by seed, configuration and launch index; latency falls as
    speed rises."""
    value = throughput(trial.configuration)
    if value is None:
        failure = Failure(FailureKind.OUT_OF_MEMORY, "out of memory")
        return Launch(
            trial, TrialResult(State.FAILED, Evidence.SIMULATED, failure, times_s={"launch": 60.0})
        )
    seed = [spec.seed, int(trial.configuration.fingerprint, 16), trial.launch_index]
    value *= math.exp(spec.noise * float(np.random.default_rng(seed).standard_normal()))
    batch = float(trial.configuration.knobs.get("max_running_requests") or 1)  # type: ignore[arg-type]
    metrics = {
        "total_token_throughput": value,
        "mean_tpot_ms": 1000 * math.sqrt(batch) / value,
        "p99_e2el_ms": 1e6 / value,
    }
    return Launch(
        trial,
        TrialResult(
            State.COMPLETE,
            Evidence.SIMULATED,
            metrics={w: dict(metrics) for w in trial.workloads},
            times_s={"launch": 200.0, "load": 100.0},
        ),
    )


def command_of(candidate: Candidate) -> Command:
    flags = [f"--{name}={value}" for name, value in sorted(candidate.configuration.knobs.items())]
    return Command((candidate.configuration.engine, *flags))


def opened(
    folder: Path, spec: StudySpec, candidates: CandidateSet, prior: np.ndarray | None = None
) -> Study:
    priors = [] if prior is None else [Prior("made up", prior)]
    return Study(folder, spec, candidates, command_of, priors)


def play(
    study: Study, spec: StudySpec, throughput: Throughput, at_most: int = 10_000
) -> list[Launch]:
    """Ask, evaluate, tell, until the study ends or so many launches were made; the launches of the
    whole study."""
    for _ in range(at_most):
        trial = study.ask()
        if trial is None:
            break
        study.tell(evaluate(spec, throughput, trial))
    return list(study.launches)


@dataclass
class Cluster:
    """Nodes that each make one launch at a time, in virtual time; the launches end in any order.

    Attributes:
        nodes: those that are there; may be changed while a study runs.
        slow: node to the share by which it is slower, from the trial `slow_from` on.
        busy_s, now_s: all launches' seconds, and the time.
        most: the most launches that were under way at once in the finals.
    """

    nodes: list[str]
    slow: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    slow_from: int = 0
    busy_s: float = 0.0
    now_s: float = 0.0
    most: int = 0
    running: list[tuple[float, str, Trial]] = field(default_factory=list)

    @property
    def free(self) -> list[str]:
        """The nodes on which a trial could start now."""
        taken = {node for _, node, _ in self.running}
        return [node for node in self.nodes if node not in taken]

    def fill(self, study: Study) -> list[Trial]:
        """Start what the study asks for while there is room."""
        started = []
        while self.free and (trial := study.ask(self.free)) is not None:
            node = trial.node or self.free[-1]
            assert node in self.free
            took = 300.0 * math.exp(
                0.3 * float(np.random.default_rng([self.seed, trial.number]).standard_normal())
            )
            self.busy_s += took
            self.running.append((self.now_s + took, node, trial))
            started.append(trial)
        self.most = max(self.most, sum(trial.role is Role.FINAL for _, _, trial in self.running))
        return started

    def end_next(self, study: Study, spec: StudySpec, throughput: Throughput) -> None:
        """Wait for the next launch to end, and tell it."""
        self.running.sort(key=lambda row: row[0])
        self.now_s, node, trial = self.running.pop(0)
        share = 1 - self.slow.get(node, 0.0) * (trial.number >= self.slow_from)
        launch = evaluate(
            spec, lambda c: None if (v := throughput(c)) is None else share * v, trial
        )
        study.tell(Launch(trial, replace(launch.result, node=node)))

    def play(
        self, study: Study, spec: StudySpec, throughput: Throughput, at_most: int = 10_000
    ) -> list[Launch]:
        """As `play`, on these nodes."""
        for _ in range(at_most):
            self.fill(study)
            if not self.running:
                break
            self.end_next(study, spec, throughput)
        return list(study.launches)


def decisions(launches: list[Launch]) -> list[tuple[int, str, str]]:
    return [
        (x.trial.number, x.trial.role.value, x.trial.configuration.fingerprint) for x in launches
    ]


SLO_ON_TPOT = Slo.parse("mean_tpot_ms<=8")
