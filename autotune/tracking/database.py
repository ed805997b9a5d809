"""MLflow's database of a home folder: made whole or not at all, opened without a word."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

DATABASE = "mlflow.db"
"""The database's file in the home folder."""


def database_uri(home: Path) -> str:
    """The address of a home's MLflow database."""
    return f"sqlite:///{home.resolve() / DATABASE}"


def connect(home: Path) -> MlflowClient:
    """Open a home's database, made first where there is none; costs seconds, for the import too."""
    _silence()
    home.mkdir(parents=True, exist_ok=True)
    # MLflow 3.17 on SQLAlchemy 2.1 warns of deprecations while it sets up; none is ours to mend.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        if not (home / DATABASE).exists():
            _create(home)
        return MlflowClient(database_uri(home))


def disconnect(client: MlflowClient) -> None:
    """Close a client's connections, for which it has no public way."""
    client._tracking_client.store._dispose_engine()


def _create(home: Path) -> None:
    """Make the database beside its place and then move it there: a kill leaves all of it or nothing.

    MLflow builds its tables in a hundred steps and cannot go on with a database that lacks the last ones.
    """
    from mlflow import MlflowClient

    draft = home / f".{DATABASE}.{os.getpid()}.tmp"
    for name in _left_over(home):
        name.unlink(missing_ok=True)
    disconnect(MlflowClient(f"sqlite:///{draft}"))
    try:
        os.link(draft, home / DATABASE)
    except FileExistsError:  # another tuner on the same home was faster
        pass
    except OSError:  # a file system without hard links
        draft.replace(home / DATABASE)
    draft.unlink(missing_ok=True)


def _left_over(home: Path) -> list[Path]:
    """Drafts of processes that are gone, and an earlier one of this process's number."""
    drafts = [(path, path.name.removeprefix(f".{DATABASE}.").partition(".")[0]) for path in home.glob(f".{DATABASE}.*")]
    return [path for path, pid in drafts if pid == str(os.getpid()) or not _lives(pid)]


def _lives(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _silence() -> None:
    """Before mlflow is imported: no usage statistics, no chatter on stdout or stderr."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
