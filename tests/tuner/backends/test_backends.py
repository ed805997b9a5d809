"""Where trials run is chosen once: what each backend is, that it can be sent to a node, and what
one more takes."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.base.errors import BadInput
from autotune.base.evidence import Evidence
from autotune.tuner.backends import BACKENDS, EvaluationSetup, backend_named, evaluator_for
from autotune.tuner.backends.simulator import SimulatedEvaluator, Simulator
from autotune.tuner.study.options import RunOptions, command_line
from autotune.tuner.trial import Role, Trial, TrialResult
from tests.tuner.prepare.settings import LIBRARY, RUN, prepared, said

ROOT = Path(__file__).resolve().parents[3]
BUNDLE = ROOT / "examples" / "llama_server" / "measured" / "study.bundle"
KINDS = {
    "process": (Evidence.MEASURED, "launches on_gpus installed"),
    "docker": (Evidence.MEASURED, "launches on_gpus contained"),
    "emulator": (Evidence.EMULATED, "launches predicted"),
    "external:http://127.0.0.1:8000": (Evidence.MEASURED, "foreign"),
    "simulator": (Evidence.SIMULATED, "virtual predicted"),
    "replay:/no/such.csv": (Evidence.REPLAYED, "virtual recorded"),
    f"replay:{BUNDLE}": (Evidence.REPLAYED, "virtual recorded"),
}
FACTS = (
    "launches",
    "on_gpus",
    "installed",
    "contained",
    "foreign",
    "virtual",
    "predicted",
    "recorded",
)


@pytest.mark.parametrize("on", KINDS)
def test_what_a_backend_is(on: str) -> None:
    """Each fact is asked by somebody: who needs GPUs, who may be given a token, whose figures are a
    prediction."""
    backend = backend_named(on)
    assert (backend.on, backend.evidence) == (on, KINDS[on][0])
    assert [fact for fact in FACTS if getattr(backend, fact)] == [
        f for f in FACTS if f in KINDS[on][1].split()
    ]
    assert pickle.loads(pickle.dumps(backend)) == backend


@pytest.mark.parametrize("on", KINDS)
def test_random_weights_are_switched_off_again_only_where_a_search_may_use_them(on: str) -> None:
    spec = prepared(RUN).spec.with_fields(on=on, launches=30, screened=())
    assert spec.may_screen
    typed = command_line(spec, backend_named(on).unused_options)
    assert ("--screen off" in typed) is not on.startswith(("external", "replay"))


def test_every_backend_is_in_the_table_above() -> None:
    assert {on.partition(":")[0] for on in KINDS} == set(BACKENDS)


@pytest.mark.parametrize(
    "on", ["nowhere", "process:1", "Docker", "external:", "external:http://u:p@host", ""]
)
def test_what_names_no_backend_is_refused(on: str) -> None:
    with pytest.raises(BadInput):
        backend_named(on)


@pytest.mark.parametrize(
    "on", ["process", "docker", "emulator", "external:http://127.0.0.1:8000", "simulator"]
)
def test_a_node_of_a_cluster_makes_the_evaluator_from_what_it_is_sent(
    on: str, tmp_path: Path
) -> None:
    spec = prepared(RUN).spec.model_copy(update={"on": on})
    sent = pickle.dumps(EvaluationSetup(spec, LIBRARY, tmp_path))
    assert pickle.loads(sent).lost("killed").evidence is KINDS[on][0]


class Halved(Simulator):
    """A node at half the speed, as a stranger would add it."""

    form = "halved"

    def evaluator(self, setup: EvaluationSetup) -> AtHalfSpeed:
        return AtHalfSpeed(SimulatedEvaluator(setup.spec, setup.library))


class AtHalfSpeed:
    evidence = Evidence.SIMULATED

    def __init__(self, node: SimulatedEvaluator) -> None:
        self.node = node

    def __call__(self, trial: Trial) -> TrialResult:
        result = self.node(trial)
        return replace(
            result, metrics={name: {"total_token_throughput": 1.0} for name in result.metrics}
        )


@pytest.fixture
def halved(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(BACKENDS, "halved", f"{__name__}:Halved")
    return "halved"


def test_one_more_backend_is_a_class_and_a_line(halved: str, tmp_path: Path) -> None:
    ready = prepared(replace(RUN, on=halved))
    first = ready.candidates.items[0]
    trial = Trial(
        0,
        Role.BASELINE,
        first.configuration,
        first.engine_version,
        ready.command_of(first),
        RUN.workloads,
    )
    result = evaluator_for(EvaluationSetup(ready.spec, LIBRARY, tmp_path))(trial)
    assert (ready.spec.on, ready.spec.noise, result.evidence) == (
        "halved",
        0.03,
        Evidence.SIMULATED,
    )
    assert result.metrics == {"random:1000:100:64": {"total_token_throughput": 1.0}}
    assert "halved" in said(replace(RUN, on="nowhere"))


def test_nobody_else_asks_where_trials_run() -> None:
    """The field of ``study.yaml`` is read where it is chosen and where it is printed; all else asks
    the backend."""
    files = (ROOT / "autotune").rglob("*.py")
    asking = {
        str(f.relative_to(ROOT / "autotune"))
        for f in files
        if re.search(r"\b(spec|options|self)\.on\b", f.read_text())
    }
    assert {name for name in asking if not name.startswith("tuner/backends/")} == {
        "tuner/prepare/build_spec.py",
        "tuner/verify.py",
    }


def test_the_sources_of_secrets_are_kept_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text("from-file\n")
    (tmp_path / "empty").touch()
    monkeypatch.setenv("MY_KEY", "from-environment")
    monkeypatch.chdir(tmp_path)

    def sources(
        on: str, variable: str | None, path: str | None, token: str | None
    ) -> dict[str, str | None]:
        options = RunOptions(api_key_env=variable, api_key_file=path, hf_token_file=token)
        return backend_named(on).secret_sources(options)

    kept = sources("external:http://h:1", None, "key", None)
    assert kept == {"api_key_env": None, "api_key_file": str(file), "hf_token_file": None}
    for on, variable, path, token, words in (
        ("external:http://h:1", "NO_SUCH", None, None, "is not set"),
        ("external:http://h:1", None, "no-such", None, "cannot be read"),
        ("external:http://h:1", None, "empty", None, "is empty"),
        ("external:http://h:1", "MY_KEY", "key", None, "mutually exclusive"),
        ("process", "MY_KEY", None, None, "--engine-arg"),
        ("simulator", None, None, "key", "runs on simulator"),
        ("process", None, None, "no-such", "--hf-token-file no-such"),
    ):
        with pytest.raises(BadInput, match=words):
            sources(on, variable, path, token)
