"""Names, forms, drawn lengths and bad input of workloads."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from autotune.base.errors import BadInput, MalformedFile, UnknownName
from autotune.engines.library import Library, load
from autotune.load.prompts import PromptKey, Prompts
from autotune.load.workloads import Workload, load_workload, workload_names
from autotune.load.workloads.arrivals import Arrival, arrival_of

CHAT = ["sharegpt", "sharegpt-c4"]
RANDOM = ["short", "medium", "long", "very-long", "generation", "ultra-long"]
NAMES = [*CHAT, *RANDOM, "sweep", "output-sweep", "shared-prefix", "offline", "prose", "code"]


@pytest.mark.parametrize("name", NAMES)
def test_every_known_name_loads_and_draws(name: str):
    workload = load_workload(name)
    assert workload.points
    for position, point in enumerate(workload.points):
        requests = workload.draw(position, seed=3)
        assert len(requests.input_tokens) == point.prompts
        assert (requests.input_tokens > 0).all()
        assert (requests.output_tokens > 0).all()
        assert (requests.input_tokens + requests.output_tokens).max() <= workload.longest_request


def test_no_other_names_are_packaged():
    assert workload_names() == sorted(NAMES)


def test_sharegpt_has_the_measured_lengths():
    requests = load_workload("sharegpt").draw(0, seed=11)
    read, written = requests.input_tokens, requests.output_tokens
    assert read.mean() == pytest.approx(219.2, rel=0.02)
    assert read.std() == pytest.approx(242, rel=0.03)
    assert written.mean() == pytest.approx(200.8, rel=0.03)
    for quantile, tokens in {0.05: 8, 0.25: 19, 0.5: 83, 0.75: 357, 0.9: 623, 0.95: 757}.items():
        assert np.quantile(read, quantile) == pytest.approx(tokens, rel=0.08, abs=1.5)
    assert read.max() <= 1024
    assert (read + written).max() <= 2048
    assert written.max() > 4 * written.mean()  # a long tail


def test_lengths_are_fixed_by_the_seed_and_new_for_another():
    workload = load_workload("sharegpt")
    same, again, other = (workload.draw(0, seed).output_tokens for seed in (1, 1, 2))
    assert (same == again).all()
    assert (same != other).any()
    assert same.sum() == pytest.approx(other.sum(), rel=0.01)


def test_random_form():
    workload = load_workload("random:4000:200:500")
    assert workload.longest_request == 4200
    assert workload.points[0].prompts == 500
    assert load_workload("random:10:20").points[0].prompts == 1000


def test_random_form_of_ranges():
    workload = load_workload("random:800-1000:50:400")
    drawn = workload.draw(0, 0)
    assert (drawn.input_tokens.min(), drawn.input_tokens.max()) == pytest.approx((800, 1000), abs=2)
    assert drawn.input_tokens.mean() == pytest.approx(900, rel=0.01)
    assert set(drawn.output_tokens) == {50}
    assert workload.longest_request == 1050
    assert "800 to 1000 random tokens with answers of 50" in workload.description


@pytest.mark.parametrize(
    ("name", "concurrency", "tokens"),
    [
        ("random:4000:200:500", 500, 500 * 4200),
        ("sharegpt-c4", 4, 4 * 420),
        ("sweep", 128, 128 * 4000),
        ("output-sweep", 128, 128 * 9600),
        ("offline", 1024, 1024 * 6400),
    ],
)
def test_what_is_in_flight_is_that_of_the_load_with_most(
    name: str, concurrency: int, tokens: float
) -> None:
    workload = load_workload(name)
    assert workload.concurrency == concurrency
    assert workload.tokens_in_flight == pytest.approx(tokens, rel=0.05)


def test_of_requests_that_are_sent_at_their_times_nobody_knows_how_many_are_in_flight() -> None:
    workload = load_workload("sharegpt").with_arrival(Arrival(kind="poisson", request_rate=1))
    assert workload.concurrency == workload.tokens_in_flight == math.inf


def test_jsonl_form_takes_counts_text_ids_or_messages(tmp_path: Path):
    file = tmp_path / "mine.jsonl"
    messages = [{"role": "system", "content": "abcd"}, {"role": "user", "content": "abcdefgh"}]
    rows = [
        {"input_tokens": 7, "output_tokens": 3},
        {"prompt": "abcdefgh", "output_tokens": 1},
        {"prompt": "abc\u2028def", "output_tokens": 1, "input_tokens": 5},
        {"prompt": [11, 12, 13], "output_tokens": 2, "more": "ignored"},
        {"messages": messages, "output_tokens": 9},
    ]
    file.write_text(
        "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8"
    )
    workload = load_workload(f"jsonl:{file}")
    requests = workload.draw(0, seed=0)
    assert requests.input_tokens.tolist() == [7, 2, 5, 3, 3]
    assert requests.output_tokens.tolist() == [3, 1, 1, 2, 9]
    assert list(requests.contents) == [None, "abcdefgh", "abc\u2028def", [11, 12, 13], messages]
    assert workload.longest_request == 12
    assert workload.lengths_source() == f"{file}, tokens approximated at 4 characters per token"
    file.write_text(json.dumps(rows[0]))
    assert load_workload(f"jsonl:{file}").lengths_source() == f"{file}, which gives the lengths"


def test_a_file_s_requests_are_not_sent_twice(tmp_path: Path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"input_tokens": 7, "output_tokens": 3}\n')
    workload = load_workload(f"jsonl:{file}")
    more = workload.model_copy(
        update={"points": [workload.points[0].model_copy(update={"prompts": 2})]}
    )
    with pytest.raises(BadInput, match="holds 1 requests, but 2 prompts"):
        more.draw(0, 0)


def test_shared_prefix_has_groups_of_equal_size():
    requests = load_workload("shared-prefix").draw(0, seed=0)
    assert requests.prefix_tokens == 2000
    assert set(np.bincount(requests.group)) == {50}


def test_arrivals_replace_those_of_the_workload():
    workload = load_workload("random:10:10:4000")
    drawn = workload.with_arrival(arrival_of(request_rate=20)).draw(0, seed=0)
    assert drawn.send_s[-1] == pytest.approx(3999 / 20)
    assert drawn.concurrency == 4000
    even = workload.with_arrival(Arrival(kind="constant", request_rate=20)).draw(0, seed=0)
    assert np.diff(even.send_s) == pytest.approx(1 / 20)
    assert load_workload("sharegpt").with_concurrency(4).draw(0, 0).concurrency == 4


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("sharegpt", ["c4", "c16"]),
        ("sweep", ["c4", "c16"]),  # its points differ in nothing but their concurrency
        ("output-sweep", [f"out{n}-c{c}" for n in (800, 1600, 3200, 6400) for c in (4, 16)]),
    ],
)
def test_a_curve_has_a_point_per_concurrency_with_prompts_of_its_own(name: str, labels: list[str]):
    curve = load_workload(name).with_concurrencies([4, 16, 4])
    assert [point.label for point in curve.points] == labels
    assert [point.arrival.concurrency for point in curve.points] == [4, 16] * (len(labels) // 2)
    bodies = [Prompts("m").bodies(curve.draw(i, 0), PromptKey(name, i, 0)) for i in range(2)]
    assert not set(bodies[0]) & set(bodies[1])
    with pytest.raises(BadInput, match="at least one"):
        curve.with_concurrencies([])
    with pytest.raises(BadInput, match="concurrency 0"):
        curve.with_concurrencies([4, 0])


def test_a_sweep_becomes_one_load_when_its_arrival_is_replaced():
    (point,) = load_workload("sweep").with_arrival(arrival_of(request_rate=3)).points
    assert (point.label, point.arrival.kind) == ("", "poisson")
    assert len(load_workload("output-sweep").with_concurrency(7).points) == 4


def test_a_list_in_place_of_a_number_makes_a_load_point_for_each(tmp_path: Path):
    offline = load_workload("offline").points
    assert [(p.label, p.prompts) for p in offline[4:7]] == [
        ("b512-out800", 512),
        ("b1024-out800", 1024),
        ("b32-out1600", 32),
    ]
    assert [p.lengths.longest for p in offline] == [
        3200 + n for n in (800, 1600, 3200) for _ in range(6)
    ]
    assert [p.arrival.concurrency for p in load_workload("sweep").points] == [4, 8, 16, 32, 64, 128]
    mine = """
name: mine
description: d
origin: o
points:
  - label: a
    prompts: 3
    arrival: {kind: closed_loop, concurrency: [1, 2]}
    lengths: {kind: fixed, input_tokens: [5, 6], output_tokens: 5}
  - prompts: 9
    lengths: {kind: fixed, input_tokens: 5, output_tokens: 5}
"""
    (tmp_path / "mine.yaml").write_text(mine)
    workload = load(tmp_path / "mine.yaml", Workload)
    assert [p.label for p in workload.points] == [
        "a-in5-c1",
        "a-in5-c2",
        "a-in6-c1",
        "a-in6-c2",
        "",
    ]
    for right, wrong, problem in (
        ("[1, 2]", "[1, x]", r"mine\.yaml:5: .*load point 1: arrival\.concurrency: .*integer"),
        ("[1, 2]", "[]", "load point 1: an empty list"),
        ("prompts: 9", "promts: 9", "load point 2: promts: Extra"),
        ("label: a", "label: [a]", "load point 1: label"),
    ):
        (tmp_path / "mine.yaml").write_text(mine.replace(right, wrong))
        with pytest.raises(MalformedFile, match=problem):
            load(tmp_path / "mine.yaml", Workload)


def test_the_report_can_say_where_lengths_come_from():
    assert load_workload("short").lengths_source() == "random tokens of fixed length"
    said = load_workload("sharegpt").lengths_source()
    assert said == "stand-in with ShareGPT's length statistics (no dataset file given)"


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(UnknownName, match="did you mean 'sharegpt'"):
        load_workload("sharegtp")


@pytest.mark.parametrize(
    "text",
    [
        "random:",
        "random:5",
        "random:0:5",
        "random:1:2:3:4",
        "random:a:b",
        "random:10-5:5",
        "random:-5:5",
        "jsonl:",
        "jsonl:/no/such",
        "sharegpt:",
    ],
)
def test_a_malformed_form_is_bad_input(text: str):
    with pytest.raises(BadInput):
        load_workload(text)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("nonsense", "not JSON"),
        ("[1]", "an object; write"),
        ('{"input_tokens": 0, "output_tokens": 1}', "whole numbers"),
        ('{"prompt": "x"}', "--output-len N, or write output_tokens"),
        ('{"output_tokens": 3}', "neither text nor input_tokens"),
        ('{"prompt": [], "output_tokens": 3}', "write"),
        ('{"prompt": [1, "x"], "output_tokens": 3}', "write"),
        ('{"messages": [{"role": "user"}], "output_tokens": 3}', "write"),
    ],
)
def test_a_bad_line_of_a_file_is_named(tmp_path: Path, line: str, problem: str):
    file = tmp_path / "bad.jsonl"
    file.write_text('{"input_tokens": 7, "output_tokens": 3}\n' + line + "\n")
    with pytest.raises(MalformedFile, match=rf"bad\.jsonl:2: .*{problem}"):
        load_workload(f"jsonl:{file}")


def test_a_workload_of_ones_own_is_found_and_checked(tmp_path: Path):
    folder = tmp_path / "workloads"
    folder.mkdir()
    lengths = "    lengths: {kind: fixed, input_tokens: 5, output_tokens: 5}\n"
    text = f"name: mine\ndescription: d\norigin: o\npoints:\n  - prompts: 3\n{lengths}"
    (folder / "mine.yaml").write_text(text)
    assert load_workload("mine", Library([tmp_path])).longest_request == 10
    (folder / "bad.yaml").write_text(
        text.replace("prompts: 3", "prompts: 0").replace("mine", "bad")
    )
    with pytest.raises(MalformedFile, match=r"bad\.yaml:5"):
        load_workload("mine", Library([tmp_path]))
