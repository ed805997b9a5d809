"""Finals send prompts that no launch of the search sent: other draws, the other half of a file, or
a workload named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engines.command import Command, Configuration
from autotune.engines.library import Library
from autotune.load.load import Load
from autotune.load.prompts import PromptKey, Prompts
from autotune.load.workloads import LEAST_OF_HALF, load_workload
from autotune.load.workloads.prompt_files import half_of
from autotune.tuner.study.loads import loads_of, workload_of
from autotune.tuner.study.options import command_line
from autotune.tuner.study.spec import EngineChoice, StudySpec
from autotune.tuner.trial import Role, Trial
from tests.product.cli import autotune

LIBRARY = Library()
ENOUGH = 2 * LEAST_OF_HALF


def jsonl(folder: Path, count: int, name: str = "requests.jsonl") -> str:
    path = folder / name
    rows = (
        {"prompt": f"{name} {i}", "input_tokens": 10 + i, "output_tokens": 4} for i in range(count)
    )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return f"jsonl:{path}"


def spec(*workloads: str, **changes: object) -> StudySpec:
    known = {
        "study": "s",
        "gpus": 8,
        "engines": (EngineChoice(name="vllm", version="0.33.0"),),
        **changes,
    }
    cards = {"model": LIBRARY.model("Qwen/Qwen3-32B"), "hardware": LIBRARY.node("h200")}
    return StudySpec(workloads=workloads, **cards, **known)


def load(asked: StudySpec, role: Role, index: int = 0, rungs: tuple[int, ...] = ()) -> Load:
    trial = Trial(
        0,
        role,
        Configuration("vllm", {}),
        "0.33.0",
        Command(("vllm",)),
        asked.workloads,
        index,
        "",
        rungs,
    )
    return loads_of(asked, trial, LIBRARY)[-1]


def sent(one: Load) -> set[bytes]:
    key, prompts = PromptKey(one.workload.name, 0, one.seed), Prompts("m")
    return set(prompts.bodies(one.workload.draw(0, one.seed), key))


@given(st.lists(st.integers(), max_size=300))
def test_halves_share_nothing_and_take_one_of_each_two_neighbours(items: list[int]) -> None:
    places = list(range(len(items)))
    first, second = half_of(places, 1), half_of(places, 2)
    assert sorted([*first, *second]) == places[: len(places) // 2 * 2]
    assert [a // 2 for a in first] == [b // 2 for b in second] == list(range(len(places) // 2))
    assert half_of(items, None) is items


def test_a_half_is_no_turn_and_turn_about() -> None:
    """Of a file whose requests take turns, short and long, each half has both."""
    first = half_of([0, 1] * 200, 1)
    assert 60 < sum(first) < 140


@pytest.mark.parametrize("workload", ["random:20:4:30", "sharegpt:30"])
def test_prompts_that_are_drawn_are_drawn_anew(workload: str) -> None:
    asked = spec(workload)
    search = [
        load(asked, role, index)
        for role in (Role.BASELINE, Role.SEARCH, Role.CONTROL)
        for index in range(6)
    ]
    finals = [load(asked, Role.FINAL, index) for index in range(6)]
    assert not set.union(*map(sent, search)) & set.union(*map(sent, finals))
    assert all(one.workload == search[0].workload for one in [*search, *finals])
    assert [one.about for one in (search[0], finals[0])] == [{}, {"prompts": "unseen"}]
    # The rungs of a curve are compared over all launches: they have the same prompts in all.
    assert load(asked, Role.FINAL, 3, (4,)) == load(asked, Role.BASELINE, 0, (4,))


def test_a_file_is_divided(tmp_path: Path) -> None:
    asked = spec(jsonl(tmp_path, ENOUGH), divided=True)
    search, final = load(asked, Role.SEARCH, 2), load(asked, Role.FINAL)
    assert (len(sent(search)), len(sent(final)), len(sent(search) & sent(final))) == (200, 200, 0)
    assert sent(search) == sent(load(asked, Role.BASELINE))
    assert final.about == {"prompts": "unseen"}
    assert workload_of(asked, Role.FINAL, asked.workloads[0], LIBRARY)[0] == final.workload
    # A curve's requests are the search's, in the finals too.
    assert sent(load(asked, Role.FINAL, 0, (4,))) <= sent(search)
    # After a larger budget the earlier finals are launches of the search, which saw that half.
    assert load(asked.model_copy(update={"finals_from": 9}), Role.FINAL).about == {
        "prompts": "seen"
    }


def test_a_trace_is_divided_by_time_and_sessions_whole(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = (
        {"timestamp": 10 * i, "input_length": 100 + i, "output_length": 5}
        for i in range(ENOUGH + 1)
    )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    halves = [load_workload(f"trace:{path}").half(n) for n in (1, 2)]
    drawn = [half.draw(0, 0) for half in halves if half]
    assert [one.input_tokens.tolist() for one in drawn] == [
        list(range(100, 300)),
        list(range(300, 500)),
    ]
    assert [(one.send_s[0], one.send_s[-1]) for one in drawn] == [
        (0, 1.99),
        (0, pytest.approx(1.99)),
    ]
    turns = [{"input_tokens": 5, "output_tokens": 3}] * 4
    (tmp_path / "sessions.jsonl").write_text(f"{json.dumps({'turns': turns})}\n" * 100)
    half = load_workload(f"sessions:{tmp_path / 'sessions.jsonl'}").half(2)
    assert half is not None
    requests = half.draw(0, 0)
    assert requests.turns is not None
    assert (len(requests), int((requests.turns.after < 0).sum())) == (200, 50)


def test_conversations_and_passages_are_divided_before_they_are_drawn(tmp_path: Path) -> None:
    said = [{"from": "human", "value": "word " * 40}, {"from": "gpt", "value": "word " * 40}]
    rows = [
        {"conversations": [{**said[0], "value": f"{i} {said[0]['value']}"}, said[1]]}
        for i in range(100)
    ]
    (tmp_path / "chats.json").write_text(json.dumps(rows))
    for name in (f"sharegpt:{tmp_path / 'chats.json'}:50", "prose"):
        asked = spec(name, divided=True)
        search = set.union(*(sent(load(asked, Role.SEARCH, index)) for index in range(3)))
        assert not search & set.union(*(sent(load(asked, Role.FINAL, index)) for index in range(3)))
    assert load_workload(f"sharegpt:{tmp_path / 'chats.json'}:51").half(1) is None


def test_a_workload_of_the_users_own_stands_for_the_first(tmp_path: Path) -> None:
    mine, theirs = jsonl(tmp_path, 30, "mine.jsonl"), jsonl(tmp_path, ENOUGH)
    asked = spec(theirs, "random:9:3:20", final_workload=mine)
    trial = Trial(
        0, Role.FINAL, Configuration("vllm", {}), "0.33.0", Command(("vllm",)), asked.workloads
    )
    first, second = loads_of(asked, trial, LIBRARY)
    assert (first.study_name, first.about) == (theirs, {"prompts": "unseen", "sent": mine})
    assert sent(first) == {body for body in sent(first) if b"mine.jsonl" in body}
    assert second.about == {"prompts": "unseen"}
    assert (
        len(sent(load(asked.model_copy(update={"workloads": (theirs,)}), Role.SEARCH))) == ENOUGH
    )  # The search has all of its file.
    assert f"--final-workload {mine}" in command_line(asked)
    whole = spec(theirs, final_workload=theirs)
    assert load(whole, Role.FINAL).about == {"prompts": "seen", "sent": theirs}


RUN = (
    "run",
    "--model",
    "Qwen/Qwen3-32B",
    "--hw",
    "h200",
    "--gpus",
    "1",
    "--engine",
    "vllm",
    "--on",
    "simulator",
)


@pytest.mark.e2e
def test_a_study_says_how_it_divides_and_compares_like_with_like(tmp_path: Path) -> None:
    workload = jsonl(tmp_path, 1000)
    done = autotune(
        *RUN, "--workload", workload, "--launches", "10", "--study", "s", "--json", home=tmp_path
    )
    assert done.code == 0, done.err
    rows = [
        json.loads(line) for line in (tmp_path / "studies/s/results.jsonl").read_text().splitlines()
    ]
    finals = [row for row in rows if row["role"] == "final"]
    assert {row["metrics"][workload].get("prompts") for row in finals} == {"unseen"}
    assert not any("prompts" in row["metrics"][workload] for row in rows if row not in finals)
    tokens: dict[bool, set[int]] = {True: set(), False: set()}
    for row in rows:
        tokens[row in finals].add(row["metrics"][workload]["total_input_tokens"])
    # The same requests in all launches of the search, and the same in all finals.
    assert [len(one) for one in tokens.values()] == [1, 1]
    answer = json.loads(done.out)
    assert answer["workloads"][workload]["prompts"] == "unseen"
    # The baseline's launches of the search sent other requests, and count for nothing in its
    # figure.
    base = [row for row in finals if row["fingerprint"] == answer["baseline"]["fingerprint"]]
    assert answer["baseline"]["objective"]["repeats"] == len(base)
    values = [row["metrics"][workload]["total_token_throughput"] for row in base]
    assert min(values) <= answer["baseline"]["objective"]["value"] <= max(values)
    report = (tmp_path / "studies/s/report.md").read_text()
    assert (
        "is divided: the search sends 500 of its requests, and the finals 500 that the search does not use"
        in report
    )


@pytest.mark.e2e
def test_a_short_file_is_sent_again_and_the_study_says_so(tmp_path: Path) -> None:
    workload = jsonl(tmp_path, ENOUGH - 2)
    done = autotune(
        *RUN, "--workload", workload, "--launches", "6", "--study", "s", "--json", home=tmp_path
    )
    assert json.loads(done.out)["workloads"][workload]["prompts"] == "seen"
    assert "is too short to be divided" in (tmp_path / "studies/s/report.md").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--workload", "random:9:3", "--workload", "long", "--weights", "random:9:3=1,long=2"),
            "--weights",
        ),
        (
            (
                "--find-load",
                "concurrency",
                "--slo",
                "p99_ttft_ms<=2000",
                "--final-workload",
                "sweep",
            ),
            "sweep",
        ),
        (("--final-workload", "nonsense"), "nonsense"),
        (("--final-workload", "random:40000:2000"), "the model takes at most"),
    ],
)
def test_a_workload_that_cannot_be_sent_in_the_finals(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    done = autotune(*RUN, "--final-workload", "random:8:4", *options, home=tmp_path)
    assert (done.code, said in done.err) == (2, True), done.err
