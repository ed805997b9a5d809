"""One study's runs in MLflow: a parent run, and a child run per launch. The only importer of
mlflow's client.

Everything here may be repeated: a run is found again by its tags, and a second one of a launch is
deleted. `is_trouble` knows the exceptions of an MLflow that cannot be used, and `reason` puts them
into words.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import re
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from autotune.base import JsonObject, StringMap, beside, redact, sync_folder
from autotune.engines.entry import parse_yaml
from autotune.servers.command import server_logs
from autotune.servers.watchdog import read_ends
from autotune.tuner.study.home import credentials, database_file, is_server, without_credentials
from autotune.tuner.study.recommendation import Recommendation
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch, State

from ..export import EXPORTS
from ..report.render import PICTURES
from . import content

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run


_KNOWN = parse_yaml(beside(__file__, "mlflow.yaml"))
_SCHEMA = re.compile(r"found version (\w+), but expected (\w+)")
_AUTOFLUSH = "(raised as a result of Query-invoked autoflush"
"""SQLAlchemy's first line if the cause is in the second."""
_STATUS = re.compile(r"(?:too many|error code|HTTP) (\d{3})|(\d{3}) (?:Client|Server) Error")
_DELETED = re.compile(r"must be in the '?active'? state")


def is_trouble(error: Exception) -> bool:
    """Return whether an exception comes from MLflow, its database or the network."""
    roots = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, OSError | sqlite3.Error | ImportError) or not roots.isdisjoint(
        _KNOWN["packages"]
    )


def is_refusal(error: Exception) -> bool:
    """Return whether MLflow works but refuses the data; a deleted run is created again."""
    return getattr(error, "error_code", "") == "INVALID_PARAMETER_VALUE" and not is_deleted(error)


def is_deleted(error: Exception) -> bool:
    """Return whether the run or the experiment was deleted."""
    return _DELETED.search(str(error)) is not None


def reason(error: Exception, uri: str) -> str:
    """Describe an exception in a few words, without a secret."""
    text = str(error)
    if schema := _SCHEMA.search(text):
        return (
            f"another version of MLflow made it: schema {schema[1]}, this one has {schema[2]}; "
            f"copy it, then `mlflow db upgrade sqlite:///{without_credentials(uri)}`, or use the "
            "MLflow that made it"
        )
    # One status: that text may go on with a page of HTML, or with our own request's timeout.
    if found := _STATUS.search(text):
        status = found[1] or found[2]
        return f"HTTP {status}{_KNOWN['advice'].get(status, '')}"
    for pattern, plain in _KNOWN["plain"].items():
        if re.search(pattern, text, re.IGNORECASE):
            return str(plain)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    names = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD")
    secrets = (credentials(uri), *(os.environ.get(name) for name in names))
    safe = redact.text(text, [secret for secret in secrets if secret])
    lines = [line for line in safe.strip().splitlines() if not line.startswith(_AUTOFLUSH)]
    return re.sub(r"^\(\w+\.\w+\) ", "", lines[0])[:200] if lines else type(error).__name__


ARTIFACTS = (
    "report.md",
    "report.html",
    "serve.sh",
    "recommendation.json",
    "results.jsonl",
    "study.yaml",
)
"""Files of a study's folder that the parent run stores, if they exist."""

_PARENT = "mlflow.parentRunId"
_NOTE = "mlflow.note.content"
_LOG_END_BYTES = (
    4 * 2**20
)  # Bytes sent from each end of a longer log; MLflow's pages show a file as a whole
_BATCH = 100  # MLflow takes 100 params and 1000 metrics in one call
_MOST = 50_000  # runs that MLflow finds at a time


class StudyRuns:
    """A study's runs in MLflow; read values are cached until `disconnect`.

    Without a server ``artifacts/`` in the home folder takes the files. Every method raises what
    `is_trouble` knows when MLflow cannot be used; what was written until then stays valid.
    """

    def __init__(self, uri: str, home: Path, spec: StudySpec, study_id: str) -> None:
        self._uri = uri
        self._home = home
        self._spec = spec
        self._study_id = study_id
        self._folder = home / "studies" / spec.study
        self.without_files = ""
        """Reason why a file could not be stored; empty if all were stored."""
        self._shown = 0
        """Number of the first launch not yet written by `show_progress`."""

    @property
    def connected(self) -> bool:
        return "_parent" in self.__dict__

    @property
    def page(self) -> str:
        """Return the address of the launches within MLflow's pages, the best one first."""
        return content.view_of(self._spec, self._experiment)[1]

    def keep_only(self, numbers: Iterable[int]) -> None:
        """Delete the child runs of other numbers: they were tracked but not stored, and are made
        again."""
        for number in set(self._children) - set(numbers):
            self._client.delete_run(self._children.pop(number).info.run_id)

    def record(self, launch: Launch, baseline: Launch | None) -> None:
        """Write a launch's child run with its gain over a launch of the baseline, or complete a
        half-written one."""
        child = self._children.get(launch.number)
        tags = content.launch_tags(self._spec, launch)
        if child and any(
            child.data.tags.get(name) != tags[name] for name in ("fingerprint", "started_at")
        ):
            # Replace that of an earlier launch of the same number.
            self._client.delete_run(child.info.run_id)
            child = None
        if child and child.info.status != "RUNNING":
            return
        trial = launch.trial
        result = launch.result
        start, end = content.span_ms(result.began_s, result.seconds)
        if not child:
            tags |= {_PARENT: self._parent.info.run_id, "study_id": self._study_id}
            name = f"{trial.number:04d} {trial.role.value} {trial.configuration.engine}"
            child = self._client.create_run(
                self._experiment, start_time=start, tags=tags, run_name=name
            )
        run_id = child.info.run_id
        knobs = {"engine": trial.configuration.engine, **trial.configuration.knobs}
        points = content.launch_points(self._spec, launch, baseline, child.info.start_time)
        self._log_batch(run_id, points, knobs)
        secrets = redact.secrets_in(trial.command.argv, trial.command.env)
        for name, log in server_logs(self._folder / "trials" / f"{trial.number:04d}").items():
            text = read_ends(log, _LOG_END_BYTES).decode(errors="replace")
            self._log_text(run_id, redact.text(text, secrets), name)
        status = "FINISHED" if result.state is State.COMPLETE else "FAILED"
        self._client.set_terminated(run_id, status, end_time=end)
        self._children[trial.number] = self._client.get_run(run_id)
        self._tag(self._parent, {"evidence": result.label.lower()})

    def show_progress(self, launches: Iterable[Launch]) -> None:
        """Write the missing objectives of launches and the best so far to the parent run.

        The launches are by number, without a gap: one that comes later would change the best until
        then.
        """
        points = content.progress_points(self._spec, launches)
        new = [point for point in points if point.step >= self._shown]
        try:
            self._log_batch(self._parent.info.run_id, new, {})
        except Exception as error:
            if not is_deleted(error):  # one that is, is made again in the end
                raise
        self._shown = max([self._shown, *(point.step + 1 for point in new)])

    def finish(
        self, recommendation: Recommendation, folder: Path, launches: Iterable[Launch]
    ) -> None:
        """Write the outcome to the parent run: figures, verdict, nodes, and the files of the
        study's folder."""
        nodes = dict.fromkeys(launch.result.node for launch in launches if launch.result.node)
        run_id = self._parent.info.run_id
        now_ms = int(time.time() * 1000)
        logged = self._client.get_run(run_id).data.metrics
        # Only what differs, so that finishing twice leaves one point.
        points = [
            content.Point(name, value, 0, now_ms)
            for name, value in content.outcome_metrics(self._spec, recommendation).items()
            if logged.get(content.metric_name(name)) != value
        ]
        points += content.both_curves(recommendation, self._parent.info.start_time)
        self._log_batch(run_id, points, {})
        tags = {**content.outcome_tags(recommendation), "nodes": ", ".join(nodes)}
        verdicts = {}
        if recommendation.baseline:
            verdicts[recommendation.baseline.fingerprint] = "baseline"
        if recommendation.recommended:
            fingerprint = recommendation.recommended.fingerprint
            verdicts[fingerprint] = recommendation.qualified_verdict
        for child in self._children.values():
            if (verdict := verdicts.get(child.data.tags.get("fingerprint", ""))) is not None:
                self._tag(child, {"verdict": verdict})
        files = {
            name: redact.text(path.read_text("utf-8"))
            for name in ARTIFACTS
            if (path := folder / name).is_file()
        }
        if "report.md" in files:
            tags[_NOTE] = content.note(files["report.md"], run_id)
        self._tag(self._parent, tags)
        for path in sorted([*(folder / EXPORTS).glob("*"), *(folder / PICTURES).glob("*")]):
            if path.is_file():
                files[f"{path.parent.name}/{path.name}"] = path.read_text(encoding="utf-8")
        for name, text in files.items():
            self._log_text(run_id, text, name)
        self._client.set_terminated(run_id, "FINISHED")

    def kill(self) -> None:
        self._client.set_terminated(self._parent.info.run_id, "KILLED")

    def disconnect(self) -> None:
        """Close connections and clear the cache."""
        self._shown = 0
        self.without_files = ""
        client = self.__dict__.pop("_client", None)
        for name in ("_experiment", "_parent", "_children"):
            self.__dict__.pop(name, None)
        if client:
            disconnect(client)

    @cached_property
    def _client(self) -> MlflowClient:
        return connect(self._uri)

    @cached_property
    def _experiment(self) -> str:
        """Return the experiment's id: that of model and hardware, or of another one that already
        holds the study."""
        name = content.experiment_name(self._spec)
        found = self._client.get_experiment_by_name(name)
        if not found or not self._search("study", [found.experiment_id]):
            # A person may have renamed the experiment since.
            others = [one.experiment_id for one in self._client.search_experiments()]
            if runs := self._search("study", others) if others else []:
                return str(runs[0].info.experiment_id)
        found = found or self._create_experiment(name)
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _create_experiment(self, name: str) -> Experiment:
        from mlflow.exceptions import MlflowException

        folder = self._home / "artifacts" / re.sub(r"[^\w.-]+", "-", name)
        place = None if is_server(self._uri) else folder.as_uri()
        tags = {"mlflow.experimentKind": "custom_model_development"}
        try:
            created = self._client.create_experiment(name, artifact_location=place, tags=tags)
            return self._client.get_experiment(created)
        except MlflowException:
            # Another tuner may have been faster.
            found = self._client.get_experiment_by_name(name)
            if not found:
                raise
            return found

    @cached_property
    def _parent(self) -> Run:
        """Return the study's run, created if missing; a second one is deleted."""
        from mlflow.entities import Dataset, DatasetInput

        runs = self._search("study", [self._experiment])
        for twice in runs[1:]:
            self._client.delete_run(twice.info.run_id)
        if runs:
            run = runs[0]
            self._client.update_run(run.info.run_id, status="RUNNING")
            self._tag(run, {"study_id": self._study_id})
        else:
            # A view of the goal and a description, unless a person or a study gave the experiment
            # some.
            has = self._client.get_experiment(self._experiment).tags
            view = content.experiment_tags(self._spec, self._experiment, int(time.time() * 1000))
            for name in view.keys() - has.keys():
                self._client.set_experiment_tag(self._experiment, name, view[name])
            tags = {**content.study_tags(self._spec), "study_id": self._study_id}
            run = self._client.create_run(self._experiment, run_name=self._spec.study, tags=tags)
        if not run.data.params:  # new, or cut off before it had them
            # The column *Dataset*: the telling one of those that a list of runs begins with.
            inputs = []
            for name in self._spec.workloads:
                digest = hashlib.sha256(name.encode()).hexdigest()[:8]
                dataset = Dataset(name[:500], digest, "autotune workload", name)
                inputs.append(DatasetInput(dataset, []))
            self._client.log_inputs(run.info.run_id, inputs)
            self._log_batch(run.info.run_id, [], content.study_params(self._spec))
        return run

    @cached_property
    def _children(self) -> dict[int, Run]:
        """Return launch number to child run; a duplicate run (two tuners, a repeated request) is
        deleted."""
        children = {}
        parent = self._parent.info.run_id
        for run in self._search("launch", [self._experiment]):
            text = run.data.tags.get("number", "")
            # No launch has -1: a person changed the tag.
            number = int(text) if text.isdecimal() else -1
            if number in children:
                self._client.delete_run(run.info.run_id)
                continue
            children[number] = run
            self._tag(run, {_PARENT: parent, "study_id": self._study_id})
        return children

    def _search(self, kind: str, experiments: Sequence[str]) -> list[Run]:
        """Return this study's runs of a kind, oldest first."""
        condition = f"tags.study = '{self._spec.study}' and tags.kind = '{kind}'"
        found = self._client.search_runs(
            list(experiments), condition, max_results=_MOST, order_by=["start_time ASC"]
        )
        return [run for run in found if run.data.tags.get("study_id") == self._study_id]

    def _log_text(self, run_id: str, text: str, name: str) -> None:
        """Store a file, or skip files until `disconnect`: runs must not wait for a store that
        refuses files."""
        if self.without_files:
            return
        try:
            self._client.log_text(run_id, text, name)
        except Exception as error:
            if not is_trouble(error):
                raise
            self.without_files = reason(error, self._uri)

    def _tag(self, run: Run, tags: StringMap) -> None:
        for name, value in tags.items():
            if run.data.tags.get(name) != value:
                self._client.set_tag(run.info.run_id, name, value)
                run.data.tags[name] = value

    def _log_batch(self, run_id: str, points: Iterable[content.Point], params: JsonObject) -> None:
        """Write metrics and params; MLflow refuses duplicate names (after replacing characters):
        the last is stored."""
        from mlflow.entities import Metric, Param

        metrics = {}
        for point in points:
            name = content.metric_name(point.name)
            metrics[name, point.step] = Metric(name, point.value, point.at_ms, point.step)
        texts = {}
        for name, value in params.items():
            text = "engine decides" if value is None else redact.text(str(value))
            texts[content.metric_name(name)] = text[: content.TEXT_LENGTH]
        rows = list(metrics.values())
        values = [Param(*item) for item in texts.items()]
        for start in range(0, max(len(values), len(rows)), _BATCH):
            part = slice(start, start + _BATCH)
            self._client.log_batch(run_id, metrics=rows[part], params=values[part])


PROBE_S = 5
"""Seconds to wait for a server's first answer."""

_LOCKED_S = 5


def connect(uri: str) -> MlflowClient:
    """Open MLflow; a missing database is created first. Takes seconds, also for the import."""
    # Before mlflow is imported, which reads them.
    for name, value in _KNOWN["settings"].items():
        os.environ.setdefault(name, value)
    for name in ("mlflow", "alembic", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # MLflow 3.17 on SQLAlchemy 2.1 warns of deprecations while it sets up; none is ours to mend.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        path = database_file(uri)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                _create(path)
            # MLflow would try for 100 s to open a file that it may not write.
            file = f"file:{quote(str(path))}?mode=rw"
            with closing(sqlite3.connect(file, uri=True, timeout=_LOCKED_S)) as database:
                database.execute("begin immediate")
                database.execute("rollback")
        elif uri.lower().startswith("http"):
            _probe(uri)
        return MlflowClient(uri)


def disconnect(client: MlflowClient) -> None:
    """Close a client's connections to a database, for which it has no public method."""
    dispose = getattr(client._tracking_client.store, "_dispose_engine", None)
    if dispose is not None:
        dispose()


def _probe(uri: str) -> None:
    """Raise MLflow's exception unless a server answers, with the credentials that MLflow would
    use."""
    from mlflow.exceptions import MlflowException
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    wait_s = min(PROBE_S, int(os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"]))
    request: Callable[..., Any] = http_request
    credentials_of: Callable[[str], Any] = get_default_host_creds
    reply = request(
        credentials_of(uri), "/health", "GET", max_retries=0, timeout=wait_s, raise_on_status=False
    )
    # Behind a gateway there may be no such page; that is for the first real request to find out.
    if reply.status_code >= 500:
        raise MlflowException(f"HTTP {reply.status_code}")


def _create(path: Path) -> None:
    """Create the database next to its place and then move it there: a kill leaves all of it or
    nothing.

    MLflow builds its tables in a hundred steps and cannot go on with a database that lacks the last
    ones.
    """
    from mlflow import MlflowClient

    # With the machine's name, as several may share the home.
    stem = f".{path.name}.{platform.node()}."
    draft = path.with_name(f"{stem}{os.getpid()}.tmp")
    # Drafts of processes that are gone, and an earlier one of this process's number.
    for other in path.parent.glob(f"{stem}*"):
        pid, _, kind = other.name.removeprefix(stem).partition(".")
        ours = pid.isdecimal() and kind.startswith("tmp")
        if ours and (pid == str(os.getpid()) or not Path("/proc", pid).exists()):
            other.unlink(missing_ok=True)
    disconnect(MlflowClient(f"sqlite:///{draft}"))
    try:
        os.link(draft, path)
    except FileExistsError:  # another tuner on the same home was faster
        pass
    except OSError:  # a file system without hard links
        if not path.exists():
            draft.replace(path)
    draft.unlink(missing_ok=True)
    sync_folder(path.parent)
