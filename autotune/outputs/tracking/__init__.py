"""MLflow: one experiment per model and hardware, a parent run per study, a child run per launch.

The only importer of mlflow, and it imports it late: the import and the creation of the database
take seconds. What MLflow prints is silenced; what it would send home is switched off.

A study is never lost to MLflow: its rows are the truth (``results.jsonl``). After a failure nothing
more is sent until the end of the study, when all of it is sent once more; ``autotune resume``
repeats that.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, Field

from autotune.base import Notify, StringDict, silent, write_atomically
from autotune.tuner.study.home import (
    Home,
    database_file,
    is_server,
    runs_address,
    tracking_uri,
    without_credentials,
)
from autotune.tuner.study.recommendation import Recommendation
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch, Role, State

from .runs import StudyRuns, is_refusal, is_trouble, reason

_STATE = "mlflow.json"


class SyncState(BaseModel):
    """Content of ``mlflow.json`` in a study's folder: the study's id in MLflow, and the places with
    a full copy.

    Two people may give their studies on one server one name: the id tells them apart, and is on
    disk before the first run is made. An unreadable file is begun anew with the id that it had, or
    every run would be sent twice. `pages` is place to the address of the launches within MLflow's
    pages there.
    """

    study_id: str = Field(min_length=1)
    sent_to: list[str]
    pages: StringDict = {}

    @classmethod
    def load(cls, folder: Path) -> SyncState:
        """Load the state of a study's folder; a missing folder is created."""
        try:
            return cls.model_validate_json((folder / _STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            folder.mkdir(parents=True, exist_ok=True)
            # The id comes from the question and when that was written, to the nanosecond.
            question = folder / "study.yaml"
            study_id = uuid.uuid4()
            with suppress(OSError):
                content = question.read_text(encoding="utf-8", errors="replace")
                begun = f"{question.stat().st_mtime_ns} {content}"
                study_id = uuid.uuid5(uuid.NAMESPACE_OID, begun)
            state = cls(study_id=study_id.hex, sent_to=[])
            state.save(folder)
            return state

    def save(self, folder: Path) -> None:
        write_atomically(folder / _STATE, self.model_dump_json(indent=2) + "\n")


def view_address(home: Path, study: str) -> str:
    """Return a browser's address of a finished study's launches, best first; empty if MLflow has
    none."""
    uri = tracking_uri(home)
    place = without_credentials(uri)
    page = SyncState.load(home / "studies" / study).pages.get(place)
    base = place.rstrip("/") if is_server(uri) else "http://127.0.0.1:5000"
    return f"{base}/{page}" if page and base.startswith("http") else ""


class Tracker:
    """Send one study to MLflow, to the home's database or to ``MLFLOW_TRACKING_URI``; for one
    thread.

    No method raises because MLflow is down, refuses or has a broken database: the user is told
    once, and the study is sent at its end.
    """

    def __init__(self, home: Path, spec: StudySpec, note: Notify = silent) -> None:
        self.home = home.resolve()
        self._spec = spec
        self._note = note
        self._uri = tracking_uri(self.home)
        self._place = without_credentials(self._uri)
        self._runs_at = runs_address(home)
        self._folder = self.home / "studies" / spec.study
        self._sync_state = SyncState.load(self._folder)
        self._runs = StudyRuns(self._uri, self.home, spec, self._sync_state.study_id)
        self._launches: dict[int, Launch] = {}
        self._outcome: tuple[Recommendation, Path] | None = None
        self._down = self._finished = False
        self._said: set[str] = set()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def has_everything(self) -> bool:
        """Return whether MLflow has the whole finished study; False for a deleted database."""
        file = database_file(self._uri)
        return self._place in self._sync_state.sent_to and (file is None or file.exists())

    def sync(self, launches: Iterable[Launch]) -> None:
        """Synchronise the child runs with these launches: add, complete, and delete runs without a
        launch."""
        self._note(f"runs go to MLflow at {self._runs_at}")
        self._mark_sent(False)
        self._launches.clear()
        self._runs.disconnect()
        self.record(*launches)

    def record(self, *launches: Launch) -> None:
        """Write launches' child runs and the study's progress; no effect while MLflow is down."""
        self._launches |= {launch.number: launch for launch in launches}
        self._launches = dict(sorted(self._launches.items()))
        if not self._down:
            self._send()

    def finish(self, recommendation: Recommendation, folder: Path) -> None:
        """Write the outcome to the parent run: figures, verdict, and the files of the study's
        folder.

        Reads MLflow's runs anew, so that missing ones are added and duplicates deleted, also after
        an outage.
        """
        was_down = self._down
        self._down = False
        self._outcome = (recommendation, folder)
        self._runs.disconnect()
        self._send()
        if was_down and not self._down:
            self._note(f"MLflow at {self._place} answers again; the study was sent")

    def _send(self) -> None:
        runs = self._runs
        launches = list(self._launches.values())
        try:
            runs.keep_only(self._launches)
            refused = self._record(launches)
            # Up to the first launch that is not finished yet; in the end all.
            runs.show_progress(
                launch
                for place, launch in enumerate(launches)
                if launch.number == place or self._outcome
            )
            if self._outcome:
                runs.finish(*self._outcome, launches)
                self._finished = True
                self._sync_state.pages[self._place] = runs.page
                self._mark_sent(not (refused or runs.without_files))
        except Exception as error:
            if not is_trouble(error):
                raise
            runs.disconnect()
            self._down = True
            self._say_once(
                f"MLflow at {self._place} cannot be used ({reason(error, self._uri)}); the study "
                "is in results.jsonl and is sent at its end"
            )
        if runs.without_files:
            self._say_once(
                f"MLflow at {self._place} does not accept logs or reports of this study "
                f"({runs.without_files})"
            )

    def _record(self, launches: Sequence[Launch]) -> bool:
        """Write the launches' child runs; return whether MLflow refused one, which must not hold up
        the others."""
        complete = (one for one in launches if one.result.state is State.COMPLETE)
        baseline = next((one for one in complete if one.role is Role.BASELINE), None)
        refused = False
        for launch in launches:
            try:
                self._runs.record(launch, baseline)
            except Exception as error:
                if not is_refusal(error):
                    raise
                refused = True
                why = reason(error, self._uri)
                self._say_once(f"MLflow does not take launch {launch.number}: {why}")
        return refused

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._note(text)

    def _mark_sent(self, whole: bool) -> None:
        """Store whether MLflow has the whole finished study."""
        others = [place for place in self._sync_state.sent_to if place != self._place]
        self._sync_state.sent_to = [*others, self._place] if whole else others
        self._sync_state.save(self._folder)

    def close(self) -> None:
        """Close the connection; an unfinished study is shown as killed until it is resumed."""
        if self._runs.connected and not self._finished:
            try:
                self._runs.kill()
            except Exception as error:
                if not is_trouble(error):
                    raise
        self._runs.disconnect()
        if self._down:
            self._note(
                f"MLflow at {self._place} lacks runs of this study; send them with:\n"
                f"{Home(self.home).resume_command(self._spec.study)}"
            )
