"""MLflow: one experiment per model and hardware, a parent run per study, a child run per launch.

The only importer of mlflow, and it imports it late: the import and the creation of the database take
seconds. What MLflow prints is silenced; what it would send home is switched off.

Everything here may be repeated: a launch is found again by its tags, so that a study that was killed and
resumed has each launch once (`Tracker.sync`).
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune import redact
from autotune.recommendation import Recommendation
from autotune.spec import StudySpec
from autotune.tracking import content, database
from autotune.tracking.database import database_uri
from autotune.trial import Launch, State

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, Run

ARTIFACTS = ("report.md", "report.html", "serve.sh", "recommendation.json", "results.jsonl", "study.yaml")
"""Files of a study's folder that the parent run carries, where they exist."""

_PARENT = "mlflow.parentRunId"
_BATCH = 100  # MLflow takes 100 params or tags in one call


def ui_command(home: Path) -> str:
    """What a person types to look at a home's studies; it listens on loopback."""
    return f"mlflow ui --backend-store-uri {shlex.quote(database_uri(home))} --host 127.0.0.1"


def experiment_name(spec: StudySpec) -> str:
    """One experiment per model and hardware, e.g. ``deepseek-ai/DeepSeek-V3.2 on 8xh200``."""
    return f"{spec.model.id} on {spec.gpus}x{spec.hardware.name}"


class Tracker:
    """Writes one study to MLflow.

    Args:
        home: the home folder; gets ``mlflow.db`` and ``artifacts/``.
        spec: the study.

    Raises ``mlflow.exceptions.MlflowException`` or ``sqlalchemy.exc.SQLAlchemyError`` from every method
    when the database cannot be used; what was written until then stays valid.
    """

    def __init__(self, home: Path, spec: StudySpec) -> None:
        self.home = home.resolve()
        self._spec = spec
        self._folder = self.home / "studies" / spec.study
        self._finished = False

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ui_command(self) -> str:
        """What a person types to look at the study."""
        return ui_command(self.home)

    def record(self, launch: Launch) -> None:
        """Write a launch's child run; a launch that is already there is left, a half-written one completed."""
        child = self._children.get(launch.trial.number)
        if child is not None and not _is_of(child, launch):
            self._client.delete_run(child.info.run_id)
            child = None
        if child is not None and child.info.status != "RUNNING":
            return
        child = child or self._create_child(launch)
        self._children[launch.trial.number] = self._complete_child(child, launch)

    def sync(self, launches: Iterable[Launch]) -> None:
        """Make the child runs exactly these launches: add, complete, and delete what belongs to no launch."""
        known = list(launches)
        numbers = {launch.trial.number for launch in known}
        for number in set(self._children) - numbers:
            self._client.delete_run(self._children.pop(number).info.run_id)
        for launch in known:
            self.record(launch)

    def finish(self, recommendation: Recommendation, folder: Path) -> None:
        """Write the outcome to the parent run: figures, verdict, and the files of the study's folder."""
        run_id = self._parent.info.run_id
        self._log_changed(run_id, content.outcome_metrics(recommendation))
        for name, value in content.outcome_tags(recommendation).items():
            self._client.set_tag(run_id, name, value)
        for name in ARTIFACTS:
            if (folder / name).is_file():
                self._client.log_text(run_id, redact.text((folder / name).read_text(encoding="utf-8")), name)
        self._client.set_terminated(run_id, "FINISHED")
        self._finished = True

    def close(self) -> None:
        """Close the database; a study that was not finished is shown as killed until it is resumed."""
        if "_client" not in self.__dict__:
            return
        if "_parent" in self.__dict__ and not self._finished:
            self._client.set_terminated(self._parent.info.run_id, "KILLED")
        database.disconnect(self._client)
        for name in ("_client", "_experiment", "_parent", "_children"):
            self.__dict__.pop(name, None)

    @cached_property
    def _client(self) -> MlflowClient:
        return database.connect(self.home)

    @cached_property
    def _experiment(self) -> str:
        """The experiment's id."""
        from mlflow.exceptions import MlflowException

        name = experiment_name(self._spec)
        found = self._client.get_experiment_by_name(name)
        if found is None:
            place = (self.home / "artifacts" / re.sub(r"[^\w.-]+", "-", name)).as_uri()
            try:
                tags = {"mlflow.experimentKind": "custom_model_development"}
                return str(self._client.create_experiment(name, artifact_location=place, tags=tags))
            except MlflowException:  # another tuner on the same home was faster
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    @cached_property
    def _parent(self) -> Run:
        runs = self._search(f"tags.study = '{self._spec.study}' and tags.kind = 'study'")
        if runs:
            self._client.update_run(runs[0].info.run_id, status="RUNNING")
            return runs[0]
        tags = {
            "study": self._spec.study,
            "kind": "study",
            "mlflow.source.name": "autotune",
            "workloads": ", ".join(self._spec.workloads),
        }
        run = self._client.create_run(self._experiment, run_name=self._spec.study, tags=tags)
        self._log_params(run.info.run_id, content.study_params(self._spec))
        return run

    @cached_property
    def _children(self) -> dict[int, Run]:
        """Launch number to child run. A second run of one number (two tuners) is deleted."""
        children: dict[int, Run] = {}
        for run in self._search(f"tags.`{_PARENT}` = '{self._parent.info.run_id}'"):
            number = int(run.data.tags.get("number", -1))
            if number in children:
                self._client.delete_run(run.info.run_id)
            else:
                children[number] = run
        return children

    def _search(self, condition: str) -> list[Run]:
        runs: list[Run] = []
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment], condition, max_results=1000, order_by=["start_time ASC"], page_token=token
            )
            runs.extend(page)
            token = page.token
            if not token:
                return runs

    def _create_child(self, launch: Launch) -> Run:
        trial = launch.trial
        name = f"{trial.number:04d} {trial.role.value} {trial.configuration.engine}"
        tags = {_PARENT: self._parent.info.run_id, **content.launch_tags(self._spec.study, launch)}
        return self._client.create_run(
            self._experiment, start_time=content.started_ms(launch), tags=tags, run_name=name
        )

    def _complete_child(self, child: Run, launch: Launch) -> Run:
        run_id = child.info.run_id
        knobs = {"engine": launch.trial.configuration.engine, **launch.trial.configuration.knobs}
        # The time stamp is the launch's own, so that writing a metric again does not add a second point.
        self._log_batch(run_id, content.launch_metrics(launch), knobs, child.info.start_time)
        log = self._folder / "trials" / f"{launch.trial.number:04d}" / "server.log"
        if log.is_file():
            secrets = redact.found(launch.trial.command.argv, launch.trial.command.env)
            self._client.log_text(run_id, redact.text(log.read_text(errors="replace"), secrets), "server.log")
        status = "FINISHED" if launch.result.state is State.COMPLETE else "FAILED"
        self._client.set_terminated(run_id, status, end_time=content.ended_ms(launch))
        child.info._status = status
        return child

    def _log_params(self, run_id: str, params: Mapping[str, Any]) -> None:
        self._log_batch(run_id, {}, params, 0)

    def _log_batch(self, run_id: str, metrics: Mapping[str, float], params: Mapping[str, Any], at_ms: int) -> None:
        values = _params(params)
        self._client.log_batch(run_id, metrics=_metrics(metrics, at_ms), params=values[:_BATCH])
        for start in range(_BATCH, len(values), _BATCH):
            self._client.log_batch(run_id, params=values[start : start + _BATCH])

    def _log_changed(self, run_id: str, metrics: Mapping[str, float]) -> None:
        """Log only what differs, so that finishing twice leaves one point."""
        current = self._client.get_run(run_id).data.metrics
        changed = {name: value for name, value in metrics.items() if current.get(content.metric_name(name)) != value}
        if changed:
            self._client.log_batch(run_id, metrics=_metrics(changed, int(time.time() * 1000)))


def _is_of(child: Run, launch: Launch) -> bool:
    """Whether a child run belongs to this very launch, not to an earlier one of the same number."""
    tags = child.data.tags
    mine = (launch.trial.configuration.fingerprint, launch.result.started_at)
    return (tags.get("fingerprint"), tags.get("started_at")) == mine


def _metrics(values: Mapping[str, float], at_ms: int) -> list[Metric]:
    from mlflow.entities import Metric

    return [Metric(name, value, at_ms, 0) for name, value in _named(values).items()]


def _params(values: Mapping[str, Any]) -> list[Param]:
    from mlflow.entities import Param

    return [
        Param(name, "engine decides" if value is None else redact.text(str(value))[: content.TEXT_LENGTH])
        for name, value in _named(values).items()
    ]


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    """MLflow refuses two values under one name, which odd names may become: the last one stays."""
    return {content.metric_name(name): value for name, value in values.items()}


__all__: Sequence[str] = ["ARTIFACTS", "Tracker", "database_uri", "experiment_name", "ui_command"]
