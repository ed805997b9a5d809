"""What is said of the winner is true as often as promised: no gain out of noise, intervals that cover."""

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from search_landscapes import Throughput, evaluate, flat, make_spec, opened, play, ridge, small

from autotune.recommend import recommend
from autotune.recommendation import Recommendation, Verdict
from autotune.search.history import Entry, History
from autotune.search.verdict import judge, settings
from autotune.space.candidates import Candidate, CandidateSet
from autotune.trial import Configuration, Launch, Role

SMALL = small()
SPEC = make_spec()
RNG = np.random.default_rng(0)


def study(seed: int, throughput: Throughput, noise: float, launches: int) -> Recommendation:
    spec = make_spec(seed=seed, noise=noise, launches=launches)
    with tempfile.TemporaryDirectory() as folder:
        opened_study = opened(Path(folder), spec, SMALL)
        made = play(opened_study, spec, throughput)
        opened_study.close()
    return recommend(spec, SMALL, made, (), opened_study.stop_reason)


@pytest.mark.parametrize("noise", [0.03, 0.1])
def test_equal_configurations_are_seldom_called_better(noise: float) -> None:
    """A/A: the stated error is at most 2.5 %; 6 of 60 or more would come of it once in 200 times."""
    results = [study(seed, flat, noise, 12) for seed in range(60)]
    assert sum(r.verdict is Verdict.BETTER for r in results) <= 5
    assert all(r.recommended is not None for r in results)


def test_a_real_gain_is_found_and_measured() -> None:
    results = [study(seed, ridge, 0.03, 16) for seed in range(8)]
    assert all(r.verdict is Verdict.BETTER for r in results)
    base = ridge(SMALL.items[0].configuration)
    covered = 0
    for r in results:
        assert r.recommended is not None
        assert r.gain_ci95 is not None
        winner = SMALL.items[SMALL.position(r.recommended.fingerprint)].configuration
        covered += r.gain_ci95[0] <= 100 * (ridge(winner) / base - 1) <= r.gain_ci95[1]
    assert covered >= 7


def finals(truth: dict[int, float], sd: float, rng: np.random.Generator, rounds: int = 3) -> History:
    """Launch 0 of the baseline, then rounds of everything, without a search before it."""
    entries = [Entry(0, Role.BASELINE, 0, truth[0] + sd * rng.standard_normal(), {})]
    for position in [p for _ in range(rounds) for p in truth]:
        entries.append(Entry(len(entries), Role.FINAL, position, truth[position] + sd * rng.standard_normal(), {}))
    return History(SPEC, SMALL, tuple(entries))


def test_the_interval_covers_with_selection() -> None:
    """Two finalists, one of them picked for its mean: 95 % of 2000 within sampling error, or a little more."""
    rng = np.random.default_rng(1)
    for truth in ({0: 0.0, 1: 0.0, 2: 0.0}, {0: 0.0, 1: 0.1, 2: 0.1}, {0: 0.0, 1: 0.0, 2: 0.3}):
        covered = 0
        for _ in range(2000):
            judgement = judge(finals(truth, 0.03, rng))
            gain, best = judgement.challenger_gain, judgement.challenger
            assert gain is not None
            assert gain.interval is not None
            assert best is not None
            covered += gain.interval[0] <= truth[best] - truth[0] <= gain.interval[1]
        assert 0.935 <= covered / 2000 <= 0.995


def test_false_winners_and_power_of_the_finals() -> None:
    rng = np.random.default_rng(2)
    equal = sum(judge(finals({0: 0.0, 1: 0.0, 2: 0.0}, 0.03, rng)).verdict is Verdict.BETTER for _ in range(2000))
    assert equal <= 0.03 * 2000
    better = sum(judge(finals({0: 0.0, 1: 0.15, 2: 0.1}, 0.03, rng)).verdict is Verdict.BETTER for _ in range(500))
    assert better >= 0.9 * 500


def test_without_noise_the_value_decides() -> None:
    rng = np.random.default_rng(0)
    better = judge(finals({0: 0.0, 1: 0.001, 2: -1.0}, 0.0, rng))
    assert better.verdict is Verdict.BETTER
    assert better.gain is not None
    assert better.gain.interval == (better.gain.log, better.gain.log)
    same = judge(finals({0: 1 / 3, 1: 1 / 3, 2: 0.0}, 0.0, rng))
    assert (same.verdict, same.winner) == (Verdict.INDISTINGUISHABLE, 0)
    worse = judge(finals({0: 1.0, 1: 0.9, 2: 0.0}, 0.0, rng))
    assert (worse.verdict, worse.winner) == (Verdict.INDISTINGUISHABLE, 0)


def test_of_equals_the_simplest_wins() -> None:
    """The baseline has three settings, the engine's default none, a finalist one; none can be told apart."""
    knobs = [{"a": 1, "b": 1, "c": 1}, {"a": 0, "b": 0, "c": 0}, {"a": 0, "b": 0, "c": 1}, {"a": 1, "b": 1, "c": 0}]
    items = tuple(Candidate(Configuration("vllm", k), "1") for k in knobs)
    candidates = CandidateSet(items, 0, (1,))
    scores = {0: (0.0, 0.02, 0.01), 2: (0.01, 0.0, 0.02), 3: (0.0, 0.03, 0.02)}
    entries = [Entry(0, Role.BASELINE, 0, 0.0, {})]
    for i in range(3):
        entries += [Entry(len(entries) + j, Role.FINAL, p, s[i], {}) for j, (p, s) in enumerate(scores.items())]
    judgement = judge(History(SPEC, candidates, tuple(entries)))
    assert judgement.verdict is Verdict.INDISTINGUISHABLE
    assert judgement.winner == 2


def test_a_simple_but_slow_configuration_is_no_equal() -> None:
    rng = np.random.default_rng(3)
    candidates = CandidateSet(SMALL.items, 9, (0,))
    history = finals({9: 0.0, 0: -1.0, 3: 0.0}, 0.02, rng)
    entries = tuple(e for e in history.entries if e.number)
    first = Entry(0, Role.BASELINE, 9, 0.01, {})
    assert judge(History(SPEC, candidates, (first, *entries))).winner != 0


@pytest.mark.parametrize("launches", [1, 2, 3])
def test_too_few_launches_decide_nothing_and_say_so(launches: int) -> None:
    result = study(0, ridge, 0.03, launches)
    assert result.verdict is Verdict.INDISTINGUISHABLE
    assert "too few launches" in result.stop_reason
    assert result.recommended is not None
    assert result.launches == launches


def test_what_breaks_an_slo_is_not_recommended() -> None:
    from autotune.spec import Slo

    def tpot(c: Configuration) -> float:
        return 1000 * math.sqrt(float(c.knobs["max_running_requests"])) / ridge(c)  # type: ignore[arg-type]

    spec = make_spec(slos=(Slo.parse("mean_tpot_ms<=0.001"),), launches=8)
    launches: list[Launch] = []
    with tempfile.TemporaryDirectory() as folder:
        opened_study = opened(Path(folder), spec, SMALL)
        while (trial := opened_study.ask()) is not None:
            opened_study.tell(evaluate(spec, ridge, trial))
        launches = list(opened_study.launches)
        opened_study.close()
    assert all(tpot(x.trial.configuration) > 0.001 for x in launches)
    assert recommend(spec, SMALL, launches).verdict is Verdict.INFEASIBLE


def test_of_finalists_that_cannot_be_told_apart_the_one_with_fewer_settings_wins() -> None:
    """Where they differ clearly, the better one wins however many settings it has."""
    few, many = sorted(range(1, len(SMALL)), key=lambda p: settings(finals({0: 0.0}, 0.0, RNG), p))[:: len(SMALL) - 2]
    assert settings(finals({0: 0.0}, 0.0, RNG), few) < settings(finals({0: 0.0}, 0.0, RNG), many)
    close = [judge(finals({0: 0.0, many: 0.300, few: 0.295}, 0.03, np.random.default_rng(i))) for i in range(50)]
    assert sum(j.winner == few and j.verdict is Verdict.BETTER for j in close) >= 45
    apart = [judge(finals({0: 0.0, many: 0.5, few: 0.2}, 0.03, np.random.default_rng(i))) for i in range(50)]
    assert all(j.winner == many for j in apart)
    for judgement in close:
        assert judgement.gain is not None
        assert judgement.gain.interval is not None
        assert judgement.gain.interval[0] > 0, "a winner must itself be shown to be better"
