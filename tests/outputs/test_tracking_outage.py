"""MLflow that is away, refuses or is broken, at any time of a study: every trial is there once in
the end."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from autotune.cli.tuning import resume
from autotune.outputs.export import write_artefacts
from autotune.outputs.tracking import Tracker
from autotune.outputs.tracking.content import experiment_name
from autotune.outputs.tracking.runs import ARTIFACTS, reason
from autotune.tuner.study.home import Home, ui_command
from autotune.tuner.study.results import row_of
from tests import small_study
from tests.mlflow_servers import ServerInside

# What MLflow's server warns of is not ours to mend, and it runs in this process.
pytestmark = pytest.mark.filterwarnings("ignore")

LAUNCHES = small_study.launches()
EVERY_LAUNCH = [str(launch.trial.number) for launch in LAUNCHES]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, database: Path) -> Iterator[ServerInside]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(database, folder / "server.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_MLFLOW_SERVER_FILE_STORE", f"sqlite:///{folder}/server.db")
        patch.setenv("_MLFLOW_SERVER_ARTIFACT_ROOT", "mlflow-artifacts:/")
        patch.setenv("_MLFLOW_SERVER_SERVE_ARTIFACTS", "true")
        patch.setenv("_MLFLOW_SERVER_ARTIFACT_DESTINATION", str(folder / "served"))
        server = ServerInside()
        server.start()
        server.open_store()
        yield server
        server.stop()


@pytest.fixture
def server(running: ServerInside, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerInside]:
    """The one server of this file, where studies go that are run in a test."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", running.url)
    yield running
    running.stop()
    running.status = running.lose = running.refuse = None
    running.start()


def parent_of(url: str, study: str) -> tuple[Any, Any]:
    """The only parent run of a study, with the client that any other reader would use."""
    from mlflow import MlflowClient

    client = MlflowClient(url)
    (experiment,) = client.search_experiments(
        filter_string=f"name = '{experiment_name(small_study.spec())}'"
    )
    (parent,) = client.search_runs(
        [experiment.experiment_id], f"tags.study = '{study}' and tags.kind = 'study'"
    )
    return client, parent


def children(url: str, study: str, states: Collection[str] = ("FINISHED", "FAILED")) -> list[str]:
    """Numbers of the child runs of the only parent of a study."""
    client, parent = parent_of(url, study)
    found = client.search_runs(
        [parent.info.experiment_id], f"tags.mlflow.parentRunId = '{parent.info.run_id}'"
    )
    assert {run.info.status for run in found} <= set(states)
    return sorted(run.data.tags["number"] for run in found)


def artifacts(url: str, study: str, path: str | None = None) -> set[str]:
    client, parent = parent_of(url, study)
    return {item.path for item in client.list_artifacts(parent.info.run_id, path)}


def finished_study(home: Path, name: str) -> Path:
    """A study's folder as it is after its last launch."""
    spec = small_study.spec(study=name)
    folder = Home(home).open(spec)
    (folder / "results.jsonl").write_text(
        "".join(json.dumps(row_of(launch)) + "\n" for launch in LAUNCHES)
    )
    write_artefacts(folder, spec, LAUNCHES, small_study.recommendation(study=name))
    return folder


def test_a_server_that_is_away_for_some_launches_has_each_of_them_once(
    tmp_path: Path, server: ServerInside
) -> None:
    folder = finished_study(tmp_path, "away")
    said: list[str] = []
    with Tracker(tmp_path, small_study.spec(study="away"), said.append) as tracker:
        tracker.sync(LAUNCHES[:1])
        tracker.record(LAUNCHES[1])
        server.stop()
        for launch in LAUNCHES[2:5]:
            tracker.record(launch)
        assert len(said) == 2
        assert f"MLflow at {server.url} cannot be used (connection refused)" in said[1]
        server.start()
        for launch in LAUNCHES[5:]:
            tracker.record(launch)
        assert children(server.url, "away", {"FINISHED", "FAILED"}) == EVERY_LAUNCH[:2], (
            "the rest is sent at the end"
        )
        tracker.finish(small_study.recommendation(), folder)
    assert len(said) == 3
    assert "answers again" in said[2]
    assert children(server.url, "away") == EVERY_LAUNCH
    assert artifacts(server.url, "away") == {*ARTIFACTS, "exports", "report"}
    exports = {f"exports/{path.name}" for path in (folder / "exports").iterdir()}
    assert "exports/compose.yaml" in exports
    assert artifacts(server.url, "away", "exports") == exports
    assert any("/mlflow-artifacts/" in path for _, path, _ in server.seen), (
        "the server keeps the files"
    )
    assert not (tmp_path / "mlflow.db").exists()
    assert not (tmp_path / "artifacts").exists()


def test_a_server_that_never_came_gets_the_study_by_resume(
    tmp_path: Path, server: ServerInside, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    folder, said = finished_study(home, "never"), []
    server.stop()
    with Tracker(home, small_study.spec(study="never"), said.append) as tracker:
        tracker.sync([])
        for launch in LAUNCHES:
            tracker.record(launch)
        tracker.finish(small_study.recommendation(), folder)
    assert len(said) == 3
    assert said[2].endswith(
        f"lacks runs of this study; send them with:\nautotune resume never --home {home.resolve()}"
    )
    resume("never", home, as_json=False)
    still_away = capsys.readouterr()
    assert "connection refused" in still_away.err
    server.start()
    resume("never", home, as_json=False)
    sent = capsys.readouterr().out
    assert sent.startswith(f"{still_away.out}         {server.url}/#/experiments/"), (
        "where its launches are now"
    )
    assert f"mlflow   {server.url}\n" in still_away.out
    assert children(server.url, "never") == EVERY_LAUNCH
    assert artifacts(server.url, "never") == {*ARTIFACTS, "exports", "report"}
    server.seen.clear()
    resume("never", home, as_json=False)
    assert server.seen == [], "what is there is not sent again"


def test_an_answer_that_was_lost_doubles_nothing(tmp_path: Path, server: ServerInside) -> None:
    """The server made the run, the client heard 503 and asks again."""
    folder = finished_study(tmp_path, "lost")
    with Tracker(tmp_path, small_study.spec(study="lost")) as tracker:
        tracker.sync([])
        for launch in LAUNCHES:
            server.lose = "/runs/create" if launch.trial.number == 3 else "/runs/log-batch"
            tracker.record(launch)
            assert server.lose is None
        server.lose = None
        assert children(server.url, "lost", {"FINISHED", "FAILED", "RUNNING"}).count("3") == 2
        tracker.finish(small_study.recommendation(), folder)
    assert children(server.url, "lost") == EVERY_LAUNCH


def test_two_people_s_studies_of_one_name_stay_apart(tmp_path: Path, server: ServerInside) -> None:
    for person, launches in (("one", LAUNCHES[:3]), ("two", LAUNCHES[3:])):
        with Tracker(tmp_path / person, small_study.spec(study="same")) as tracker:
            tracker.sync(launches)
    with Tracker(tmp_path / "one", small_study.spec(study="same")) as tracker:
        tracker.sync(LAUNCHES[:3])
    from mlflow import MlflowClient

    client = MlflowClient(server.url)
    (experiment,) = client.search_experiments(
        filter_string=f"name = '{experiment_name(small_study.spec())}'"
    )
    found = client.search_runs([experiment.experiment_id], "tags.study = 'same'")
    kinds = sorted((run.data.tags["kind"], run.data.tags.get("number", "")) for run in found)
    assert kinds == [*(("launch", number) for number in EVERY_LAUNCH), ("study", ""), ("study", "")]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            "401 Unauthorized",
            "cannot be used (HTTP 401; set MLFLOW_TRACKING_TOKEN, or _USERNAME and _PASSWORD)",
        ),
        ("502 Bad Gateway", "cannot be used (HTTP 502)"),
    ],
)
def test_a_server_that_says_no_is_told_in_one_line_without_a_password(
    tmp_path: Path, server: ServerInside, monkeypatch: pytest.MonkeyPatch, status: str, said: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:my-own-password@127.0.0.1:{server.port}")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "my-own-token")
    notes: list[str] = []
    server.status, server.seen = status, []
    with Tracker(tmp_path, small_study.spec(), notes.append) as tracker:
        tracker.sync(LAUNCHES[:1])
        tracker.record(LAUNCHES[1])
        tracker.finish(small_study.recommendation(), tmp_path)
    assert len(notes) == 3
    assert notes[0] == f"runs go to MLflow at {server.url}"
    assert f"MLflow at {server.url} {said}" in notes[1]
    assert not [note for note in notes if "my-own" in note]
    assert ui_command(tmp_path) == server.url
    assert {authorization != "" for _, _, authorization in server.seen} == {True}


@pytest.mark.parametrize("status", ["413 Request Entity Too Large", "500 Internal Server Error"])
def test_a_store_that_takes_no_files_holds_up_no_runs(
    tmp_path: Path, server: ServerInside, status: str
) -> None:
    folder = finished_study(tmp_path, "files" + status[:3])
    (folder / "trials" / "0003").mkdir(parents=True)
    (folder / "trials" / "0003" / "server.log").write_text("long")
    server.refuse = ("/mlflow-artifacts/", status)
    notes: list[str] = []
    with Tracker(tmp_path, small_study.spec(study=folder.name), notes.append) as tracker:
        tracker.sync(LAUNCHES[:3])
        tracker.record(LAUNCHES[3])
        tracker.finish(small_study.recommendation(study=folder.name), folder)
    assert f"(HTTP {status[:3]})" in notes[-1]
    assert len(notes) == 2
    assert children(server.url, folder.name) == EVERY_LAUNCH[:4]
    server.refuse = None
    with Tracker(tmp_path, small_study.spec(study=folder.name)) as tracker:
        assert not tracker.has_everything
        tracker.sync(LAUNCHES[:4])
        tracker.finish(small_study.recommendation(study=folder.name), folder)
        assert tracker.has_everything
    assert artifacts(server.url, folder.name) == {*ARTIFACTS, "exports", "report"}


@pytest.mark.parametrize(
    "uri", ["http://me:my-own#secret@host", "http://me:my-own/secret@host/", "http://my-own@[::1"]
)
def test_a_malformed_address_shows_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    notes: list[str] = []
    with Tracker(tmp_path, small_study.spec(), notes.append) as tracker:
        tracker.sync(LAUNCHES[:1])
    assert len(notes) == 3
    kept = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "own" not in " ".join([*notes, ui_command(tmp_path), kept])
    assert "secret" not in " ".join([*notes, ui_command(tmp_path), kept])


def test_a_server_that_hangs_is_not_waited_for_at_every_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        notes: list[str] = []
        with Tracker(tmp_path, small_study.spec(), notes.append) as tracker:
            tracker.sync([])
            for launch in LAUNCHES:
                tracker.record(launch)
        assert "cannot be used (no answer in time)" in notes[1]
        silent.settimeout(5)
        silent.accept()[0].close()
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()


def not_a_database(path: Path) -> None:
    path.write_bytes(b"SQLite format 3" + b"x" * 5000)


def of_another_mlflow(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("update alembic_version set version_num = 'fedcba987654'")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (not_a_database, "(file is not a database)"),
        (of_another_mlflow, "another version of MLflow made it: schema fedcba987654, this one has"),
        (a_folder, "(unable to open database file)"),
    ],
)
def test_a_database_that_cannot_be_used_is_one_message_and_is_filled_once_it_can(
    tmp_path: Path, database: Path, spoil: Callable[[Path], None], said: str
) -> None:
    folder = finished_study(tmp_path, "small")
    path, notes = tmp_path / "mlflow.db", []
    shutil.copy(database, path)
    spoil(path)
    tracker = Tracker(tmp_path, small_study.spec(), notes.append)
    tracker.sync([])
    for launch in LAUNCHES:
        tracker.record(launch)
    assert notes[0] == f"runs go to MLflow at {path}"
    assert len(notes) == 2
    assert said in notes[1]
    if path.is_dir():
        path.rmdir()
    shutil.copy(database, path)
    tracker.finish(small_study.recommendation(), folder)
    tracker.close()
    assert notes[2:] == [f"MLflow at {path} answers again; the study was sent"]
    assert children(f"sqlite:///{path}", "small") == EVERY_LAUNCH


@pytest.mark.parametrize("uri", ["http://127.0.0.1:1", "nonsense://there", "sqlite:///other.db"])
def test_other_addresses_as_mlflow_takes_them(
    tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    shutil.copy(database, tmp_path / "other.db")
    notes: list[str] = []
    with Tracker(tmp_path / "home", small_study.spec(), notes.append) as tracker:
        tracker.sync(LAUNCHES[:1])
    works = uri.startswith("sqlite")
    assert len(notes) == (1 if works else 3)
    assert not os.path.exists("home/mlflow.db")
    if works:
        assert children(uri, "small") == ["0"]


def test_a_reason_is_the_cause_and_not_where_it_was_met() -> None:
    said = "(raised as a result of Query-invoked autoflush; consider using a session.no_autoflush block)\n"
    error = sqlite3.OperationalError(
        said + "(sqlite3.OperationalError) attempt to write a readonly database\n[SQL: …]"
    )
    assert reason(error, "sqlite:///mlflow.db") == "attempt to write a readonly database"


def test_a_spoilt_state_is_begun_anew_and_no_run_is_made_twice(
    tmp_path: Path, database: Path
) -> None:
    shutil.copy(database, tmp_path / "mlflow.db")
    folder = finished_study(tmp_path, "small")
    for content in (None, b"\xff{", b""):
        if content is not None:
            (folder / "mlflow.json").write_bytes(content)
        with Tracker(tmp_path, small_study.spec()) as tracker:
            tracker.sync(LAUNCHES[:3])
    assert children(f"sqlite:///{tmp_path}/mlflow.db", "small") == EVERY_LAUNCH[:3]
