"""Where MLflow runs go: the home folder's database, or what ``MLFLOW_TRACKING_URI`` names.

Kept apart from `autotune.outputs.tracking`, so that a report can say it without MLflow.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from urllib.parse import unquote

VARIABLE = "MLFLOW_TRACKING_URI"
"""MLflow's own environment variable."""

DATABASE = "mlflow.db"
"""The database's file in the home folder."""

_SERVER = re.compile(r"https?://|databricks\b", re.IGNORECASE)
_SQLITE = "sqlite:///"
# To the last "@": a password may hold signs that it should not, "/", "?" or "#", and is a secret all the same.
_CREDENTIALS = re.compile(r"([\w+.-]*://)([^/?#@]*:.*|[^/?#]*)@", re.DOTALL)


def database_uri(home: Path) -> str:
    """The address of a home's own MLflow database."""
    return f"{_SQLITE}{home.resolve() / DATABASE}"


def tracking_uri(home: Path) -> str:
    """Return the address to which the runs of this home's studies go now; it may hold a password."""
    return os.environ.get(VARIABLE, "").strip() or database_uri(home)


def is_server(uri: str) -> bool:
    """True if a server stands between us and the database; it has a place of its own for files."""
    return _SERVER.match(uri) is not None


def database_file(uri: str) -> Path | None:
    """The file of an SQLite database; None for anything else."""
    if not uri.startswith(_SQLITE):
        return None
    path = unquote(uri.removeprefix(_SQLITE).partition("?")[0])
    return Path(path) if path and path != ":memory:" else None


def credentials(uri: str) -> str:
    """Return the part before the ``@`` of an address; empty where there is none."""
    found = _CREDENTIALS.match(uri)
    return found[2] if found else ""


def shown(uri: str) -> str:
    """An address as people may see it: without user, password and query, also where it is malformed."""
    path = database_file(uri)
    if path is not None:
        return str(path)
    return re.split(r"[?#]", _CREDENTIALS.sub(r"\1", uri), maxsplit=1)[0]


def place(home: Path) -> str:
    """Name the place of the runs as people may see it; a path of a relative home folder is relative."""
    uri = tracking_uri(home)
    return str(home / DATABASE) if uri == database_uri(home) else shown(uri)


def ui_command(home: Path) -> str:
    """Write the command that shows the runs, on loopback; of a server, the address to open."""
    uri = tracking_uri(home)
    if is_server(uri):
        return shown(uri)
    store = uri if database_file(uri) is not None else shown(uri)
    store = f"{_SQLITE}{place(home)}" if uri == database_uri(home) else store
    return f"mlflow ui --backend-store-uri {shlex.quote(store)} --host 127.0.0.1"
