"""An option of a knob that is passed through pins the knob."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from autotune.engines.command import Configuration
from autotune.engines.context import Context, effective
from autotune.engines.engine import Engine
from autotune.engines.kept import Kept
from autotune.engines.library import load
from autotune.engines.schema import EngineCard
from autotune.engines.space import CONTRADICTS, passed_through
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import Prepared, prepare
from autotune.tuner.study.home import library_for
from autotune.tuner.study.options import RunOptions
from tests.tuner.prepare.settings import LIBRARY, RUN, prepared, said

SMALL = replace(RUN, space=None, model="Qwen/Qwen3-8B", gpus=1)


def passing(request: RunOptions, name: str, text: str) -> Prepared:
    return prepared(replace(request, engines=[name], engine_args=[f"{name}={text}"]))


def values(found: Prepared, knob: str) -> set[object]:
    return {one.configuration.knobs[knob] for one in found.candidates.items}


@pytest.mark.parametrize(
    ("name", "text", "pins"),
    [
        ("vllm", "--max-num-seqs 8", {"max_running_requests": 8}),
        ("vllm", "--max_num_seqs=8", {"max_running_requests": 8}),
        ("vllm", "--max-num-se 8 --seed 1", {"max_running_requests": 8}),
        ("vllm", "-O0", {"torch_compile": False}),
        ("vllm", "-dp 1", {"data_parallel": 1}),
        ("vllm", "--kv-cache-dtype auto", {"kv_cache_dtype": "bfloat16"}),
        (
            "vllm",
            "--no-enforce-eager --no-enable-prefix-caching",
            {"prefix_caching": False, "enforce_eager": False},
        ),
        ("vllm", "--compilation-config '{\"mode\": 0}'", {"torch_compile": False}),
        ("sglang", "--cuda-graph-max-bs-decode 16", {"cuda_graph_max_batch": 16}),
        ("sglang", "--disable-cuda-graph", {"cuda_graph_max_batch": 0}),
        ("sglang", "SGLANG_ENABLE_JIT_DEEPGEMM=1 --enable-metrics", {"deep_gemm": True}),
        ("tensorrt_llm", "--max_batch_size 8", {"max_running_requests": 8}),
        ("tensorrt_llm", "--max_batch_size=2048", {"max_running_requests": 2048}),
        ("vllm", "--seed 3 --trust-remote-code", {}),
    ],
)
def test_any_spelling_of_an_option_pins_its_knob_to_what_the_engine_reads(
    name: str, text: str, pins: dict[str, object]
) -> None:
    found = passing(SMALL, name, text)
    assert found.spaces[name].pins == pins
    for knob, value in pins.items():
        # A knob without effect beside another one keeps its default.
        assert value in values(found, knob)
        assert len(values(found, knob)) <= 2
    notes = [note for note in found.spec.notes if note.startswith(f"--engine-arg {name}=")]
    assert len(notes) == bool(pins)
    assert all(f"{knob}={value}" in notes[0] for knob, value in pins.items())


def test_what_is_passed_through_stands_once_in_every_command() -> None:
    found = passing(SMALL, "vllm", "VLLM_LOGGING_LEVEL=DEBUG --max-num-seqs 8 --seed 3")
    assert len(found.candidates.items) > 1
    for one in found.candidates.items:
        command = found.command_of(one)
        assert command.argv[-4:] == ("--max-num-seqs", "8", "--seed", "3")
        assert command.argv.count("--max-num-seqs") == 1
        assert command.env["VLLM_LOGGING_LEVEL"] == "DEBUG"


@pytest.mark.parametrize(
    ("name", "text", "pins"),
    [
        ("vllm", "--enable-expert-parallel", {"expert_parallel": 8}),
        (
            "vllm",
            '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 2}\'',
            {"speculative_tokens": 2},
        ),
        (
            "sglang",
            "--tp 8 --dp 8 --enable-dp-attention",
            {"tensor_parallel": 1, "data_parallel": 8},
        ),
        ("sglang", "--tp-size 8", {"tensor_parallel": 8}),
        ("sglang", "--dp-size 8", {"data_parallel": 8}),
        ("sglang", "--speculative-algorithm EAGLE", {"speculative_tokens": 3}),
        ("sglang", "--enable-dp-attention", {}),
        ("sglang", "--speculative-num-steps 2", {}),
    ],
)
def test_an_option_that_decides_a_knob_beside_others(
    name: str, text: str, pins: dict[str, object]
) -> None:
    """The engine makes of every command what the candidate says."""
    found = passing(RUN, name, text)
    space = found.spaces[name]
    assert space.pins == pins
    for candidate in found.candidates.items:
        parsed = space.engine.parse(found.command_of(candidate), candidate.engine_version)
        runs = effective(space.card, space.engine.knobs(parsed, space.context), space.context)
        # The space file spells the model's own context out, which is the default.
        assert runs.with_knobs(context_length=None) == candidate.configuration.with_knobs(
            context_length=None
        )


def test_what_contradicts_an_option_that_sets_no_knob_alone_is_left_out() -> None:
    """Without --speculative-algorithm the steps mean nothing, and with another number they would
    override it."""
    asked = replace(
        RUN,
        space=None,
        model="deepseek-ai/DeepSeek-V3.2",
        pins=["context_length=auto", "kv_cache_dtype=auto"],
    )
    found = passing(asked, "sglang", "--speculative-num-steps 2")
    assert values(found, "speculative_tokens") <= {0, 2}
    assert found.spaces["sglang"].space.removed[CONTRADICTS] > 0


@pytest.mark.parametrize("pinned", ["16", "auto"])
def test_a_pin_that_says_otherwise_is_refused_by_both_names(pinned: str) -> None:
    asked = replace(SMALL, engines=["vllm"], pins=[f"max_running_requests={pinned}"])
    message = said(replace(asked, engine_args=["vllm=--max-num-seqs 8"]))
    assert "--engine-arg vllm='--max-num-seqs 8'" in message
    assert "--set max_running_requests=" in message
    assert prepared(
        replace(asked, pins=["max_running_requests=8"], engine_args=["vllm=--max-num-seqs 8"])
    )


def test_a_value_that_the_knob_cannot_have_is_refused() -> None:
    assert "memory_fraction=2" in said(
        replace(SMALL, engines=["vllm"], engine_args=["vllm=--gpu-memory-utilization 2"])
    )


def test_a_config_file_s_keys_stand_in_every_candidate_s_file(tmp_path: Path) -> None:
    """TensorRT-LLM reads one file, which has the settings of both; the given one is not needed
    later."""
    file, flag = tmp_path / "own.yaml", "--extra_llm_api_options"
    own = {"stream_interval": 20, "moe_config": {}, "max_batch_size": 32}
    given = {**own, "kv_cache_config": {"dtype": "fp8", "enable_partial_reuse": False}}
    file.write_text(yaml.safe_dump(given))
    asked = replace(SMALL, engines=["tensorrt_llm"], engine_args=[f"tensorrt_llm={flag} {file}"])
    spec = build_spec(asked)
    earlier = prepare(spec.with_fields(passed_files={}), library_for(None))
    typed = "trtllm-serve Qwen/Qwen3-8B --config base.yaml"
    (tmp_path / "base.yaml").write_text("stream_interval: 5\nkv_cache_config: {dtype: auto}\n")
    mine = prepared(replace(asked, baseline=typed.replace("base", f"{tmp_path}/base")))
    file.unlink()
    assert all(str(file) in earlier.command_of(one).argv for one in earlier.candidates.items), (
        "a study of before goes on as it began"
    )
    assert yaml.safe_load(
        mine.command_of(mine.candidates.items[0]).files["trtllm-config.yaml"]
    ) == {
        **given,
        "stream_interval": 5,
        "kv_cache_config": {"dtype": "auto", "enable_partial_reuse": False},
    }, "the baseline's own keys win"
    found = prepare(spec, library_for(None))
    space = found.spaces["tensorrt_llm"]
    pins = {"kv_cache_dtype": "fp8", "max_running_requests": 32, "stream_interval": 20}
    assert space.pins == pins
    for one in found.candidates.items:
        command = found.command_of(one)
        (text,) = command.files.values()
        document = yaml.safe_load(text)
        assert {**document, **own} == document
        assert document["kv_cache_config"].items() >= given["kv_cache_config"].items()
        read = space.engine.knobs(space.engine.parse(command, one.engine_version), space.context)
        assert effective(space.card, read, space.context) == one.configuration
    assert all(len(values(found, knob)) > 1 for knob in ("memory_fraction", "cuda_graph_max_batch"))


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_options_of_a_config_file_stand_in_every_command(name: str, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "chunked-prefill-size: 4096\nmax-num-batched-tokens: 4096\nstream-interval: 10\n"
    )
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[name == "vllm"], lines[2]]))
    spec = build_spec(replace(SMALL, engines=[name], engine_args=[f"{name}=--config {file}"]))
    file.unlink()
    found = prepare(spec, library_for(None))
    assert found.spaces[name].pins == {"max_batched_tokens": 4096, "stream_interval": 10}
    for one in found.candidates.items:
        words = " ".join(found.command_of(one).argv)
        assert "4096 --stream-interval 10" in words
        assert "--config" not in words


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt_llm"])
def test_a_config_file_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    for text, words in ((None, "cannot be read"), ("[1]", "not a mapping"), ("a: [", "not YAML")):
        if text is not None:
            file.write_text(text)
        message = said(replace(SMALL, engines=[name], engine_args=[f"{name}=--config {file}"]))
        assert message.startswith(f"--engine-arg '{name}=")
        assert words in message


def test_an_option_of_a_version_without_a_table_is_passed_through() -> None:
    found = prepared(
        replace(
            SMALL, engines=["vllm==0.40.0"], engine_args=["vllm=--of-tomorrow 3 --max-num-seqs 8"]
        )
    )
    assert found.spaces["vllm"].pins == {"max_running_requests": 8}
    assert found.command_of(found.candidates.items[0]).argv[-4:] == (
        "--of-tomorrow",
        "3",
        "--max-num-seqs",
        "8",
    )


def test_an_engine_from_a_package_has_its_options_read_too() -> None:
    """llama-server's context is that of all slots together: the one of a slot follows from two
    options."""
    folder = Path(__file__).resolve().parents[3] / "examples" / "llama_server"
    kind = Engine(load(folder / "autotune_llama_server" / "llama_server.yaml", EngineCard))
    model, node = LIBRARY.model("Qwen/Qwen3-8B"), LIBRARY.node("h200")
    context = Context(model, node, 1, kind.version())
    assert passed_through(kind, context, "-np=4 --no-cache-prompt", {}, Kept(), {}).pins == {
        "max_running_requests": 4,
        "prefix_caching": False,
    }
    passed = passed_through(kind, context, "-c 8192", {"max_running_requests": 4}, Kept(), {})
    assert passed.pins == {"context_length": 2048}
    four = Configuration(
        kind.name, kind.default_knobs(context, {**passed.pins, "max_running_requests": 4})
    )
    assert not passed.contradicts(kind, four, context)
    assert passed.contradicts(kind, four.with_knobs(max_running_requests=8), context)
