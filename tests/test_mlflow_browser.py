"""A study as people see it: MLflow's own page in a real browser. Skipped where there is no Chromium."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.report import StudyRecord, render
from autotune.tracking import Tracker, database_uri, experiment_name
from tests import small_study

WAIT_S = 120  # two shared cores: the page is 10 MB of script
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium and chromedriver on this machine"),
    # Selenium and urllib leave sockets to the garbage collector when the browser ends.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A home with one finished study, and the ids of experiment, parent and the winner's child."""
    home = tmp_path_factory.mktemp("home")
    folder = home / "studies" / "small"
    (folder / "trials" / "0003").mkdir(parents=True)
    (folder / "trials" / "0003" / "server.log").write_text("INFO: the server's own log\n")
    study = StudyRecord(small_study.spec(), small_study.launches(), small_study.recommendation(), folder)
    (folder / "report.md").write_text(render(study, "md"))
    (folder / "report.html").write_text(render(study, "html"))
    with Tracker(home, small_study.spec()) as tracker:
        tracker.sync(small_study.launches())
        tracker.finish(small_study.recommendation(), folder)
        client = tracker._client
        experiment = client.get_experiment_by_name(experiment_name(small_study.spec()))
        runs = client.search_runs([experiment.experiment_id], max_results=100)
        ids = {run.data.tags.get("number", "parent"): run.info.run_id for run in runs}
    return home, {"experiment": experiment.experiment_id, "parent": ids["parent"], "winner": ids["3"]}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module")
def address(tracked: tuple[Path, dict[str, str]]) -> Iterator[str]:
    """A real `mlflow ui` on a free loopback port; its whole process group ends with the tests."""
    from selenium.webdriver.support.ui import WebDriverWait

    home, port = tracked[0], free_port()
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", database_uri(home)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (home / "ui.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True, cwd=home)
    url = f"http://127.0.0.1:{port}"
    try:
        message = f"mlflow ui did not answer; see {home / 'ui.log'}"
        WebDriverWait(server, WAIT_S).until(lambda p: answers(url) or p.poll() is not None, message)
        assert server.poll() is None, (home / "ui.log").read_text()
        yield url
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(30)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    profile = tmp_path_factory.mktemp("profile")
    for flag in (
        *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking"),
        *("disable-component-update", "disable-sync", "disable-dev-shm-usage", "window-size=1800,1400"),
        f"user-data-dir={profile}",
    ):
        options.add_argument(f"--{flag}")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    driver.set_page_load_timeout(WAIT_S)
    yield driver
    driver.quit()


def see(browser: Any, url: str, *texts: str) -> None:
    """Open a page and wait until it shows all of the texts."""
    browser.get(url)
    wait_for(browser, *texts)


def wait_for(browser: Any, *texts: str) -> None:
    from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    def missing(driver: Any) -> list[str]:
        shown = driver.find_element(By.TAG_NAME, "body").text
        return [text for text in texts if text not in shown]

    waiting = WebDriverWait(browser, WAIT_S, ignored_exceptions=[StaleElementReferenceException])
    try:
        waiting.until(lambda driver: not missing(driver))
    except TimeoutException:
        body = browser.find_element(By.TAG_NAME, "body").text
        pytest.fail(f"{browser.current_url} does not show {missing(browser)}; it shows:\n{body}")


def open_parent(browser: Any) -> None:
    """Unfold the children of the only parent in the list of runs."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support import expected_conditions
    from selenium.webdriver.support.ui import WebDriverWait

    expander = (By.XPATH, "//*[@role='gridcell' and contains(@col-id, 'Run Name')]//button")
    WebDriverWait(browser, WAIT_S).until(expected_conditions.element_to_be_clickable(expander)).click()


def test_the_experiment_lists_parent_and_children(
    browser: Any, address: str, tracked: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    see(browser, f"{address}/#/experiments", experiment_name(small_study.spec()))
    url = f"{address}/#/experiments/{tracked[1]['experiment']}/runs"
    see(browser, url, experiment_name(small_study.spec()), "small", "10 matching runs")
    open_parent(browser)
    wait_for(browser, "0000 baseline vllm", "0003 search sglang", "0008 final vllm")
    browser.save_screenshot(str(tmp_path / "experiment.png"))


def test_a_child_shows_params_metrics_tags_and_its_log(
    browser: Any, address: str, tracked: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    base = f"{address}/#/experiments/{tracked[1]['experiment']}/runs/{tracked[1]['winner']}"
    see(browser, base, "0003 search sglang", "data_parallel", "sharegpt.total_token_throughput", "9100", "simulated")
    browser.save_screenshot(str(tmp_path / "child.png"))
    see(browser, f"{base}/artifacts/server.log", "server.log", "INFO: the server's own log")


def test_the_parent_shows_the_outcome_and_the_report(
    browser: Any, address: str, tracked: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    base = f"{address}/#/experiments/{tracked[1]['experiment']}/runs/{tracked[1]['parent']}"
    see(browser, base, "small", "gain_percent", "51.7", "better", "sglang.launch_server")
    browser.save_screenshot(str(tmp_path / "parent.png"))
    see(browser, f"{base}/artifacts/report.md", "report.md", "report.html", "Conclusion (SIMULATED)")
    browser.save_screenshot(str(tmp_path / "report.png"))
