"""Traces: both published forms, bad lines told with their number, and prompts that share what the
trace shares."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.base.errors import BadInput
from autotune.load.prefix_cache import expected_hit_rate
from autotune.load.prompts import PromptKey, Prompts
from autotune.load.requests import prompt_segments
from autotune.load.workloads import load_workload, with_options
from autotune.load.workloads.traces import BLOCK_TOKENS, read_trace
from tests.product.cli import autotune

_TRACE = Path(__file__).with_name("mooncake.jsonl").read_text()
MOONCAKE = [json.loads(line) for line in _TRACE.splitlines()]
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2024-05-10 00:00:00.009930+00:00,879,0
"""


def mooncake(folder: Path, *rows: object) -> Path:
    path = folder / "trace.jsonl"
    path.write_text(
        "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n"
    )
    return path


def test_mooncake_s_form(tmp_path: Path):
    workload = load_workload(f"trace:{mooncake(tmp_path, *MOONCAKE)}")
    requests = workload.draw(0, seed=1)
    assert requests.send_s.tolist() == pytest.approx([0, 0, 1.5005, 2])
    assert requests.input_tokens.tolist() == [1300, 1500, 200, 100]
    assert requests.output_tokens.tolist() == [20, 30, 1, 3]
    assert workload.longest_request == 1530
    assert workload.points[0].arrival.open_loop


def test_azure_s_form(tmp_path: Path):
    path = tmp_path / "trace.csv"
    path.write_text(AZURE.replace("\n", "\r\n"))
    trace = load_workload(f"trace:{path}").draw(0, 1)
    assert trace.send_s[:2].tolist() == pytest.approx([0, 4.314579], abs=1e-6)
    assert trace.input_tokens.tolist() == [374, 396, 879]
    assert trace.output_tokens.tolist() == [44, 109, 1]
    assert expected_hit_rate(load_workload(f"trace:{path}").draw(0, 1)) == 0


def test_a_speedup_shortens_the_gaps_and_stands_in_the_name(tmp_path: Path):
    trace = f"trace:{mooncake(tmp_path, *MOONCAKE)}"
    name, other = with_options([trace, "sharegpt"], 10, None)
    assert load_workload(name).draw(0, 1).send_s.tolist() == pytest.approx([0, 0, 0.15005, 0.2])
    assert "10 times as fast" in load_workload(name).points[0].arrival.describe()
    assert other == "sharegpt"
    assert with_options([trace], None, None) == (trace,)
    for names, speedup, words in (
        ([name], 2, "already"),
        (["trace:t"], -1, "above 0"),
        (["short"], 2, "for a trace"),
    ):
        with pytest.raises(BadInput, match=words):
            with_options(names, speedup, None)


def test_prompts_begin_alike_for_as_long_as_their_blocks_do(tmp_path: Path):
    workload = load_workload(f"trace:{mooncake(tmp_path, *MOONCAKE)}")
    requests = workload.draw(0, 1)
    bodies = Prompts("m").bodies(requests, PromptKey(workload.name, 0, 1))
    first, second, third, _ = (json.loads(body)["prompt"] for body in bodies)
    assert first[:1024] == second[:1024]
    assert first[1024:] != second[1024:1300]
    assert first[0] != third[0]
    assert expected_hit_rate(requests) == pytest.approx(1024 / 3100)
    # A worker that makes every second body makes the same ones; another seed others.
    assert (
        Prompts("m").bodies(requests, PromptKey(workload.name, 0, 1), slice(1, None, 2))
        == bodies[1::2]
    )
    assert Prompts("m").bodies(requests, PromptKey(workload.name, 0, 2))[0] != bodies[0]
    words = json.loads(
        Prompts("m", as_text=True).bodies(requests, PromptKey(workload.name, 0, 1))[1]
    )["prompt"].split()
    assert len(words) == 1500


def test_a_closed_loop_may_take_the_prompts_of_a_trace(tmp_path: Path):
    workload = load_workload(f"trace:{mooncake(tmp_path, *MOONCAKE)}").with_concurrency(2)
    requests = workload.draw(0, 1)
    assert not requests.send_s.any()
    assert requests.concurrency == 2
    assert expected_hit_rate(requests) > 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({**MOONCAKE[0], "timestamp": 999}, "before that of line 1; sort"),
        (
            {**MOONCAKE[0], "hash_ids": [1, 2]},
            "2 hash_ids for 1300 prompt tokens.*so 3 are expected",
        ),
        ({**MOONCAKE[0], "hash_ids": [1, 2, "x"]}, "hash_ids.3: .*integer"),
        ({**MOONCAKE[0], "input_length": 0}, "input_length: .*greater than 0"),
        ({**MOONCAKE[0], "output_length": 1.5}, "output_length: .*integer"),
        ({**MOONCAKE[0], "timestamp": True}, "timestamp: .*number"),
        ({"timestamp": 5000}, "neither text nor input_tokens; write .*input_length"),
        ("{", "not JSON; write"),
        ("[]", "an object; write"),
    ],
)
def test_a_broken_line_is_told_with_its_number(tmp_path: Path, line: object, words: str):
    path = mooncake(tmp_path, MOONCAKE[0], line)
    with pytest.raises(BadInput, match=f"trace.jsonl:2: .*{words}"):
        load_workload(f"trace:{path}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (AZURE + "2023-11-16,12,1\n", ":5: its time is before that of line 4"),
        (
            AZURE + "2024-05-11 00:00:00,12\n",
            ":5: more or fewer cells than its header; write .*Azure",
        ),
        (AZURE + "yesterday,12,1\n", ":5: TIMESTAMP: .*datetime.*; write .*Azure"),
        (AZURE + "2024-05-11 00:00:00,0,1\n", ":5: ContextTokens: .*greater than 0; write"),
        (
            "Start,Model,Tokens\n5,ChatGPT,472\n",
            ":2: neither .*; write .*Mooncake.*Azure",
        ),
        ("Timestamp,Model,Request tokens\n5,ChatGPT,472\n", ":2: .*--output-len N"),
        ("\n", ":1: holds no request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", ":1: holds no request"),
    ],
)
def test_a_file_of_no_known_form_is_told_what_would_be_right(tmp_path: Path, text: str, words: str):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=words):
        load_workload(f"trace:{path}")


def test_what_is_beyond_the_model_s_context_is_told_with_its_line(tmp_path: Path):
    workload = load_workload(f"trace:{mooncake(tmp_path, *MOONCAKE)}")
    workload.check_fits(1530)
    with pytest.raises(BadInput, match=r"trace\.jsonl:2: 1530 tokens .* context of 1529"):
        workload.check_fits(1529)


@pytest.mark.parametrize("name", ["trace:", "trace:nowhere.jsonl", "trace:nowhere.jsonl:x0"])
def test_bad_names(name: str):
    with pytest.raises(BadInput):
        load_workload(name)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
ANY_JSON = SCALARS | st.lists(SCALARS | st.lists(SCALARS, max_size=2), max_size=3)
ROWS = st.fixed_dictionaries(
    {"timestamp": ANY_JSON, "input_length": ANY_JSON, "output_length": ANY_JSON},
    optional={"hash_ids": ANY_JSON},
)
CELLS = st.text(alphabet="0123456789-: .+,TZ\"'\r\x00", max_size=40)


@settings(max_examples=150, deadline=None)
@given(st.lists(ROWS.map(json.dumps) | st.text(max_size=30) | CELLS, max_size=4), st.booleans())
def test_no_file_makes_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], azure: bool
):
    path = tmp_path_factory.getbasetemp() / "any-trace"
    head = ["TIMESTAMP,ContextTokens,GeneratedTokens"] if azure else []
    path.write_bytes("\n".join(head + lines).encode("utf-8", "surrogatepass"))
    try:
        trace = read_trace(path)
    except BadInput as error:
        assert str(path) in str(error)  # noqa: PT017  either of the two is right
    else:
        assert (np.diff(trace.send_s) >= 0).all()
        drawn = load_workload(f"trace:{path}").draw(0, 1)
        assert (drawn.input_tokens > 0).all()
        assert (drawn.output_tokens > 0).all()


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=6))
def test_expected_hits_are_those_of_a_cache_of_every_prefix(chains: list[list[int]]):
    """A cache that keeps every block of every prompt, looked up by the whole prefix."""
    requests = load_workload("random:1:1:1").draw(0, 0)
    lengths = np.array([BLOCK_TOKENS * len(chain) for chain in chains])
    traced = type(requests)(
        input_tokens=lengths,
        output_tokens=np.ones(len(chains), dtype=np.int64),
        send_s=np.zeros(len(chains)),
        group=np.full(len(chains), -1),
        prefix_tokens=0,
        concurrency=1,
        blocks=[tuple(chain) for chain in chains],
        block_tokens=BLOCK_TOKENS,
    )
    kept: set[tuple[int, ...]] = set()
    hits = 0
    for chain in chains:
        prefixes = [tuple(chain[: end + 1]) for end in range(len(chain))]
        hits += sum(prefix in kept for prefix in prefixes)
        kept.update(prefixes)
    assert expected_hit_rate(traced) == pytest.approx(hits * BLOCK_TOKENS / lengths.sum())
    assert [len(segments) for segments in prompt_segments(traced)] == list(map(len, chains))


def test_on_the_command_line_a_bad_trace_is_one_sentence_and_exit_code_2(tmp_path: Path):
    path = mooncake(tmp_path, *MOONCAKE, {**MOONCAKE[0], "timestamp": 0})
    nobody, job = (
        ["--url", "http://127.0.0.1:9"],
        ["--model", "deepseek-ai/DeepSeek-V3.2", "--hw", "h200"],
    )
    done = autotune("bench", *nobody, "--workload", f"trace:{path}", home=tmp_path)
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert f"{path}:5: its time is before that of line 4" in done.err.replace("\n", "")
    path = mooncake(tmp_path, {"timestamp": 0, "input_length": 200_000, "output_length": 5})
    done = autotune("run", *job, "--workload", f"trace:{path}", "--dry-run", home=tmp_path)
    assert done.code == 2
    assert "200005 tokens" in done.err
    done = autotune("run", *job, "--speedup", "2", "--dry-run", home=tmp_path)
    assert done.code == 2
    assert "--speedup 2 is for a trace" in done.err
