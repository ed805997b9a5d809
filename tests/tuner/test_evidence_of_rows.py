"""Rows of `regress` and `verify` belong to one backend: for each ordered pair, the second one
launches for itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from autotune.base.errors import BadInput
from autotune.base.evidence import Evidence
from autotune.base.notify import silent
from autotune.engines.command import Command, Configuration
from autotune.outputs.report.sentences import lines
from autotune.outputs.tracking.content import outcome_tags
from autotune.tuner.backends import backend_named
from autotune.tuner.study.home import Home
from autotune.tuner.study.options import RegressOptions, VerifyOptions
from autotune.tuner.study.recommendation import Regression
from autotune.tuner.study.results import RESULTS, Results, read_launches
from autotune.tuner.trial import Launch, Role, State, Trial, TrialResult
from autotune.tuner.verify import verification
from autotune.verify import regress
from tests import small_study
from tests.engines.stand_ins import install, rows
from tests.product.cli import autotune, new_home
from tests.run.test_regress import Node, compare, done_of, study
from tests.servers.docker.settings import docker
from tests.weight_files import cache, shards

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = {
    "simulator": Evidence.SIMULATED,
    "emulator": Evidence.EMULATED,
    "process": Evidence.MEASURED,
    "docker": Evidence.MEASURED,
    "external": Evidence.MEASURED,
    "replay": Evidence.REPLAYED,
}
COMPARING = ("simulator", "emulator", "process", "docker")
VERIFYING = ("emulator", "process", "docker", "external")
FORMS = {
    "external": "external:http://127.0.0.1:9",
    "replay": f"replay:{ROOT}/examples/vllm_gpu/measured/study.bundle",
}
OLD, NEW = "0.32.0", "0.33.0"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Stand-ins for both versions of vLLM, a SGLang, and a Docker with their images; a model's
    weights."""
    folder = tmp_path_factory.mktemp("machine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("HF_HOME", str(folder / "hub"))
        cache(folder / "hub" / "hub", small_study.MODEL, shards(2))
        programs = {
            version: str(install(folder / version, "vllm", version, known("vllm", version)).program)
            for version in (OLD, NEW)
        }
        programs["sglang"] = str(
            install(folder / "sglang", "sglang", "0.5.23", known("sglang", "0.5.23")).python
        )
        images = [
            *(f"vllm/vllm-openai:v{version}" for version in (OLD, NEW)),
            "lmsysorg/sglang:v0.5.23",
        ]
        (folder / "image").mkdir()
        with docker(
            folder / "docker", {name: {"path": str(folder / "image")} for name in images}
        ) as stand_in:
            for name in ("PATH", "STAND_IN_DOCKER"):
                patch.setenv(name, stand_in.environment[name])
            yield programs


def known(engine: str, version: str) -> list[dict[str, object]]:
    return [row for row in rows(engine, version) if row.get("action") != "retired"]


def asked(backend: str, programs: dict[str, str]) -> RegressOptions:
    """The comparison of both versions on a backend."""
    options = RegressOptions("s", on=FORMS.get(backend, backend), launches=4)
    if backend == "process":
        return replace(
            options,
            engine_bins=[f"vllm={programs[NEW]}"],
            old_engine_bins=[f"vllm={programs[OLD]}"],
        )
    if backend == "docker":
        new, old = (f"vllm=vllm/vllm-openai:v{version}" for version in (NEW, OLD))
        return replace(options, images=[new], old_images=[old])
    return replace(options, engines=[f"vllm=={NEW}"])


def made_on(backend: str) -> Node:
    return Node(
        {NEW: {"simulator": 0.7, "emulator": 1.0, "process": 1.3, "docker": 1.6}[backend]},
        evidence=EVIDENCE[backend],
    )


def first_comparison(home: Home, backend: str, programs: dict[str, str]) -> Regression:
    node = made_on(backend)
    found = compare(home, asked(backend, programs), node)
    assert len(node.made) == found.launches == 4, "no launch is taken over"
    assert found.evidence is EVIDENCE[backend]
    assert found.commands[0].change_percent == pytest.approx(100 * (node.factor[NEW] - 1), abs=8)
    return found


@pytest.fixture(scope="module")
def compared(
    tmp_path_factory: pytest.TempPathFactory, machine: dict[str, str]
) -> dict[str, tuple[Home, Regression]]:
    """A study with one comparison, by its backend: to be copied."""
    found = {}
    for backend in COMPARING:
        home = study(tmp_path_factory.mktemp(backend))
        found[backend] = (home, first_comparison(home, backend, machine))
    return found


def copy_of(home: Home, folder: Path) -> Home:
    return Home(Path(shutil.copytree(home.path, folder / "copy")))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(*pair, marks=[] if {*pair} == {"simulator", "process"} else pytest.mark.e2e)
        for pair in permutations(COMPARING, 2)
    ],
)
def test_a_comparison_on_another_backend_launches_again_and_tells_its_own_evidence(
    tmp_path: Path,
    machine: dict[str, str],
    compared: dict[str, tuple[Home, Regression]],
    first: str,
    second: str,
) -> None:
    home = copy_of(compared[first][0], tmp_path)
    found = {first: compared[first][1], second: first_comparison(home, second, machine)}
    assert found[second].commands[0].change_percent != found[first].commands[0].change_percent
    for backend in (first, second):
        again = made_on(backend)
        assert compare(home, asked(backend, machine), again) == found[backend]
        assert not again.made, "its own launches are taken up"
    folders = [path.parent for path in home.study_folder("s").glob("regress/*/regress.json")]
    assert sorted(path.name for path in folders) == [NEW, f"{NEW}-{second}"]
    for folder in folders:
        (evidence,) = {row.result.evidence for row in read_launches(folder / RESULTS)}
        assert json.loads((folder / "regress.json").read_text())["evidence"] == evidence.value
    assert {one.evidence for one in home.regressions("s")} == {EVIDENCE[first], EVIDENCE[second]}


@pytest.mark.parametrize("first", [None, *COMPARING])
@pytest.mark.parametrize("second", ["external", "replay"])
def test_what_launches_no_version_is_refused_beside_and_before_any_other(
    tmp_path: Path,
    machine: dict[str, str],
    compared: dict[str, tuple[Home, Regression]],
    first: str | None,
    second: str,
) -> None:
    home = copy_of(compared[first][0], tmp_path) if first else study(tmp_path)
    node = made_on(first or "simulator")
    with pytest.raises(BadInput, match="launches no version"):
        regress(home, asked(second, machine), silent, node)
    found = compare(home, asked(first or "simulator", machine), node)
    assert (found.evidence, len(node.made)) == (
        (EVIDENCE[first], 0) if first else (Evidence.SIMULATED, 4)
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [pair for pair in permutations(COMPARING, 2) if {*pair} != {"process", "docker"}],
)
def test_launches_of_an_earlier_release_are_told_by_their_evidence(
    tmp_path: Path,
    machine: dict[str, str],
    compared: dict[str, tuple[Home, Regression]],
    first: str,
    second: str,
) -> None:
    home = copy_of(compared[first][0], tmp_path)
    (home.study_folder("s") / "regress" / NEW / "backend").unlink()
    node = made_on(second)
    found = compare(home, asked(second, machine), node)
    assert (len(node.made), found.evidence) == (4, EVIDENCE[second])


def test_an_emulated_program_is_not_compared_with_a_real_one(
    tmp_path: Path, machine: dict[str, str]
) -> None:
    home, node = study(tmp_path), Node(evidence=Evidence.MEASURED)
    node.evaluate = lambda trial: replace(  # type: ignore[method-assign]
        Node.evaluate(node, trial),
        evidence=Evidence.EMULATED if trial.engine_version == NEW else Evidence.MEASURED,
    )
    with pytest.raises(BadInput, match="EMULATED and MEASURED cannot be compared"):
        compare(home, asked("process", machine), node)
    # Both emulated, they are told as what they are, whatever the backend's name.
    other = study(tmp_path / "other")
    found = compare(other, asked("process", machine), Node(evidence=Evidence.EMULATED))
    assert found.evidence is Evidence.EMULATED
    assert "(EMULATED)" in lines("regression", done_of(other), one=found)[0]


def test_comparisons_outlive_another_recommendation_and_tell_whose_they_are(
    tmp_path: Path, machine: dict[str, str]
) -> None:
    home = study(tmp_path)
    for backend in ("simulator", "emulator"):
        _, done = regress(home, asked(backend, machine), silent, made_on(backend))
    assert [one.evidence for one in done.regressions] == [Evidence.SIMULATED, Evidence.EMULATED]
    (home.study_folder("s") / "recommendation.json").unlink()
    assert home.regressions("s") == done.regressions
    assert outcome_tags(done)[f"regress.{NEW}"] == done.regressions[-1].verdict
    mine = lines("regression", done, one=done.regressions[0])
    assert any(line.startswith("the recommended command: ") for line in mine)
    other = done.model_copy(update={"recommended": small_study.choice(small_study.WINNER, 9000.0)})
    assert any(
        line.startswith("the recommended command, an earlier one: ")
        for line in lines("regression", other, one=done.regressions[0])
    )
    # On another backend than the study's its repeats say nothing of the spread, and that is told.
    told = "the interval is by the spread of these launches alone: those of the study are simulated"
    assert [told in one.notes for one in done.regressions] == [False, True]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a finished simulated study of SGLang."""
    home = new_home(tmp_path_factory.mktemp("simulated"))
    question = (
        "--model",
        small_study.MODEL,
        "--hw",
        "h200",
        "--engine",
        "sglang",
        "--workload",
        "random:256:16:64",
    )
    search = {
        "tensor_parallel": [1, 8],
        "data_parallel": [1, 8],
        "max_running_requests": [256, 512],
    }
    space = home.parent / "space.yaml"
    space.write_text(json.dumps({"narrow": {"sglang": {"search": search}}}))
    asked = (*question, "--space", str(space), "--launches", "9", "--set", "memory_fraction=0.88")
    done = autotune("run", *asked, "--study", "s", home=home)
    assert done.code == 0, done.err
    return home


@pytest.mark.parametrize(("top", "commands"), [(1, 2), (2, 3), (3, 4)])
def test_the_baseline_and_the_asked_number_of_others_are_measured(
    simulated: Path, top: int, commands: int
) -> None:
    spec = verification(Home(simulated), VerifyOptions("s", on="emulator", top=top), silent)
    assert spec.verifies is not None
    roles = [one.role for one in spec.verifies.commands]
    assert len(roles) == commands
    assert roles[0] == "baseline"
    assert len({one.fingerprint for one in spec.verifies.commands}) == commands


def verifying(home: Home, backend: str, programs: dict[str, str]) -> str:
    """Begin a verification and finish one launch of it; the study's name."""
    named = [f"sglang={programs['sglang']}"] if backend == "process" else []
    images = ["sglang=lmsysorg/sglang:v0.5.23"] if backend == "docker" else []
    options = VerifyOptions(
        "s", on=FORMS.get(backend, backend), top=1, engine_bins=named, images=images
    )
    spec = verification(home, options, silent)
    assert backend_named(spec.on).kind == backend
    folder = home.open(spec)
    assert not read_launches(folder / RESULTS), "no launch is taken over"
    trial = Trial(
        0,
        Role.BASELINE,
        Configuration("sglang", {}),
        "0.5.23",
        Command(("sglang",)),
        spec.workloads,
    )
    Results(folder / RESULTS).append(Launch(trial, TrialResult(State.COMPLETE, EVIDENCE[backend])))
    return spec.study


@pytest.mark.parametrize(("first", "second"), list(permutations(VERIFYING, 2)))
def test_a_verification_on_another_backend_is_a_study_of_its_own(
    tmp_path: Path, machine: dict[str, str], simulated: Path, first: str, second: str
) -> None:
    home = copy_of(Home(simulated), tmp_path)
    assert verifying(home, first, machine) == "s-verified"
    assert verifying(home, second, machine) == f"s-verified-{second}"
    for backend, name in ((first, "s-verified"), (second, f"s-verified-{second}")):
        with pytest.raises(BadInput, match=f"study '{name}' exists"):
            verifying(home, backend, machine)
        assert {row.result.evidence for row in home.launches(name)} == {EVIDENCE[backend]}


@pytest.mark.parametrize("first", VERIFYING)
@pytest.mark.parametrize("second", ["simulator", "replay"])
def test_what_measures_nothing_verifies_nothing_beside_any_other(
    tmp_path: Path, machine: dict[str, str], simulated: Path, first: str, second: str
) -> None:
    home = copy_of(Home(simulated), tmp_path)
    for _ in range(2):
        with pytest.raises(
            BadInput, match="predictions are measured on process, docker, emulator, external:URL"
        ):
            verifying(home, second, machine)
        if "s-verified" not in home.names():
            verifying(home, first, machine)
    assert home.names() == ["s", "s-verified"]


def test_a_study_that_goes_on_keeps_its_comparisons(tmp_path: Path, simulated: Path) -> None:
    home = copy_of(Home(simulated), tmp_path)
    compared = autotune(
        "regress", "s", "--engine", "sglang==0.5.9", "--launches", "2", "--json", home=home.path
    )
    assert compared.code in (0, 5, 6), compared.err
    resumed = autotune("resume", "s", "--launches", "12", home=home.path)
    assert resumed.code == 0, resumed.err
    kept = json.loads((home.study_folder("s") / "recommendation.json").read_text())
    assert kept["launches"] == 12
    assert kept["regressions"] == [compared.json]
    assert (
        "## Is it still better on later versions?"
        in (home.study_folder("s") / "report.md").read_text()
    )
