"""A study as people see it: MLflow's own page in a real browser. Skipped where there is no
Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from rich.console import Console

from autotune.outputs.progress import Progress
from autotune.outputs.report import StudyRecord
from autotune.outputs.report.render import files_of
from autotune.outputs.tracking import Tracker, view_address
from autotune.outputs.tracking.content import experiment_name
from autotune.outputs.tracking.runs import ARTIFACTS
from autotune.run import run
from autotune.tuner.backends import EvaluationSetup, Evaluator, evaluator_for
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.study.home import Home, database_uri
from autotune.tuner.study.options import RunOptions
from autotune.tuner.trial import Trial, TrialResult
from tests import small_study
from tests.browsers import IN_A_BROWSER, chromium
from tests.mlflow_servers import WAIT_S, ServerProcess

pytestmark = IN_A_BROWSER


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A home with one finished study, and the ids of experiment, parent and the winner's child."""
    home = tmp_path_factory.mktemp("home")
    folder = home / "studies" / "small"
    (folder / "trials" / "0003").mkdir(parents=True)
    (folder / "trials" / "0003" / "server.log").write_text("INFO: the server's own log\n")
    study = StudyRecord(
        small_study.spec(), small_study.launches(), small_study.recommendation(), folder
    )
    (folder / "report").mkdir()
    for name, content in files_of(study).items():
        (folder / name).write_text(content)
    (folder / "exports").mkdir()
    (folder / "exports" / "compose.yaml").write_text("services: {}\n")
    with Tracker(home, small_study.spec()) as tracker:
        tracker.sync(small_study.launches())
        tracker.finish(small_study.recommendation(), folder)
        client = tracker._runs._client
        experiment = client.get_experiment_by_name(experiment_name(small_study.spec()))
        runs = client.search_runs([experiment.experiment_id], max_results=100)
        ids = {run.data.tags.get("number", "parent"): run.info.run_id for run in runs}
    return home, {
        "experiment": experiment.experiment_id,
        "parent": ids["parent"],
        "winner": ids["3"],
    }


@pytest.fixture(scope="module")
def address(tracked: tuple[Path, dict[str, str]]) -> Iterator[str]:
    """MLflow's own server over the home's database, as `mlflow ui` starts it."""
    server = ServerProcess(database_uri(tracked[0]), tracked[0])
    try:
        server.start()
        yield server.url
    finally:
        server.stop()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile"), "window-size=1800,1400") as driver:
        driver.set_page_load_timeout(WAIT_S)
        yield driver


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


def runs_in_order(browser: Any, url: str, condition: str, *names: str) -> list[str]:
    """Names of an experiment's runs from top to bottom, by falling throughput, once all are
    there."""
    order = {
        "searchFilter": condition,
        "orderByKey": "metrics.`total_token_throughput`",
        "orderByAsc": "false",
    }
    see(browser, f"{url}?{urlencode(order, quote_via=quote)}", *names)
    return names_in_order(browser)


def names_in_order(browser: Any) -> list[str]:
    """Names of the runs in the list, from top to bottom."""
    from selenium.webdriver.common.by import By

    cells = browser.find_elements(
        By.XPATH, "//*[@role='row']//*[contains(@col-id, 'Run Name')][@role='gridcell']"
    )
    rows = {}
    for cell in cells:
        row = cell.find_element(By.XPATH, "./ancestor::*[@role='row']")
        rows[int(row.get_attribute("row-index"))] = cell
    return [rows[index].text.strip().splitlines()[-1] for index in sorted(rows)]


def unfold(browser: Any) -> None:
    """Show the children of the only parent in the list of runs."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support import expected_conditions
    from selenium.webdriver.support.ui import WebDriverWait

    expander = (By.XPATH, "//*[@role='gridcell' and contains(@col-id, 'Run Name')]//button")
    WebDriverWait(browser, WAIT_S).until(
        expected_conditions.element_to_be_clickable(expander)
    ).click()


def test_the_experiment_lists_parent_and_children_and_sorts_by_throughput(
    browser: Any, address: str, tracked: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    see(browser, f"{address}/#/experiments", experiment_name(small_study.spec()))
    url = f"{address}/#/experiments/{tracked[1]['experiment']}/runs"
    see(browser, url, experiment_name(small_study.spec()), "small", "10 matching runs")
    unfold(browser)
    wait_for(
        browser,
        "0000 baseline vllm",
        "0003 search sglang",
        "0008 final vllm",
        "Dataset",
        "sharegpt (",
    )
    browser.save_screenshot(str(tmp_path / "experiment.png"))
    condition = "tags.kind = 'launch' and tags.state = 'complete'"
    found = runs_in_order(browser, url, condition, "0007 final sglang", "7 matching runs")
    browser.save_screenshot(str(tmp_path / "sorted.png"))
    assert [name.split()[0] for name in found] == [
        "0007",
        "0003",
        "0005",
        "0001",
        "0006",
        "0000",
        "0008",
    ]


def test_the_view_by_the_objective_shows_its_column_the_best_launch_first(
    browser: Any, address: str, tracked: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """As one finds it who knows nothing: the experiment's page, the menu, the view."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support import expected_conditions
    from selenium.webdriver.support.ui import WebDriverWait

    url = f"{address}/#/experiments/{tracked[1]['experiment']}/runs"
    see(
        browser,
        url,
        "Views",
        "Launches by total_token_throughput on sharegpt, best first",
        "matching runs",
    )
    browser.save_screenshot(str(tmp_path / "description.png"))
    for place in (
        "//button[normalize-space()='Views']",
        "//*[@role='menuitem'][contains(., 'best first')]",
    ):
        WebDriverWait(browser, WAIT_S).until(
            expected_conditions.element_to_be_clickable((By.XPATH, place))
        ).click()
    wait_for(
        browser,
        "7 matching runs",
        "total_token_throughput",
        "9200",
        "9100",
        "search",
        "better",
        "51.6",
    )
    browser.save_screenshot(str(tmp_path / "view.png"))
    names = [name.split()[0] for name in names_in_order(browser)]
    assert names == ["0007", "0003", "0005", "0001", "0006", "0000", "0008"]


def test_the_printed_address_opens_the_launches_with_the_columns_that_matter(
    browser: Any, address: str, tracked: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """Past the pages for traces, with which MLflow 3.17 begins otherwise."""
    page = view_address(tracked[0], "small").removeprefix("http://127.0.0.1:5000")
    see(
        browser,
        address + page,
        "7 matching runs",
        "total_token_throughput",
        "gain_percent",
        "verdict",
        "better",
    )
    browser.save_screenshot(str(tmp_path / "printed.png"))
    assert names_in_order(browser)[0].startswith("0007")


def test_a_child_shows_params_metrics_tags_and_its_log(
    browser: Any, address: str, tracked: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    base = f"{address}/#/experiments/{tracked[1]['experiment']}/runs/{tracked[1]['winner']}"
    see(
        browser,
        base,
        "0003 search sglang",
        "data_parallel",
        "sharegpt.total_token_throughput",
        "9100",
        "simulated",
    )
    browser.save_screenshot(str(tmp_path / "child.png"))
    see(browser, f"{base}/artifacts/server.log", "server.log", "INFO: the server's own log")
    both, experiment = (
        f'["{tracked[1]["winner"]}","{tracked[1]["parent"]}"]',
        tracked[1]["experiment"],
    )
    see(
        browser,
        f'{address}/#/compare-runs?runs={both}&experiments=["{experiment}"]',
        "Comparing 2 Runs",
        "0003 search",
    )
    browser.save_screenshot(str(tmp_path / "comparison.png"))


def test_the_parent_shows_the_outcome_and_the_report(
    browser: Any, address: str, tracked: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    base = f"{address}/#/experiments/{tracked[1]['experiment']}/runs/{tracked[1]['parent']}"
    see(
        browser,
        base,
        "small",
        "gain_percent",
        "51.7",
        "better",
        "sglang.launch_server",
        "Gain over the baseline",
    )
    pictures = "return [...document.images].filter(i => i.src.includes('tried.svg') && i.naturalWidth > 0).length"
    WebDriverWait(browser, WAIT_S).until(lambda page: page.execute_script(pictures) == 1)
    browser.save_screenshot(str(tmp_path / "parent.png"))
    see(browser, f"{base}/artifacts/report.md", "report.md", "report.html", "exports", "Verdict")
    browser.save_screenshot(str(tmp_path / "report.png"))


@dataclass(frozen=True)
class Interrupting:
    """Simulates, and does something before some of the trials."""

    simulated: Evaluator
    before: dict[int, Callable[[], None]]

    def __call__(self, trial: Trial) -> TrialResult:
        self.before.get(trial.number, lambda: None)()
        return self.simulated(trial)


@pytest.mark.slow
def test_a_study_whose_server_stops_and_comes_back_is_there_once(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole product against `mlflow server` as a process; `test_tracking_outage` has the quick
    versions."""
    from mlflow import MlflowClient

    server = ServerProcess(f"sqlite:///{tmp_path}/server.db", tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    asked = RunOptions(
        "deepseek-ai/DeepSeek-V3.2",
        "h200",
        launches=14,
        workloads=["random:64:16:16"],
        on="simulator",
    )
    spec = build_spec(asked).model_copy(update={"study": "stopped"})
    screen = StringIO()

    def evaluator(setup: EvaluationSetup) -> Evaluator:
        return Interrupting(evaluator_for(setup), {3: server.stop, 9: server.start})

    try:
        server.start()
        with Progress(spec, Console(file=screen, width=1000)) as progress:
            run(spec, Home(tmp_path / "home"), progress, evaluator)
        launches = Home(tmp_path / "home").launches("stopped")
        client = MlflowClient(server.url)
        (experiment,) = client.search_experiments(filter_string=f"name = '{experiment_name(spec)}'")
        (parent,) = client.search_runs([experiment.experiment_id], "tags.kind = 'study'")
        found = client.search_runs(
            [experiment.experiment_id], f"tags.mlflow.parentRunId = '{parent.info.run_id}'"
        )
        assert sorted(int(child.data.tags["number"]) for child in found) == list(
            range(len(launches))
        )
        assert parent.info.status == "FINISHED"
        assert {item.path for item in client.list_artifacts(parent.info.run_id)} >= set(ARTIFACTS)
        assert screen.getvalue().count("cannot be used (connection refused)") == 1
        assert screen.getvalue().count("answers again") == 1

        url = f"{server.url}/#/experiments/{experiment.experiment_id}/runs"
        best = sorted(
            found, key=lambda child: -child.data.metrics.get("total_token_throughput", 0.0)
        )
        condition = "tags.kind = 'launch' and tags.state = 'complete'"
        shown = runs_in_order(browser, url, condition, best[0].info.run_name)
        browser.save_screenshot(str(tmp_path / "sorted.png"))
        complete = [child.info.run_name for child in best if child.data.tags["state"] == "complete"]
        assert shown == complete
        see(browser, f"{url}/{parent.info.run_id}/artifacts/report.md", "report.html", "Verdict")
        browser.save_screenshot(str(tmp_path / "parent.png"))
        assert not (tmp_path / "home" / "mlflow.db").exists()
    finally:
        server.stop()
