"""Recognise the exceptions of an MLflow that cannot be used, and put them into words."""

from __future__ import annotations

import os
import re
import sqlite3

from autotune import redact
from autotune.study.tracking_uri import credentials, shown

_PACKAGES = ("mlflow", "sqlalchemy", "alembic", "requests", "urllib3", "databricks", "botocore", "google", "azure")
_SCHEMA = re.compile(r"found version (\w+), but expected (\w+)")
_PLAIN = (
    (re.compile(r"connection refused", re.IGNORECASE), "connection refused"),
    (re.compile(r"timed? ?out", re.IGNORECASE), "no answer in time"),
    (re.compile(r"name or service not known|failed to resolve|name resolution", re.IGNORECASE), "no such host"),
    (re.compile(r"connection (?:aborted|reset)|remote end closed", re.IGNORECASE), "it hung up"),
)
_AUTOFLUSH = "(raised as a result of Query-invoked autoflush"
"""SQLAlchemy's first line where the cause stands in the second."""
_STATUS = (
    re.compile(r"too many (\d{3}) error"),
    re.compile(r"error code (\d{3})"),
    re.compile(r"HTTP (\d{3})"),
    re.compile(r"(\d{3}) (?:Client|Server) Error"),
)
_DELETED = re.compile(r"must be in the '?active'? state")
_ADVICE = {"401": "; set MLFLOW_TRACKING_TOKEN, or _USERNAME and _PASSWORD", "403": "; this user may not write there"}


def is_trouble(error: Exception) -> bool:
    """True for an exception of MLflow's, its database's or the network's; any other is a fault of ours."""
    roots = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, OSError | sqlite3.Error | ImportError) or not roots.isdisjoint(_PACKAGES)


def is_refusal(error: Exception) -> bool:
    """True if MLflow works, but does not take what it was given.

    A run or an experiment that somebody has just deleted is another matter: it is made again.
    """
    return getattr(error, "error_code", "") == "INVALID_PARAMETER_VALUE" and not is_deleted(error)


def is_deleted(error: Exception) -> bool:
    """True if somebody has deleted the run or the experiment."""
    return _DELETED.search(str(error)) is not None


def reason(error: Exception, uri: str) -> str:
    """Put an exception into a few words, without a secret."""
    text = str(error)
    if schema := _SCHEMA.search(text):
        return (
            f"it was made by another version of MLflow: schema {schema[1]}, this one has {schema[2]}; copy it, then "
            f"`mlflow db upgrade sqlite:///{shown(uri)}`, or use the MLflow that made it"
        )
    # One status: that text may go on with a page of HTML, or with our own request's timeout.
    status = next((found[1] for pattern in _STATUS if (found := pattern.search(text))), None)
    if status is not None:
        return f"HTTP {status}{_ADVICE.get(status, '')}"
    for pattern, plain in _PLAIN:
        if pattern.search(text):
            return plain
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    known = [credentials(uri), *(os.environ.get(f"MLFLOW_TRACKING_{name}", "") for name in ("TOKEN", "PASSWORD"))]
    said = redact.text(text, [secret for secret in known if secret]).strip().splitlines()
    lines = [line for line in said if not line.startswith(_AUTOFLUSH)]
    return re.sub(r"^\(\w+\.\w+\) ", "", lines[0])[:200] if lines else type(error).__name__
