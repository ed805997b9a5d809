"""What a command is found to serve decides, not what was predicted of it: a KV cache that is too
small is a give-up."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engines.command import Configuration
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.engines.promises import Promised
from autotune.tuner.recommend import recommend
from autotune.tuner.search.entry import Entry
from autotune.tuner.search.history import History
from autotune.tuner.study.recommendation import Recommendation
from autotune.tuner.study.results import launch_of, row_of
from autotune.tuner.trial import Launch, Role, Trial
from tests.tuner.search.search_landscapes import evaluate, make_spec, opened

ITEMS = tuple(
    Candidate(Configuration("sglang", {"dp": dp, "fraction": fraction, "chunk": chunk}), "0.5.6")
    for dp, fraction, chunk in itertools.product((1, 8), (None, 0.88), (2048, 8192, 16384))
)
PROMISED = Promised(4096)


def longest(one: Configuration) -> int:
    """Eight replicas hold the baseline's longest request only with a larger share of the memory."""
    return 1000 if one.knobs["dp"] == 8 and one.knobs["fraction"] is None else 4096


def node(foreseen: bool) -> CandidateSet:
    rows = {
        i: PROMISED.broken_by(one.configuration, longest(one.configuration))
        for i, one in enumerate(ITEMS)
    }
    told = {i: given for i, given in rows.items() if given} if foreseen else {}
    return CandidateSet(ITEMS, 0, (0,), given_up=told, promised=PROMISED)


def launched(trial: Trial, odds: float = 1.0) -> Launch:
    def throughput(one: Configuration) -> float:
        return 1000 * math.exp(0.5 * (one.knobs["dp"] == 8) + 0.01 * (one.knobs["chunk"] == 8192))

    row = evaluate(make_spec(noise=0.01), throughput, trial)
    tokens = longest(trial.configuration)
    return replace(
        row, result=replace(row.result, longest_request_tokens=tokens, odds_of_starting=odds)
    )


def study(folder: Path, foreseen: bool, **changes: object) -> tuple[list[Launch], Recommendation]:
    spec, candidates = make_spec(**{"noise": 0.01, "launches": 20, **changes}), node(foreseen)
    one = opened(folder, spec, candidates)
    while (trial := one.ask()) is not None:
        one.tell(launched(trial))
    one.close()
    explained = one.explanation(lambda trial: ())
    return list(one.launches), recommend(
        spec, candidates, one.launches, (), one.stop_reason, explained
    )


@pytest.mark.parametrize("foreseen", [True, False])
def test_a_setting_without_which_the_longest_request_is_not_served_stays(
    tmp_path: Path, foreseen: bool
) -> None:
    _, outcome = study(tmp_path, foreseen)
    assert outcome.recommended is not None
    assert outcome.recommended.config["dp"] == 8
    assert outcome.recommended.config["fraction"] == 0.88
    assert outcome.recommended.longest_request_tokens == 4096
    assert outcome.gives_up == []
    needed = {row.knob: row.needed_to for row in outcome.contributions}
    assert needed["fraction"] == "keep what it promises"


def test_a_row_and_the_recommendation_keep_what_was_told(tmp_path: Path) -> None:
    launches, outcome = study(tmp_path, True, launches=4)
    row = row_of(launches[0])
    assert (row["kv_cache_tokens"], row["longest_request_tokens"], row["odds_of_starting"]) == (
        None,
        4096,
        1.0,
    )
    assert launch_of(row) == launches[0]
    assert outcome.to_json()["longest_request_tokens"] == 4096
    assert outcome.to_json()["baseline"]["longest_request_tokens"] == 4096


def entries(**told: int) -> list[Entry]:
    """The baseline, what holds too little as was foreseen or not, and what holds enough."""
    held = [longest(one.configuration) for one in ITEMS]
    short, enough = held.index(1000), held.index(4096, 1)
    tokens = {0: 4096, short: 1000, enough: 4096, **{int(name[1:]): n for name, n in told.items()}}
    return [
        Entry(n, Role.SEARCH, p, 1.0, violations={}, longest=holds)
        for n, (p, holds) in enumerate(tokens.items())
    ]


@pytest.mark.parametrize("foreseen", [True, False])
def test_launches_correct_what_was_predicted(foreseen: bool) -> None:
    short = next(i for i, one in enumerate(ITEMS) if longest(one.configuration) == 1000)
    history = History(make_spec(), node(foreseen), tuple(entries()))
    (row,) = history.trade_offs(short)
    assert (row.kind, row.from_, row.to) == ("shorter-context", 4096, 1000)
    assert history.forbidden_trade_offs(short) == {"shorter-context"}
    assert short in history.ineligible
    # A launch that holds more than was foreseen gives nothing up, and less than the baseline's own
    # is what counts.
    kept = History(make_spec(), node(foreseen), tuple(entries(**{f"p{short}": 4096})))
    assert kept.trade_offs(short) == ()
    assert short not in kept.ineligible
    smaller = History(make_spec(), node(foreseen), tuple(entries(p0=900)))
    assert smaller.trade_offs(short) == ()


def test_what_serves_less_than_the_floor_or_may_not_start_is_not_recommended() -> None:
    spec, candidates = make_spec(min_context=2000, allow=("shorter-context",)), node(True)
    trials = [
        Trial(n, Role.SEARCH, one.configuration, "1", ("argv",), ("chat",))
        for n, one in enumerate(ITEMS)
    ]
    rows = [launched(trial, odds=0.8 if trial.number == 3 else 1.0) for trial in trials]
    history = History.from_launches(spec, candidates, rows)
    feasible = {position for position in range(len(ITEMS)) if history.feasible(position)}
    assert feasible == {
        i for i, one in enumerate(ITEMS) if longest(one.configuration) == 4096 and i != 3
    }
