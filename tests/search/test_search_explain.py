"""What a study says beside its winner: contributions that add up, knobs that did nothing, predictions not tried."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_landscapes import Throughput, evaluate, grid, make_spec, opened, play, ridge, small

from autotune.recommend import recommend
from autotune.search.decide.estimate import Spread
from autotune.search.decide.verdict import Gain
from autotune.search.explain.attribution import anchored, decompose, most_telling, shapley
from autotune.search.explain.explanation import contributions, no_effect_by_data
from autotune.search.gp.encoding import Encoding
from autotune.search.gp.kernels import Kernels
from autotune.search.gp.posterior import Posterior
from autotune.search.history import Entry, History
from autotune.space.enumeration import Candidate, CandidateSet
from autotune.study.recommendation import NoEffect, Recommendation, Verdict
from autotune.study.spec import StudySpec
from autotune.trial import Configuration, Launch, Resolved, Role, Scalar, Trial

GRID, SMALL = grid(), small()


def nothing_known(_: Trial) -> Sequence[NoEffect]:
    return ()


def explained(spec: StudySpec, candidates: CandidateSet, node: Throughput) -> tuple[Recommendation, list[Launch]]:
    with tempfile.TemporaryDirectory() as folder:
        study = opened(Path(folder), spec, candidates)
        made = play(study, spec, node)
        told = study.explanation(nothing_known)
        study.close()
    return recommend(spec, candidates, made, (), study.stop_reason, told), made


def add_up(found: Recommendation) -> bool:
    assert found.gain_percent is not None
    total = math.fsum(math.log1p(c.gain_percent / 100) for c in found.contributions)
    return abs(total - math.log1p(found.gain_percent / 100)) < 1e-9


@given(st.lists(st.floats(-1, 1), min_size=8, max_size=8))
def test_with_every_set_a_candidate_the_shares_are_shapleys(values: list[float]) -> None:
    sets = [frozenset(c) for size in range(4) for c in itertools.combinations(range(3), size)]
    worth = dict(zip(sets, values, strict=True))
    shares = shapley(np.array([[k in s for k in range(3)] for s in sets])) @ np.array(values)
    for k in range(3):
        orders = list(itertools.permutations(range(3)))
        added = [worth[frozenset(o[: o.index(k) + 1])] - worth[frozenset(o[: o.index(k)])] for o in orders]
        assert shares[k] == pytest.approx(math.fsum(added) / len(orders), abs=1e-9)


@settings(max_examples=60)
@given(st.integers(1, 5), st.sets(st.integers(1, 30)), st.integers(0, 2**32 - 1), st.floats(-2, 2))
def test_shares_add_up_whatever_the_candidates_are(players: int, inner: set[int], seed: int, total: float) -> None:
    codes = [0, *sorted(c for c in inner if c < 2**players - 1), 2**players - 1]
    members = np.array([[bool(code >> k & 1) for k in range(players)] for code in codes])
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(len(codes))
    matrix = shapley(members)
    assert math.fsum(matrix @ values) == pytest.approx(values[-1] - values[0], abs=1e-9)
    root = rng.standard_normal((len(codes), len(codes)))
    covariance = matrix @ root @ root.T @ matrix.T
    parts, sds = anchored(matrix @ values, covariance, total, 0.01)
    assert math.fsum(parts) == pytest.approx(total, abs=1e-9)
    assert (sds >= 0).all()
    if players == 1:
        assert sds[0] == pytest.approx(0.01), "one part is as sure as the total"


def test_contributions_multiply_to_the_gain_and_come_near_the_truth() -> None:
    result, _ = explained(make_spec(noise=0.01, launches=40, seed=1), GRID, ridge)
    found = {c.knob: c for c in result.contributions}
    assert result.verdict is Verdict.BETTER
    assert add_up(result)
    assert "data_parallel+dp_attention+tensor_parallel" in found, "what only changes together has one share"
    assert (found["engine"].from_, found["engine"].to) == ("vllm", "sglang")
    assert result.recommended is not None
    assert found["kv_cache_dtype"].to == result.recommended.config["kv_cache_dtype"] == "fp8"
    # fp8 multiplies by e^0.1 whatever the rest is.
    low, high = found["kv_cache_dtype"].ci95 or (0.0, 0.0)
    assert low < 100 * math.expm1(0.1) < high < 25
    assert [abs(c.gain_percent) for c in result.contributions] == sorted(
        (abs(c.gain_percent) for c in result.contributions), reverse=True
    )
    assert Recommendation.from_json(result.to_json()) == result


def entries(scores: Sequence[tuple[int, float | None]]) -> tuple[Entry, ...]:
    rows = [
        Entry(n, Role.SEARCH if n else Role.BASELINE, p, score, violations={}, broke=score is None)
        for n, (p, score) in enumerate(scores)
    ]
    return tuple(rows)


def two_engines() -> CandidateSet:
    """Engine a with one knob, engine b with three of two values each; b's default is the second candidate."""
    rows = [Configuration("a", {"x": 0})]
    rows += [Configuration("b", {"x": x, "y": y, "z": z}) for x, y, z in itertools.product((0, 1), repeat=3)]
    return CandidateSet(tuple(Candidate(c, "1") for c in rows), 0, (0, 1))


BOTH = two_engines()
WINNER = len(BOTH) - 1


def known(scores: Sequence[tuple[int, float | None]], candidates: CandidateSet = BOTH) -> tuple[History, Posterior]:
    history = History(make_spec(), candidates, entries(scores))
    done = [e for e in history if e.score is not None]
    kernels = Kernels(Encoding(candidates))
    return history, Posterior(kernels, [e.position for e in done], [e.score or 0.0 for e in done])


FEW = Spread(0.01, 6)


def test_an_engine_whose_default_cannot_start_shares_its_part_with_what_it_needs() -> None:
    """Only with y = 1 does engine b start; of the launched ones position 3 has fewest other settings."""
    history, model = known([(0, 0.0), (1, None), (WINNER, 0.5), (3, 0.3), (4, 0.4)])
    rows = contributions(history, model, WINNER, (Gain(0.5, (0.45, 0.55)), FEW))
    assert {row.knob for row in rows} == {"engine+y", "x", "z"}
    assert math.fsum(math.log1p(row.gain_percent / 100) for row in rows) == pytest.approx(0.5, abs=1e-9)
    shown = next(row for row in rows if row.knob == "engine+y")
    assert (shown.from_, shown.to) == ("a + 0", "b + 1")


def test_without_a_baseline_the_knobs_are_told_from_the_engines_default() -> None:
    history, model = known([(0, None), (1, 0.0), (WINNER, 0.6), (2, 0.2), (3, 0.2), (5, 0.2)])
    rows = contributions(history, model, WINNER, (None, FEW))
    assert {row.knob for row in rows} == {"x", "y", "z"}
    assert all(row.gain_percent == pytest.approx(22, abs=4) for row in rows)


def test_the_most_telling_launch_splits_what_is_least_known() -> None:
    """z was told from the rest by a launch without it, x and y only together: a launch must part those."""
    scores = [(0, 0.0), (1, 0.1), (WINNER, 0.9), (WINNER - 1, 0.8), (2, 0.2)]
    history, model = known(scores)
    found = most_telling(history, model, WINNER, 0.01)
    parted = decompose(history, WINNER)
    assert found in (3, 4, 5, 6), "with exactly one of x and y"
    assert parted is not None
    before = parted.believed(model)[1]
    history, model = known([*scores, (found, 0.5)])
    after = parted.believed(model)[1]
    assert np.diag(after).sum() < 0.5 * np.diag(before).sum()
    history, model = known([(p, 0.1 * p) for p in range(len(BOTH))])
    assert most_telling(history, model, WINNER, 0.01) is None


def heard(configuration: Configuration) -> Configuration:
    """An engine that takes no notice of the KV cache's type."""
    return configuration.with_knobs(kv_cache_dtype="auto")


def test_a_knob_that_the_engine_ignores_is_told_by_its_own_word() -> None:
    spec = make_spec(launches=14, noise=0.02, seed=3)
    with tempfile.TemporaryDirectory() as folder:
        study = opened(Path(folder), spec, SMALL)
        while (trial := study.ask()) is not None:
            run = heard(trial.configuration)
            asked = trial.configuration.knobs["kv_cache_dtype"]
            differs: dict[str, tuple[Scalar, Scalar]] = {} if asked == "auto" else {"kv_cache_dtype": (asked, "auto")}
            told = Resolved(run.fingerprint, differs, "toy", dict.fromkeys(differs, "fp8 did nothing"))
            done = evaluate(spec, lambda _, run=run: ridge(run), trial)
            study.tell(Launch(trial, replace(done.result, resolved=told)))
        result = recommend(spec, SMALL, study.launches, (), "", study.explanation(nothing_known))
        study.close()
    row = next(row for row in result.inert if row.knob == "kv_cache_dtype")
    assert row.values == ["fp8"]
    assert row.reason.startswith("the engine ran with `auto` (launch")
    assert row.effect_percent is None
    assert "kv_cache_dtype" not in {c.knob for c in result.contributions}
    assert add_up(result)


def test_a_knob_that_made_no_difference_is_told_with_its_interval_and_one_that_did_is_not() -> None:
    rng = np.random.default_rng(0)
    knobs = list(itertools.product((0, 1), repeat=4))
    items = tuple(Candidate(Configuration("b", dict(zip("wxyz", row, strict=True))), "1") for row in knobs)
    true = [0.3 * row[0] + 0.1 * row[1] for row in knobs]
    scores = [(p, true[p] + 0.01 * rng.standard_normal()) for p in (*range(16), *range(16))]
    history, model = known(scores, CandidateSet(items, 0, (0,)))
    found = {row.knob: row for row in no_effect_by_data(history, model, 15, {"z"})}
    assert found.keys() == {"y"}
    row = found["y"]
    assert row.launches == 32
    assert row.ci95 is not None
    assert -3.1 < row.ci95[0] < 0 < row.ci95[1] < 3.1


def test_beliefs_are_of_candidates_that_were_not_launched_and_likely_start() -> None:
    def node(configuration: Configuration) -> float | None:
        return None if configuration.knobs["max_running_requests"] == 1024 else ridge(configuration)

    spec = make_spec(launches=10, noise=0.01, seed=2)
    result, made = explained(spec, SMALL, node)
    launched = {row.trial.configuration.fingerprint for row in made}
    assert 0 < len(result.untried) <= 3
    for row in result.untried:
        configuration = Configuration(row.engine, row.config)
        assert configuration.fingerprint not in launched
        assert result.recommended is not None
        assert {**result.recommended.config, **row.changes} == row.config
        assert row.ci95[0] < row.predicted_gain_percent < row.ci95[1]
        assert 0.5 <= row.starts <= 1 == row.keeps_slos, "what likely fails is not worth telling of"
        assert row.command.startswith("vllm --")
    gains = [row.predicted_gain_percent for row in result.untried]
    assert gains == sorted(gains, reverse=True)
