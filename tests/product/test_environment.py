"""Variables of the shell are a part of a study: recorded, given to every server, and the same when it
goes on elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.product.cli import Finished, autotune, new_home, rows

SECRET = "planted-key-of-no-known-shape"
QUESTION = ["run", "--model", "Qwen/Qwen3-8B", "--hw", "h200", "--gpus", "1", "--engine", "vllm"]
SMALL = [*QUESTION, "--workload", "random:64:4:32", "--launches", "1", "--on", "emulator"]
SERVICES = {"VLLM_PORT_80_TCP": "tcp://10.0.0.1:80", "SGLANG_SERVICE_HOST": "10.0.0.2"}
SHELL = {
    "NCCL_ALGO": "Ring",
    "VLLM_PORT": "tcp://10.0.0.1:80",
    "SGLANG_PORT": "tcp://10.0.0.2:80",
    "VLLM_API_KEY": SECRET,
    **SERVICES,
}


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two candidates, where it is not about them: to enumerate all takes seconds."""
    path = tmp_path_factory.mktemp("few") / "space.yaml"
    path.write_text("narrow: {vllm: {search: {max_running_requests: [128, 256]}}}\n")
    return ["--space", str(path)]


def spec_of(home: Path, study: str) -> Any:
    return yaml.safe_load((home / "studies" / study / "study.yaml").read_text())


def done(finished: Finished) -> Finished:
    assert finished.code == 0, finished.err
    return finished


@pytest.mark.e2e
def test_a_study_keeps_the_variables_that_it_began_with(tmp_path: Path, few: list[str]) -> None:
    home = new_home(tmp_path)
    first = done(autotune(*SMALL, *few, "--study", "a", home=home, **SHELL))
    assert "NCCL_ALGO=Ring, VLLM_API_KEY (set)" in first.err
    for name in ("VLLM_PORT", "SGLANG_PORT"):
        assert f"{name}={SHELL[name]} of this shell is left out: autotune chooses" in first.err
    recorded = {"NCCL_ALGO": "Ring", "VLLM_API_KEY": "${VLLM_API_KEY}"}
    assert spec_of(home, "a")["inherited"] == recorded
    elsewhere = {**SHELL, "NCCL_ALGO": "Tree", "OMP_NUM_THREADS": "2"}
    again = done(autotune("resume", "a", "--launches", "4", home=home, **elsewhere))
    assert "NCCL_ALGO is Tree in this shell; the servers keep the study's own: Ring" in again.err
    assert (
        "OMP_NUM_THREADS is 2 in this shell; the servers keep the study's own: not set" in again.err
    )
    launched = rows(home, "a")
    assert len(launched) == 4
    # The servers wanted the key of the shell, and the client knew it.
    assert [row["state"] for row in launched] == ["complete"] * len(launched)
    assert all(row["env"].items() >= recorded.items() for row in launched)
    assert not any({"VLLM_PORT", "OMP_NUM_THREADS"} & row["env"].keys() for row in launched)
    folder = home / "studies" / "a"
    for name in ("recommendation.json", "serve.sh", "report.md"):
        text = (folder / name).read_text()
        assert "NCCL_ALGO" in text, name
    assert not any(SECRET in path.read_text(errors="replace") for path in folder.rglob("*.*"))


@pytest.mark.e2e
def test_a_study_without_the_shell_s_variables_differs_in_them(
    tmp_path: Path, few: list[str]
) -> None:
    home = new_home(tmp_path)
    done(autotune(*SMALL, *few, "--study", "a", home=home, **SHELL))
    done(autotune(*SMALL, *few, "--study", "b", "--clean-env", home=home, **SHELL))
    assert spec_of(home, "b")["inherited"] == {}
    assert all("NCCL_ALGO" not in row["env"] for row in rows(home, "b"))
    compared = autotune("compare", "a", "b", home=home)
    assert (
        "different variables of the servers: NCCL_ALGO is Ring in A, not set in B" in compared.out
    )
    # A study of before says nothing of variables, and goes on.
    path = home / "studies" / "b" / "study.yaml"
    path.write_text(path.read_text().replace("inherited: {}\n", ""))
    done(autotune("resume", "b", "--launches", "4", home=home, NCCL_ALGO="Ring"))


def dry(*more: str, on: str = "emulator", **variables: str) -> Finished:
    asked = [*QUESTION, "--on", on, "--dry-run", *more]
    return autotune(*asked, home=Path("/nowhere"), cwd=Path.cwd(), **variables)


def test_the_baseline_and_the_candidates_get_a_typed_variable_alike() -> None:
    amd = ["--hw", "mi300x", "--baseline", "vllm serve Qwen/Qwen3-8B", "--json"]
    found = dry(*amd, "--env", "VLLM_ROCM_USE_AITER=0", on="simulator").json
    commands = [found["baseline"], *found["starts"], *(one["command"] for one in found["first"])]
    assert all("VLLM_ROCM_USE_AITER=0 " in one for one in commands), commands
    # Of the shell, candidates' own value wins, and that is said.
    found = dry(*amd, VLLM_ROCM_USE_AITER="0").json
    baseline = found["baseline"]
    assert "VLLM_ROCM_USE_AITER=0 " in baseline
    others = {one["command"] for one in found["first"]} - {baseline}
    assert others
    assert all("VLLM_ROCM_USE_AITER=1 " in one for one in others), others
    assert any("reaches the baseline alone" in note for note in found["notes"]), found["notes"]


@pytest.mark.e2e
def test_a_variable_of_a_knob_decides_it_and_an_own_one_of_the_command_wins(
    few: list[str],
) -> None:
    fp8 = ["--json", "--model", "Qwen/Qwen3-8B-FP8"]
    found = dry(*fp8, VLLM_USE_DEEP_GEMM="0", SGLANG_X="1").json
    assert all(one["config"]["deep_gemm"] is False for one in found["first"])
    assert found["baseline"].startswith("VLLM_USE_DEEP_GEMM=0 vllm serve")
    assert any("pins deep_gemm=False" in note for note in found["notes"])
    against = dry(*fp8, "--set", "deep_gemm=true", VLLM_USE_DEEP_GEMM="0").json
    assert "VLLM_USE_DEEP_GEMM" not in against["baseline"]
    small = (*few, "--json")
    own = dry(
        *small, "--baseline", "NCCL_ALGO=Tree vllm serve Qwen/Qwen3-8B", NCCL_ALGO="Ring"
    ).json
    assert own["baseline"].startswith("NCCL_ALGO=Tree vllm")
    simulated = dry(*small, on="simulator", NCCL_ALGO="Ring").json
    assert "NCCL_ALGO" not in simulated["baseline"]
    from_shell = dry(*small, "--env", "MY_SETTING", on="simulator", MY_SETTING="a b").json
    assert from_shell["baseline"].startswith("MY_SETTING='a b' vllm serve")


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("1A=2", "write NAME=VALUE, or NAME"),
        ("NOT_SET_HERE", "write NOT_SET_HERE=VALUE"),
        ("VLLM_PORT=1", "autotune chooses the ports"),
        ("CUDA_VISIBLE_DEVICES=1", "set it in front of autotune"),
        ("MY_API_KEY=abc", "export it"),
    ],
)
def test_a_wrong_variable_is_refused(text: str, right: str) -> None:
    refused = dry("--env", text)
    assert (refused.code, right in refused.err) == (2, True), refused.err
