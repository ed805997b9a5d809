"""The report: what it claims, how it says where figures come from, and that nothing in it can break
out."""

from __future__ import annotations

import dataclasses
import re
from html import unescape
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from autotune.base.evidence import Evidence
from autotune.engines.command import Command
from autotune.engines.failure import Failure, FailureKind
from autotune.engines.installed import InstalledEngine
from autotune.outputs.report import StudyRecord
from autotune.outputs.report.render import render
from autotune.outputs.report.sentences import brief, lines, paragraphs
from autotune.outputs.report.text import prose
from autotune.tuner.study.home import ui_command
from autotune.tuner.study.recommendation import (
    AccuracyComparison,
    NotTried,
    PromisedValue,
    Recommendation,
    Regret,
    WorkloadComparison,
)
from autotune.tuner.trial import Launch, Role, Speculation
from tests import small_study
from tests.small_study import BASELINE, SECRET, WINNER, conclusion, metrics


def record(
    tmp_path: Path,
    outcome: Recommendation | None = None,
    launches: list[Launch] | None = None,
    **spec: object,
) -> StudyRecord:
    rows = small_study.launches() if launches is None else launches
    folder = tmp_path / "home" / "studies" / "small"
    return StudyRecord(
        small_study.spec(**spec), rows, outcome or small_study.recommendation(), folder
    )


def section(report: str, heading: str) -> str:
    """The text under a second-level heading that begins so."""
    parts = re.split(r"^## ", report, flags=re.MULTILINE)
    return next(part for part in parts if part.startswith(heading))


def blocks(text: str) -> list[str]:
    return [
        token.content.rstrip("\n") for token in MarkdownIt().parse(text) if token.type == "fence"
    ]


def cells(text: str) -> list[list[str]]:
    """The rows of the tables in a text, as a Markdown reader takes them apart."""
    rows: list[list[str]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and token.level > 3 and rows:
            children = token.children or []
            rows[-1].append("".join(child.content for child in children))
    return rows


def test_what_a_command_changes_and_keeps_of_its_promises_is_told(tmp_path: Path) -> None:
    values = [
        ("context", "163,840", "163,840"),
        ("prefix caching", "off", "on"),
        ("KV cache", "bf16", "bf16"),
    ]
    rows = [
        PromisedValue(what=what, knob=what, baseline=old, recommended=new)
        for what, old, new in values
    ]
    nothing = small_study.recommendation(gives_up=[], promised=rows)
    told = render(record(tmp_path, nothing), "md")
    assert "Changed: prefix caching on (baseline: off)." in told
    assert "Same context (163,840), bf16 KV cache." in told
    assert "Same context" not in render(record(tmp_path), "md"), "it was not recorded"


def test_of_speculation_on_made_up_prompts_it_is_said_where_the_acceptance_comes_from() -> None:
    plain = small_study.recommendation()
    assert plain.recommended is not None
    assert "drafted tokens" not in conclusion(plain)
    drafts = Speculation(
        3, 2.75, "somebody's page", random=True, forced=2.75, accepted={"sharegpt": 2.64}
    )
    mtp = plain.recommended.model_copy(update={"speculation": drafts})
    assumed = plain.model_copy(update={"recommended": mtp})
    for part in (
        "forced to 2.75",
        "3 drafted tokens",
        "2.64 were counted",
        "somebody's page",
        "assumed, not measured",
    ):
        assert part in conclusion(assumed)
    forced = assumed.model_copy(update={"evidence": Evidence.MEASURED})
    assert "forced to 2.75" in conclusion(forced)
    assert "assumed" not in conclusion(forced)
    # A version without a switch, and a baseline that drafts: it is ranked by the same acceptance.
    unforced = dataclasses.replace(drafts, forced=None, accepted={"sharegpt": 1.1})
    drafting = (
        plain.baseline.model_copy(update={"speculation": unforced}) if plain.baseline else None
    )
    other = plain.model_copy(update={"baseline": drafting, "evidence": Evidence.MEASURED})
    for part in (
        "measured on random tokens",
        "3 drafted tokens; 1.1 were counted",
        "--workload prose",
    ):
        assert part in conclusion(other)
    on_text = plain.recommended.model_copy(
        update={"speculation": dataclasses.replace(unforced, random=False)}
    )
    assert "drafted token" not in conclusion(plain.model_copy(update={"recommended": on_text}))


def test_what_was_made_of_the_question_is_told(tmp_path: Path) -> None:
    note = "translated --nsa-prefill-backend to --dsa-prefill-backend for SGLang 0.5.23"
    program = InstalledEngine(program=("/opt/my vllm/bin/vllm", "serve"), version="0.32.0+cpu")
    text = render(record(tmp_path, notes=(note,), installed={"vllm": program}), "md")
    assert f"\n- {note}\n" in section(text, "Setup")
    assert "--engine-bin 'vllm=/opt/my vllm/bin/vllm'" in section(text, "Reproduction")


def test_settings_without_a_model_are_among_what_the_numbers_do_not_say(tmp_path: Path) -> None:
    plain, heading = small_study.recommendation(), "What are the limits of these numbers?"
    assert plain.recommended is not None
    assert plain.baseline is not None
    mine = plain.recommended.model_copy(update={"not_simulated": ["--enable-lora"]})
    theirs = plain.baseline.model_copy(
        update={"not_simulated": ["--enable-lora", "--cpu-offload-gb"]}
    )
    blind = plain.model_copy(update={"recommended": mine, "baseline": theirs})
    said = "Not simulated: --enable-lora, --cpu-offload-gb (the baseline's)."
    assert said in section(render(record(tmp_path, blind), "md"), heading)
    assert said in brief(blind)
    assert "Not simulated" not in section(render(record(tmp_path), "md"), heading)
    assert "Not simulated" not in " ".join(brief(plain))


def test_measured_figures_are_called_measured(tmp_path: Path) -> None:
    report = render(record(tmp_path, small_study.recommendation(evidence=Evidence.MEASURED)), "md")
    assert "> **measured.** The figures were measured" in report
    assert "SIMULATED" not in report


def test_the_value_on_a_real_node_is_named_by_its_metric(tmp_path: Path) -> None:
    """The gain's interval on a node stands beside it."""
    outcome = small_study.giving_up()
    assert outcome.recommended is not None
    goal = outcome.recommended.objective.model_copy(
        update={"interval90_on_a_node": (5000.0, 16000.0)}
    )
    choice = outcome.recommended.model_copy(update={"objective": goal})
    study = record(tmp_path, outcome.model_copy(update={"recommended": choice}))
    shown = dict(zip(*cells(section(render(study, "md"), "Conclusion"))[:2], strict=True))
    assert shown["Total TPS on a real node (90 %)"] == "5,000 to 16,000 tok/s"


def test_a_command_in_a_sentence_is_code(tmp_path: Path) -> None:
    study = record(tmp_path, small_study.giving_up())
    assert "<code>autotune verify small --on process</code>" in render(study, "html")


@given(st.text(alphabet="a_*<\\` \n", max_size=30))
@example("`<```\\<`")
def test_prose_shows_every_sign_but_the_ticks_around_code(shown: str) -> None:
    html = MarkdownIt("commonmark", {"html": False}).renderInline(prose(f"x{shown}x"))
    plain = unescape(re.sub("</?code>", "", html))
    assert "".join(plain.split()).replace("`", "") == "".join(f"x{shown}x".split()).replace("`", "")


def test_what_became_worse_is_said(tmp_path: Path) -> None:
    slower = {
        "sharegpt": WorkloadComparison(
            baseline=metrics(6000.0), recommended=metrics(9100.0, 5400.0, 230.0), gain_percent=51.7
        )
    }
    report = render(
        record(tmp_path, small_study.recommendation(workloads=slower, gives_up=[])), "md"
    )
    rows = {row[0]: row[3] for row in cells(section(report, "Before and after")) if len(row) == 4}
    assert (rows["Mean TPOT (ms)"], rows["P99 TPOT (ms)"]) == ("+15.0 %", "+15.0 %")
    said = section(report, "Conclusion").partition("Slower:")[2]
    assert "1.1 times" in said
    assert "TTFT" not in said.partition(".\n")[0], "8 % more may be noise"
    assert "Slower: " not in render(record(tmp_path, small_study.recommendation(gives_up=[])), "md")


def test_a_workload_that_cannot_be_looked_up_is_still_listed(tmp_path: Path) -> None:
    report = render(record(tmp_path, workloads=("jsonl:/nowhere/x.jsonl", "mine")), "md")
    assert ["jsonl:/nowhere/x.jsonl", "–", "–", "–", "–"] in cells(section(report, "Setup"))


def test_a_study_without_explanation_has_no_section_on_settings(tmp_path: Path) -> None:
    silent = small_study.recommendation(inert=[], contributions=[])
    text = render(record(tmp_path, silent), "md")
    assert not any(heading in text for heading in ("each setting add", "had no effect"))


def test_what_remains_unsure_is_said(tmp_path: Path) -> None:
    unsure = small_study.recommendation(regret=Regret(percent=12.24, odds=0.9))
    told = section(render(record(tmp_path, unsure), "md"), "Conclusion")
    assert "90 % sure that no other configuration is more than 12.2 % better." in told
    learned = Regret(percent=2.5, odds=0.9, learned_on="30 simulated studies")
    [said] = [p for p in brief(small_study.recommendation(regret=learned)) if "sure that" in p]
    assert "is more than 2.5 % better, as in 30 simulated studies." in said
    unknown = small_study.recommendation(regret=Regret(percent=412.0, odds=0.9))
    assert "sure that" not in section(render(record(tmp_path, unknown), "md"), "Conclusion"), (
        "nothing is known"
    )


def test_without_a_regret_the_screen_says_what_was_not_looked_at() -> None:
    left = [NotTried(knob="block_size", value=64, expected_percent=1.25)]
    said = brief(small_study.recommendation(regret=None, not_tried=left))
    assert any("Not looked at" in part and "block_size=64" in part for part in said)
    assert not any("sure that" in part for part in said)
    known = Regret(percent=2.5, odds=0.9)
    assert not any(
        "Not looked at" in part
        for part in brief(small_study.recommendation(regret=known, not_tried=left))
    )


def test_a_setting_that_is_unlikely_to_help_is_marked_unless_it_is_needed(tmp_path: Path) -> None:
    def told(**changes: object) -> str:
        rows = [
            row.model_copy(update=changes) for row in small_study.recommendation().contributions
        ]
        outcome = small_study.recommendation(contributions=rows)
        return section(render(record(tmp_path, outcome), "md"), "What does each setting add?")

    doubtful = told(odds=0.49, needed_to=None)
    marks = [row[5] for row in cells(doubtful)[1:]]
    assert marks.count("49 %") == 1, "an engine cannot be left out"
    assert marks.count("49 %, unlikely to help") == len(marks) - 1 > 0
    assert "remains only for lack of launches" in doubtful
    assert "unlikely to help" in told(odds=0.8, gain_percent=0.49, needed_to=None)
    for known in (
        told(odds=0.5, gain_percent=0.51, needed_to=None),
        told(odds=0.49, needed_to="keep the limits"),
    ):
        assert "unlikely" not in known


def test_a_launch_that_breaks_a_limit_says_so_and_is_not_the_best(tmp_path: Path) -> None:
    launches = [
        small_study.launch(0, Role.BASELINE, BASELINE, {"sharegpt": metrics(6000.0)}),
        small_study.launch(
            1, Role.SEARCH, small_study.TOO_BIG, {"sharegpt": metrics(9000.0, ttft=9000.0)}
        ),
    ]
    report = render(record(tmp_path, launches=launches), "md")
    assert cells(section(report, "Launches"))[2][-1] == "breaks p99_ttft_ms<=20000 by 35 % (27,000)"
    assert cells(section(report, "Best configuration"))[1][1] == "6,000"


def test_less_is_better_for_a_latency(tmp_path: Path) -> None:
    report = render(record(tmp_path, objective="mean_tpot_ms"), "md")
    assert cells(section(report, "Best configuration"))[1][:2] == ["sglang 0.5.23", "150"]
    assert cells(section(report, "Launches"))[4][4:6] == ["150", "100 %"]


def test_a_cost_that_falls_is_not_announced_as_a_rise(tmp_path: Path) -> None:
    """A gain of 141.7 % in a cost is 58.6 % less of it, everywhere on the page."""
    metric, outcome = "cost_per_million_tokens", small_study.recommendation()
    changes = {}
    for role, value in (("recommended", 0.0691), ("baseline", 0.167)):
        choice = getattr(outcome, role)
        goal = {"metric": metric, "value": value, "ci95": (value * 0.98, value * 1.02)}
        changes[role] = choice.model_copy(
            update={"objective": choice.objective.model_copy(update=goal)}
        )
    changes |= {"gain_percent": 141.7, "gain_ci95": (121.2, 155.6)}
    sides = {"baseline": {metric: 0.167}, "recommended": {metric: 0.0691}, "gain_percent": 141.7}
    changes["workloads"] = {"sharegpt": WorkloadComparison(**sides)}
    changes["regret"] = Regret(percent=25.0, odds=0.9)
    done = small_study.recommendation(**changes)
    text = render(record(tmp_path, done, objective=metric), "md")
    head = dict(zip(*cells(section(text, "Conclusion"))[:2], strict=True))
    assert head["Gain over the baseline"] == "costs 58.6 % less"
    assert head["95 % interval, launch to launch"] == "-60.9 % to -54.8 %"
    assert head["Cost (per million tokens)"] == "0.0691 from 0.167"
    assert "It costs 58.6 % less (95 % interval -60.9 % to -54.8 %, from 2 launches" in text
    assert "a cost of 0.0691 per million tokens on sharegpt" in text
    rows = cells(section(text, "Before and after"))
    assert rows[0] == ["Workload", "Baseline", "Recommended", "Change (less is better)"]
    assert rows[1] == ["sharegpt", "0.167", "0.0691", "-58.6 %"]
    assert "no other configuration is more than 20.0 % better" in text
    assert "141.7" not in text
    assert "+142" not in text
    told = brief(done)[0]
    assert (
        "Cost 0.0691 per million tokens on sharegpt with sglang, baseline 0.167 with vllm" in told
    )
    assert "with vllm: costs 58.6 % less (95 % interval -60.9 % to -54.8 %)." in told
    assert not any(
        "  " in line for line in [*brief(done), *paragraphs(done), *lines("promises", done)]
    )


def test_answers_that_were_checked_are_not_called_unjudged(tmp_path: Path) -> None:
    """Neither is a check that came to nothing called one."""
    check = AccuracyComparison(
        kind="builtin",
        baseline=99.0,
        baseline_ci95=None,
        recommended=99.0,
        recommended_ci95=None,
        threshold=98.0,
        passed=True,
    )
    unknown = check.model_copy(update={"passed": None})
    for accuracy, judged in ((None, False), (unknown, False), (check, True)):
        text = render(record(tmp_path, small_study.recommendation(accuracy=accuracy)), "md")
        assert ("The quality of the answers was not judged." in text) is not judged
        assert ("The quality of the answers was judged by the check above alone." in text) is judged


def test_the_reproduction_asks_the_same_question(tmp_path: Path) -> None:
    study = record(tmp_path, baseline="vllm serve m -tp 8", hours=2.0)
    run, ui = blocks(section(render(study, "md"), "Reproduction"))
    words = run.replace(" \\\n ", "")
    for part in (
        "autotune run --model deepseek-ai/DeepSeek-V3.2 --hw h200 --gpus 8 --engine vllm --engine sglang",
        "--workload sharegpt --workload random:4000:200:500 --objective total_token_throughput",
        "--slo 'p99_ttft_ms<=20000' --baseline 'vllm serve m -tp 8' --set prefix_caching=true",
        "--engine-arg sglang=--trust-remote-code --sampler gp --launches 9 --hours 2 --seed 7",
        "--noise 0.03 --on simulator --executor local",
    ):
        assert part in words
    assert ui == ui_command(tmp_path / "home")


def test_secrets_are_masked(tmp_path: Path) -> None:
    command = Command(("vllm", "serve", "m", "--api-key", "my-own-key"), {"HF_TOKEN": "short-one"})
    failure = Failure(FailureKind.CRASHED, f"401 for {SECRET}", f"HF_TOKEN={SECRET}")
    launches = [small_study.launch(0, Role.BASELINE, BASELINE, failure, command=command)]
    outcome = small_study.recommendation(recommended=small_study.choice(WINNER, 1.0, command))
    study = record(
        tmp_path,
        outcome,
        launches,
        engine_args={"vllm": "--api-key my-own-key"},
        baseline="HF_TOKEN=short-one vllm serve m --api-key my-own-key",
    )
    for format in ("md", "html"):
        text = render(study, format)
        for secret in (SECRET, "my-own-key", "short-one"):
            assert secret not in text


def test_what_an_engine_says_of_its_speed_is_a_limit_of_the_numbers(tmp_path: Path) -> None:
    first, *others = small_study.launches()
    result = dataclasses.replace(first.result, remarks=("No tuned kernels",))
    launches = [dataclasses.replace(first, result=result), *others]
    report = render(record(tmp_path, launches=launches), "md")
    assert "- No tuned kernels (launches 0)." in section(report, "What are the limits")


def test_equal_crashes_are_listed_once(tmp_path: Path) -> None:
    """Whatever the numbers of their processes, and the times."""
    launches = [
        small_study.launch(
            number,
            Role.SEARCH,
            WINNER,
            Failure(FailureKind.CRASHED, f"(Worker_TP{number} pid=4{number}) {words}", words),
        )
        for number, words in enumerate(("KeyError: 0x7f1", "KeyError: 0x7f2", "TypeError: 3"))
    ]
    failed = section(
        render(record(tmp_path, small_study.infeasible(), launches), "md"), "What failed"
    )
    assert failed.count("### crashed") == 2
    assert "Launches: 0 (sglang), 1 (sglang)." in failed
