"""Warm start: what earlier launches teach, what they cannot, and that a resumed study believes the
same."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest

from autotune.base.errors import BadInput, UnknownName
from autotune.engines.command import Configuration, Scalar
from autotune.tuner.search.priors import keep, priors_of, sources_of
from autotune.tuner.search.priors.sources import Observation, Source, prior_of
from autotune.tuner.study.home import Home
from autotune.tuner.study.results import row_of
from tests.small_study import launches
from tests.tuner.search.priors.prepared import candidates, prepared, question

GRID: list[tuple[str, dict[str, Scalar]]] = [
    (
        "sglang",
        {
            "tensor_parallel": tp,
            "data_parallel": 8 // tp,
            "max_batched_tokens": chunk,
            "memory_fraction": f,
        },
    )
    for tp in (1, 2, 4, 8)
    for chunk in (2048, 4096, 8192, 16384)
    for f in (0.8, 0.9)
]


def _truth(knobs) -> float:
    return (
        8.0
        - 0.3 * math.log2(knobs["tensor_parallel"])
        + 0.1 * math.log2(knobs["max_batched_tokens"])
    )


def _source(broken=()) -> Source:
    """An earlier study of the same grid, of which the fraction was never varied."""
    rows = [knobs for _, knobs in GRID if knobs["memory_fraction"] == 0.8][::2]
    observations = [
        Observation(Configuration("sglang", {**k, "page_size": 1}), _truth(k)) for k in rows
    ]
    return Source(
        "study before",
        (*observations, *(Observation(Configuration("sglang", k), None) for k in broken)),
    )


def test_the_order_carries_over_and_what_was_not_varied_has_no_say():
    other = ("vllm", {"tensor_parallel": 8, "data_parallel": 1})
    found = prior_of(_source(), candidates([*GRID, other]))
    assert found is not None
    own, foreign = found.mean[: len(GRID)], found.mean[-1]
    truth = np.array([_truth(knobs) for _, knobs in GRID])
    assert np.corrcoef(own, truth)[0, 1] > 0.95
    np.testing.assert_array_equal(own[0::2], own[1::2])  # memory_fraction
    assert math.isnan(foreign)  # no launch of this engine


def test_failures_lower_the_odds_of_what_shares_their_cause():
    broken = [
        {**knobs, "memory_fraction": 0.9} for _, knobs in GRID if knobs["tensor_parallel"] == 1
    ][:3]
    found = prior_of(_source(broken), candidates(GRID))
    assert found is not None
    assert found.p_starts is not None
    bad = np.array([k["tensor_parallel"] == 1 and k["memory_fraction"] == 0.9 for _, k in GRID])
    assert found.p_starts[bad].max() < found.p_starts[~bad].min()
    assert prior_of(_source(), candidates(GRID)).p_starts is None


def _home(tmp_path, rows=None) -> Home:
    """A home with one earlier study."""
    folder = tmp_path / "studies" / "before"
    folder.mkdir(parents=True)
    (folder / "study.yaml").write_text("{}")
    text = "".join(json.dumps(row_of(one)) + "\n" for one in (launches() if rows is None else rows))
    (folder / "results.jsonl").write_text(text)
    return Home(tmp_path)


def test_a_study_a_folder_and_a_file_are_found(tmp_path):
    home = _home(tmp_path)
    folder = tmp_path / "studies" / "before"
    assert home.source("before") == home.source(str(folder)) == folder
    assert home.source(str(folder / "results.jsonl")) == folder / "results.jsonl"


def test_launches_are_read_and_what_says_nothing_is_left_out(tmp_path):
    spec = question(sources=(str(_home(tmp_path).source("before")),), workloads=("sharegpt",))
    (source,) = sources_of(spec, tmp_path / "new")
    assert source.name == "study before"
    assert len(source.observations) == 8  # one of the nine measurements did not count
    assert [one.score is None for one in source.observations].count(True) == 1
    assert source.observations[0].score == pytest.approx(math.log(6000))


def test_a_latency_is_better_the_less_it_is(tmp_path):
    spec = question(
        sources=(str(_home(tmp_path).source("before")),),
        workloads=("sharegpt",),
        objective="mean_ttft_ms",
    )
    assert sources_of(spec, tmp_path / "new")[0].observations[0].score == pytest.approx(
        -math.log(5000)
    )


def test_a_resumed_study_believes_the_same_after_the_earlier_one_has_gone(tmp_path):
    home = _home(tmp_path)
    spec = question(sources=(str(home.source("before")),), workloads=("sharegpt",))
    study, rows = (
        tmp_path / "new",
        [
            (c.configuration.engine, c.configuration.knobs)
            for c in (one.trial for one in launches())
        ],
    )
    first = sources_of(spec, study)
    study.mkdir()
    keep(first, study)
    shutil.rmtree(home.studies)
    again = sources_of(spec, study)
    assert again == first
    one, two = (priors_of(prepared(rows, on="simulator"), found) for found in (first, again))
    assert one[0].name == "study before"
    np.testing.assert_array_equal(one[0].mean, two[0].mean)


def test_a_study_that_still_runs_may_end_in_half_a_line(tmp_path):
    home = _home(tmp_path)
    with (home.source("before") / "results.jsonl").open("a") as file:
        file.write('{"engine": "vl')
    spec = question(sources=(str(home.source("before")),), workloads=("sharegpt",))
    assert len(sources_of(spec, tmp_path / "new")[0].observations) == 8


@pytest.mark.parametrize(
    ("text", "rows", "objective", "said"),
    [
        ("after", None, "total_token_throughput", "Known: before"),
        (".", None, "total_token_throughput", "no results.jsonl"),
        ("before", [], "total_token_throughput", "no finished launch"),
        ("before", None, "median_itl_ms", "did not measure median_itl_ms; they have"),
        ("study.yaml", None, "total_token_throughput", "study.yaml:1: not a launch"),
        ("some.csv", None, "total_token_throughput", "some.csv"),
    ],
)
def test_bad_sources_are_refused_before_the_first_launch(tmp_path, text, rows, objective, said):
    home = _home(tmp_path, rows)
    (tmp_path / "some.csv").write_text("engine,x\nvllm,1\n")
    paths = {
        ".": tmp_path,
        "study.yaml": home.studies / "before" / text,
        "some.csv": tmp_path / text,
    }
    with pytest.raises((BadInput, UnknownName), match=said):
        sources_of(
            question(sources=(str(home.source(str(paths.get(text, text)))),), objective=objective),
            tmp_path,
        )
    assert not (tmp_path / "sources").exists()
