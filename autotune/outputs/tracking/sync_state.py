"""``mlflow.json`` in a study's folder: who the study is to MLflow, and where all of it has arrived."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from autotune.study.home import write_atomically

FILE = "mlflow.json"


class SyncState:
    """What a study remembers of MLflow.

    A server is shared: two people may give their studies one name. The id tells them apart, and it is on disk before
    the first run is made. An unreadable file is begun anew.

    Args:
        folder: the study's; made where it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.study_id, self._sent_to = self._read()
        if not self.study_id:
            self.study_id = uuid.uuid4().hex
            folder.mkdir(parents=True, exist_ok=True)
            self._write()

    def is_sent_to(self, place: str) -> bool:
        """Whether the finished study is there with everything, as far as was seen from here."""
        return place in self._sent_to

    def sent(self, place: str, whole: bool) -> None:
        """Remember whether a place has the finished study."""
        others = [one for one in self._sent_to if one != place]
        wanted = [*others, place] if whole else others
        if wanted != self._sent_to:
            self._sent_to = wanted
            self._write()

    def _read(self) -> tuple[str, list[str]]:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            return str(found["study_id"]), [str(place) for place in found["sent_to"]]
        except (OSError, ValueError, KeyError, TypeError):
            return "", []

    def _write(self) -> None:
        content = {"study_id": self.study_id, "sent_to": self._sent_to}
        write_atomically(self._path, json.dumps(content, indent=2) + "\n")
