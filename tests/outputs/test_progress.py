"""What a launch's line and a study's first lines say."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pyte
import pytest
from rich.console import Console

from autotune.base.notify import Stage
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.load.metrics.formulas import Slo
from autotune.outputs.progress import (
    LiveBlock,
    Progress,
    Running,
    cost_line,
)
from autotune.outputs.tracking.content import launch_tags
from autotune.tuner.foresight import Prediction, cost, first_trials, predict
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import prepare
from autotune.tuner.search.decide.verdict import leader
from autotune.tuner.search.history import History
from autotune.tuner.study.home import library_of
from autotune.tuner.study.options import RunOptions
from autotune.tuner.study.spec import StudySpec
from tests import small_study

LAUNCHES = small_study.launches()


def shown(spec: StudySpec, console: Console) -> str:
    """What is printed of the small study, launch by launch; and what stands there in the end, a
    launch under way."""
    items = {
        one.trial.configuration.fingerprint: Candidate(one.trial.configuration, "1.0")
        for one in LAUNCHES
    }
    with Progress(spec, console) as progress:
        progress.opened(Path("folder"), CandidateSet(tuple(items.values()), 0, (0, 1)))
        for number, launch in enumerate(LAUNCHES):
            progress.started(launch.trial, LAUNCHES[:number], launch.trial.role.value)
            progress.note(Stage(launch.trial.number, "loaded with sharegpt", "a-node"))
            if number < len(LAUNCHES) - 1:
                progress.finished(launch, LAUNCHES[:number])
        progress.note("the last line")
        assert isinstance(console.file, StringIO)
        seen = console.file.getvalue()
    progress.finished(LAUNCHES[-1], LAUNCHES[:-1])
    return seen


def lines_and_head(spec: StudySpec) -> list[str]:
    console = Console(file=StringIO(), width=80)
    shown(spec, console)
    assert isinstance(console.file, StringIO)
    return [line for line in console.file.getvalue().splitlines()[1:] if line.startswith("#")]


def lines(spec: StudySpec) -> list[str]:
    return lines_and_head(spec)[1:]


def test_a_baseline_that_was_typed_is_not_called_its_defaults() -> None:
    typed = small_study.spec(slos=(), baseline="vllm serve m")
    assert "the typed command equals the engine's defaults" in lines(typed)[0]
    assert (
        "the recipe equals the engine's defaults"
        in lines(typed.model_copy(update={"recipe": "vllm"}))[0]
    )
    # An engine that is only the baseline's has no default among the candidates.
    console = Console(file=StringIO(), width=120)
    with Progress(typed, console) as progress:
        progress.opened(
            Path("folder"), CandidateSet((Candidate(LAUNCHES[0].trial.configuration, "1.0"),), 0)
        )
        progress.finished(LAUNCHES[0], ())
    assert isinstance(console.file, StringIO)
    said = console.file.getvalue()
    assert "the typed command" in said
    assert "defaults" not in said


def test_a_line_says_what_was_tried_and_what_came_of_it() -> None:
    """Of the winner the mean of its launches counts, not the luckiest one."""
    baseline, default, failed, winner, *_, last = [
        line.split("  ") for line in lines(small_study.spec(slos=()))
    ]
    cells = [
        [cell.strip() for cell in line if cell.strip()]
        for line in (baseline, default, failed, winner, last)
    ]
    assert cells == [
        [
            "#0",
            "1/9",
            "baseline",
            "vllm",
            "6,000 simulated",
            "8 min",
            "engine defaults",
            "best 6,000",
        ],
        [
            "#1",
            "2/9",
            "default",
            "sglang",
            "7,000 simulated",
            "+16.7 %",
            "8 min",
            "engine defaults",
            "best 7,000",
        ],
        ["#2", "3/9", "start", "vllm", "failed", "8 min", "tp 1 · dp 8", "out_of_memory"],
        [
            "#3",
            "4/9",
            "search",
            "sglang",
            "9,100 simulated",
            "+51.7 %",
            "8 min",
            "tp 1 · dp 8",
            "best 9,100",
        ],
        ["#8", "9/9", "final", "vllm", "5,900 simulated", "8 min", "repeat of the baseline"],
    ]
    assert len({line.index("8 min") for line in lines(small_study.spec(slos=()))}) == 1, "a column"


def test_a_title_wider_than_its_column_moves_every_row() -> None:
    head, *rows = lines_and_head(
        small_study.spec(slos=(), objective="total_token_throughput_per_gpu")
    )
    assert "Total TPS per GPU (tok/s)" in head
    assert {row.index("8 min") + len("8 min") for row in rows} == {head.index("took") + len("took")}


def test_of_a_latency_the_change_is_shown_and_not_the_gain() -> None:
    """The score gains 33 % where the time falls by 25 %."""
    head, *rows = lines_and_head(small_study.spec(slos=(), objective="mean_tpot_ms"))
    assert head.split()[3:7] == ["Mean", "TPOT", "(ms)", "change"]
    winner = next(row for row in rows if row.startswith("#3"))
    assert "150 simulated   -25.0 %" in winner
    assert "gain" in lines_and_head(small_study.spec(slos=()))[0]


def test_a_line_says_which_limit_is_broken_and_by_how_much() -> None:
    """The best is the best that keeps the limits: 9,100 breaks one, 7,000 and 6,000 break another
    one, too."""
    one = lines(small_study.spec(slos=(Slo.parse("p99_ttft_ms<=8000"),)))
    assert "breaks p99_ttft_ms<=8000 by 88 % (15,000)" in one[0]
    assert one[0].endswith("no configuration meets the limits so far")
    assert "breaks" not in one[3]
    assert one[3].endswith("best 9,100")
    assert not any("best" in line or "meets the limits" in line for line in one[1:3]), (
        "what is no news is not repeated"
    )
    assert launch_tags(small_study.spec(slos=(Slo.parse("p99_ttft_ms<=8000"),)), LAUNCHES[0])[
        "verdict"
    ] == ("breaks p99_ttft_ms<=8000"), "in MLflow"
    other = lines(small_study.spec(slos=(Slo.parse("mean_tpot_ms>=160"),)))
    assert "breaks mean_tpot_ms>=160 by 6 % (150)" in other[3]
    assert other[1].endswith("best 7,000")
    assert "best" not in other[3]


def test_a_launch_that_takes_time_says_how_much_is_left() -> None:
    """By the mean of those that ran; the budget's hours count too."""
    took = [one.result.times_s for one in LAUNCHES]
    assert {sum(times.values()) for times in took} == {468.0}
    told = [line.split("  ")[-1] for line in lines(small_study.spec(slos=(), on="process"))]
    assert told[:3] == [
        "at most about 62 min left",
        "at most about 55 min left",
        "at most about 47 min left",
    ]
    assert told[-1] == "at most about 0 s left"
    short = [
        line.split("  ")[-1] for line in lines(small_study.spec(slos=(), on="process", hours=0.5))
    ]
    assert short[0] == "at most about 16 min left"


def test_a_terminal_shows_the_study_at_a_glance() -> None:
    """The best counts by its launches, with the interval of its gain; ``NO_COLOR`` takes nothing of
    it away."""
    console = Console(
        file=StringIO(), force_terminal=True, no_color=True, width=100, height=40, _environ={}
    )
    screen = pyte.Screen(100, 40)
    pyte.Stream(screen).feed(shown(small_study.spec(slos=()), console).replace("\n", "\r\n"))
    *_, phase, running, best = (
        "\n".join(line.rstrip() for line in screen.display).rstrip("\n").splitlines()
    )
    assert phase == "final       8/9 · SIMULATED · 2 failed · at most about 0 s left"
    assert running == "running     loaded with sharegpt 0 s · a-node · vllm  repeat of the baseline"
    assert best == "best        9,100 · +50.4 % (+40.8 % to +60.6 %) · sglang  tp 1 · dp 8"
    assert not screen.cursor.hidden


def test_a_final_of_the_baseline_alone_does_not_make_it_the_best() -> None:
    """The finals may begin with it; what the search found is the best until a challenger has
    one."""
    finals = [LAUNCHES[6], LAUNCHES[5]]
    items = {
        one.trial.configuration.fingerprint: Candidate(one.trial.configuration, "1.0")
        for one in LAUNCHES
    }
    candidates = CandidateSet(tuple(items.values()), 0, (0, 1))
    spec, before = small_study.spec(slos=()), LAUNCHES[:4]
    winner = candidates.position(small_study.WINNER.fingerprint)
    for count in range(3):
        history = History.from_launches(spec, candidates, [*before, *finals[:count]])
        assert leader(history) == winner


def test_as_many_launches_are_shown_as_there_is_room_for() -> None:
    for height, expected in ((40, 8), (11, 5), (7, 1), (4, 1)):
        console = Console(
            file=StringIO(), force_terminal=True, width=40, height=height, _environ={}
        )
        block = LiveBlock("search", ["0/30"], best=["nothing yet"])
        for number in range(12):
            block.running[number] = Running(
                "vllm  engine defaults", "starting", f"node-{number}", time.monotonic()
            )
        drawn = console.render_lines(block, pad=False)
        rows = ["".join(part.text for part in line) for line in drawn]
        assert sum("running" in one for one in rows) == expected
        assert any(f"and {12 - expected} more" in one for one in rows) == (height > 4)
        assert len(rows) < height
        assert max(map(len, rows)) <= 40


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "4 of at most 9 launches are made, of about 8 min each: at most about 39 min left"),
        (
            {"hours": 0.7},
            "4 of at most 9 launches are made, of about 8 min each: at most about 8 min left",
        ),
        ({"on": "simulator"}, "4 of at most 9 launches are made"),
    ],
)
def test_a_resumed_study_tells_what_is_left_by_its_own_launches(
    changes: dict[str, object], told: str
) -> None:
    console = Console(file=StringIO(), width=120)
    spec = small_study.spec(**{"slos": (), "on": "process", **changes})
    items = {
        one.trial.configuration.fingerprint: Candidate(one.trial.configuration, "1.0")
        for one in LAUNCHES
    }
    with Progress(spec, console) as progress:
        progress.opened(Path("folder"), CandidateSet(tuple(items.values()), 0, (0, 1)))
        progress.resumed(LAUNCHES[:4])
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().splitlines()[1:] == [told]


def test_what_is_no_terminal_with_a_cursor_gets_the_lines_alone() -> None:
    spec, piped = small_study.spec(slos=()), Console(file=StringIO(), width=80)
    dumb = Console(file=StringIO(), force_terminal=True, width=80, _environ={"TERM": "dumb"})
    assert shown(spec, dumb) == shown(spec, piped)


def test_a_child_process_has_the_terminal_for_itself() -> None:
    screen = StringIO()
    with Progress(
        small_study.spec(), Console(file=screen, force_terminal=True, width=80, _environ={})
    ) as progress:
        with progress.paused():
            written = screen.tell()
            time.sleep(0.3)
            assert screen.tell() == written
        time.sleep(0.3)
        assert screen.tell() > written


def test_what_a_study_takes_and_tries_first_is_told_before_it(tmp_path: Path) -> None:
    search = {
        "tensor_parallel": [1, 8],
        "data_parallel": [1, 8],
        "max_running_requests": [256, 512, 1024],
    }
    (tmp_path / "space.yaml").write_text(json.dumps({"narrow": {"sglang": {"search": search}}}))
    small = {"workloads": ["random:64:16:16"], "space": tmp_path / "space.yaml"}
    spec = build_spec(RunOptions(small_study.MODEL, "h200", launches=12, on="simulator", **small))
    prepared = prepare(spec, library_of(spec))
    first = first_trials(prepared)
    assert [trial.number for trial, _ in first] == [0, 1, 2, 3, 4], "of more candidates than these"
    assert first[0][0].role.value == "baseline"
    trial, predicted = first[0]
    assert predict(prepared, trial) == predicted
    assert predicted.value is not None
    assert predicted.interval90 is not None
    assert predicted.interval90[0] < predicted.value < predicted.interval90[1]
    assert predicted.seconds is not None
    assert predicted.seconds > 60, "a start takes minutes"
    assert first[3][1].failure or first[3][1].value, "told, whatever comes of it"
    ten_minutes = [(trial, Prediction(1.0, None, 600.0))]
    expected = (
        "at most 12 launches of about 10 min each: 2.0 hours, 2.0 node-hours of the simulated node"
    )
    assert cost_line(prepared, ten_minutes) == expected
    assert "1.0 hours, 2.0 node-hours" in cost_line(prepared, ten_minutes, ("node-0", "node-1"))
    shares = ("gpus 0-3 alone", "gpus 0-3", "gpus 4-7")
    assert "1.0 hours, 1.0 node-hours" in cost_line(prepared, ten_minutes, shares), (
        "one node, in two halves"
    )
    # The hours are those of the launches; a limit is told beside them.
    limited = replace(prepared, spec=spec.model_copy(update={"hours": 0.5}))
    assert cost_line(limited, ten_minutes) == f"{expected}; --hours 0.5 ends it before"
    assert cost(limited, ten_minutes)["hours"] == pytest.approx(2.0)
    assert cost(limited, ten_minutes)["hours_limit"] == 0.5
    enough = replace(prepared, spec=spec.model_copy(update={"hours": 2.5}))
    assert cost_line(enough, ten_minutes) == expected
    moments = [(trial, Prediction(1.0, None, 6.0))]
    assert (
        cost_line(prepared, moments)
        == "at most 12 launches of about 6 s each: 72 s of the simulated node"
    )
    assert (
        cost_line(prepared, []) == "at most 12 launches, which take as long as the first one shows"
    )
