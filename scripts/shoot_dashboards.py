"""Makes the pictures of MLflow's pages and of optuna-dashboard's that the documentation shows.

    autotune run --model deepseek-ai/DeepSeek-V3.2 --hw h200 --study demo
    PYTHONPATH=. python scripts/shoot_dashboards.py mlruns/studies/demo --out docs

Starts both upon the study on loopback. Writes ``mlflow-experiment.png``, ``mlflow-parent.png``,
``mlflow-child.png``, ``mlflow-comparison.png`` and ``optuna-dashboard.png``, each below 200 kB.
Needs Chromium with its driver, and the tests' packages.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlflow
from shoot_report import save

from autotune.outputs.tracking import view_address
from autotune.tuner.study.home import database_uri
from tests.browsers import chromium
from tests.mlflow_servers import DashboardProcess, ServerProcess

_DRAWN_S = 15
"""The pages fetch and draw in pieces, and say nowhere that they are done."""


def pages(study: Path) -> dict[str, str]:
    """Name of the picture to the address within MLflow's pages."""
    home = study.parents[1]
    mlflow.set_tracking_uri(database_uri(home))
    condition = f"tags.study = '{study.name}'"
    runs = mlflow.search_runs(
        search_all_experiments=True, filter_string=condition, output_format="list"
    )
    (parent,) = [run for run in runs if run.data.tags["kind"] == "study"]
    best, *_ = [
        run
        for run in runs
        if run.data.tags.get("verdict") == parent.data.tags["verdict"] and run != parent
    ]
    baseline, *_ = [run for run in runs if run.data.tags.get("verdict") == "baseline"]
    experiment, ids = parent.info.experiment_id, f'["{best.info.run_id}","{baseline.info.run_id}"]'
    one = f"#/experiments/{experiment}/runs/{{}}?workflowType=machine_learning"
    return {
        "mlflow-experiment": "#" + view_address(home, study.name).partition("#")[2],
        "mlflow-parent": one.format(parent.info.run_id),
        "mlflow-child": one.format(best.info.run_id),
        "mlflow-comparison": f'#/compare-runs?runs={ids}&experiments=["{experiment}"]&workflowType=machine_learning',
    }


def shoot(driver: Any, url: str, path: Path) -> None:
    """Write the picture of a page; MLflow's column for its assistant is closed, and what it folds
    is unfolded."""
    from selenium.webdriver.common.by import By

    driver.get("about:blank")
    driver.get(url)
    time.sleep(_DRAWN_S)
    for button in driver.find_elements(
        By.XPATH, "//button[normalize-space()='Show more'] | //button[@aria-label='Close']"
    ):
        button.click()
    time.sleep(2)
    save(driver.get_screenshot_as_png(), path)


def main(study: Path, out: Path) -> None:
    """Write every picture."""
    with (
        TemporaryDirectory() as folder,
        chromium(Path(folder) / "profile", "window-size=1500,1100") as driver,
    ):
        server = ServerProcess(database_uri(study.parents[1]), Path(folder))
        dashboard = DashboardProcess(study / "optuna.journal", Path(folder))
        try:
            server.start()
            for name, page in pages(study).items():
                shoot(driver, f"{server.url}/{page}", out / f"{name}.png")
            dashboard.start()
            shoot(driver, f"{dashboard.url}/dashboard/studies/0", out / "optuna-dashboard.png")
        finally:
            server.stop()
            dashboard.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    main(arguments.study.resolve(), arguments.out)
