"""The user's own baseline: checked apart from the candidates, and started by the installation that
is compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.base.errors import BadInput
from autotune.base.notify import silent
from autotune.cli.tuning import run
from autotune.engines.installed import engine_of, with_installed_program
from autotune.engines.registry import split_command
from autotune.tuner.prepare.build_spec import build_spec, library_for
from autotune.tuner.prepare.candidates import prepare
from autotune.tuner.study.options import RunOptions
from tests.engines.settings import V32
from tests.engines.stand_ins import StandIn, install, rows
from tests.tuner.prepare.settings import prepared, said

SPACE = Path(__file__).with_name("installed_space.yaml")
LIBRARY = library_for(SPACE)
HERE = RunOptions(
    V32,
    "h200",
    workloads=["random:1000:100:64"],
    on="process",
    study="s",
    space=SPACE,
    engines=["vllm"],
)
SIMULATED = replace(HERE, on="simulator")
SGLANG = f"python3 -m sglang.launch_server --model-path {V32} --tp 8"


@pytest.fixture(autouse=True)
def _nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


def stand_in(folder: Path, name: str = "vllm", version: str = "0.32.0") -> StandIn:
    return install(
        folder,
        name,
        version,
        rows(name, version),
    )


def test_arguments_passed_through_are_checked_beside_a_baseline_of_the_same_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    typed = replace(SIMULATED, baseline=f"vllm serve {V32} -tp 8")
    message = said(replace(typed, engine_args=["vllm=--bogus-flag 3"]))
    assert message.startswith(
        "--engine-arg vllm='--bogus-flag 3': vllm 0.33.0: error: unrecognized arguments"
    )
    emulated = replace(typed, on="emulator")
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    key = "--api-key ${NO_SUCH_KEY}"
    assert said(replace(emulated, engine_args=[f"vllm={key}"])).startswith(
        "the command refers to ${NO_SUCH_KEY}"
    )
    named = replace(emulated, baseline=f"vllm serve {V32} -tp 8 --api-key '${{NO_SUCH_KEY}}'")
    assert said(named).startswith("--baseline: the command refers to ${NO_SUCH_KEY}")


def test_a_baseline_in_a_container_is_judged_by_its_image_s_version() -> None:
    r1 = "deepseek-ai/DeepSeek-R1"
    typed = f"python3 -m sglang.launch_server --model-path {r1} --tp 8 --cuda-graph-max-bs 64"
    found = prepared(replace(HERE, model=r1, hardware="mi300x", on="docker", baseline=typed))
    baseline = found.candidates.items[0]
    assert found.spec.images["sglang"].startswith(
        f"lmsysorg/sglang:v{baseline.engine_version}-rocm"
    )
    assert baseline.configuration.knobs["cuda_graph_max_batch"] == 64


def test_a_baseline_that_is_not_installed_is_refused_before_the_study(tmp_path: Path) -> None:
    there = stand_in(tmp_path / "env")
    message = said(replace(HERE, engine_bins=[f"vllm={there.folder}"], baseline=SGLANG))
    assert message.startswith("--baseline: SGLang is not installed: ")


def test_a_bare_name_of_any_form_becomes_the_installed_program(tmp_path: Path) -> None:
    vllm, sglang = stand_in(tmp_path / "v"), stand_in(tmp_path / "s", "sglang", "0.5.23")
    bins = [f"vllm={vllm.folder}", f"sglang={sglang.folder}"]
    spec = build_spec(replace(HERE, engine_bins=bins, engines=["vllm", "sglang"]))
    module = ("-m", "vllm.entrypoints.openai.api_server", "--model")
    for typed, expected in (
        (f"vllm serve {V32}", (str(vllm.program), "serve")),
        (f"python {' '.join(module)} {V32}", (str(vllm.python), *module)),
        (f"/opt/vllm serve {V32}", ("/opt/vllm", "serve")),
        (SGLANG, (str(sglang.python), "-m", "sglang.launch_server")),
        (SGLANG.replace("python3", "python"), (str(sglang.python), "-m", "sglang.launch_server")),
        # There is no script beside this Python.
        (
            f"sglang serve --model-path {V32}",
            (str(sglang.python), "-m", "sglang.launch_server", "--model-path"),
        ),
    ):
        kind = engine_of("sglang" if "sglang" in typed else "vllm", spec.installed, LIBRARY, silent)
        assert with_installed_program(split_command(typed), kind).argv[: len(expected)] == expected


def test_a_baseline_s_own_program_is_the_installation_that_counts(tmp_path: Path) -> None:
    there, other = stand_in(tmp_path / "a"), stand_in(tmp_path / "b")
    typed = replace(HERE, baseline=f"{there.program} serve {V32} -tp 8")
    found = prepared(typed)
    assert any("the folder of the baseline's program" in note for note in found.spec.notes)
    assert found.spec.installed["vllm"].program == (str(there.program), "serve")
    assert len(prepared(replace(typed, engine_bins=[f"vllm={there.python}"])).candidates) == len(
        found.candidates
    )
    assert "two installations" in said(replace(typed, engine_bins=[f"vllm={other.folder}"]))
    assert said(replace(typed, baseline=f"/nowhere/vllm serve {V32}")).startswith(
        "--baseline: /nowhere/vllm: this program does not exist"
    )


def test_an_engine_that_came_after_the_beginning_stays_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = stand_in(tmp_path / "env")
    spec = build_spec(
        replace(HERE, engine_bins=[f"vllm={there.folder}"], engines=["vllm", "sglang"])
    )
    reasons = {e.engine: e.reason for e in prepare(spec, LIBRARY).excluded}
    assert "is not installed" in reasons["sglang"]
    late = stand_in(tmp_path / "late", "sglang", "0.5.23")
    monkeypatch.setenv("PATH", f"{late.folder / 'bin'}:/usr/bin:/bin")
    resumed = prepare(spec, LIBRARY)
    assert {e.engine: e.reason for e in resumed.excluded} == {
        "sglang": "SGLang was not installed when the study began"
    }
    assert set(resumed.spaces) == {"vllm"}


def test_what_is_said_of_an_engine_that_nothing_starts_is_answered(tmp_path: Path) -> None:
    asked = replace(SIMULATED, engine_args=["sglang=--nsa-prefill-backend fa3"])
    spec = build_spec(asked)
    assert spec.notes == (
        "--engine-arg sglang is not used: sglang is neither searched nor the baseline",
    )
    assert spec.engine_args == {}
    there = stand_in(tmp_path / "env")
    spec = build_spec(replace(HERE, engine_bins=[f"vllm={there.folder}", "sglang=/bin/sh"]))
    assert spec.notes == (
        "--engine-bin sglang is not used: sglang is neither searched nor the baseline",
    )
    spec = build_spec(replace(SIMULATED, on="docker", images=["sglang=mine:v0.5.23"]))
    assert spec.notes == (
        "--image sglang is not used: sglang is neither searched nor the baseline",
    )


@pytest.mark.parametrize(
    "asked", [{"baseline": SGLANG}, {"engine_args": ["vllm=--seed 1"]}, {"pins": ["block_size=1"]}]
)
def test_nothing_can_be_set_on_somebody_else_s_server(asked: dict[str, object]) -> None:
    said = r"^--[a-z-]+: an external server cannot be configured\. To search .* give the command as --baseline"
    with pytest.raises(BadInput, match=said):
        build_spec(replace(SIMULATED, on="external:http://127.0.0.1:1", **asked))  # type: ignore[arg-type]


def test_a_dry_run_tells_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = [
        {**row, "choices": ["auto", "bfloat16"]} if row["dest"] == "kv_cache_dtype" else row
        for row in rows("vllm", "0.32.0")
    ]
    there = install(tmp_path / "env", "vllm", "0.33.0", cut)
    run(
        replace(HERE, engine_bins=[f"vllm={there.folder}"]),
        tmp_path / "home",
        as_json=True,
        dry_run=True,
    )
    shown = capsys.readouterr()
    (note,) = json.loads(shown.out)["notes"]
    assert "candidates are removed, not in this version's --help" in note
    assert note in shown.err
