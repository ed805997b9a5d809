"""The report as a page: well-formed, self-contained, and safe with hostile text."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

from autotune.engines.command import Command
from autotune.engines.failure import Failure, FailureKind
from autotune.outputs.report.render import render
from autotune.tuner.trial import Role
from tests import small_study
from tests.outputs.test_report import cells, record, section
from tests.small_study import BASELINE, WINNER

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Checker(HTMLParser):
    """Every tag that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_well_formed_and_needs_no_network(tmp_path: Path) -> None:
    page = render(record(tmp_path), "html")
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert checker.seen.count("table") >= 7
    assert {"link", "img", "iframe"}.isdisjoint(checker.seen)
    assert not [value for name, value in checker.attributes if name in {"src", "onclick"}]
    assert all(str(value).startswith("#") for name, value in checker.attributes if name == "href")
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}';" in policy
    assert "prefers-color-scheme: dark" in page
    assert all(place.startswith("#") for place in re.findall(r"url\((.*?)\)", page))
    assert "@import" not in page
    assert small_study.COMMANDS[WINNER].shell() in checker.text
    assert "SIMULATED" in checker.text


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    evil = "</code>|<script>alert(1)</script> ``` [x](javascript:alert(1)) **b** | a\n\n# h\n```\n"
    failure = Failure(FailureKind.CRASHED, evil, evil)
    odd = BASELINE.with_knobs(**{"kv_cache_dtype": evil})
    command = Command(("vllm", "serve", evil))
    launches = [
        *small_study.launches(),
        small_study.launch(9, Role.SEARCH, odd, failure, command=command),
    ]
    outcome = small_study.recommendation(
        stop_reason=evil, recommended=small_study.choice(WINNER, 1.0, Command(("sglang", evil)))
    )
    study = record(tmp_path, outcome, launches)
    checker = Checker()
    checker.feed(render(study, "html"))
    assert checker.open == []
    assert checker.seen.count("script") == 1
    assert "a" not in checker.seen
    report = render(study, "md")
    assert [len(row) for row in cells(section(report, "Launches"))] == [9] * 11
    assert [line for line in report.splitlines() if line.startswith("# ")] == [
        "# deepseek-ai/DeepSeek-V3.2 on 8×H200: tuned for total token throughput",
        *["# h"] * report.count("\n# h\n"),
    ]
