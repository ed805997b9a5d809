"""A study's journal in the real `optuna-dashboard`: what its API says, and what its pages show."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.tuner.search.objective import scores_of
from autotune.tuner.trial import Launch
from tests.browsers import IN_A_BROWSER, chromium
from tests.mlflow_servers import WAIT_S, DashboardProcess
from tests.tuner.search.search_landscapes import make_spec, opened, play, ridge, small


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Sequence[Launch]]]:
    """The dashboard's address, and the launches of the study that it shows."""
    folder, spec = tmp_path_factory.mktemp("study"), make_spec(launches=6)
    study = opened(folder / "toy", spec, small())
    launches = play(study, spec, ridge)
    study.close()
    server = DashboardProcess(folder / "toy" / "optuna.journal", folder)
    try:
        server.start()
        yield server.url, launches
    finally:
        server.stop()


def asked(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=WAIT_S) as reply:
        return json.load(reply)


def test_the_dashboard_has_every_launch_with_its_knobs_and_value(
    shown: tuple[str, Sequence[Launch]],
) -> None:
    url, launches = shown
    (summary,) = asked(f"{url}/api/studies")["study_summaries"]
    assert (summary["study_name"], summary["directions"]) == ("toy", ["maximize"])
    trials = asked(f"{url}/api/studies/{summary['study_id']}?after=0")["trials"]
    assert [trial["values"] for trial in trials] == [
        [scores_of(make_spec(), launch.result).value] for launch in launches
    ]
    for trial, launch in zip(trials, launches, strict=True):
        knobs = {param["name"]: param["param_external_value"] for param in trial["params"]}
        assert knobs.pop("engine") == launch.trial.configuration.engine
        configured = launch.trial.configuration.knobs
        assert knobs == {name: str(configured[name]) for name in knobs}
        attributes = {attribute["key"]: attribute["value"] for attribute in trial["user_attrs"]}
        assert attributes["fingerprint"] == launch.trial.configuration.fingerprint


class TestInABrowser:
    pytestmark = IN_A_BROWSER

    def test_the_dashboard_s_pages_show_the_study(
        self, shown: tuple[str, Sequence[Launch]], tmp_path: Path
    ) -> None:
        from selenium.webdriver.common.by import By
        from selenium.webdriver.support.ui import WebDriverWait

        def body(driver: Any) -> str:
            return str(driver.find_element(By.TAG_NAME, "body").text)

        with chromium(tmp_path / "profile", "window-size=1500,1000") as driver:
            driver.get(f"{shown[0]}/dashboard/")
            WebDriverWait(driver, WAIT_S).until(lambda page: "toy" in body(page))
            driver.get(f"{shown[0]}/dashboard/studies/0/trials")
            WebDriverWait(driver, WAIT_S).until(
                lambda page: "Trial 5" in body(page) and "engine" in body(page)
            )
            driver.save_screenshot(str(tmp_path / "trials.png"))
            driver.get(f"{shown[0]}/dashboard/studies/0")
            WebDriverWait(driver, WAIT_S).until(lambda page: make_spec().objective in body(page))
            driver.save_screenshot(str(tmp_path / "study.png"))
