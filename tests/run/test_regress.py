"""`autotune regress`: a study's commands on two versions, the verdict, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.base.errors import BadInput, Interrupted
from autotune.base.evidence import Evidence
from autotune.base.notify import silent
from autotune.engines.command import Command
from autotune.engines.failure import Failure, FailureKind
from autotune.engines.installed import InstalledEngine
from autotune.outputs.report.sentences import lines
from autotune.outputs.tracking.content import outcome_metrics, outcome_tags
from autotune.tuner.backends import EvaluationSetup, Evaluator, backend_named
from autotune.tuner.search.decide.sequential_test import Look, repeated_interval
from autotune.tuner.study.home import Home
from autotune.tuner.study.options import RegressOptions
from autotune.tuner.study.recommendation import Recommendation, Regression
from autotune.tuner.study.results import Results
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch, Role, State, Trial, TrialResult
from autotune.tuner.verify import Comparison
from autotune.verify import regress
from tests import small_study
from tests.engines.stand_ins import install, rows
from tests.small_study import BASELINE, TOO_BIG

NEW = RegressOptions("s", engines=["vllm==0.33.0"])


@dataclass
class Node:
    """Evaluators whose figures are made up: by version, a factor on those of the old one, or a
    failure.

    Attributes:
        stops_at: the launch, counted from 0, that is interrupted.
        made: version and role of each launch.
    """

    factor: dict[str, float] = field(default_factory=dict)
    baseline: dict[str, float] = field(default_factory=dict)
    fails: str = ""
    stops_at: int = -1
    ttft: dict[str, float] = field(default_factory=dict)
    evidence: Evidence = Evidence.SIMULATED
    made: list[tuple[str, Role]] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)

    def __call__(self, setup: EvaluationSetup) -> Evaluator:
        return Evaluated(self, setup.spec)

    def evaluate(self, trial: Trial) -> TrialResult:
        """Return the figures of a launch, with noise that its number fixes."""
        if len(self.made) == self.stops_at:
            self.stops_at = -1
            raise KeyboardInterrupt
        self.made.append((trial.engine_version, trial.role))
        self.trials.append(trial)
        if trial.engine_version == self.fails:
            failure = Failure(FailureKind.BAD_ARGUMENT, "no such option")
            return TrialResult(State.FAILED, self.evidence, failure)
        noise = float(np.random.default_rng(trial.number).standard_normal())
        of = self.baseline if trial.role is Role.BASELINE else self.factor
        value = 9000.0 * of.get(trial.engine_version, 1.0) * math.exp(0.03 * noise)
        metrics = small_study.metrics(value, self.ttft.get(trial.engine_version, 5000.0))
        return TrialResult(
            State.COMPLETE, self.evidence, metrics=dict.fromkeys(trial.workloads, metrics)
        )


@dataclass
class Evaluated:
    node: Node
    spec: StudySpec

    def __call__(self, trial: Trial) -> TrialResult:
        return self.node.evaluate(trial)


def study(
    tmp_path: Path,
    command: Command | None = None,
    launches: list[Launch] | None = None,
    **changes: Any,
) -> Home:
    """The small study as a finished one, which recommends a vLLM command over vLLM's baseline."""
    home = Home(tmp_path / "home")
    known = small_study.spec(study="s", **changes)
    folder = home.open(known)
    chosen = small_study.choice(TOO_BIG, 9000.0, command or small_study.COMMANDS[TOO_BIG])
    evidence = launches[0].result.evidence if launches else Evidence.SIMULATED
    done = small_study.recommendation(study="s", recommended=chosen, evidence=evidence)
    (folder / "recommendation.json").write_text(json.dumps(done.to_json()))
    results = Results(folder / "results.jsonl")
    for row in launches or small_study.launches():
        results.append(row)
    return home


def compare(home: Home, options: RegressOptions, node: Node) -> Regression:
    """Compare without the study's report, which takes a second."""
    return Comparison(home, home.spec("s"), done_of(home), options, silent).run(node)


def done_of(home: Home) -> Recommendation:
    done = home.recommendation("s")
    assert done is not None
    return done


def folder_of(home: Home, version: str = "0.33.0") -> Path:
    return home.study_folder("s") / "regress" / version


@pytest.mark.parametrize(
    ("factor", "verdict"), [(0.92, "regression"), (1.0, "pass"), (1.2, "pass"), (0.95, "undecided")]
)
def test_a_change_beyond_the_margin_is_told_from_none(
    tmp_path: Path, factor: float, verdict: str
) -> None:
    home, node = study(tmp_path), Node({"0.33.0": factor})
    found = compare(home, NEW, node)
    assert (found.verdict, found.old, found.from_version, found.to_version) == (
        *(verdict, "launched", "0.32.0", "0.33.0"),
    )
    (row,) = found.commands
    assert row.change_percent == pytest.approx(100 * (factor - 1), abs=2.5)
    low, high = row.change_ci95 or (0.0, 0.0)
    assert low < row.change_percent < high
    assert found.launches == row.launches == len(node.made) <= 16
    assert found.model_dump(mode="json") == json.loads(
        (folder_of(home) / "regress.json").read_text()
    )


def test_the_versions_take_turns_on_prompts_of_their_own(tmp_path: Path) -> None:
    home, node = study(tmp_path), Node({"0.33.0": 0.96})
    compare(home, replace(NEW, with_baseline=True), node)
    old, new = "0.32.0", "0.33.0"
    best, base = Role.FINAL, Role.BASELINE
    assert node.made[:8] == [
        *((old, best), (new, best), (new, base), (old, base)),
        *((new, best), (old, best), (old, base), (new, base)),
    ]
    indices = [trial.launch_index for trial in node.trials]
    assert len(set(indices)) == len(indices)
    assert min(indices) >= 9, "the study's own prompts"
    assert {trial.command.argv[3:] for trial in node.trials if trial.role is best} == {
        ("--data-parallel-size", "8", "--enable-expert-parallel", "--gpu-memory-utilization=0.8")
    }


def test_both_commands_send_what_the_finals_sent_where_that_is_another_load(tmp_path: Path) -> None:
    home, node = study(tmp_path, divided=True), Node({"0.33.0": 0.96})
    compare(home, replace(NEW, with_baseline=True), node)
    assert {role for _, role in node.made} == {Role.FINAL}
    assert len({trial.command.argv for trial in node.trials}) > 1


def test_an_interrupted_comparison_goes_on_and_a_finished_one_launches_nothing(
    tmp_path: Path,
) -> None:
    whole, node = study(tmp_path / "a"), Node({"0.33.0": 0.92})
    undisturbed = compare(whole, NEW, node)
    home, broken = study(tmp_path / "b"), Node({"0.33.0": 0.92}, stops_at=3)
    with pytest.raises(Interrupted, match="3 launches are stored"):
        compare(home, NEW, broken)
    assert not (folder_of(home) / "regress.json").exists()
    assert compare(home, NEW, broken) == undisturbed
    assert broken.made == node.made
    assert compare(home, NEW, broken) == undisturbed
    assert broken.made == node.made
    argv = [
        "vllm",
        "serve",
        small_study.MODEL,
        "--data-parallel-size",
        "4",
        "--enable-expert-parallel",
    ]
    changed = done_of(home).model_copy(
        update={"recommended": small_study.choice(TOO_BIG, 9000.0, Command(tuple(argv)))}
    )
    with pytest.raises(BadInput, match="launches of other commands"):
        Comparison(home, home.spec("s"), changed, NEW, silent).run(node)


def test_report_recommendation_and_mlflow_tell_it(tmp_path: Path) -> None:
    home = study(tmp_path)
    options = replace(NEW, with_baseline=True)
    regress(home, replace(options, engines=["vllm==0.13.0"]), silent, Node({}))
    found, done = regress(home, options, silent, Node({"0.33.0": 0.6}, {"0.33.0": 1.1}))
    kept = home.recommendation("s")
    assert kept == done == Recommendation.from_json(json.loads(json.dumps(done.to_json())))
    assert [one.to_version for one in done.regressions] == ["0.13.0", "0.33.0"]
    report = (home.study_folder("s") / "report.md").read_text()
    section = report.partition("## Is it still better on later versions?")[2].partition("\n## ")[0]
    assert "vllm 0.33.0 against 0.32.0 (SIMULATED)" in section
    assert "the recommended command is behind the baseline" in section
    assert "the study took 9 launches" in section
    assert "--from s" in section
    assert "--engine vllm==0.33.0" in section
    assert (found.verdict, found.still_ahead) == ("regression", False)
    spec = home.spec("s")
    assert outcome_tags(done)["regress.0.33.0"] == "regression"
    change = outcome_metrics(spec, done)["regress.0.33.0.recommended.change_percent"]
    assert change == found.commands[0].change_percent
    again, _ = regress(home, options, silent, Node())
    assert again == found
    assert len(home.recommendation("s").regressions) == 2  # type: ignore[union-attr]


@pytest.mark.parametrize(("baseline", "ahead"), [(0.5, True), (1.5, False), (1.0, None)])
def test_whether_the_recommended_command_is_still_ahead(
    tmp_path: Path, baseline: float, ahead: bool | None
) -> None:
    node = Node({}, {"0.33.0": baseline, "0.32.0": baseline})
    found = compare(study(tmp_path), replace(NEW, with_baseline=True), node)
    assert [row.role for row in found.commands] == ["recommended", "baseline"]
    assert found.still_ahead is ahead
    assert (found.tune_again is None) is (ahead is not False)


def test_a_command_that_no_longer_runs_has_regressed(tmp_path: Path) -> None:
    home, node = study(tmp_path), Node(fails="0.33.0")
    found = compare(home, NEW, node)
    assert (found.verdict, found.commands[0].failure, found.commands[0].change_percent) == (
        *("regression", "bad_argument", None),
    )
    assert found.launches == 4
    assert "the recommended command: does not run: bad_argument, 4 launches" in lines(
        "regression", done_of(home), one=found
    )
    # Where neither version runs nothing is known of the new one.
    other = study(tmp_path / "other")
    both = Node(fails="0.33.0")
    both.evaluate = lambda trial: TrialResult(  # type: ignore[method-assign]
        State.FAILED, Evidence.SIMULATED, Failure(FailureKind.CRASHED, "x")
    )
    assert compare(other, NEW, both).verdict == "undecided"


def test_limits_that_the_new_version_breaks_are_named(tmp_path: Path) -> None:
    node = Node(ttft={"0.33.0": 9000.0})
    found = compare(study(tmp_path), NEW, node)
    assert "it violates p99_ttft_ms<=20000 on 0.33.0" in found.notes


def test_defaults_that_changed_are_named_knobs_first(tmp_path: Path) -> None:
    # vllm config/scheduler.py: async_scheduling is off in 0.11 and None, on where it can be, in
    # 0.33.
    found = compare(study(tmp_path), replace(NEW, engines=["vllm==0.11.0"]), Node())
    kinds = ["knob" if "knob" in row else "flag" for row in found.changed_defaults]
    assert kinds == sorted(kinds, reverse=True)
    assert {"knob", "flag"} == set(kinds)
    assert all(row["from"] != row["to"] for row in found.changed_defaults)
    assert all(str(row.get("flag", "--")).startswith("--") for row in found.changed_defaults)
    flags = {
        row["flag"]: (row["from"], row["to"]) for row in found.changed_defaults if "flag" in row
    }
    given = {"--data-parallel-size", "--gpu-memory-utilization", "--enable-expert-parallel"}
    assert not given & flags.keys()


def test_a_renamed_option_is_translated_and_that_is_told(tmp_path: Path) -> None:
    words = (
        "vllm",
        "serve",
        small_study.MODEL,
        "--tensor-parallel-size",
        "8",
        "--attention-backend",
        "FLASHINFER",
    )
    home, node = study(tmp_path, Command(words)), Node()
    found = compare(home, replace(NEW, engines=["vllm==0.11.0"]), node)
    assert found.notes == [
        "translated --attention-backend to VLLM_ATTENTION_BACKEND for vLLM 0.11.0"
    ]
    new = next(trial for trial in node.trials if trial.engine_version == "0.11.0")
    assert new.command.env == {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}


def measured(rows_: list[Launch], vllm: str) -> list[Launch]:
    """The small study's launches as measured ones, the winner's of the finals being the recommended
    command's."""
    changed = []
    for row in rows_:
        best = row.trial.configuration == small_study.WINNER
        trial = replace(
            row.trial,
            configuration=TOO_BIG if best else row.trial.configuration,
            engine_version=vllm,
        )
        changed.append(Launch(trial, replace(row.result, evidence=Evidence.MEASURED)))
    return [row for row in changed if row.trial.configuration in (TOO_BIG, BASELINE)]


@pytest.mark.parametrize(("factor", "verdict"), [(0.8, "regression"), (1.0, "undecided")])
def test_where_the_old_version_is_gone_the_study_stands_for_it_and_nothing_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float, verdict: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("autotune.tuner.verify.check_weights", lambda prepared: None)
    monkeypatch.setattr(type(backend_named("process")), "why_unavailable", lambda *_: None)
    options = [row for row in rows("vllm", "0.32.0") if row.get("action") != "retired"]
    new = install(tmp_path / "new", "vllm", "0.33.0", options)
    old = install(tmp_path / "old", "vllm", "0.32.0", options)
    installed = {"vllm": InstalledEngine(program=(str(old.program), "serve"), version="0.32.0")}
    launches = [
        row
        for row in measured(small_study.launches(), "0.32.0")
        if row.result.state is State.COMPLETE
    ]
    home = study(tmp_path, launches=launches, on="process", installed=installed, noise=0.0)
    asked = RegressOptions("s", engine_bins=[f"vllm={new.program}"])
    node = Node({"0.33.0": factor}, evidence=Evidence.MEASURED)
    # Still there, it is launched: from its own place, the new version from its own.
    found = compare(home, asked, node)
    assert found.old == "launched"
    assert {(t.engine_version, t.command.argv[0]) for t in node.trials} == {
        ("0.32.0", str(old.program)),
        ("0.33.0", str(new.program)),
    }
    (tmp_path / "old" / "bin" / "vllm").unlink()
    folder_of(home).rename(tmp_path / "moved")
    alone = Node({"0.33.0": factor}, evidence=Evidence.MEASURED)
    found = compare(home, asked, alone)
    assert (found.old, found.verdict) == ("rows", verdict)
    assert {version for version, _ in alone.made} == {"0.33.0"}
    assert "are used instead, from another day" in "".join(
        lines("regression", done_of(home), one=found)
    )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (RegressOptions("s"), "name its new version by --engine vllm==VERSION"),
        (RegressOptions("s", engines=["vllm"]), "name its new version by --engine vllm==VERSION"),
        (RegressOptions("s", engines=["sglang==0.5.23"]), "the recommended command is one of vllm"),
        (RegressOptions("s", engine_bins=["vllm=/bin/sh"]), "name its new version by --engine"),
        (replace(NEW, margin=0), "--margin 0: give a percentage above 0"),
        (replace(NEW, launches=1), "--launches 1: 2 launch each command once"),
        (replace(NEW, on="external:http://x"), "launches no version"),
        (replace(NEW, on="process"), "--engine cannot select a version on process"),
        (RegressOptions("s", on="process"), "name its new version by --engine-bin vllm=PATH"),
        (RegressOptions("s", on="docker"), "name its new version by --image vllm=IMAGE"),
        (RegressOptions("s", on="process", engine_bins=["vllm=/nowhere"]), "no such file"),
        (RegressOptions("other"), "unknown study 'other'"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, options: RegressOptions, why: str
) -> None:
    home = study(tmp_path)
    with pytest.raises(BadInput, match=why):
        regress(home, options, silent, Node())
    assert not (home.study_folder("s") / "regress").exists()


def test_an_unfinished_study_and_one_that_recommends_nothing_are_refused(tmp_path: Path) -> None:
    home = Home(tmp_path)
    folder = home.open(small_study.spec(study="s"))
    with pytest.raises(BadInput, match="has not ended"):
        regress(home, NEW, silent)
    (folder / "recommendation.json").write_text(json.dumps(small_study.infeasible().to_json()))
    with pytest.raises(BadInput, match="has no recommended command"):
        regress(home, NEW, silent)


@pytest.mark.parametrize("truth", [0.0, -0.08])
def test_the_interval_holds_the_truth_at_every_look_whatever_ends_the_test(truth: float) -> None:
    """Of tests that end where the interval first leaves the truth out, at most 5 in 100 ever do,
    but for chance."""
    generator, missed, tests, pairs = np.random.default_rng(5), 0, 400, 8
    for _ in range(tests):
        differences = truth + 0.03 * math.sqrt(2) * generator.standard_normal(pairs)
        looks: list[Look] = []
        for count in range(1, pairs + 1):
            looks.append(
                Look(count / pairs, count / 2, float(np.mean(differences[:count])), 0.03, 1000)
            )
            low, high = repeated_interval(looks)
            if not low <= truth <= high:
                missed += 1
                break
    assert missed <= 0.05 * tests + 3 * math.sqrt(0.05 * 0.95 * tests)
    assert missed >= 0.02 * tests, "intervals that are wider than stated"
