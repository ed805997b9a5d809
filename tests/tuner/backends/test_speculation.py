"""Acceptance of drafted tokens: forced on random tokens, for the launch alone; asked, told, and
what came."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.engines.cards import Acceptance
from autotune.engines.command import Command, Configuration, Scalar
from autotune.engines.context import Context
from autotune.engines.library import Library
from autotune.engines.registry import engine
from autotune.tuner.backends import backend_of
from autotune.tuner.backends.servers import ServerEvaluator
from autotune.tuner.backends.simulator import SimulatedEvaluator
from autotune.tuner.prepare.candidates import prepare
from autotune.tuner.study.results import launch_of, row_of
from autotune.tuner.study.spec import EngineChoice, StudySpec
from autotune.tuner.trial import Launch, Role, State, Trial

LIBRARY = Library()
RANDOM, TEXT = "random:64:120:8", "prose:8"
GLM, V32 = "GLM-5.2-FP8", "DeepSeek-V3.2"
FORCED_TRTLLM = "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"


def spec(model: str = V32, workload: str = RANDOM, **fields: Any) -> StudySpec:
    return StudySpec(
        study="s",
        model=LIBRARY.model(model),
        hardware=LIBRARY.node("h200"),
        gpus=8,
        engines=fields.pop("engines", (EngineChoice(name="vllm", version="0.33.0"),)),
        workloads=(workload,),
        on=fields.pop("on", "emulator"),
        **fields,
    )


def trial(study: StudySpec, name: str, version: str | None = None, **knobs: Scalar) -> Trial:
    kind = engine(name, LIBRARY)
    context = Context(study.model, study.hardware, 8, kind.version(version))
    fit = {"context_length": 8192, "max_running_requests": 256}
    configuration = Configuration(name, kind.default_knobs(context, {**fit, **knobs}))
    command = kind.command(configuration, context)
    return Trial(0, Role.BASELINE, configuration, context.version, command, study.workloads)


def asked_of(study: StudySpec, one: Trial) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """What is asked of the engine beyond the trial's command: variables, and words."""
    kind = engine(one.configuration.engine, LIBRARY)
    launched, _ = backend_of(study).with_forced_acceptance(study, one, kind, LIBRARY)
    new = {
        name: value
        for name, value in launched.command.env.items()
        if one.command.env.get(name) != value
    }
    return new, launched.command.argv[len(one.command.argv) :]


def evaluator(study: StudySpec, folder: Path) -> SimulatedEvaluator | ServerEvaluator:
    if study.on == "simulator":
        return SimulatedEvaluator(study, LIBRARY)
    return ServerEvaluator(study, LIBRARY, folder)


VLLM_WORDS = ("--speculative-config.rejection_sample_method", "synthetic")
VLLM_LENGTH = "--speculative-config.synthetic_acceptance_length"
SGLANG = {
    "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
    "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
}


@pytest.mark.parametrize(
    ("name", "version", "drafted", "env", "words"),
    [
        ("vllm", "0.33.0", 3, {}, (*VLLM_WORDS, VLLM_LENGTH, "2.75")),
        ("vllm", "0.32.0", 1, {}, (*VLLM_WORDS, VLLM_LENGTH, "1.8")),
        ("vllm", "0.13.0", 3, {}, ()),
        ("sglang", "0.5.23", 3, {"SGLANG_SIMULATE_ACC_LEN": "2.75", **SGLANG}, ()),
        ("sglang", "0.5.6.post2", 3, {}, ()),
        ("tensorrt_llm", "1.2.0", 1, {FORCED_TRTLLM: "1"}, ()),
        (
            "tensorrt_llm",
            "1.2.0",
            3,
            {FORCED_TRTLLM: "2"},
            (),
        ),  # accepted drafts, whole numbers only
        ("tensorrt_llm", "1.4.0rc1", 3, {FORCED_TRTLLM: "1.75"}, ()),
        ("tensorrt_llm", "1.0.0", 3, {}, ()),
        *((name, None, 0, {}, ()) for name in ("vllm", "sglang", "tensorrt_llm")),
    ],
)
def test_on_random_tokens_each_version_is_asked_in_its_own_way(
    name: str, version: str | None, drafted: int, env: Mapping[str, str], words: tuple[str, ...]
) -> None:
    random, text = spec(), spec(workload=TEXT)
    one = trial(random, name, version, speculative_tokens=drafted)
    assert asked_of(random, one) == (env, words)
    assert asked_of(text, one) == ({}, ())
    # Forced acceptance makes answers wrong: where they are checked, nothing is forced.
    assert asked_of(spec(accuracy="builtin"), one) == ({}, ())
    # The engine's parser takes it, and reads the number back; the configuration stays the same.
    kind = engine(name, LIBRARY)
    context = Context(random.model, random.hardware, 8, one.engine_version)
    launched, asked = backend_of(random).with_forced_acceptance(random, one, kind, LIBRARY)
    parsed = kind.parse(launched.command, one.engine_version)
    assert (
        kind.knobs(parsed, context).fingerprint
        == kind.knobs(kind.parse(one.command, one.engine_version), context).fingerprint
    )
    assert kind.forced_length(parsed, context) == (asked.forced if asked else None)


def test_each_model_is_forced_to_its_own_acceptance() -> None:
    forced = []
    for model in (V32, GLM):
        study = spec(model)
        for drafted in (1, 2, 3, 5):
            kind = engine("vllm", LIBRARY)
            asked = backend_of(study).speculation(study, kind, "0.33.0", drafted, LIBRARY)
            assert asked is not None
            assert asked.source.startswith("https://")
            forced.append(asked.forced)
    assert forced == [1.8, 2.38, 2.75, 3.08, 1.84, 2.5, 2.99, 3.55]


@pytest.mark.parametrize("option", ["--speculative-config", "--speculative_config", "-sc"])
def test_a_json_option_that_was_typed_keeps_its_keys(option: str) -> None:
    given = json.dumps({"method": "mtp", "num_speculative_tokens": 2})
    kind = engine("vllm", LIBRARY)
    typed = Command(("vllm", "serve", LIBRARY.model(V32).id, "-tp", "8", option, given))
    words = kind.parse(kind.with_forced_acceptance(typed, "0.33.0", 2.38), "0.33.0").args[
        "speculative_config"
    ]
    expected = {
        "method": "mtp",
        "num_speculative_tokens": 2,
        "rejection_sample_method": "synthetic",
    }
    assert words == {**expected, "synthetic_acceptance_length": 2.38}


def test_in_a_container_the_variables_are_handed_in() -> None:
    study = spec(on="docker", images={"sglang": "lmsysorg/sglang:v0.5.23"})
    one = trial(study, "sglang", speculative_tokens=3)
    backend, kind = backend_of(study), engine("sglang", LIBRARY)
    one = replace(one, command=backend.as_launched(one.command, kind.card, study))
    launched, _ = backend.with_forced_acceptance(study, one, kind, LIBRARY)
    assert "SGLANG_SIMULATE_ACC_LEN" not in " ".join(one.command.container)
    assert any(word.startswith("SGLANG_SIMULATE_ACC_LEN") for word in launched.command.container)
    assert launched.command.env["SGLANG_SIMULATE_ACC_LEN"] == "2.75"


CAME = [
    ("vllm", None, 2.75, 2.75),
    ("sglang", None, 2.75, 2.7),
    ("tensorrt_llm", None, 3.0, 2.98),
    ("vllm", "0.13.0", None, 1.15),
]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("on", "name", "version", "forced", "came"),
    [
        *(("simulator", *case) for case in CAME),
        ("emulator", *CAME[0]),
        *(pytest.param("emulator", *case, marks=pytest.mark.e2e) for case in CAME[1:]),
    ],
)
def test_a_row_says_what_was_forced_and_what_came(
    tmp_path: Path, on: str, name: str, version: str | None, forced: float | None, came: float
) -> None:
    study = spec(on=on)
    one = trial(study, name, version, speculative_tokens=3)
    result = evaluator(study, tmp_path)(one)
    assert (result.state, result.failure) == (State.COMPLETE, None)
    row = json.loads(json.dumps(row_of(Launch(one, result))))
    told = row["speculation"]
    assert (told["drafted"], told["stated"], told["random"], told["forced"]) == (
        3,
        2.75,
        True,
        forced,
    )
    assert told["accepted"][RANDOM] == pytest.approx(came, rel=0.03)
    assert told["accepted"][RANDOM] == row["metrics"][RANDOM]["spec_decode_acceptance_length"]
    # Neither the command nor what identifies it has the switch.
    assert not {"synthetic", *SGLANG, FORCED_TRTLLM, "SGLANG_SIMULATE_ACC_LEN"} & {
        *row["argv"],
        *row["env"],
    }
    assert row["fingerprint"] == one.configuration.fingerprint
    assert result.resolved is not None
    assert "speculative_tokens" not in result.resolved.differs
    assert launch_of(row).result.speculation == result.speculation


@pytest.mark.parametrize("on", ["simulator", pytest.param("emulator", marks=pytest.mark.e2e)])
def test_on_text_the_models_own_acceptance_counts_and_without_drafts_nothing_is_said(
    tmp_path: Path, on: str
) -> None:
    study = spec(workload=TEXT, on=on)
    result = evaluator(study, tmp_path)(trial(study, "tensorrt_llm", speculative_tokens=1))
    assert result.speculation is not None
    assert (result.speculation.random, result.speculation.forced) == (False, None)
    assert result.speculation.accepted[TEXT] == pytest.approx(1.8, rel=0.03)
    none = spec(on="simulator")
    plain = trial(none, "vllm")
    assert "speculation" not in row_of(Launch(plain, SimulatedEvaluator(none, LIBRARY)(plain)))


def drafts(study: StudySpec) -> tuple[set[Scalar], str]:
    """Numbers of drafted tokens among the candidates, and the notes."""
    prepared = prepare(study, LIBRARY)
    found = {one.configuration.knobs["speculative_tokens"] for one in prepared.candidates.items}
    return found, "\n".join(prepared.spec.notes)


@pytest.mark.parametrize(
    ("name", "version", "on_random", "on_text"),
    [
        ("vllm", "0.33.0", {0, 1, 2, 3}, {0, 1, 2, 3}),
        ("vllm", "0.13.0", {0}, {0, 1, 2, 3}),
        (
            "tensorrt_llm",
            "1.2.0",
            {0},
            {0, 1, 2, 3},
        ),  # whole numbers of accepted drafts: too far from 1.8, 2.38, 2.75
    ],
)
def test_where_acceptance_cannot_be_forced_drafts_are_ranked_on_text_alone(
    name: str, version: str, on_random: set[Scalar], on_text: set[Scalar]
) -> None:
    engines = (EngineChoice(name=name, version=version),)
    few = {
        "pins": {"tensor_parallel": 8, "context_length": 32768},
        "engines": engines,
        "on": "simulator",
    }
    (random, note), (text, quiet) = drafts(spec(**few)), drafts(spec(workload=TEXT, **few))
    assert (random, text) == (on_random, on_text)
    assert ("1, 2, 3 drafted tokens are not tried" in note) == (random != text)
    assert "drafted tokens are not tried" not in quiet
    # What a pin wants stays.
    pinned = {**few, "pins": {**few["pins"], "speculative_tokens": 3}}
    assert drafts(spec(**pinned))[0] == {3}


def test_five_are_tried_of_a_model_that_keeps_late_drafts_and_the_space_does_not_grow() -> None:
    values = {}
    for model in (V32, GLM):
        few = {"pins": {"tensor_parallel": 8, "context_length": 32768}, "on": "simulator"}
        values[model] = drafts(spec(model, **few))[0]
    assert values == {V32: {0, 1, 2, 3}, GLM: {0, 1, 3, 5}}


def test_models_without_a_published_figure_say_so() -> None:
    folder = Path(__file__).parents[3] / "search_spaces" / "models"
    cards = [yaml.safe_load(path.read_text()) for path in folder.glob("*.yaml")]
    published = {card["id"] for card in cards if "acceptance" in card}
    sources = {card["id"]: LIBRARY.model(card["id"]).acceptance.source for card in cards}
    assert published == {name for name, source in sources.items() if source.startswith("https://")}
    assert {source for name, source in sources.items() if name not in published} == {
        Acceptance().source
    }
    assert Acceptance().source.startswith("assumed")
