"""`autotune bundle`, and a replay of what it writes on another machine."""

from __future__ import annotations

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

from autotune.base.errors import BadInput
from autotune.base.evidence import Evidence
from autotune.engines.failure import FailureKind
from autotune.outputs.study_comparison import StudyComparison, study_named
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import prepare
from autotune.tuner.recommend import recommend
from autotune.tuner.replay.bundle import MANIFEST, read_bundle
from autotune.tuner.study.home import Home, library_of
from autotune.tuner.study.options import RunOptions
from autotune.tuner.study.recommendation import Recommendation
from tests.product.cli import autotune, new_home, rows
from tests.tuner.replay.bundles import SECRET, bundled, done, members_of, packed, study_in


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return study_in(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def file(home: Path) -> Path:
    path = home.parent / "study.any"
    path.write_bytes(bundled(home))
    return path


def on(file: Path, **options: Any) -> RunOptions:
    return RunOptions(**{"on": f"replay:{file}", "study": "r", **options})


def same(one: Recommendation, other: Recommendation) -> None:
    """Two outcomes but for where their figures come from, and what is said of candidates that were
    not launched."""
    fields = [
        "verdict",
        "recommended",
        "baseline",
        "gain_percent",
        "gain_ci95",
        "gives_up",
        "alternatives",
        "workloads",
    ]
    fields += ["matrix", "launches", "trials", "failures", "excluded", "resolutions", "duration_s"]
    for name in fields:
        assert getattr(one, name) == getattr(other, name), name


def test_a_bundle_replayed_elsewhere_ends_as_the_study_did(
    home: Path, file: Path, tmp_path: Path
) -> None:
    there = new_home(tmp_path)
    copied = tmp_path / "b"
    copied.write_bytes(file.read_bytes())
    told = autotune("run", "--on", "replay:b", "--study", "r", "--json", home=there)
    assert told.code == 0, told.err
    assert "SIMULATED when recorded" in told.err
    assert "the recommendation is the same as in study s" in told.err
    original = json.loads((home / "studies" / "s" / "recommendation.json").read_text())
    assert all(
        told.json[key] == original[key]
        for key in ("fingerprint", "argv", "env", "config", "gain_percent")
    )
    # A model of the launched candidates alone says it a little otherwise, so that rows may change
    # places.
    both = (
        sorted(found["contributions"], key=lambda row: row["knob"])
        for found in (told.json, original)
    )
    for one, other in zip(*both, strict=True):
        assert (one["knob"], one["from"], one["to"]) == (other["knob"], other["from"], other["to"])
        low, high = other["ci95"]
        assert one["gain_percent"] == pytest.approx(
            other["gain_percent"], abs=max(1.0, (high - low) / 50)
        )
    assert (told.json["evidence"], told.json["evidence_of"]) == ("replayed", "simulated")
    assert told.json["gain_interval90_on_a_node"] == original["gain_interval90_on_a_node"]
    script = (there / "studies" / "r" / "serve.sh").read_text()
    assert "# evidence: REPLAYED, of SIMULATED launches, not measured on this hardware" in script
    before, after = Home(home).recommendation("s"), Home(there).recommendation("r")
    assert before is not None
    assert after is not None
    same(before, after)
    kept = (
        "number",
        "role",
        "config",
        "fingerprint",
        "launch_index",
        "argv",
        "metrics",
        "failure",
        "times_s",
    )
    assert [[r[k] for k in kept] for r in rows(there, "r")] == [
        [r[k] for k in kept] for r in rows(home, "s")
    ]
    spec, asked = Home(there).spec("r"), Home(home).spec("s")
    for name in (
        "seed",
        "launches",
        "noise",
        "workloads",
        "objective",
        "slos",
        "hours",
        "baseline",
        "model",
    ):
        assert getattr(spec, name) == getattr(asked, name), name


def interrupted(home: Path, name: str, nodes: tuple[str, ...]) -> None:
    """Make a study that was killed in its seventh launch: one had no memory, and one broke with the
    machine.

    Args:
        nodes: on which its launches ran in turn; none: there was one place.
    """
    source, folder = home / "studies" / "s", home / "studies" / name
    folder.mkdir()
    (folder / "study.yaml").write_text(
        (source / "study.yaml").read_text().replace("study: s\n", f"study: {name}\n")
    )
    lines = [json.loads(line) for line in (source / "results.jsonl").read_text().splitlines()][:6]
    nothing = {"metrics": {}, "resolved": None}
    for number, state, kind in (
        (2, "failed", FailureKind.OUT_OF_MEMORY),
        (3, "invalid", FailureKind.INFRASTRUCTURE),
    ):
        failure = {"kind": kind.value, "message": "it broke", "log_excerpt": "CUDA error"}
        lines[number] |= {
            **nothing,
            "state": state,
            "failure": failure,
            "quarantine": "a process is left",
        }
    for number, line in enumerate(lines if nodes else ()):
        line |= {"node": nodes[number % len(nodes)], "bound_node": nodes[number % len(nodes)]}
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "results.jsonl").write_text(text + '{"number": 6, "role"')


@pytest.mark.parametrize("nodes", [(), ("n0", "n1")])
def test_an_interrupted_study_with_failed_launches_is_judged_alike(
    home: Path, tmp_path: Path, nodes: tuple[str, ...]
) -> None:
    name = f"cut{len(nodes)}"
    interrupted(home, name, nodes)
    spec, launches = Home(home).spec(name), Home(home).launches(name)
    prepared = prepare(spec, library_of(spec))
    expected = recommend(spec, prepared.candidates, launches, prepared.excluded)
    (tmp_path / "cut.zip").write_bytes(bundled(home, name))
    there = new_home(tmp_path)
    outcome = done(on(tmp_path / "cut.zip"), there)
    same(outcome, expected)
    assert outcome.launches == 6
    assert outcome.failures == {"infrastructure": 1, "out_of_memory": 1}
    assert outcome.nodes == expected.nodes
    assert {row["evidence"] for row in rows(there, "r")} == {Evidence.REPLAYED.value}


def test_the_same_study_makes_the_same_bytes(home: Path, file: Path) -> None:
    assert bundled(home) == file.read_bytes()


def test_no_secret_is_in_a_bundle_and_prompts_on_request_only(home: Path, file: Path) -> None:
    members = members_of(file.read_bytes())
    assert not any(SECRET.encode() in content for content in members.values())
    log = members["trials/0002/server.log"].decode()
    assert log.startswith(
        "vLLM 0.33.0\ntoken=REDACTED\n[a line that may quote a prompt is left out]\n"
    )
    assert log.endswith("Killed")
    assert "bytes omitted" in log
    assert (
        members["trials/0002/server-1/server.log"] == b"the second server\ntoken=REDACTED\nKilled"
    )
    assert json.loads(members["trials/0002/resolved.json"])["args"]["tensor_parallel_size"] == 8
    asked = members_of(bundled(home, prompts=True))
    assert b"the novel that nobody knows" in asked["trials/0002/server.log"]
    assert SECRET.encode() not in asked["trials/0002/server.log"]


def test_options_say_otherwise(file: Path) -> None:
    spec = build_spec(
        on(file, launches=3, seed=9, noise=0.1, slos=["p99_ttft_ms<=1"], given=frozenset({"seed"}))
    )
    assert (spec.launches, spec.seed, spec.noise, str(spec.slos[0])) == (
        3,
        9,
        0.1,
        "p99_ttft_ms<=1",
    )
    assert len(prepare(spec, library_of(spec)).recorded) == 3
    assert build_spec(on(file, seed=0, given=frozenset({"seed"}))).seed == 0
    hours = build_spec(on(file, hours=0.5))
    assert len(prepare(hours, library_of(hours)).recorded) == 3
    other = build_spec(on(file, baseline="engine=vllm,tensor_parallel=2"))
    candidates = prepare(other, library_of(other)).candidates
    assert candidates.baseline_candidate.configuration.knobs["tensor_parallel"] == 2
    assert (
        build_spec(on(file, model="DEEPSEEK-AI/DeepSeek-V3.2", hardware="h200", gpus=8)).gpus == 8
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "deepseek-ai/DeepSeek-R1"}, "the bundle is of deepseek-ai/DeepSeek-V3.2"),
        ({"hardware": "mi300x"}, "--hw mi300x: the bundle is of h200"),
        ({"gpus": 4}, "--gpus 4: the bundle is of 8 x h200"),
        ({"workloads": ["long"]}, "--workload long: .* only sharegpt"),
        ({"pareto": "spec_decode"}, "spec_decode"),
        ({"ladder": "1,4"}, "--ladder: "),
        ({"engines": ["vllm"], "pins": ["tp=8"]}, "--engine and --set: .* results.jsonl"),
        ({"baseline": "engine=vllm"}, "rows match"),
        ({"weights": "long=1"}, "long"),
    ],
)
def test_what_disagrees_is_refused(file: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        build_spec(on(file, **options))


def zipped(members: dict[str, bytes]) -> bytes:
    """A zip of members whatever the manifest says."""
    buffer = BytesIO()
    with ZipFile(buffer, "w", ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def newer(members: dict[str, bytes]) -> bytes:
    manifest = {**json.loads(members[MANIFEST]), "schema": 2, "autotune": "9.1"}
    return zipped({**members, MANIFEST: json.dumps(manifest).encode()})


def bomb(members: dict[str, bytes]) -> bytes:
    return zipped({**members, "trials/0000/server.log": bytes(260 * 2**20)})


BAD = {
    "cut short": (lambda members: zipped(members)[:-200], "cut short"),
    "newer": (newer, r"newer version \(autotune 9.1, schema 2; this one reads 1\)"),
    "another figure": (
        lambda m: zipped({**m, "results.jsonl": m["results.jsonl"] + b" "}),
        "tampered with: 'results",
    ),
    "one more": (lambda m: zipped({**m, "more": b""}), "'more' does not match its manifest"),
    "one less": (
        lambda m: zipped({n: c for n, c in m.items() if n != "study.yaml"}),
        "'study.yaml' does not match its manifest",
    ),
    "outside": (lambda m: packed({**m, "../../evil": b"x"}), r"'\.\./\.\./evil' would be outside"),
    "absolute": (lambda m: packed({**m, "/etc/evil": b"x"}), "would be outside"),
    "bomb": (bomb, "more than"),
    "no manifest": (lambda m: zipped({"study.yaml": m["study.yaml"]}), "no bundle of a study"),
    "no launch": (lambda m: packed({**m, "results.jsonl": b""}), "no launch"),
    "another spec": (
        lambda m: packed({**m, "study.yaml": b"a: 1"}, autotune="0.2"),
        r"\(autotune 0.2 made it\)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_bundle_is_refused_with_the_reason(file: Path, name: str) -> None:
    make, words = BAD[name]
    with pytest.raises(BadInput, match=words):
        read_bundle(Path("b"), make(members_of(file.read_bytes())))


def test_a_bad_bundle_ends_with_exit_code_2_and_leaves_nothing(file: Path, tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(file.read_bytes()[:-100])
    told = autotune("run", "--on", "replay:b", home=tmp_path / "home")
    assert (told.code, told.out) == (2, "")
    assert "cut short" in told.err
    assert "Traceback" not in told.err
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    missing = autotune("run", "--hw", "h200", home=tmp_path / "home")
    assert missing.code == 2
    assert "--model is missing" in missing.err


def test_two_studies_are_compared_with_what_keeps_them_from_it(home: Path, file: Path) -> None:
    one, other = study_named("s", Home(home)), study_named(str(file), Home(home))
    assert one is not None
    assert other is not None
    told = StudyComparison(one, other).to_json()
    assert told["warnings"] == ["SIMULATED: neither was measured on a real node"]
    assert told["metrics"]["sharegpt"]["total_token_throughput"]["change_percent"] == 0
    low, high = told["metrics"]["sharegpt"]["total_token_throughput"]["interval95"]
    assert low < 0 < high
    assert told["knobs"]["not_carried_over"] == {}
    assert {"tensor_parallel", "data_parallel"} <= told["knobs"]["carried_over"].keys()
    assert told["a"]["cost"]["launches"] == 8
    assert told["a"]["cost"]["gpu_hours"] == pytest.approx(8 * told["a"]["cost"]["hours"])


def test_only_what_is_comparable_is_compared(home: Path) -> None:
    one = study_named("s", Home(home))
    assert one is not None
    assert one.outcome.recommended is not None
    chosen = one.outcome.recommended
    slower = chosen.model_copy(update={"config": {**chosen.config, "data_parallel": 1}})
    objective = {"objective": "p99_ttft_ms", "workloads": ("sharegpt", "long")}
    outcome = one.outcome.model_copy(update={"recommended": slower, "evidence": Evidence.MEASURED})
    other = replace(one, spec=one.spec.model_copy(update=objective), outcome=outcome)
    told = StudyComparison(one, other)
    assert any("EVIDENCE DIFFERS: A is SIMULATED, B is measured" in text for text in told.warnings)
    assert "different objective: total_token_throughput in A, p99_ttft_ms in B" in told.warnings
    assert list(told.to_json()["metrics"]) == ["sharegpt"]
    assert told.to_json()["knobs"]["not_carried_over"]["data_parallel"] == {
        "a": chosen.config["data_parallel"],
        "b": 1,
    }
    strangers = replace(one, outcome=one.outcome.model_copy(update={"model": "another"}))
    assert StudyComparison(one, strangers).metrics == {}
    warnings = StudyComparison(one, strangers).warnings
    assert any(text.startswith("different model") for text in warnings)


def test_compare_takes_studies_and_bundles_by_name(home: Path, file: Path) -> None:
    told = autotune("compare", "s", str(file), home=home)
    assert told.code == 0, told.err
    assert all(
        words in told.out for words in ("knobs in common", "GPU hours", "WARNING: SIMULATED")
    )
    assert autotune("compare", "s", "t", home=home).code == 2
