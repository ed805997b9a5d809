"""What is written per request is read back, request by request."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.load.client.messages import RequestLog
from autotune.load.client.stream import OK, Exchange, OutcomeKind, RequestOutcome
from autotune.load.request_file import COLUMNS, LoadLog, requests_path, write_requests
from tests.request_files import read_requests

CLOSED = RequestOutcome(OutcomeKind.CLOSED, "gone with half a pair \ud800")
ABOUT = {"workload": "w", "seed": 5, "evidence": "emulated"}

Request = tuple[list[int], bool]


def exchange(gaps_us: list[int], ok: bool) -> Exchange:
    """A request whose first chunk comes after 1 ms, and the next ones after these gaps."""
    made = Exchange(len(gaps_us) + 1)
    made.sent_ns = 10**9
    made.events.times_ns.extend((made.sent_ns + 10**6 + 1000 * np.cumsum([0, *gaps_us])).tolist())
    made.finished_ns = made.events.times_ns[-1]
    made.outcome = OK if ok else CLOSED
    made.usage = (7, len(gaps_us) + 1, None) if ok else None
    return made


def log(requests: list[Request]) -> RequestLog:
    exchanges = [exchange(gaps, ok) for gaps, ok in requests]
    return RequestLog.from_exchanges(exchanges, [0] * len(requests), np.zeros(len(requests)))


def check(path: Path, requests: list[Request], written: RequestLog) -> None:
    write_requests(path, [LoadLog("c8", 5, written)], ABOUT)
    table = read_requests(path)
    assert len(table.columns["request"]) == len(requests)
    for row, (gaps_us, ok) in enumerate(requests):
        found = {name: column[row] for name, column in table.columns.items()}
        assert (found["point"], found["seed"], found["request"]) == ("c8", 5, row)
        assert (found["outcome"], found["chunks"]) == ("ok" if ok else "closed", len(gaps_us) + 1)
        assert found["ttft_s"] == pytest.approx(1e-3)
        assert np.isnan(found["cached_tokens"])
        if ok:
            assert found["itl_ms"] == pytest.approx(np.array(gaps_us) / 1e3, rel=1e-6)
            assert found["output_tokens"] == len(gaps_us) + 1
        else:
            assert found["itl_ms"] is None
            assert np.isnan(found["output_tokens"])


REQUESTS = st.lists(
    st.tuples(st.lists(st.integers(1, 10**7), max_size=6), st.booleans()), min_size=1, max_size=8
)


@settings(max_examples=30)
@given(REQUESTS)
def test_every_request_gets_its_own_gaps_back(
    tmp_path_factory: pytest.TempPathFactory, requests: list[Request]
):
    check(tmp_path_factory.getbasetemp() / "r.requests.parquet", requests, log(requests))


@settings(max_examples=30)
@given(REQUESTS, REQUESTS)
def test_so_does_a_log_merged_of_two_workers(
    tmp_path_factory: pytest.TempPathFactory, one: list[Request], other: list[Request]
):
    places = [np.arange(len(one)), np.arange(len(other))]
    merged = RequestLog.merged([log(one), log(other)], places)
    dealt = [request for pair in zip_longest(one, other) for request in pair if request is not None]
    check(tmp_path_factory.getbasetemp() / "m.requests.parquet", dealt, merged)


def test_the_file_says_what_it_is_and_nothing_else_is_left(tmp_path: Path):
    path = tmp_path / "r.requests.parquet"
    write_requests(
        path, [LoadLog("c1", 5, log([([], True)])), LoadLog("c2", 6, log([([3], False)]))], ABOUT
    )
    table = read_requests(path)
    assert {
        "workload": "w",
        "seed": "5",
        "evidence": "emulated",
        "schema": "1",
    }.items() <= table.metadata.items()
    assert list(table.columns) == list(COLUMNS)
    assert table.columns["point"].tolist() == ["c1", "c2"]
    assert table.columns["message"].tolist() == ["", "gone with half a pair ?"]
    assert list(tmp_path.iterdir()) == [path]


def test_no_load_is_no_row(tmp_path: Path):
    write_requests(tmp_path / "r.requests.parquet", [], ABOUT)
    assert len(read_requests(tmp_path / "r.requests.parquet").columns["request"]) == 0


def test_it_lies_beside_its_result():
    assert requests_path(Path("a/r.json")) == Path("a/r.requests.parquet")
    assert requests_path(Path("my.model")) == Path("my.model.requests.parquet")


def test_gaps_that_do_not_fit_the_chunks_are_a_bug(tmp_path: Path):
    whole = log([([3, 4], True)])
    broken = RequestLog(
        whole.records,
        whole.outcomes,
        whole.retries,
        whole.send_delay_s,
        whole.cached_tokens,
        np.ones(1),
        np.ones(1),
    )
    with pytest.raises(ValueError, match="2 gaps"):
        write_requests(tmp_path / "r.requests.parquet", [LoadLog("", 0, broken)], ABOUT)
    assert list(tmp_path.iterdir()) == []
