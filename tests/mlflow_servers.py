"""Dashboards on loopback: MLflow and optuna-dashboard as processes, and MLflow in this process,
which can misbehave."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

WAIT_S = 120  # two shared cores: a start takes 10 s of CPU


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


class ServerProcess:
    """`mlflow server` with one worker; its whole process group ends with `stop`.

    Args:
        store: the database's address.
        folder: takes the artifacts and the server's log.
    """

    health = "health"

    def __init__(self, store: str, folder: Path) -> None:
        self._log = folder / "mlflow-server.log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store]
        self._command += ["--artifacts-destination", str(folder / "served"), "--host", "127.0.0.1"]
        self._command += ["--port", str(self.port), "--workers", "1"]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and return when it answers."""
        env = {
            **os.environ,
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        with self._log.open("a") as log:
            process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,
                cwd=self._folder,
            )
        self._process = process
        waited = threading.Event()
        for _ in range(4 * WAIT_S):
            if answers(f"{self.url}/{self.health}"):
                return
            assert process.poll() is None, self._log.read_text()
            waited.wait(0.25)
        raise AssertionError(f"the server did not answer; see {self._log}")

    def stop(self) -> None:
        """Stop it with everything that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


class DashboardProcess(ServerProcess):
    """`optuna-dashboard`, the installed command, on a study's journal.

    Args:
        journal: the file that it opens.
        folder: takes its log.
    """

    health = "api/studies"

    def __init__(self, journal: Path, folder: Path) -> None:
        super().__init__("", folder)
        command = "from importlib.metadata import entry_points as e; e(name='optuna-dashboard')['optuna-dashboard']"
        self._command = [sys.executable, "-c", f"{command}.load()()", str(journal)]
        self._command += ["--host", "127.0.0.1", "--port", str(self.port), "--quiet"]


Answer = tuple[str, list[tuple[str, str]], bytes]


class ServerInside:
    """MLflow's own server application over HTTP, in a thread of this process: stopped and started
    at once.

    Attributes:
        status: where it is set, every request is answered with it, e.g. ``503 Service
            Unavailable``.
        lose: a request whose path ends so is carried out, and its answer is lost; once.
        refuse: a part of a path, and the status with which such requests are answered.
        seen: method, path and ``Authorization`` of each request.
    """

    def __init__(self) -> None:
        self.status: str | None = None
        self.lose: str | None = None
        self.refuse: tuple[str, str] | None = None
        self.seen: list[tuple[str, str, str]] = []
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from mlflow.server import app
        self._app = app
        self._server: Any = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            def log(self, type: str, message: str, *args: Any) -> None:
                pass

        self._server = make_server(
            "127.0.0.1", self.port, self._answer, threaded=True, request_handler=Quiet
        )
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}
        )
        self._thread.start()

    def open_store(self) -> None:
        """Make the first request: at it MLflow sets ``MLFLOW_TRACKING_URI`` in this process, which
        is unset again."""
        answers(f"{self.url}/api/2.0/mlflow/experiments/search?max_results=1")
        os.environ.pop("MLFLOW_TRACKING_URI", None)

    def stop(self) -> None:
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._thread = None

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        self.seen.append((environ["REQUEST_METHOD"], path, environ.get("HTTP_AUTHORIZATION", "")))
        status = (
            self.refuse[1] if self.refuse is not None and self.refuse[0] in path else self.status
        )
        if status is not None:
            start(status, [("Content-Type", "text/plain")])
            return [b"no"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reply: Iterable[bytes] = self._app(environ, start)
            if self.lose is None or not path.endswith(self.lose):
                return reply
            self.lose = None
            list(reply)
        start("503 Service Unavailable", [("Content-Type", "text/plain")], (None, None, None))
        return [b"lost"]
