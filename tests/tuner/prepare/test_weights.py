"""Weights are complete before anything is launched; the cache and the Hub's command stand in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.base.errors import BadInput, CannotGoOn
from autotune.servers.preflight import Node
from autotune.servers.weights import missing_shards
from autotune.tuner.backends.servers import ServerEvaluator, weights_failure
from autotune.tuner.prepare.candidates import Prepared, check_weights
from autotune.tuner.trial import Role, Trial
from tests.engines.stand_ins import executable, python_with
from tests.product.cli import autotune
from tests.tuner.prepare.settings import LIBRARY, RUN, SPACE, V32, prepared
from tests.weight_files import cache, lay, shards

SMALL = "openai/gpt-oss-20b"
THREE = shards(3)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a PATH without the Hub's command."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return tmp_path / "hf" / "hub"


def here(on: str = "process", **options: object) -> Prepared:
    """A study whose engines need not be installed for what is asked here."""
    asked = {"engines": ["vllm"], **options}
    one = prepared(replace(RUN, **asked))
    return replace(one, spec=one.spec.model_copy(update={"on": on}))


def refused(study: Prepared) -> str:
    with pytest.raises(BadInput) as told:
        check_weights(study)
    return str(told.value)


@pytest.mark.parametrize(
    ("names", "listed", "lacking", "count"),
    [
        (THREE, THREE, [], 3),
        (THREE[:1], THREE, THREE[1:], 3),
        (THREE[1:], (), THREE[:1], 3),
        (["model.safetensors"], (), [], 1),
        (["consolidated.safetensors", THREE[0]], THREE, [], 1),
        (["pytorch_model.bin"], (), [], 1),
        (["tokenizer.json"], (), [""], 1),
        ((), ["a.safetensors", "b.safetensors"], ["a.safetensors", "b.safetensors"], 2),
        (["a.safetensors"], ["a.safetensors", "b.safetensors"], ["b.safetensors"], 2),
    ],
)
def test_what_a_folder_lacks(
    tmp_path: Path, names: Sequence[str], listed: Sequence[str], lacking: list[str], count: int
) -> None:
    assert missing_shards(lay(tmp_path, names, listed)) == (lacking, count)


def test_what_looks_like_weights_and_is_none(tmp_path: Path) -> None:
    lay(tmp_path, THREE, THREE)
    (tmp_path / THREE[0]).write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4999\n"
    )
    (tmp_path / THREE[1]).unlink()
    (tmp_path / THREE[1]).symlink_to(tmp_path / "gone")
    assert missing_shards(tmp_path) == (THREE[:2], 3)
    (tmp_path / "model.safetensors.index.json").write_text("{")
    assert missing_shards(tmp_path) == (THREE[:2], 3), "an index that cannot be read tells nothing"


def test_weights_that_are_not_in_the_cache_are_refused_with_size_and_command(hub: Path) -> None:
    told = f"the weights of {V32} are not complete in {hub}: none of them exist, about 685.2 GB; "
    assert refused(here()) == f"{told}fetch them there first:\nhf download {V32}"
    cache(hub, V32, THREE[:2], THREE)
    assert f"1 of 3 files are missing ({THREE[2]} …), about 228.4 GB" in refused(here())
    cache(hub, V32, THREE, THREE, revision="v2")
    assert "1 of 3 files" in refused(here()), "another revision's"
    check_weights(here(engine_args=["vllm=--revision v2"]))


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"])
def test_weights_in_the_cache(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv("HF_HOME")
    below = {"HF_HUB_CACHE": ".", "HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}[variable]
    monkeypatch.setenv(variable, str(tmp_path / "there"))
    assert f"not complete in {tmp_path / 'there' / below}: none" in refused(here())
    cache(tmp_path / "there" / below, V32, THREE, THREE)
    check_weights(here(engines=["vllm", "sglang"]))


def test_a_server_s_own_cache(hub: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "else where"
    message = refused(here(engine_args=[f"vllm=HF_HOME='{elsewhere}'"]))
    assert message.endswith(f"\nhf download {V32} '--cache-dir={elsewhere / 'hub'}'")
    message = refused(here(engine_args=[f"vllm=--download-dir '{elsewhere}' --revision v2"]))
    assert message.endswith(f"'--cache-dir={elsewhere}' --revision=v2")
    cache(elsewhere, V32, ["model.safetensors"])
    check_weights(here(engine_args=[f"vllm=--download-dir '{elsewhere}'"]))
    cache(hub, V32, THREE, THREE)
    baseline = f"HF_HOME='{elsewhere / 'none'}' vllm serve {V32} -tp 8"
    assert f"not complete in {elsewhere / 'none' / 'hub'}" in refused(here(baseline=baseline))


def test_a_container_sees_the_hub_cache_of_the_shell_and_not_its_old_name(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = prepared(replace(RUN, on="docker", engines=["vllm"]))
    seen = str(cache(tmp_path / "seen", V32, THREE, THREE).parents[2])
    monkeypatch.setenv("HUGGINGFACE_HUB_CACHE", seen)
    assert refused(study).endswith(f"\nhf download {V32} --cache-dir={hub}")
    monkeypatch.setenv("HF_HUB_CACHE", seen)
    check_weights(study)


def test_a_folder_without_its_weights(tmp_path: Path, hub: Path) -> None:
    folder = lay(tmp_path / "DeepSeek-V3.2", THREE[:1], THREE)
    message = refused(here(model=str(folder)))
    assert message.startswith(
        f"the weights of {V32} are not complete in {folder}: 2 of 3 files are missing"
    )
    assert message.endswith(f"\nhf download {V32} --local-dir={folder}")
    lay(folder, THREE)
    check_weights(here(model=str(folder)))


def test_what_is_not_certain_is_launched(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for passed in ("--load-format dummy", "--load-format runai_streamer", "VLLM_USE_MODELSCOPE=1"):
        check_weights(here(engine_args=[f"vllm={passed}"]))
    for on in ("simulator", "emulator", "external:http://127.0.0.1:1"):
        check_weights(here(on=on))
    file = tmp_path / "DeepSeek-V3.2"
    file.write_bytes(b"GGUF")
    check_weights(here(model=str(file), model_id=V32))
    study = here()
    check_weights(replace(study, spec=study.spec.model_copy(update={"executor": "ray"})))
    space = study.spaces["vllm"]
    other = type(space.engine)(space.card.model_copy(update={"checkpoint_files": False}))
    check_weights(replace(study, spaces={"vllm": replace(space, engine=other)}))
    assert refused(study)


def test_on_a_cluster_each_node_looks_for_its_weights_before_it_launches(
    hub: Path, tmp_path: Path
) -> None:
    study = prepared(replace(RUN, on="docker", engines=["vllm"]))
    spec = study.spec.model_copy(update={"executor": "ray"})
    candidate = study.candidates.items[0]
    trial = Trial(
        3,
        Role.SEARCH,
        candidate.configuration,
        candidate.engine_version,
        study.command_of(candidate),
        spec.workloads,
    )
    (tmp_path / "study").mkdir()
    idle = Node(gpus=tuple, disk_bytes=0, open_files=0)
    with pytest.raises(CannotGoOn) as told:
        ServerEvaluator(spec, LIBRARY, tmp_path / "study", node=idle, pause=lambda _: None)(trial)
    assert f"the weights of {V32} are not complete in {hub}: none of them exist" in str(told.value)
    assert str(told.value).endswith(f"; fetch them there first:\nhf download {V32}")
    kind = study.spaces["vllm"].engine
    cache(hub, V32, THREE, THREE)
    assert weights_failure(trial, kind, spec) is None
    assert weights_failure(trial, kind, study.spec) is None, (
        "here they are checked before the first launch"
    )


def test_a_dry_run_says_what_is_missing(hub: Path, tmp_path: Path) -> None:
    run = (
        "run",
        "--model",
        V32,
        "--hw",
        "h200",
        "--on",
        "docker",
        "--engine",
        "vllm",
        "--space",
        str(SPACE),
    )
    done = autotune(*run, "--dry-run", "--json", home=tmp_path / "home")
    assert done.code == 0, done.err
    assert done.json["weights"].startswith(
        f"the weights of {V32} are not complete in {hub}: none of them exist"
    )
    there = autotune(*run, "--executor", "ray", "--dry-run", home=tmp_path / "home")
    assert (
        "each node of the cluster is checked for the weights before its first launch" in there.out
    )


def test_the_command_is_called_as_the_installed_version_has_it(hub: Path, tmp_path: Path) -> None:
    executable(tmp_path / "bin" / "huggingface-cli", "#!/bin/sh\n")
    assert refused(here(model=SMALL)).endswith(f"\nhuggingface-cli download {SMALL}")


def test_a_study_without_its_weights_does_not_begin(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm = executable(
        tmp_path / "venv" / "bin" / "vllm", f"#!{python_with(tmp_path / 'venv', vllm='0.33.0')}\n"
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = tmp_path / "home"
    question = [
        "run",
        "--model",
        V32,
        "--hw",
        "h200",
        "--engine",
        "vllm",
        "--engine-bin",
        f"vllm={vllm}",
    ]
    question += ["--on", "process", "--space", str(SPACE)]
    executable(vllm.parent / "hf", "#!/bin/sh\nexit 9\n")
    done = autotune(*question, home=home)
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith(f"; fetch them there first:\n{vllm.parent / 'hf'} download {V32}\n")
    assert not home.exists()


def test_gpt_oss_needs_its_vocabulary_where_it_cannot_be_fetched(
    tmp_path: Path, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache(hub, SMALL, THREE, THREE)
    study = here(model=SMALL)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    check_weights(study)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "a machine without TIKTOKEN_ENCODINGS_BASE lacks o200k_base" in refused(study)
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(tmp_path))
    (tmp_path / "o200k_base.tiktoken").touch()
    assert f"TIKTOKEN_ENCODINGS_BASE={tmp_path} lacks cl100k_base.tiktoken" in refused(study)
    (tmp_path / "cl100k_base.tiktoken").touch()
    check_weights(study)
