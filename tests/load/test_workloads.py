"""Names, forms, drawn lengths and bad input of workloads."""

from pathlib import Path

import numpy as np
import pytest

from autotune.errors import BadInput, MalformedFile, UnknownName
from autotune.load.workloads import load_workload, workload_names
from autotune.space.library import Library

CHAT = ["sharegpt", "sharegpt-c4"]
RANDOM = ["short", "medium", "long", "very-long", "generation", "ultra-long"]
NAMES = [*CHAT, *RANDOM, "sweep", "output-sweep", "shared-prefix", "offline"]


@pytest.mark.parametrize("name", NAMES)
def test_every_known_name_loads_and_draws(name: str):
    workload = load_workload(name)
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


def test_jsonl_form_takes_counts_or_text(tmp_path: Path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"input_tokens": 7, "output_tokens": 3}\n{"prompt": "abcdefgh", "output_tokens": 1}\n')
    requests = load_workload(f"jsonl:{file}").draw(0, seed=0)
    assert requests.input_tokens.tolist() == [7, 2]
    assert requests.output_tokens.tolist() == [3, 1]


def test_shared_prefix_has_groups_of_equal_size():
    requests = load_workload("shared-prefix").draw(0, seed=0)
    assert requests.prefix_tokens == 2000
    assert set(np.bincount(requests.group)) == {50}


def test_poisson_arrivals_have_the_rate_asked_for():
    requests = load_workload("random:10:10:4000").with_request_rate(20).draw(0, seed=0)
    assert requests.send_s[0] == 0
    assert (np.diff(requests.send_s) >= 0).all()
    assert 4000 / requests.send_s[-1] == pytest.approx(20, rel=0.1)


def test_concurrency_replaces_the_arrival():
    assert load_workload("sharegpt").with_concurrency(4).draw(0, 0).concurrency == 4


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(UnknownName, match="did you mean 'sharegpt'"):
        load_workload("sharegtp")


@pytest.mark.parametrize(
    "text", ["random:", "random:5", "random:0:5", "random:1:2:3:4", "random:a:b", "jsonl:", "jsonl:/no/such"]
)
def test_a_malformed_form_is_bad_input(text: str):
    with pytest.raises(BadInput):
        load_workload(text)


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"input_tokens": 0, "output_tokens": 1}', '{"prompt": "x"}'])
def test_a_bad_line_of_a_file_is_named(tmp_path: Path, line: str):
    file = tmp_path / "bad.jsonl"
    file.write_text('{"input_tokens": 7, "output_tokens": 3}\n' + line + "\n")
    with pytest.raises(MalformedFile, match=r"bad\.jsonl:2"):
        load_workload(f"jsonl:{file}")


def test_a_workload_of_ones_own_is_found_and_checked(tmp_path: Path):
    folder = tmp_path / "workloads"
    folder.mkdir()
    lengths = "    lengths: {kind: fixed, input_tokens: 5, output_tokens: 5}\n"
    text = f"name: mine\ndescription: d\norigin: o\npoints:\n  - prompts: 3\n{lengths}"
    (folder / "mine.yaml").write_text(text)
    assert load_workload("mine", Library([tmp_path])).longest_request == 10
    (folder / "bad.yaml").write_text(text.replace("prompts: 3", "prompts: 0").replace("mine", "bad"))
    with pytest.raises(MalformedFile, match=r"bad\.yaml:5"):
        load_workload("mine", Library([tmp_path]))
