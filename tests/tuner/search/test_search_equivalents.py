"""Launches that the engine ran alike count as one candidate, whatever was asked for."""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.base.evidence import Evidence
from autotune.engines.command import Configuration, Resolved
from autotune.tuner.recommend import recommend
from autotune.tuner.search.equivalents import canonical_of, differences
from autotune.tuner.search.history import History
from autotune.tuner.search.study import Study
from autotune.tuner.trial import Launch, Role, State, Trial, TrialResult
from tests.tuner.search.search_landscapes import (
    command_of,
    decisions,
    evaluate,
    make_spec,
    opened,
    ridge,
    small,
)

CANDIDATES = small()
SPEC = make_spec(launches=12, noise=0.02, seed=3)
FINGERPRINTS = [candidate.fingerprint for candidate in CANDIDATES.items]
BASELINE = FINGERPRINTS[CANDIDATES.baseline]

# A few candidates, each answered with a candidate's fingerprint, with a stranger's, or with
# nothing.
ROWS = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.sampled_from([None, "stranger", "another", *FINGERPRINTS[:7]]),
        st.booleans(),
    ),
    max_size=14,
)


def launch(number: int, position: int, answer: str | None, ran: bool = True) -> Launch:
    candidate = CANDIDATES.items[position]
    role = Role.SEARCH if number else Role.BASELINE
    trial = Trial(number, role, candidate.configuration, "0.11", command_of(candidate), ("chat",))
    resolved = None if answer is None else Resolved(answer)
    metrics = {"chat": {"total_token_throughput": 100.0 + number}} if ran else {}
    state = State.COMPLETE if ran else State.INVALID
    return Launch(trial, TrialResult(state, Evidence.EMULATED, metrics=metrics, resolved=resolved))


def launches_of(rows: list[tuple[int, str | None, bool]]) -> list[Launch]:
    return [launch(number, *row) for number, row in enumerate(rows)]


@settings(max_examples=150, deadline=None)
@given(ROWS, st.randoms(use_true_random=False))
def test_joining_is_order_independent_idempotent_and_keeps_every_launch(
    rows: list[tuple[int, str | None, bool]], shuffler: random.Random
) -> None:
    launches = launches_of(rows)
    joined = canonical_of(launches, CANDIDATES, BASELINE)
    shuffled = list(launches)
    shuffler.shuffle(shuffled)
    assert canonical_of(shuffled, CANDIDATES, BASELINE) == joined
    assert not set(joined) & set(joined.values()), "what counts as another is counted for by none"
    assert BASELINE not in joined
    one, other = (
        History.from_launches(SPEC, CANDIDATES, launches),
        History.from_launches(SPEC, CANDIDATES, shuffled),
    )
    assert one.entries == other.entries
    assert [e.number for e in one] == [row.trial.number for row in launches]
    assert sum(len(entries) for entries in one.by_position.values()) == len(launches)
    for number, (asked, _, _) in enumerate(rows):
        assert (
            one.entries[number].position
            == one.canonical(asked)
            == one.canonical(one.canonical(asked))
        )
    again = {position: one.canonical(position) for position in one.canonical_of}
    assert again == one.canonical_of
    assert all(one.spent(position) for position in one.canonical_of)
    assert all(
        one.scores(position) == one.scores(one.canonical(position))
        for position in range(len(CANDIDATES))
    )


@settings(max_examples=100, deadline=None)
@given(ROWS)
def test_candidates_that_were_answered_alike_are_never_split(
    rows: list[tuple[int, str | None, bool]],
) -> None:
    history = History.from_launches(SPEC, CANDIDATES, launches_of(rows))
    first: dict[int, str] = {}
    for asked, answer, _ in rows:
        if answer is not None:
            first.setdefault(asked, answer)
    alike = {
        answer: {history.canonical(p) for p, other in first.items() if other == answer}
        for answer in first.values()
    }
    assert {answer: len(found) for answer, found in alike.items()} == dict.fromkeys(alike, 1)


def test_what_the_engine_told_apart_is_not_joined_by_a_chain() -> None:
    """5 was made 6; 6, launched itself, was made 7: whoever ran 5 did not run what 6 ran."""
    rows = [launch(0, 0, None), launch(1, 5, FINGERPRINTS[6]), launch(2, 6, FINGERPRINTS[7])]
    assert canonical_of(rows, CANDIDATES, BASELINE) == {FINGERPRINTS[6]: FINGERPRINTS[7]}


def test_of_twins_the_command_without_idle_settings_is_recommended() -> None:
    """Both are answered with what is no candidate; the one with more settings was launched
    first."""
    plain, idle = sorted(range(1, len(CANDIDATES)), key=lambda p: len(_changed(p)))[
        :: len(CANDIDATES) - 2
    ][:2]
    asked = [(CANDIDATES.baseline, None), (idle, "stranger"), (plain, "stranger")]
    rows = [launch(number, *asked[number % 3]) for number in range(9)]
    for i, row in enumerate(rows):
        metrics = {"chat": {"total_token_throughput": (100.0 if i % 3 == 0 else 200.0) + i}}
        role = row.trial.role if i < 3 else Role.FINAL
        rows[i] = replace(
            row, trial=replace(row.trial, role=role), result=replace(row.result, metrics=metrics)
        )
    found = recommend(SPEC, CANDIDATES, rows, (), "done").recommended
    assert found is not None
    assert found.config == dict(CANDIDATES.items[plain].configuration.knobs)


def _changed(position: int) -> list[str]:
    usual = CANDIDATES.baseline_candidate.configuration.knobs
    return [
        name
        for name, value in CANDIDATES.items[position].configuration.knobs.items()
        if usual[name] != value
    ]


def test_a_launch_without_an_answer_is_taken_as_asked() -> None:
    history = History.from_launches(
        SPEC, CANDIDATES, [launch(0, 0, None), launch(1, 5, FINGERPRINTS[5])]
    )
    assert history.canonical_of == {}
    assert [entry.position for entry in history] == [0, 5]


def test_a_twin_that_was_not_launched_gets_the_launch_and_is_done_with() -> None:
    history = History.from_launches(
        SPEC, CANDIDATES, [launch(0, 0, None), launch(1, 5, FINGERPRINTS[6])]
    )
    assert history.canonical_of == {5: 6}
    assert history.scores(6) == history.scores(5) != []
    assert history.not_searchable == {0, 5, 6}


def test_an_answer_that_says_nothing_else_leaves_the_twin_to_be_measured() -> None:
    history = History.from_launches(
        SPEC, CANDIDATES, [launch(0, 0, None), launch(1, 5, FINGERPRINTS[6], ran=False)]
    )
    assert history.spent(5)
    assert not history.spent(6)


def test_the_baseline_stands_for_its_twins() -> None:
    launches = [
        launch(0, 0, FINGERPRINTS[4]),
        launch(1, 4, FINGERPRINTS[4]),
        launch(2, 3, FINGERPRINTS[4]),
    ]
    history = History.from_launches(SPEC, CANDIDATES, launches)
    assert history.canonical_of == {4: 0, 3: 0}
    assert len(history.scores(0)) == 3


def heard(configuration: Configuration) -> Configuration:
    """An engine that takes no notice of the KV cache's type."""
    return configuration.with_knobs(kv_cache_dtype="auto")


def played(study: Study, at_most: int = 1000) -> list[Launch]:
    for _ in range(at_most):
        trial = study.ask()
        if trial is None:
            break
        run = heard(trial.configuration)
        done = evaluate(SPEC, lambda _, run=run: ridge(run), trial)
        asked, got = (c.knobs["kv_cache_dtype"] for c in (trial.configuration, run))
        differs = {} if asked == got else {"kv_cache_dtype": (asked, got)}
        resolved = Resolved(
            run.fingerprint, differs, "toy", dict.fromkeys(differs, "fp8 did nothing")
        )
        study.tell(Launch(trial, replace(done.result, resolved=resolved)))
    return list(study.launches)


def test_a_search_over_twins_asks_for_each_configuration_once_and_resumes_alike() -> None:
    with tempfile.TemporaryDirectory() as folder:
        study = opened(Path(folder), SPEC, CANDIDATES)
        launches = played(study)
        study.close()
        rows = (Path(folder) / "results.jsonl").read_bytes().splitlines(keepends=True)
    searched = [row for row in launches if row.trial.role is not Role.FINAL]
    asked = [row.trial.configuration.fingerprint for row in searched]
    assert len(set(asked)) == len(asked)
    seen: set[str] = set()
    for row in launches:
        # A twin is asked for at most before anything is known of it, and never after.
        assert row.trial.role is Role.FINAL or row.trial.configuration.fingerprint not in seen
        seen.add(heard(row.trial.configuration).fingerprint)
    outcome = recommend(SPEC, CANDIDATES, launches)
    assert outcome.recommended is not None
    assert outcome.recommended.config["kv_cache_dtype"] == "auto"
    assert outcome.trials == len(seen)
    assert all(c.knob != "kv_cache_dtype" for c in outcome.contributions)
    (found,) = outcome.resolutions
    assert (found.knob, found.asked, found.got) == ("kv_cache_dtype", "fp8", "auto")
    for kept in (2, len(rows) - 3):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "results.jsonl").write_bytes(b"".join(rows[:kept]))
            study = opened(Path(folder), SPEC, CANDIDATES)
            assert decisions(played(study)) == decisions(launches)
            study.close()


def test_a_difference_is_told_once_with_what_it_repeats() -> None:
    plain = launch(0, 0, FINGERPRINTS[0])
    odd = launch(1, 5, FINGERPRINTS[0])
    note = Resolved(
        FINGERPRINTS[0],
        {"kv_cache_dtype": ("fp8", "auto")},
        "toy",
        {"kv_cache_dtype": "it did nothing"},
    )
    launches = [
        plain,
        *(Launch(replace(odd.trial, number=n), replace(odd.result, resolved=note)) for n in (2, 1)),
    ]
    (found,) = differences(launches, canonical_of(launches, CANDIDATES))
    assert (found.note, found.launches, found.repeats_of) == ("it did nothing", [1, 2], 0)
