"""A way to MLflow: a home's database is made whole or not at all, a server is asked first whether it is there."""

from __future__ import annotations

import logging
import os
import platform
import sqlite3
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from autotune.study.tracking_uri import database_file

if TYPE_CHECKING:
    from mlflow import MlflowClient

PROBE_S = 5
"""How long a server may take to say that it is there."""

_LOCKED_S = 5

_HTTP = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
"""MLflow 3.17 waits 120 s for an answer and tries eight times, four minutes in all: a study would stand still. What is
not sent is sent later; one more try, at once, is for a connection that was closed while a server was measured."""


def connect(uri: str) -> MlflowClient:
    """Open MLflow; a database is made first where there is none. Costs seconds, for the import too."""
    _silence()
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
            with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=_LOCKED_S)) as database:
                database.execute("begin immediate")
                database.execute("rollback")
        elif uri.lower().startswith("http"):
            _probe(uri)
        return MlflowClient(uri)


def disconnect(client: MlflowClient) -> None:
    """Close a client's connections to a database, for which it has no public way."""
    dispose = getattr(client._tracking_client.store, "_dispose_engine", None)
    if dispose is not None:
        dispose()


def _probe(uri: str) -> None:
    """Raise MLflow's exception unless something answers there, with the credentials that MLflow itself would use."""
    from mlflow.exceptions import MlflowException
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    wait_s = min(PROBE_S, int(os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"]))
    request: Callable[..., Any] = http_request
    credentials_of: Callable[[str], Any] = get_default_host_creds
    reply = request(credentials_of(uri), "/health", "GET", max_retries=0, timeout=wait_s, raise_on_status=False)
    # Behind a gateway there may be no such page; that is for the first real request to find out.
    if reply.status_code >= 500:
        raise MlflowException(f"HTTP {reply.status_code}")


def _create(path: Path) -> None:
    """Make the database beside its place and then move it there: a kill leaves all of it or nothing.

    MLflow builds its tables in a hundred steps and cannot go on with a database that lacks the last ones.
    """
    from mlflow import MlflowClient

    # With the machine's name, as several may share the home.
    stem = f".{path.name}.{platform.node()}."
    draft = path.with_name(f"{stem}{os.getpid()}.tmp")
    # Drafts of processes that are gone, and an earlier one of this process's number.
    for other in path.parent.glob(f"{stem}*"):
        pid = other.name.removeprefix(stem).partition(".")[0]
        if pid == str(os.getpid()) or not _lives(pid):
            other.unlink(missing_ok=True)
    disconnect(MlflowClient(f"sqlite:///{draft}"))
    try:
        os.link(draft, path)
    except FileExistsError:  # another tuner on the same home was faster
        pass
    except OSError:  # a file system without hard links
        draft.replace(path)
    draft.unlink(missing_ok=True)


def _lives(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _silence() -> None:
    """Before mlflow is imported: no usage statistics, no chatter on stdout or stderr, no long waits."""
    for name, value in _HTTP.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # MLflow logs an exception that it also raises; what is raised is told by us.
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    for name in ("mlflow", "alembic", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
