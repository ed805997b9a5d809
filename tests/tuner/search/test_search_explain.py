"""What a study says beside its winner: what each setting adds, knobs that differhing, predictions
not tried."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engines.command import Configuration, Resolved, Scalar
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.load.metrics.formulas import Slo
from autotune.tuner.recommend import recommend
from autotune.tuner.search.decide.verdict import Gain
from autotune.tuner.search.entry import Entry
from autotune.tuner.search.explain import contributions
from autotune.tuner.search.gp.kernels import Encoding, Kernels
from autotune.tuner.search.gp.posterior import Posterior
from autotune.tuner.search.history import History
from autotune.tuner.search.spread import Spread
from autotune.tuner.study.recommendation import Contribution, NoEffect, Recommendation, Verdict
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch, Role, Trial
from tests.tuner.search.search_landscapes import (
    Throughput,
    evaluate,
    grid,
    make_spec,
    opened,
    play,
    ridge,
    small,
)

GRID, SMALL = grid(), small()


def nothing_known(_: Trial) -> Sequence[NoEffect]:
    return ()


def explained(
    spec: StudySpec, candidates: CandidateSet, node: Throughput
) -> tuple[Recommendation, list[Launch]]:
    with tempfile.TemporaryDirectory() as folder:
        study = opened(Path(folder), spec, candidates)
        made = play(study, spec, node)
        told = study.explanation(nothing_known)
        study.close()
    return recommend(spec, candidates, made, (), study.stop_reason, told), made


def test_a_contribution_is_that_of_the_setting_in_this_command() -> None:
    result, _ = explained(make_spec(noise=0.01, launches=40, seed=1), GRID, ridge)
    found = {c.knob: c for c in result.contributions}
    assert result.verdict is Verdict.BETTER
    assert result.recommended is not None
    assert "data_parallel+dp_attention+tensor_parallel" in found, (
        "what only changes together has one row"
    )
    assert found["kv_cache_dtype"].from_ == "auto", "what the engine does by itself"
    assert found["kv_cache_dtype"].to == result.recommended.config["kv_cache_dtype"] == "fp8"
    low, high = found["kv_cache_dtype"].ci95 or (0.0, 0.0)
    assert low < 100 * math.expm1(0.1) < high < 25, "fp8 multiplies by e^0.1 whatever the rest is"
    engine = found["engine"]
    assert (engine.from_, engine.to) == ("vllm", "sglang")
    assert engine.measured_on.startswith(
        "against vllm's best command without a further trade-off (launch "
    )
    assert (engine.gain_percent or 0.0) > 0, (
        "the winner is better than whatever ran on the other engine"
    )
    assert Recommendation.from_json(result.to_json()) == result


def entries(scores: Sequence[tuple[int, float | None]]) -> tuple[Entry, ...]:
    rows = [
        Entry(n, Role.SEARCH if n else Role.BASELINE, p, score, violations={}, broke=score is None)
        for n, (p, score) in enumerate(scores)
    ]
    return tuple(rows)


def two_engines() -> CandidateSet:
    """Engine a with one knob, engine b with three of two values each; b's default is the second
    candidate."""
    rows = [Configuration("a", {"x": 0})]
    rows += [
        Configuration("b", {"x": x, "y": y, "z": z})
        for x, y, z in itertools.product((0, 1), repeat=3)
    ]
    return CandidateSet(tuple(Candidate(c, "1") for c in rows), 0, (0, 1))


BOTH = two_engines()
WINNER = len(BOTH) - 1


def known(
    scores: Sequence[tuple[int, float | None]], candidates: CandidateSet = BOTH
) -> tuple[History, Posterior]:
    history = History(make_spec(), candidates, entries(scores))
    done = [e for e in history if e.score is not None]
    kernels = Kernels(Encoding(candidates))
    return history, Posterior(kernels, [e.position for e in done], [e.score or 0.0 for e in done])


FEW = Spread(0.01, 6)


def settings_named(rows: Sequence[Contribution]) -> set[str]:
    return {name for row in rows for name in row.knob.split("+")} - {"engine"}


WORTH = st.sampled_from([0.0, 0.1, 0.3, -0.2])


@settings(max_examples=15, deadline=None)
@given(st.tuples(WORTH, WORTH, WORTH))
def test_rows_have_the_sign_and_size_of_what_a_setting_adds(
    worth: tuple[float, float, float],
) -> None:
    """Without noise: a setting that changes nothing has 0 in its interval, any other row reads in
    its direction."""
    scores = [(0, 0.05)]
    for position, candidate in enumerate(BOTH.items[1:], start=1):
        on = candidate.configuration.knobs
        scores.append(
            (position, math.fsum(w for w, name in zip(worth, "xyz", strict=True) if on[name]))
        )
    history, model = known(scores)
    rows = contributions(history, model, WINNER, FEW)
    assert settings_named(rows) == set("xyz")
    for row in (row for row in rows if row.knob != "engine"):
        true = worth["xyz".index(row.knob)]
        assert (row.from_, row.to) == (0, 1)
        assert row.gain_percent is not None
        assert row.ci95 is not None
        assert row.odds is not None
        assert row.ci95[0] <= 100 * math.expm1(true) <= row.ci95[1]
        if true:
            assert row.gain_percent * true > 0
            assert (row.odds > 0.5) == (true > 0)


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(2, WINNER - 1)), st.integers(1, WINNER), st.data())
def test_every_setting_of_a_command_has_a_row_and_rows_are_sorted(
    kept: set[int], chosen: int, data: st.DataObject
) -> None:
    """Whatever the candidates are, and whichever of them ran or failed."""
    items = [item for p, item in enumerate(BOTH.items) if p in {0, 1, chosen, *kept}]
    candidates = CandidateSet(tuple(items), 0, (0, 1))
    winner = candidates.position(BOTH.items[chosen].fingerprint)
    others = data.draw(st.sets(st.sampled_from(range(1, len(items)))))
    failed = data.draw(st.sets(st.sampled_from(range(1, len(items))))) - {winner}
    launched = [(p, None if p in failed else 0.1 * p) for p in sorted({winner, *others})]
    history, model = known([(0, 0.0), *launched], candidates)
    rows = contributions(history, model, winner, FEW)
    knobs = items[winner].configuration.knobs
    assert settings_named(rows) == {name for name, value in knobs.items() if value}
    assert sum(row.knob == "engine" for row in rows) == 1
    gains = [math.inf if row.gain_percent is None else row.gain_percent for row in rows]
    assert gains == sorted(gains, reverse=True)
    for row in rows:
        assert (row.gain_percent is None) == (row.odds is None) == (row.needed_to == "start")
        assert row.measured_on


def test_a_setting_without_which_a_command_did_not_start_is_needed() -> None:
    """Position 6 is the winner without y; without x it is not known to fail."""
    history, model = known([(0, 0.0), (1, None), (WINNER, 0.5), (6, None), (4, 0.4)])
    rows = {row.knob: row for row in contributions(history, model, WINNER, FEW)}
    needed = rows["y"]
    assert (needed.needed_to, needed.gain_percent, needed.odds) == ("start", None, None)
    assert needed.measured_on == "launch 3 without it: failed"
    assert rows["x"].needed_to is None
    assert rows["x"].measured_on == "the model of all launches (1 without it)"
    assert rows["z"].measured_on == "the model of all launches (none without it)"


def test_a_setting_without_which_a_limit_is_broken_is_needed_to_keep_it() -> None:
    history, model = known([(0, 0.0), (WINNER, 0.5), (4, 0.6)])
    slo = Slo.parse("p99_ttft_ms<=1000")
    beyond = [replace(e, violations={str(slo): 0.2 if e.position == 4 else -0.1}) for e in history]
    limited = replace(history, spec=make_spec(slos=(slo,)), entries=tuple(beyond))
    rows = {row.knob: row for row in contributions(limited, model, WINNER, FEW)}
    assert rows["x"].needed_to == "keep the limits"
    assert (rows["x"].gain_percent or 0.0) < 0, "it costs something"
    assert rows["y"].needed_to is None


def test_where_both_were_repeated_fresh_launches_tell_the_gain() -> None:
    """The engine against the baseline, where no other command of its engine ran: the measured gain
    itself."""
    history, model = known(
        [(0, 0.0), (WINNER, 0.7), (WINNER, 0.5), (0, 0.02), (0, 0.04), (WINNER, 0.52)]
    )
    fresh = [replace(e, role=Role.FINAL) if e.number > 1 else e for e in history]
    finals = replace(history, entries=tuple(fresh))
    rows = contributions(finals, model, WINNER, FEW)
    row = next(row for row in rows if row.knob == "engine")
    assert row.gain_percent == pytest.approx(100 * math.expm1(0.51 - 0.02))
    assert row.measured_on == "against the baseline: fresh launches of both (2 and 3)"
    assert (row.odds or 0.0) > 0.99
    # The study's gain is of the same launches: its test's estimate and interval stand here, too.
    judged = contributions(finals, model, WINNER, FEW, Gain(0.48, (0.4, 0.55)))
    engine = next(row for row in judged if row.knob == "engine")
    assert engine.gain_percent == pytest.approx(100 * math.expm1(0.48))
    assert engine.ci95 == pytest.approx((100 * math.expm1(0.4), 100 * math.expm1(0.55)))
    assert [row for row in judged if row.knob != "engine"] == [
        row for row in rows if row.knob != "engine"
    ]


def test_what_the_engine_runs_alike_adds_nothing() -> None:
    history, model = known([(0, 0.0), (WINNER, 0.5), (4, 0.4)])
    joined = replace(history, canonical_of={WINNER - 1: WINNER})
    row = next(row for row in contributions(joined, model, WINNER, FEW) if row.knob == "z")
    assert (row.gain_percent, row.ci95, row.odds) == (0.0, (0.0, 0.0), 0.0)
    assert row.measured_on == "the engine runs both alike"


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
            differs: dict[str, tuple[Scalar, Scalar]] = (
                {} if asked == "auto" else {"kv_cache_dtype": (asked, "auto")}
            )
            told = Resolved(
                run.fingerprint, differs, "toy", dict.fromkeys(differs, "fp8 did nothing")
            )
            done = evaluate(spec, lambda _, run=run: ridge(run), trial)
            study.tell(Launch(trial, replace(done.result, resolved=told)))
        result = recommend(spec, SMALL, study.launches, (), "", study.explanation(nothing_known))
        study.close()
    row = next(row for row in result.inert if row.knob == "kv_cache_dtype")
    assert row.values == ["fp8"]
    assert row.reason.startswith("the engine ran with `auto` (launch")
    assert "kv_cache_dtype" not in {c.knob for c in result.contributions}
