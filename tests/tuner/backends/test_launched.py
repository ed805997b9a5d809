"""The launched evaluator on its own: a trial in, a result out, with timeouts shorter than a
product's."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from autotune.base.errors import BadInput
from autotune.base.evidence import Evidence
from autotune.engines.command import Command, Configuration, Scalar
from autotune.engines.context import Context
from autotune.engines.failure import FailureKind
from autotune.engines.library import Library, packaged, read_document
from autotune.engines.registry import engine
from autotune.load.metrics.formulas import Slo
from autotune.servers import ShutdownTimeouts, StartupTimeouts
from autotune.servers.watchdog import END_BYTES
from autotune.tuner.backends.read_back import ReportedSettings, compare_reported
from autotune.tuner.backends.servers import ServerEvaluator
from autotune.tuner.study.spec import EngineChoice, StudySpec
from autotune.tuner.trial import Role, State, Trial
from tests.processes import alive, until
from tests.request_files import read_requests
from tests.servers.settings import alive_with

LIBRARY = Library()
NO_OPS = Library(files=(Path(__file__).parents[3] / "examples" / "no-op-space.yaml",))
SOURCES = ("GET /server_info", "the startup log")
SPEC = StudySpec(
    study="s",
    model=LIBRARY.model("deepseek-ai/DeepSeek-V3.2"),
    hardware=LIBRARY.node("h200"),
    gpus=8,
    engines=(EngineChoice(name="vllm", version="0.32.0"),),
    workloads=("random:64:8:16",),
    on="emulator",
)


def trial(name: str, library: Library = LIBRARY, **knobs: Scalar) -> Trial:
    kind = engine(name, library)
    context = Context(SPEC.model, SPEC.hardware, 8, kind.version(None))
    configuration = Configuration(name, kind.default_knobs(context, knobs))
    command = kind.command(configuration, context)
    return Trial(0, Role.BASELINE, configuration, kind.version(None), command, SPEC.workloads)


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt_llm"])
def test_each_engine_is_launched_loaded_and_stopped(tmp_path: Path, name: str) -> None:
    result = ServerEvaluator(SPEC, LIBRARY, tmp_path)(trial(name))
    assert (result.state, result.failure, result.evidence) == (
        State.COMPLETE,
        None,
        Evidence.EMULATED,
    )
    metrics = result.metrics["random:64:8:16"]
    assert (metrics["completed"], metrics["total_output_tokens"]) == (16, 128)
    assert set(result.times_s) == {"launch", "ready", "warmup", "load", "stop"}
    assert result.times_s["warmup"] > 0
    assert until(lambda: not any(map(alive, result.pids)))
    # What the engine says of itself is what was asked for; what it was left to choose, it tells.
    assert result.resolved is not None
    assert {asked for asked, _ in result.resolved.differs.values()} <= {None}
    assert result.resolved.source in (
        "GET /server_info?config_format=json and the startup log",
        *SOURCES,
    )
    kept = json.loads((tmp_path / "trials" / "0000" / "resolved.json").read_text())
    assert kept["fingerprint"] == result.resolved.fingerprint
    assert kept["told"]["tensor_parallel"] == 8
    # No engine knows how many servers there are. vLLM tells its front ends and its performance mode
    # only where they were asked for; so does TensorRT-LLM its balance of attention replicas. What
    # is a variable is told by no settings.
    silent = {"replicas", "api_server_count", "performance_mode", "attention_dp_balance"}
    silent |= {"aiter_unified_attention", "honor_memory_fraction", "quick_reduce", "deep_gemm"}
    silent |= {"server_garbage_collection", "worker_garbage_collection"}
    silent |= {"programmatic_dependent_launch"}
    # Settings of which nothing is emulated: real engines tell them (test_host_knobs.py, conformance).
    silent |= {"draft_model", "draft_method", "draft_schedule", "host_cache_gb"}
    silent |= {"flashinfer_all_reduce", "monokernel", "rust_frontend"}
    assert len(kept["told"]) >= len(kept["config"].keys() - silent) - 2
    assert kept["sources"][0]["settings"]


def test_one_warm_server_answers_the_whole_ladder(tmp_path: Path) -> None:
    strict = SPEC.model_copy(update={"goodput": {"ttft": 0.001}, "slos": ()})
    result = ServerEvaluator(strict, LIBRARY, tmp_path)(replace(trial("vllm"), rungs=(4, 8)))
    assert (result.state, result.failure) == (State.COMPLETE, None)
    metrics = result.metrics["random:64:8:16"]
    assert [
        (row["concurrency"], row["completed"], row["max_concurrent_requests"] <= 16)
        for row in metrics["curve"]
    ] == [
        (4, 16, True),
        (8, 16, True),
    ]
    assert [row["request_goodput"] for row in (metrics, *metrics["curve"])] == [0, 0, 0]
    kept = json.loads((tmp_path / "trials" / "0000" / "random-64-8-16-ladder-c4.json").read_text())
    assert kept["points"][0]["load"] == "4 at a time"


def test_the_cap_under_speculation_is_caught(tmp_path: Path) -> None:
    asked = trial("sglang", NO_OPS, speculative_tokens=1)
    assert asked.configuration.knobs["max_running_requests"] is None
    result = ServerEvaluator(SPEC, NO_OPS, tmp_path)(asked)
    assert result.resolved is not None
    assert result.resolved.differs == {"max_running_requests": (None, 48)}
    explicit = asked.configuration.with_knobs(max_running_requests=48)
    assert result.resolved.fingerprint == explicit.fingerprint


def test_an_ignored_variable_is_caught(tmp_path: Path) -> None:
    """A space whose author still believes in VLLM_ATTENTION_BACKEND; a leftover of an earlier
    launch in the log."""
    space = read_document(packaged("engines", "vllm"))
    space["knobs"]["attention_backend"].update(
        emit=[{"env": {"VLLM_ATTENTION_BACKEND": "{attention_backend}"}}],
        read="env.VLLM_ATTENTION_BACKEND or args.attention_backend",
    )
    (tmp_path / "vllm.yaml").write_text(yaml.safe_dump(space, sort_keys=False))
    library = Library(files=(tmp_path / "vllm.yaml",))
    asked = trial("vllm", library, attention_backend="FLASHMLA_SPARSE")
    assert asked.command.env == {"VLLM_ATTENTION_BACKEND": "FLASHMLA_SPARSE"}
    folder = tmp_path / "trials" / "0000"
    folder.mkdir(parents=True)
    (folder / "server.log").write_text(
        "Using FLASHMLA_SPARSE attention backend out of potential backends: [].\n"
    )
    result = ServerEvaluator(SPEC, library, tmp_path)(asked)
    assert result.resolved is not None
    assert result.resolved.differs == {
        "attention_backend": ("FLASHMLA_SPARSE", "FLASH_ATTN_MLA_SPARSE")
    }
    assert result.resolved.notes["attention_backend"] == (
        "`VLLM_ATTENTION_BACKEND=FLASHMLA_SPARSE` had no effect: vLLM ran with "
        "`attention_backend=FLASH_ATTN_MLA_SPARSE`"
    )


def test_what_is_kept_of_an_answer_holds_no_secret_and_needs_its_study(tmp_path: Path) -> None:
    asked, kind = trial("vllm"), engine("vllm", LIBRARY)
    context = Context(SPEC.model, SPEC.hardware, 8, kind.version(None))
    said = [
        ReportedSettings(
            "args",
            "GET /server_info",
            {"served_model_name": ["by my-very-own"], "tensor_parallel_size": 8},
        )
    ]
    folder = tmp_path / "study" / "trials" / "0000"
    (tmp_path / "study").mkdir()
    compare_reported(kind, asked, context, said, folder, {"my-very-own"})
    assert '"by REDACTED"' in (folder / "resolved.json").read_text()
    shutil.rmtree(tmp_path / "study")
    with pytest.raises(FileNotFoundError):
        compare_reported(kind, asked, context, said, folder)
    assert not (tmp_path / "study").exists()


def test_silence_at_start_is_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_EMULATE_FAULT", "hang-at-start")
    evaluate = ServerEvaluator(
        SPEC,
        LIBRARY,
        tmp_path,
        startup=StartupTimeouts(total_s=60, silence_s=2),
        shutdown=ShutdownTimeouts(1, 5),
    )
    result = evaluate(trial("vllm"))
    assert result.state is State.FAILED
    assert result.failure is not None
    assert result.failure.kind is FailureKind.TIMEOUT
    assert until(lambda: not any(map(alive, result.pids)))


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("die-at-start", FailureKind.CRASHED),
        # Sending 1000 requests takes many times 50 ms, of which a quarter is answered with 503.
        ("unavailable-bursts:0.05", FailureKind.LOAD_ERRORS),
        ("close-mid-stream", FailureKind.LOAD_ERRORS),
        ("ignore-sigterm", None),
        ("fork-away", None),
        ("flood:200", None),
    ],
)
def test_each_fault_has_its_kind_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, kind: FailureKind | None
) -> None:
    monkeypatch.setenv("AUTOTUNE_EMULATE_FAULT", fault)
    monkeypatch.setenv("LAUNCH_TEST", str(tmp_path))
    workload = "random:64:8:16" if kind is None else "random:64:4:1000"
    evaluate = ServerEvaluator(SPEC, LIBRARY, tmp_path, shutdown=ShutdownTimeouts(2.0, 10.0))
    result = evaluate(replace(trial("vllm"), workloads=(workload,)))
    assert result.state is (State.COMPLETE if kind is None else State.FAILED)
    assert (result.failure and result.failure.kind) == kind
    assert result.failure is None or result.failure.message
    assert (tmp_path / "trials" / "0000" / "server.log").stat().st_size < 2 * END_BYTES + 200
    assert alive_with(f"LAUNCH_TEST={tmp_path}") == []


def test_a_second_workload_meets_a_warm_server_and_new_prompts(tmp_path: Path) -> None:
    asked = replace(trial("vllm"), workloads=("random:64:8:16", "random:128:4:8"))
    result = ServerEvaluator(SPEC, LIBRARY, tmp_path)(asked)
    assert result.state is State.COMPLETE
    assert list(result.metrics) == ["random:64:8:16", "random:128:4:8"]
    folder = tmp_path / "trials" / "0000"
    assert {path.name for path in folder.glob("random*.json")} == {
        "random-64-8-16.json",
        "random-128-4-8.json",
    }
    kept = json.loads((folder / "random-64-8-16.json").read_text())
    assert (kept["workload"], kept["evidence"], kept["completed"]) == (
        "random:64:8:16",
        "emulated",
        16,
    )
    requests = read_requests(folder / kept["requests_file"])
    assert requests.columns["output_tokens"].tolist() == [8] * 16
    assert requests.metadata["evidence"] == "emulated"


def test_out_of_memory_is_told_from_the_log(tmp_path: Path) -> None:
    base = trial("vllm")
    argv = ("vllm", "serve", "deepseek-ai/DeepSeek-V3.2", "-dp", "8", "--enable-expert-parallel")
    argv += ("--gpu-memory-utilization", "0.83")
    result = ServerEvaluator(SPEC, LIBRARY, tmp_path)(replace(base, command=Command(argv)))
    assert result.failure is not None
    assert result.failure.kind is FailureKind.OUT_OF_MEMORY
    assert "max seq len" in result.failure.log_excerpt


def test_a_missing_program_is_bad_input(tmp_path: Path) -> None:
    process = SPEC.model_copy(update={"on": "process"})
    missing = replace(trial("vllm"), command=Command(("no-such-engine", "serve", "m")))
    with pytest.raises(BadInput, match="not on the PATH"):
        ServerEvaluator(process, LIBRARY, tmp_path)(missing)


def test_a_folder_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "trials").write_text("a file where a folder should be")
    with pytest.raises(BadInput, match="is not writable"):
        ServerEvaluator(SPEC, LIBRARY, tmp_path)(trial("vllm"))


def test_a_server_that_dies_of_an_overload_keeps_what_it_carried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 3500 tokens 2000 are those of the loads up to 32 in flight."""
    monkeypatch.setenv("AUTOTUNE_EMULATE_FAULT", "die-mid-load:3500")
    slos = (Slo.parse("p90_ttft_ms<=60000"),)
    spec = SPEC.model_copy(
        update={"find_load": "concurrency", "slos": slos, "workloads": ("random:64:8",)}
    )
    evaluate = ServerEvaluator(spec, LIBRARY, tmp_path, shutdown=ShutdownTimeouts(2.0, 10.0))
    result = evaluate(replace(trial("vllm"), workloads=spec.workloads))
    assert (result.state, result.failure) == (State.COMPLETE, None)
    metrics = result.metrics["random:64:8"]
    assert metrics["capacity_concurrency"] >= 32
    assert (
        metrics["capacity_died_at"]
        == metrics["capacity_broken_at"]
        > metrics["capacity_concurrency"]
    )
    # What is asked of it after its death it cannot answer.
    second = replace(trial("vllm"), workloads=(*spec.workloads, "random:64:8:16"))
    assert evaluate(second).state is State.FAILED
