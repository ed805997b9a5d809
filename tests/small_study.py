"""A study made by hand, small enough to check every figure of its report by eye.

Nine launches of DeepSeek-V3.2 on 8×H200: the vLLM baseline, a failed start, a search on SGLang, an
invalid measurement and interleaved finals.
"""

from __future__ import annotations

from typing import Any

from autotune.base.evidence import Evidence
from autotune.engines.cards import Architecture, HardwareCard, ModelCard
from autotune.engines.command import Command, Configuration
from autotune.engines.failure import Failure, FailureKind
from autotune.engines.promises import GivenUp
from autotune.load.metrics.formulas import Slo
from autotune.load.metrics.table import Metrics
from autotune.outputs.report.sentences import paragraphs
from autotune.tuner.study.recommendation import (
    Alternative,
    Choice,
    Contribution,
    Exclusion,
    NoEffect,
    Objective,
    Recommendation,
    Verdict,
    WorkloadComparison,
)
from autotune.tuner.study.spec import EngineChoice, StudySpec
from autotune.tuner.trial import Launch, Role, State, Trial, TrialResult

MODEL = "deepseek-ai/DeepSeek-V3.2"
SECRET = "hf_AbCdEf0123456789AbCdEf0123456789"

VLLM_KNOBS = {
    "tensor_parallel": 8,
    "data_parallel": 1,
    "kv_cache_dtype": "auto",
    "memory_fraction": 0.9,
}
SGLANG_KNOBS = {
    "tensor_parallel": 8,
    "data_parallel": 1,
    "kv_cache_dtype": "auto",
    "memory_fraction": None,
}
WINNER = Configuration("sglang", {**SGLANG_KNOBS, "tensor_parallel": 1, "data_parallel": 8})
BASELINE = Configuration("vllm", VLLM_KNOBS)
DEFAULT = Configuration("sglang", SGLANG_KNOBS)
TOO_BIG = Configuration("vllm", {**VLLM_KNOBS, "tensor_parallel": 1, "data_parallel": 8})

COMMANDS = {
    BASELINE: Command(
        ("vllm", "serve", MODEL, "--tensor-parallel-size", "8", "--host", "127.0.0.1")
    ),
    TOO_BIG: Command(
        (
            "vllm",
            "serve",
            MODEL,
            "--data-parallel-size",
            "8",
            "--enable-expert-parallel",
            "--gpu-memory-utilization=0.8",
        )
    ),
    DEFAULT: Command(
        ("python3", "-m", "sglang.launch_server", "--model-path", MODEL, "--tp-size", "8")
    ),
    WINNER: Command(
        (
            *(
                "python3",
                "-m",
                "sglang.launch_server",
                "--model-path",
                MODEL,
                "--tp-size",
                "8",
                "--dp-size",
                "8",
            ),
            *(
                "--enable-dp-attention",
                "--chat-template",
                "./chat template.jinja",
                "--host",
                "127.0.0.1",
            ),
        ),
        {"SGLANG_ENABLE_JIT_DEEPGEMM": "1"},
    ),
}
HARDWARE = HardwareCard(
    name="h200",
    vendor="nvidia",
    generation="hopper",
    gpus=8,
    memory_gb=141,
    bandwidth_tb_s=4.8,
    bf16_tflops=989,
    fp8_tflops=1979,
    link_gb_s=900,
    achieved_bandwidth=0.75,
    achieved_flops=0.55,
    source="data sheet",
)
VERSIONS = {"vllm": "0.32.0", "sglang": "0.5.23", "tensorrt_llm": "1.2.1"}


def metrics(total: float, ttft: float = 5000.0, tpot: float = 200.0) -> Metrics:
    """Metrics of one load: total tokens/s, mean TTFT and TPOT in ms; the p99s are 3 and 2 times the
    means."""
    return {
        "duration": 60.0,
        "completed": 1000,
        "failed": 0,
        "total_input_tokens": 219_200,
        "total_output_tokens": 200_800,
        "request_throughput": total / 420,
        "output_throughput": total * 0.478,
        "total_token_throughput": total,
        "mean_ttft_ms": ttft,
        "p99_ttft_ms": 3 * ttft,
        "mean_tpot_ms": tpot,
        "p99_tpot_ms": 2 * tpot,
        "client_bound": False,
    }


def launch(
    number: int,
    role: Role,
    configuration: Configuration,
    outcome: dict[str, Metrics] | Failure,
    state: State | None = None,
    command: Command | None = None,
) -> Launch:
    """A finished launch; the outcome is the metrics per workload or a failure."""
    failure = outcome if isinstance(outcome, Failure) else None
    trial = Trial(
        number=number,
        role=role,
        configuration=configuration,
        engine_version=VERSIONS[configuration.engine],
        command=command or COMMANDS[configuration],
        workloads=("sharegpt", "random:4000:200:500"),
    )
    result = TrialResult(
        state=state or (State.FAILED if failure else State.COMPLETE),
        evidence=Evidence.SIMULATED,
        failure=failure,
        metrics={} if isinstance(outcome, Failure) else outcome,
        times_s={"launch": 3.0, "ready": 400.0, "load": 60.0, "stop": 5.0},
        gpus=8,
        node="node-0",
        started_at=f"2026-11-21T09:{number:02d}:00+00:00",
    )
    return Launch(trial, result)


def launches() -> list[Launch]:
    """The study's launches, in order."""
    both = {"sharegpt": metrics(6000.0), "random:4000:200:500": metrics(9000.0, 800.0, 245.0)}
    out_of_memory = Failure(
        FailureKind.OUT_OF_MEMORY,
        "Weights and KV cache do not fit: 171 GB asked of 141 GB per GPU.",
        "torch.OutOfMemoryError: CUDA out of memory. | Tried to allocate <30.00 GiB>",
    )
    return [
        launch(0, Role.BASELINE, BASELINE, both),
        launch(1, Role.DEFAULT, DEFAULT, {"sharegpt": metrics(7000.0)}),
        launch(2, Role.START, TOO_BIG, out_of_memory),
        launch(3, Role.SEARCH, WINNER, {"sharegpt": metrics(9100.0, 2500.0, 150.0)}),
        launch(
            4,
            Role.SEARCH,
            DEFAULT.with_knobs(kv_cache_dtype="bfloat16"),
            {},
            State.INVALID,
            COMMANDS[DEFAULT],
        ),
        launch(5, Role.FINAL, WINNER, {"sharegpt": metrics(9000.0, 2500.0, 150.0)}),
        launch(6, Role.FINAL, BASELINE, {"sharegpt": metrics(6100.0)}),
        launch(7, Role.FINAL, WINNER, {"sharegpt": metrics(9200.0, 2400.0, 150.0)}),
        launch(8, Role.FINAL, BASELINE, {"sharegpt": metrics(5900.0)}),
    ]


def choice(configuration: Configuration, value: float, command: Command | None = None) -> Choice:
    """A measured configuration; the interval is ± 2 %."""
    command = command or COMMANDS[configuration]
    return Choice(
        engine=configuration.engine,
        engine_version=VERSIONS[configuration.engine],
        config=dict(configuration.knobs),
        fingerprint=configuration.fingerprint,
        argv=list(command.argv),
        env=dict(command.env),
        files=dict(command.files),
        command=command.shell(),
        objective=Objective(
            metric="total_token_throughput",
            workload="sharegpt",
            value=value,
            ci95=(value * 0.98, value * 1.02),
            repeats=2,
        ),
    )


def recommendation(**changes: Any) -> Recommendation:
    """What the study ends with."""
    outcome = Recommendation(
        study="small",
        model=MODEL,
        hardware="h200",
        gpus=8,
        evidence=Evidence.SIMULATED,
        verdict=Verdict.BETTER,
        stop_reason="budget: 9 of 9 launches used",
        recommended=choice(WINNER, 9100.0),
        baseline=choice(BASELINE, 6000.0),
        gain_percent=51.7,
        gain_ci95=(47.2, 56.1),
        workloads={
            "sharegpt": WorkloadComparison(
                baseline=metrics(6000.0),
                recommended=metrics(9100.0, 2450.0, 150.0),
                gain_percent=51.7,
            ),
            "random:4000:200:500": WorkloadComparison(
                baseline=metrics(9000.0, 800.0, 245.0), recommended=None, gain_percent=None
            ),
        },
        contributions=[
            Contribution(
                knob="memory_fraction",
                from_=None,
                to=0.85,
                gain_percent=None,
                ci95=None,
                needed_to="start",
                measured_on="launch 3 without it: out_of_memory",
            ),
            Contribution(
                knob="data_parallel+tensor_parallel",
                from_="1 + 8",
                to="8 + 1",
                gain_percent=30.0,
                ci95=(25.0, 35.0),
                odds=0.999,
                measured_on="the model of all launches (1 without it)",
            ),
            Contribution(
                knob="engine",
                from_="vllm",
                to="sglang",
                gain_percent=16.7,
                ci95=(12.0, 21.0),
                odds=0.99,
                measured_on="against the baseline: fresh launches of both (2 and 3)",
            ),
        ],
        inert=[
            NoEffect(
                knob="--tool-call-parser",
                values=["deepseekv32"],
                reason="turns tool calls into API objects",
            ),
            NoEffect(knob="--enable-dp-attention", values=[True], reason="there is one replica"),
            NoEffect(
                knob="memory_fraction",
                values=[0.9, 0.8],
                reason="the engine reports 0.85 for both",
                launches=7,
            ),
        ],
        launches=9,
        trials=9,
        failures={"out_of_memory": 1},
        excluded=[
            Exclusion(engine="tensorrt_llm", reason="no known version serves this model on h200")
        ],
        duration_s=4212.0,
    )
    return outcome.model_copy(update=changes)


def giving_up() -> Recommendation:
    """The same study where the winner serves less context, with both intervals and the command that
    serves it all."""
    given = GivenUp(
        knob="context_length",
        from_=163840,
        to=16384,
        what="requests of more than 16384 tokens are refused",
        kind="shorter-context",
    )
    kept = Alternative(
        **choice(BASELINE, 8700.0).model_dump(),
        label="has no trade-off",
        gives_up=[],
        lead_percent=4.6,
        lead_ci95=(1.2, 8.1),
    )
    return recommendation(
        gives_up=[given], alternatives=[kept], gain_interval90_on_a_node=(-4.0, 160.0)
    )


def infeasible() -> Recommendation:
    """The same study when nothing kept the SLO."""
    nothing = dict.fromkeys(("recommended", "gain_percent", "gain_ci95"))
    return recommendation(verdict=Verdict.INFEASIBLE, workloads={}, contributions=[], **nothing)


def spec(**changes: Any) -> StudySpec:
    """What the study was asked."""
    architecture = Architecture(
        layers=61,
        hidden_size=7168,
        vocab_size=129280,
        heads=128,
        kv_heads=128,
        head_dim=192,
        intermediate_size=18432,
        context_limit=163840,
    )
    question = StudySpec(
        study="small",
        model=ModelCard(
            id=MODEL, family="deepseek_v32", architecture=architecture, source="config.json"
        ),
        hardware=HARDWARE,
        gpus=8,
        engines=(
            EngineChoice(name="vllm", version="0.32.0"),
            EngineChoice(name="sglang", version="0.5.23"),
        ),
        workloads=("sharegpt", "random:4000:200:500"),
        slos=(Slo.parse("p99_ttft_ms<=20000"),),
        pins={"prefix_caching": True},
        engine_args={"sglang": "--trust-remote-code"},
        launches=9,
        noise=0.03,
        seed=7,
    )
    return question.model_copy(update=changes)


def conclusion(outcome: Recommendation) -> str:
    """The conclusion of a report as one text."""
    return " ".join(paragraphs(outcome))
