"""What the user's own command sets and no knob reads: kept, translated, dropped, or a reason to
exclude an engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.base.errors import BadInput
from autotune.engines.context import Context
from autotune.engines.engine import Engine
from autotune.engines.kept import counterparts_in, own_options, translated_for
from autotune.engines.registry import engine, split_command
from autotune.servers.command import absolute_paths
from autotune.tuner.prepare.candidates import Prepared
from autotune.tuner.prepare.own_options import own_options_of
from autotune.tuner.study.options import RunOptions
from tests.production_commands import COMMANDS, Production, with_files
from tests.tuner.prepare.settings import LIBRARY, RUN, prepared, said

SMALL = replace(RUN, space=None, model="Qwen/Qwen3-8B", hardware="h100", gpus=1)
CHAT = "vllm serve Qwen/Qwen3-8B --served-model-name chat --enable-lora"


def asked(command: str, **more: object) -> RunOptions:
    return replace(SMALL, baseline=command, **more)  # type: ignore[arg-type]


def reasons(found: Prepared) -> dict[str, str]:
    return {one.engine: one.reason for one in found.excluded}


@pytest.mark.parametrize(
    "one",
    [COMMANDS[0], *(pytest.param(one, marks=pytest.mark.e2e) for one in COMMANDS[1:])],
    ids=lambda one: one.name,
)
def test_a_command_in_production_is_kept_by_its_engine_and_translated_for_the_others(
    one: Production, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with_files(tmp_path)
    request = replace(
        RUN, space=None, model=one.model, hardware=one.hardware, gpus=one.gpus, baseline=one.command
    )
    found = prepared(request)
    assert set(found.kept) == set(one.carried), (
        "what is kept is known of every engine that is searched"
    )
    candidates = found.candidates.items[1:]
    for name, words in one.carried.items():
        commands = [found.command_of(c) for c in candidates if c.configuration.engine == name]
        assert commands
        for command in commands:
            assert words in " ".join(command.argv)
            assert command.argv.count("--host") <= 1, (
                "the engine's own default is not written beside it"
            )
        if typed_engine(one).name == name:
            recipes = {found.candidates.items[i] for i in found.candidates.recipes}
            mine = [c for c in candidates if c.configuration.engine == name and c not in recipes]
            for option in one.held:
                assert all(option in " ".join(found.command_of(c).argv) for c in mine)
    for name, options in one.excluded.items():
        assert f"'s {options} ha" in reasons(found)[name]
        assert "--drop" in reasons(found)[name]
    typed = split_command(one.command)
    assert found.command_of(found.candidates.items[0]).argv == typed.argv, (
        "the baseline is started as typed"
    )


def typed_engine(one: Production) -> Engine:
    names = ("vllm", "sglang", "tensorrt_llm")
    return next(
        kind
        for kind in map(engine, names)
        if kind.arguments(split_command(one.command).argv) is not None
    )


def test_keys_of_a_config_file_that_are_no_knobs_stand_in_every_candidate_s_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with_files(tmp_path)
    one = next(one for one in COMMANDS if one.name == "trtllm-file")
    found = prepared(
        replace(RUN, space=None, model=one.model, hardware="h100", gpus=4, baseline=one.command)
    )
    mine = [c for c in found.candidates.items[1:] if c.configuration.engine == "tensorrt_llm"]
    assert mine
    for candidate in mine:
        (text,) = found.command_of(candidate).files.values()
        document = yaml.safe_load(text)
        assert document["stream_interval"] == 10
        assert document["kv_cache_config"]["enable_partial_reuse"] is False
        assert (
            document["kv_cache_config"].get("dtype", "auto")
            == candidate.configuration.knobs["kv_cache_dtype"]
        )
        assert found.command_of(candidate).env["TRTLLM_ENABLE_PDL"] == "1"


def test_an_option_of_the_config_file_that_the_command_gives_too_is_kept_once(
    tmp_path: Path,
) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text("served-model-name: [a, b]\nport: 9000\n")
    words = f"--config {file} --served-model-name c --middleware x.Y --middleware z.W"
    found = prepared(asked(f"vllm serve Qwen/Qwen3-8B {words}", engines=("vllm",)))
    assert found.kept["vllm"].kept == (
        "--served-model-name c",
        "--port 9000",
        "--middleware x.Y",
        "--middleware z.W",
    )


@pytest.mark.parametrize("where", ["baseline", "engine-arg"])
@pytest.mark.parametrize(
    ("command", "key"),
    [
        ("vllm serve Qwen/Qwen3-8B", "api-key"),
        ("python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B", "api-key"),
    ],
)
def test_a_secret_in_a_config_file_is_refused_and_not_repeated(
    tmp_path: Path, where: str, command: str, key: str
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(f"{key}: my-own-secret\nport: 9000\n")
    name = command.split()[0].replace("python3", "sglang")
    typed = f"{command} --config {file}" if where == "baseline" else command
    more = () if where == "baseline" else (f"{name}=--config {file}",)
    with pytest.raises(
        BadInput, match=rf"{where}.*--config file: it holds a secret \(--{key}\)"
    ) as refused:
        prepared(asked(typed, engine_args=more))
    assert "my-own-secret" not in str(refused.value)


# The newest version does not multiply the positions by YaRN's factor.
YARN = (
    '{"max_position_embeddings": 131072, "rope_parameters": '
    '{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}'
)


def test_a_longer_context_by_an_override_of_the_model_is_one_of_the_candidates_too() -> None:
    typed = f"vllm serve Qwen/Qwen3-8B --hf-overrides '{YARN}' --max-model-len 131072"
    found = prepared(asked(typed, engines=("vllm",)))
    baseline, *others = found.candidates.items
    limit = found.spaces["vllm"].context.model.architecture.context_limit
    assert limit == 131072
    assert baseline.configuration.knobs["context_length"] == 131072
    assert {one.configuration.knobs["context_length"] or limit for one in others} == {131072}
    with pytest.raises(BadInput, match="would refuse it"):
        prepared(asked("vllm serve Qwen/Qwen3-8B --max-model-len 131072", engines=("vllm",)))


def test_a_context_that_fits_the_cache_is_the_one_of_the_candidates_too() -> None:
    """vLLM serves what the cache holds: of 40,960 positions an L4 keeps some 28,000."""
    typed = "vllm serve Qwen/Qwen3-8B --max-model-len auto"
    found = prepared(asked(typed, engines=("vllm",), hardware="l4"))
    configurations = [one.configuration.knobs for one in found.candidates.items]
    assert {knobs["context_length"] for knobs in configurations} == {"auto"}
    assert len(configurations) > 1
    assert 27_000 < found.candidates.promised.tokens < 30_000


def test_braces_in_a_key_of_a_config_file_are_no_template(tmp_path: Path) -> None:
    file, text = tmp_path / "own.yaml", "{x} '\\n' {{\"y\"}}"
    file.write_text(yaml.safe_dump({"sampler_type": text}))
    found = prepared(asked(f"trtllm-serve Qwen/Qwen3-8B --config {file}", engines=["tensorrt_llm"]))
    written = [found.command_of(one).files.values() for one in found.candidates.items[1:]]
    assert {yaml.safe_load(content)["sampler_type"] for (content,) in written} == {text}


def test_settings_that_no_engine_claims_are_everybody_s() -> None:
    found = prepared(asked(f"HF_HOME=/models NCCL_DEBUG=WARN {CHAT}"))
    assert {"vllm", "sglang"} <= set(found.spaces)
    for candidate in found.candidates.items:
        assert (
            found.command_of(candidate).env.items()
            >= {"HF_HOME": "/models", "NCCL_DEBUG": "WARN"}.items()
        )


def test_an_engine_s_own_variable_without_a_counterpart_excludes_the_others() -> None:
    found = prepared(asked("VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve Qwen/Qwen3-8B"))
    assert set(found.spaces) == {"vllm"}
    assert "--drop VLLM_ALLOW_RUNTIME_LORA_UPDATING allows it" in reasons(found)["sglang"]
    assert {"sglang"} <= set(prepared(asked(f"VLLM_API_KEY=${{K}} {CHAT}")).spaces), (
        "a key is an option there"
    )


def test_a_dropped_option_stands_in_no_candidate_and_excludes_nobody() -> None:
    drops = ["served-model-name", "--enable-lora"]
    found = prepared(asked(CHAT, drop=drops))
    assert {"vllm", "sglang", "tensorrt_llm"} <= set(found.spaces)
    for candidate in found.candidates.items[1:]:
        assert not {"--enable-lora", "--served-model-name"} & {*found.command_of(candidate).argv}
    assert found.kept["tensorrt_llm"].dropped == ("--served-model-name chat", "--enable-lora")
    assert found.command_of(found.candidates.items[0]).argv == split_command(CHAT).argv


@pytest.mark.parametrize(
    ("drop", "words"),
    [
        ("max-loras", "--baseline does not set it; it sets --enable-lora, --served-model-name"),
        ("max-num-seqs", "it is a knob, which the search tunes"),
    ],
)
def test_what_cannot_be_dropped_is_told(drop: str, words: str) -> None:
    assert words in said(asked(f"{CHAT} --max-num-seqs 64", drop=[drop]))
    assert "nothing to drop" in said(replace(SMALL, drop=[drop]))


def test_if_no_engine_that_is_asked_for_can_keep_an_option_nothing_runs() -> None:
    message = said(asked(CHAT, engines=["tensorrt_llm"]))
    assert (
        "vllm's --served-model-name, --enable-lora have no counterparts in tensorrt_llm" in message
    )
    assert "--drop served-model-name --drop enable-lora allows it" in message


def test_a_value_that_the_other_engine_lacks_has_no_counterpart() -> None:
    found = prepared(
        asked("vllm serve Qwen/Qwen3-8B --enable-auto-tool-choice --tool-call-parser granite")
    )
    assert "--tool-call-parser" in reasons(found)["sglang"]
    halves = prepared(asked("vllm serve Qwen/Qwen3-8B --cpu-offload-gb 1.5"))
    assert "--cpu-offload-gb" in reasons(halves)["sglang"], "SGLang takes whole GB"


def test_a_file_that_is_not_here_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = f"{CHAT} --chat-template ./t.jinja"
    (note,) = [note for note in prepared(asked(command)).spec.notes if "t.jinja" in note]
    assert note.startswith("--baseline: --chat-template ./t.jinja: no such file on this machine")
    spec = prepared(asked(command)).spec
    real = spec.model_copy(update={"on": "process"})
    with pytest.raises(
        BadInput, match=r"t\.jinja: no such file on this machine; give the path of one that is here"
    ):
        own_options_of(real, LIBRARY)
    assert own_options_of(spec, LIBRARY).notes
    (tmp_path / "t.jinja").write_text("{{ messages }}")
    assert not any("t.jinja" in note for note in prepared(asked(command)).spec.notes)


def test_passed_options_reach_the_baseline_but_where_it_says_otherwise() -> None:
    typed = "vllm serve Qwen/Qwen3-8B --max-num-seqs 64"
    found = prepared(
        asked(typed, engine_args=["vllm=FOO=1 --load-format runai_streamer --max-num-seqs 32"])
    )
    command = found.command_of(found.candidates.items[0])
    assert command.argv[-4:] == ("--max-num-seqs", "64", "--load-format", "runai_streamer")
    assert command.env == {"FOO": "1"}
    told = [note for note in found.spec.notes if note.startswith("--engine-arg vllm: the baseline")]
    assert told == [
        "--engine-arg vllm: the baseline is started with --load-format runai_streamer, FOO=1, too",
        "--engine-arg vllm: the baseline keeps its own value, not --max-num-seqs 32",
    ]
    for candidate in found.candidates.items[1:]:
        if candidate.configuration.engine == "vllm":
            assert candidate.configuration.knobs["max_running_requests"] == 32


def test_an_option_of_both_is_for_candidates_as_it_was_passed() -> None:
    found = prepared(asked(CHAT, engines=["vllm"], engine_args=["vllm=--served-model-name other"]))
    for candidate in found.candidates.items[1:]:
        argv = found.command_of(candidate).argv
        assert argv.count("--served-model-name") == 1
        assert argv[-2:] == ("--served-model-name", "other")
    assert found.kept["vllm"].kept == ("--enable-lora",)


def test_a_relative_path_of_the_command_is_one_wherever_the_server_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sql").mkdir()
    (tmp_path / "own.yaml").write_text("{}")
    words = (
        "trtllm-serve",
        "m",
        "--config",
        "own.yaml",
        "--lora-modules",
        "sql=./sql",
        "gone=./gone",
        '{"a=b/c": 1}',
    )
    made = absolute_paths(words, {})
    assert made == (
        *words[:3],
        str(tmp_path / "own.yaml"),
        words[4],
        f"sql={tmp_path}/sql",
        *words[6:],
    )


@pytest.mark.e2e
def test_without_a_command_of_one_s_own_nothing_is_kept() -> None:
    assert {one.kept for one in prepared(SMALL).kept.values()} == {()}
    recipe = replace(
        RUN, space=None, model="deepseek-ai/DeepSeek-R1-0528", hardware="h200", baseline="recipe"
    )
    found = prepared(recipe).kept
    assert found["vllm"].kept == ("--trust-remote-code",)
    assert found["sglang"].translated == ("--trust-remote-code → nothing (of a recipe)",), (
        "a vendor's recipe is nobody's own: no other engine is excluded"
    )


NAMES = ("vllm", "sglang", "tensorrt_llm")


@pytest.mark.parametrize("name", NAMES)
def test_every_option_of_the_tables_of_counterparts_is_one_of_the_engine(name: str) -> None:
    kind = engine(name)
    tables = [kind.table(version) for version in kind.card.versions]
    known = {
        *(flag for table in tables for flag in table.flags),
        *(key for table in tables for key in table.config_keys),
    }
    flags = [flag for entry in kind.card.counterparts for flag in entry.flags]
    assert set(flags) <= known
    gone = {"--swap-space", "--cuda-graph-bs", "--log-level", "--enable-log-deltas"}
    loose = {flag for entry in kind.card.dispensable for flag in entry.flags} - known - gone
    assert {flag for flag in loose if flag.startswith("--")} == set()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_translated_there_and_back_means_the_same(data: st.DataObject) -> None:
    """Every value with a counterpart comes back as itself, or as another name of the same."""
    source, target = (engine(data.draw(st.sampled_from(NAMES))) for _ in range(2))
    version, there = source.card.newest, target.card.newest
    card, target_card = counterparts_in(source.card, version), counterparts_in(target.card, there)
    entries = [entry for entry in card.counterparts if entry.values and entry.flags]
    entry = data.draw(st.sampled_from(entries))
    value = data.draw(st.sampled_from(sorted(entry.values)))
    model, node = LIBRARY.model("Qwen/Qwen3-8B"), LIBRARY.node("h100")
    here = Context(model, node, 1, version)
    typed = source.command_with([], here.scope({}), here, [entry.flags[0], value])
    try:
        options = [one for one in own_options(source, typed, here) if entry.flags[0] == one.name]
        made = translated_for(target, there, card, options, ())
    except BadInput:
        return
    back_context = Context(model, node, 1, there)
    command = target.command_with([], back_context.scope({}), back_context, made.words)
    other = [one for one in own_options(target, command, back_context) if not one.tuned]
    back = translated_for(source, version, target_card, other, ())
    again = (
        back.words[list(back.words).index(entry.flags[0]) + 1]
        if entry.flags[0] in back.words
        else value
    )
    assert entry.values[again] == entry.values[value]
