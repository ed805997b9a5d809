"""A study on several nodes: each is known by its baseline, none is kept waiting, and none confounds
the verdict."""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.base.evidence import Evidence
from autotune.engines.command import Configuration
from autotune.engines.failure import Failure, FailureKind
from autotune.outputs.report import StudyRecord
from autotune.outputs.report.render import render
from autotune.tuner.recommend import recommend
from autotune.tuner.search.budget import usable_nodes
from autotune.tuner.search.history import History
from autotune.tuner.study.recommendation import Recommendation, Verdict
from autotune.tuner.study.results import launch_of, row_of
from autotune.tuner.trial import Launch, Role, State, Trial, TrialResult
from tests.tuner.search.search_landscapes import (
    Cluster,
    decisions,
    evaluate,
    flat,
    grid,
    make_spec,
    opened,
    play,
    ridge,
    small,
    walled,
)

GRID, SMALL = grid(), small()
FOUR = ["a", "b", "c", "d"]


def better(configuration: Configuration) -> float:
    """Everything is 15 % better than the baseline."""
    return 1000.0 if configuration == SMALL.items[0].configuration else 1150.0


def test_the_baseline_comes_first_on_every_node_and_on_one_that_comes_later(tmp_path: Path) -> None:
    spec = make_spec(noise=0.02)
    study, cluster = opened(tmp_path, spec, GRID), Cluster(FOUR[:3])
    assert [(t.role, t.node) for t in cluster.fill(study)] == [(Role.BASELINE, n) for n in FOUR[:3]]
    cluster.end_next(study, spec, ridge)
    cluster.nodes = FOUR
    assert [(t.role, t.node) for t in cluster.fill(study)][:1] == [(Role.BASELINE, "d")]
    study.close()


def test_a_small_budget_uses_few_nodes_and_those_it_knows_first(tmp_path: Path) -> None:
    assert usable_nodes(FOUR, 40) == tuple(FOUR)
    assert usable_nodes(FOUR, 8) == ("a", "b")
    assert usable_nodes(FOUR, 1) == ("a",)
    assert usable_nodes(["d", "c"], 8, known=["c"]) == ("d", "c")
    assert usable_nodes(["d", "e"], 8, known=["a", "b"]) == ()
    spec = make_spec(launches=8, noise=0.02)
    study, cluster = opened(tmp_path, spec, SMALL), Cluster(["a", "b"])
    made = cluster.play(study, spec, ridge)
    assert study.ask(["c"]) is None
    study.close()
    assert len(made) <= 8
    assert {row.result.node for row in made if row.trial.role is Role.BASELINE} == {"a", "b"}


def test_a_baseline_that_says_nothing_is_tried_twice_on_its_node(tmp_path: Path) -> None:
    spec = make_spec(noise=0.02)
    study = opened(tmp_path, spec, SMALL)
    lost = Failure(FailureKind.INFRASTRUCTURE, "the node is lost")
    asked = []
    while (trial := study.ask(["a"])) is not None and trial.role is Role.BASELINE:
        asked.append(trial)
        study.tell(Launch(trial, TrialResult(State.FAILED, Evidence.SIMULATED, lost)))
    study.close()
    assert [t.node for t in asked] == ["a", "a"]


def test_one_node_with_a_name_is_one_place_without(tmp_path: Path) -> None:
    spec = make_spec(noise=0.03, seed=4, launches=16)
    named, unnamed = (
        opened(tmp_path / "named", spec, SMALL),
        opened(tmp_path / "unnamed", spec, SMALL),
    )
    one, two = Cluster(["a"]).play(named, spec, walled), play(unnamed, spec, walled)
    named.close()
    unnamed.close()
    assert decisions(one) == decisions(two)


def test_hosts_of_a_study_that_binds_nothing_are_one_place(tmp_path: Path) -> None:
    """The rows of a local study name the machine, and a container has another name each time."""
    spec = make_spec(noise=0.02, launches=12)
    study = opened(tmp_path, spec, SMALL)
    made = play(study, spec, ridge)
    study.close()
    moved = [Launch(x.trial, replace(x.result, node=f"host{x.trial.number % 2}")) for x in made]
    assert not History.from_launches(spec, SMALL, moved).several
    assert recommend(spec, SMALL, moved).nodes == []
    assert "bound_node" not in row_of(made[0])


def on_four(
    folder: Path,
    throughput: object,
    noise: float = 0.02,
    launches: int = 26,
    slow_from: int = 0,
    **slow: float,
) -> tuple[list[Launch], Recommendation, Cluster]:
    spec = make_spec(noise=noise, launches=launches, sampler="random")
    study, cluster = opened(folder, spec, SMALL), Cluster(FOUR, slow, slow_from=slow_from)
    made = cluster.play(study, spec, throughput)  # type: ignore[arg-type]
    study.close()
    return made, recommend(spec, SMALL, made, (), study.stop_reason), cluster


def test_pairs_of_the_finals_share_a_node_and_keep_all_of_them_busy(tmp_path: Path) -> None:
    made, outcome, cluster = on_four(tmp_path, flat, 0.05, launches=30)
    assert outcome.verdict is Verdict.INDISTINGUISHABLE
    assert cluster.most > 2
    assert cluster.busy_s / (4 * cluster.now_s) >= 0.75
    assert len({row.result.node for row in made if row.trial.role is Role.FINAL}) == 4
    finalist = next(
        x.trial.configuration for x in made if is_final(x) and x.trial.configuration != base()
    )
    last_search = max(
        x.trial.number for x in made if x.trial.role in (Role.SEARCH, Role.START, Role.DEFAULT)
    )
    rows = [x for x in made if x.trial.number > last_search]
    mine = Counter(x.result.node for x in rows if x.trial.configuration == finalist)
    theirs = Counter(x.result.node for x in rows if x.trial.configuration == base())
    assert all(abs(mine[node] - theirs[node]) <= 1 for node in FOUR)
    assert sum(mine.values()) >= 4


def is_final(launch: Launch) -> bool:
    return launch.trial.role is Role.FINAL


def base() -> Configuration:
    return SMALL.items[0].configuration


def test_a_slow_node_is_found_and_makes_neither_a_winner_nor_a_loser(tmp_path: Path) -> None:
    made, outcome, _ = on_four(tmp_path / "better", better, launches=24, d=0.2)
    assert outcome.verdict is Verdict.BETTER
    assert outcome.recommended is not None
    assert outcome.gain_percent == pytest.approx(15, abs=4)
    assert outcome.recommended.objective.value == pytest.approx(1150, rel=0.03)
    share = {node.node: node for node in outcome.nodes}
    assert share["d"].certain
    assert share["d"].offset_percent == pytest.approx(-20, abs=4)
    assert not any(share[name].certain for name in "abc")
    assert sum(node.launches for node in outcome.nodes) == len(made)
    assert "node d is" in outcome.stop_reason
    compared = [x for x in made if is_final(x) and x.trial.node]
    assert compared
    assert "d" not in {x.result.node for x in compared}
    spec = make_spec(launches=24, noise=0.02)
    text = render(StudyRecord(spec, made, outcome, tmp_path), "md")
    assert "## Do the nodes differ?" in text
    assert "node d is" in text
    assert Recommendation.from_json(json.loads(json.dumps(outcome.to_json()))) == outcome
    assert (
        on_four(tmp_path / "equal", flat, launches=16, d=0.2)[1].verdict
        is Verdict.INDISTINGUISHABLE
    )


def test_a_node_that_slows_in_mid_study_makes_neither_a_winner_nor_a_loser(tmp_path: Path) -> None:
    """Its earlier launches are corrected with the later ones; the finals compare on one node."""
    _, outcome, _ = on_four(tmp_path / "better", better, launches=36, slow_from=9, d=0.2)
    assert outcome.verdict is Verdict.BETTER
    assert outcome.gain_percent == pytest.approx(15, abs=6)
    assert not any(node.certain for node in outcome.nodes if node.node != "d")


def test_launches_that_run_at_the_same_time_are_no_near_copies(tmp_path: Path) -> None:
    """By the prior the best ones differ in what matters little; the second engine is nearly as
    good."""
    prior = np.array([math.log(ridge(c.configuration)) for c in GRID.items])
    study = opened(tmp_path, make_spec(), GRID, prior)
    for _ in FOUR:
        study.ask(FOUR)
    asked = [study.ask(FOUR) for _ in FOUR]
    study.close()
    knobs = [
        {"engine": t.configuration.engine, **t.configuration.knobs} for t in asked if t is not None
    ]
    assert len(knobs) == 4
    differ = [
        sum(one.get(k) != two.get(k) for k in {**one, **two})
        for i, one in enumerate(knobs)
        for two in knobs[:i]
    ]
    assert sorted(differ)[1] >= 2, "but for one pair"


@settings(max_examples=3, deadline=None)
@given(
    seed=st.integers(0, 99),
    come_and_go=st.lists(st.sets(st.sampled_from(FOUR), min_size=1), max_size=4),
)
def test_nodes_may_come_and_go_and_the_study_ends(
    tmp_path_factory: pytest.TempPathFactory, seed: int, come_and_go: list[set[str]]
) -> None:
    """A node that goes finishes what it runs; the driver is killed each time."""
    spec, folder = (
        make_spec(noise=0.05, launches=16, seed=seed, sampler="random"),
        tmp_path_factory.mktemp("gone"),
    )
    cluster = Cluster(["a", "b"], seed=seed)
    for nodes in come_and_go:
        study = opened(folder, spec, SMALL)
        cluster.play(study, spec, ridge, 5)
        study.close()
        cluster.running, cluster.nodes = [], sorted(nodes)
    study = opened(folder, spec, SMALL)
    made = cluster.play(study, spec, ridge)
    study.close()
    assert study.stop_reason
    assert [x.trial.number for x in made] == list(range(len(made)))
    assert len(made) <= 16


def test_a_bound_trial_keeps_its_node_over_a_restart_unless_that_is_gone(tmp_path: Path) -> None:
    spec = make_spec(noise=0.02)
    study = opened(tmp_path, spec, SMALL)
    asked = [study.ask(["a", "b"]) for _ in range(3)]
    study.close()
    again = opened(tmp_path, spec, SMALL)
    back: list[Trial | None] = [again.ask(["b"]) for _ in range(3)]
    again.close()
    assert [t.number for t in back if t] == [1, 2, 0], (
        "what is bound to a node that is there comes first"
    )
    assert [t.node for t in back if t] == ["b", "", ""]
    assert back[0] == asked[1]
    assert asked[1] is not None
    row = row_of(evaluate(spec, flat, asked[1]))
    assert launch_of(row).trial.node == row["bound_node"] == "b"
