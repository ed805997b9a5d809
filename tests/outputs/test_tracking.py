"""What MLflow holds of a study, after ordinary ends and after ugly ones."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.engines.command import Command
from autotune.outputs.report import StudyRecord
from autotune.outputs.report.render import render
from autotune.outputs.tracking import Tracker
from autotune.outputs.tracking.content import experiment_name
from autotune.outputs.tracking.runs import ARTIFACTS
from autotune.tuner.study.home import database_uri, ui_command
from autotune.tuner.trial import Role
from tests import small_study
from tests.small_study import SECRET


@pytest.fixture
def home(tmp_path: Path, database: Path) -> Path:
    """A home folder with an MLflow database in which there is no run."""
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(database, home / "mlflow.db")
    return home


@pytest.fixture
def tracker(home: Path) -> Iterator[Tracker]:
    said: list[str] = []
    tracker = Tracker(home, small_study.spec(), said.append)
    yield tracker
    tracker.close()
    assert all(line.startswith("runs go to MLflow at") for line in said), (
        "nothing was refused or failed"
    )


def client_of(tracker: Tracker) -> Any:
    """MLflow's own client on the same database: what any other reader sees."""
    from mlflow import MlflowClient

    return MlflowClient(database_uri(tracker.home))


def runs_of(tracker: Tracker, kind: str) -> list[Any]:
    client = client_of(tracker)
    experiment = client.get_experiment_by_name(experiment_name(small_study.spec()))
    return list(
        client.search_runs(
            [experiment.experiment_id], f"tags.kind = '{kind}'", order_by=["tags.number ASC"]
        )
    )


def test_a_launch_is_a_child_run_with_knobs_metrics_and_tags(tracker: Tracker) -> None:
    tracker.record(small_study.launches()[0])
    (parent,), (child,) = runs_of(tracker, "study"), runs_of(tracker, "launch")
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.data.params == {
        "engine": "vllm",
        "tensor_parallel": "8",
        "data_parallel": "1",
        "kv_cache_dtype": "auto",
        "memory_fraction": "0.9",
    }
    assert child.data.metrics["sharegpt.total_token_throughput"] == 6000.0
    assert child.data.metrics["random:4000:200:500.mean_ttft_ms"] == 800.0
    assert child.data.metrics["time_s.ready"] == 400.0
    expected = {
        "engine": "vllm",
        "engine_version": "0.32.0",
        "state": "complete",
        "failure_kind": "none",
    }
    expected |= {"role": "baseline", "evidence": "simulated", "number": "0"}
    assert expected.items() <= child.data.tags.items()
    assert child.info.status == "FINISHED"
    assert parent.data.params["model"] == small_study.MODEL


def test_a_failed_launch_tells_why(tracker: Tracker) -> None:
    tracker.record(small_study.launches()[2])
    (child,) = runs_of(tracker, "launch")
    assert child.info.status == "FAILED"
    assert child.data.tags["failure_kind"] == "out_of_memory"
    assert "CUDA out of memory" in child.data.tags["failure"]


def test_recording_twice_changes_nothing(tracker: Tracker) -> None:
    launches = small_study.launches()
    for launch in launches[:3]:
        tracker.record(launch)
    tracker.sync(launches[:4])
    tracker.sync(launches[:4])
    children = runs_of(tracker, "launch")
    assert [child.data.tags["number"] for child in children] == ["0", "1", "2", "3"]
    history = client_of(tracker).get_metric_history(
        children[0].info.run_id, "sharegpt.total_token_throughput"
    )
    assert len(history) == 1
    assert len(runs_of(tracker, "study")) == 1


def test_a_resumed_tracker_completes_what_a_killed_one_left(home: Path) -> None:
    launches = small_study.launches()
    killed = Tracker(home, small_study.spec())
    killed.record(launches[0])
    killed.close()
    # A kill between create_run and log_batch, and one between log_batch and set_terminated.
    client, (whole,) = client_of(killed), runs_of(killed, "launch")
    for launch in launches[1:3]:
        trial = launch.trial
        own = {"number": str(trial.number), "fingerprint": trial.configuration.fingerprint}
        tags = {**whole.data.tags, **own, "started_at": launch.result.started_at}
        half = client.create_run(whole.info.experiment_id, tags=tags)
    client.log_param(half.info.run_id, "engine", "vllm")

    resumed = Tracker(home, small_study.spec())
    resumed.sync(launches)
    children = runs_of(resumed, "launch")
    assert [int(child.data.tags["number"]) for child in children] == [
        launch.trial.number for launch in launches
    ]
    assert all(child.info.status in {"FINISHED", "FAILED"} for child in children)
    assert children[1].data.metrics["sharegpt.total_token_throughput"] == 7000.0
    assert children[2].data.params["tensor_parallel"] == "1"
    assert len(runs_of(resumed, "study")) == 1
    resumed.close()


@pytest.mark.e2e
def test_a_kill_while_the_database_is_made_leaves_nothing_half(tmp_path: Path) -> None:
    """Killed 0.3 CPU seconds into the second that MLflow's tables take."""
    script = (
        "import signal, sys; from pathlib import Path; import mlflow\n"
        "from tests import small_study; from autotune.outputs.tracking import Tracker\n"
        "signal.setitimer(signal.ITIMER_PROF, 0.3)\n"
        "Tracker(Path(sys.argv[1]), small_study.spec()).sync([])\n"
    )
    root = Path(__file__).parents[2]
    killed = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=root, timeout=300, check=False
    )
    assert killed.returncode == -signal.SIGPROF
    assert not (tmp_path / "mlflow.db").exists()
    with Tracker(tmp_path, small_study.spec()) as tracker:
        tracker.sync(small_study.launches())
        assert len(runs_of(tracker, "launch")) == 9
    assert [path.name for path in tmp_path.glob("*mlflow.db*")] == ["mlflow.db"]


def test_sync_deletes_what_is_no_launch_of_the_study(home: Path) -> None:
    """A launch that was tracked but not yet stored is made again under the same number."""
    launches = small_study.launches()
    first = Tracker(home, small_study.spec())
    first.sync(launches[:3])
    first.close()
    again = small_study.launch(
        1, Role.SEARCH, small_study.WINNER, {"sharegpt": small_study.metrics(1.0)}
    )
    second = Tracker(home, small_study.spec())
    second.sync([launches[0], again])
    children = runs_of(second, "launch")
    assert [child.data.tags["number"] for child in children] == ["0", "1"]
    assert children[1].data.tags["fingerprint"] == small_study.WINNER.fingerprint
    second.close()


def test_two_studies_of_one_model_and_hardware_share_an_experiment(home: Path) -> None:
    """With a view by each objective, and a description that is a person's own once it was
    changed."""
    for name, objective in (("one", "total_token_throughput"), ("two", "mean_ttft_ms")):
        with Tracker(home, small_study.spec(study=name, objective=objective)) as tracker:
            tracker.record(small_study.launches()[0])
            client, (parent, *_) = client_of(tracker), runs_of(tracker, "study")
        if name == "one":
            client.set_experiment_tag(parent.info.experiment_id, "mlflow.note.content", "our own")
    reader = Tracker(home, small_study.spec())
    parents = runs_of(reader, "study")
    assert {parent.data.tags["study"] for parent in parents} == {"one", "two"}
    assert len({parent.info.experiment_id for parent in parents}) == 1
    assert len(runs_of(reader, "launch")) == 2
    tags = client.get_experiment(parent.info.experiment_id).tags
    assert tags["mlflow.note.content"] == "our own"
    assert "mlflow.sharedViewState.autotune-total_token_throughput-on-sharegpt" in tags
    view = json.loads(
        json.loads(tags["mlflow.sharedViewState.autotune-mean_ttft_ms-on-sharegpt"])["state"]
    )
    assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`mean_ttft_ms`", True)
    assert {"metrics.`gain_percent`", "tags.`engine`", "tags.`verdict`"} <= set(
        view["selectedColumns"]
    )
    shown = client.search_runs([parent.info.experiment_id], view["searchFilter"])
    assert [run.data.tags["study"] for run in shown] == ["two"], "one quantity under one workload"


def test_launches_have_their_gain_verdict_and_duration(tracker: Tracker) -> None:
    folder = tracker.home / "studies" / "small"
    write_files(folder)
    tracker.sync(small_study.launches())
    tracker.finish(small_study.recommendation(), folder)
    children = {int(child.data.tags["number"]): child for child in runs_of(tracker, "launch")}
    assert children[3].data.metrics["gain_percent"] == pytest.approx(100 * (9100 / 6000 - 1))
    better = "better in the simulation, open on a real node"
    assert [children[n].data.tags.get("verdict") for n in (0, 1, 3, 7)] == [
        "baseline",
        None,
        better,
        better,
    ]
    info = children[3].info
    assert info.end_time - info.start_time == 468_000, "virtual seconds, as they were"


def write_files(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ARTIFACTS:
        (folder / name).write_text(f"{name}\nHF_TOKEN={SECRET}\n")
    report = render(
        StudyRecord(
            small_study.spec(), small_study.launches(), small_study.recommendation(), folder
        ),
        "md",
    )
    (folder / "report.md").write_text(f"{report}\nHF_TOKEN={SECRET}\n")
    (folder / "trials" / "0003").mkdir(parents=True)
    (folder / "trials" / "0003" / "server.log").write_text(
        "INFO: started\ntoken is my-own-secret\n"
    )
    (folder / "trials" / "0003" / "server-1").mkdir()
    (folder / "trials" / "0003" / "server-1" / "server.log").write_text(
        "INFO: the second one\nmy-own-secret\n"
    )


def test_finish_gives_the_parent_figures_verdict_and_files(tracker: Tracker) -> None:
    folder = tracker.home / "studies" / "small"
    write_files(folder)
    secret_command = Command(("vllm", "serve", small_study.MODEL, "--api-key", "my-own-secret"))
    row = small_study.launches()[3]
    launch = small_study.launch(
        3, row.trial.role, small_study.WINNER, row.result.metrics, command=secret_command
    )
    tracker.sync([launch])
    tracker.finish(small_study.recommendation(), folder)
    tracker.finish(small_study.recommendation(), folder)

    client = client_of(tracker)
    (parent,), (child,) = runs_of(tracker, "study"), runs_of(tracker, "launch")
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["gain_percent"] == 51.7
    assert parent.data.metrics["gain_ci95_low"] == 47.2
    assert parent.data.metrics["sharegpt.total_token_throughput"] == 9100.0
    assert parent.data.metrics["baseline.sharegpt.total_token_throughput"] == 6000.0
    assert len(client.get_metric_history(parent.info.run_id, "gain_percent")) == 1
    assert parent.data.tags["verdict"] == "better"
    note = parent.data.tags["mlflow.note.content"]
    assert note.startswith("> **SIMULATED.**"), "the evidence stands above the figures"
    assert "| better in the simulation, open on a real node | +51.7 % |" in note
    assert "sglang.launch_server" in note
    assert f"](get-artifact?run_uuid={parent.info.run_id}&path=report%2Ftried.svg)" in note
    assert len(client.get_metric_history(parent.info.run_id, "best_so_far")) == 1
    (workload, *_) = parent.inputs.dataset_inputs
    assert workload.dataset.name == "sharegpt"
    assert {item.path for item in client.list_artifacts(parent.info.run_id)} == set(ARTIFACTS)
    assert {item.path for item in client.list_artifacts(child.info.run_id)} == {
        "server.log",
        "server-1",
    }
    assert [item.path for item in client.list_artifacts(child.info.run_id, "server-1")] == [
        "server-1/server.log"
    ]
    stored = "".join(p.read_text() for p in (tracker.home / "artifacts").rglob("*") if p.is_file())
    assert "INFO: started" in stored
    assert "INFO: the second one" in stored, "of several servers each one's log"
    assert SECRET not in stored
    assert "my-own-secret" not in stored
    assert "my-own-secret" not in str(child.data)


def test_a_study_that_has_just_begun_says_so(tracker: Tracker) -> None:
    tracker.sync(small_study.launches()[:1])
    (parent,) = runs_of(tracker, "study")
    assert (parent.data.tags["verdict"], parent.data.tags["evidence"]) == (
        "unfinished",
        "simulated",
    )


def test_an_infeasible_study_has_no_gain(tracker: Tracker) -> None:
    tracker.finish(small_study.infeasible(), tracker.home)
    (parent,) = runs_of(tracker, "study")
    assert parent.data.tags["verdict"] == "infeasible"
    assert "gain_percent" not in parent.data.metrics


def change_the_number(client: Any, runs: dict[str, Any]) -> None:
    client.set_tag(runs["2"].info.run_id, "number", "two")


def delete_a_launch(client: Any, runs: dict[str, Any]) -> None:
    client.delete_run(runs["2"].info.run_id)


def delete_the_study(client: Any, runs: dict[str, Any]) -> None:
    client.delete_run(runs["study"].info.run_id)


def delete_the_experiment(client: Any, runs: dict[str, Any]) -> None:
    client.delete_experiment(runs["study"].info.experiment_id)


def rename_the_experiment(client: Any, runs: dict[str, Any]) -> None:
    client.rename_experiment(runs["study"].info.experiment_id, "ours")


@pytest.mark.parametrize(
    ("meddle", "said"),
    [
        pytest.param(change_the_number, 0, marks=pytest.mark.e2e),
        pytest.param(delete_a_launch, 0, marks=pytest.mark.e2e),
        (delete_the_study, 0),
        (delete_the_experiment, 2),
        pytest.param(rename_the_experiment, 0, marks=pytest.mark.e2e),
    ],
)
def test_what_a_person_does_in_mlflow_meanwhile_loses_and_doubles_nothing(
    home: Path, meddle: Callable[[Any, dict[str, Any]], None], said: int
) -> None:
    launches, notes = small_study.launches(), []
    with Tracker(home, small_study.spec(), notes.append) as tracker:
        tracker.sync(launches[:4])
        client = client_of(tracker)
        runs = runs_of(tracker, "study") + runs_of(tracker, "launch")
        meddle(client, {run.data.tags.get("number", "study"): run for run in runs})
        for launch in launches[4:]:
            tracker.record(launch)
        tracker.finish(small_study.recommendation(), home)
    everywhere = [one.experiment_id for one in client.search_experiments()]
    found = client.search_runs(everywhere, f"tags.study_id = '{tracker._sync_state.study_id}'")
    (parent,) = [run for run in found if run.data.tags["kind"] == "study"]
    children = [
        run for run in found if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id
    ]
    assert sorted(run.data.tags["number"] for run in children) == [str(n) for n in range(9)]
    assert len(found) == 10
    assert parent.info.status == "FINISHED"
    assert len(notes) == 1 + said


def test_a_study_cut_off_before_it_had_params_gets_them(home: Path) -> None:
    with Tracker(home, small_study.spec()) as tracker:
        runs, study = (
            tracker._runs,
            {"study": "small", "kind": "study", "study_id": tracker._sync_state.study_id},
        )
        runs._client.create_run(runs._experiment, tags=study)
        tracker.sync([])
        (parent,) = runs_of(tracker, "study")
    assert parent.data.params["model"] == small_study.MODEL


def test_an_unfinished_study_is_shown_as_killed_until_it_goes_on(home: Path) -> None:
    tracker = Tracker(home, small_study.spec())
    tracker.record(small_study.launches()[0])
    tracker.close()
    assert [run.info.status for run in runs_of(tracker, "study")] == ["KILLED"]
    tracker.record(small_study.launches()[1])
    assert [run.info.status for run in runs_of(tracker, "study")] == ["RUNNING"]
    tracker.close()


def test_odd_names_are_made_fit_for_mlflow(tracker: Tracker) -> None:
    odd = small_study.WINNER.with_knobs(**{"a/../b=%": "x" * 9000, "": 1})
    metrics = {"jsonl:/data/../x y.jsonl": small_study.metrics(5.0)}
    tracker.record(small_study.launch(0, Role.BASELINE, odd, metrics, command=Command(("x",))))
    (child,) = runs_of(tracker, "launch")
    assert child.data.metrics["jsonl:_data_.._x y.jsonl.total_token_throughput"] == 5.0


@pytest.mark.e2e
def test_the_tracker_is_silent_and_importing_it_is_light(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path; from autotune.outputs.tracking import Tracker\n"
        "assert 'mlflow' not in sys.modules\n"
        "from tests import small_study as s\n"
        "t = Tracker(Path(sys.argv[1]), s.spec()); t.sync(s.launches())\n"
        "t.finish(s.recommendation(), Path(sys.argv[1])); t.close()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "home"), str(Path(__file__).parents[2])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_ui_command_of_a_relative_home_is_relative() -> None:
    home = Path("mlruns")
    assert (
        ui_command(home)
        == "mlflow ui --backend-store-uri sqlite:///mlruns/mlflow.db --host 127.0.0.1"
    )
    assert Path(database_uri(home).removeprefix("sqlite:///")).is_absolute(), (
        "wherever a process of ours works"
    )


def test_the_ui_command_is_loopback_and_quoted(tmp_path: Path) -> None:
    home = tmp_path / "my runs"
    assert (
        ui_command(home)
        == f"mlflow ui --backend-store-uri 'sqlite:///{home}/mlflow.db' --host 127.0.0.1"
    )
