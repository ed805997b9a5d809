"""An MLflow server of a study that can be down, hang, be slow and refuse: MLflow's own application,
in a process."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from faults_machine import now

Answer = Callable[..., Any]


class MlflowServer:
    """Runs from `start` on; its database and its files lie in a folder.

    Args:
        database: an MLflow database without runs; copied.
    """

    def __init__(self, folder: Path, database: Path) -> None:
        folder.mkdir()
        self.database = folder / "server.db"
        shutil.copy(database, self.database)
        self._folder, self._mode, self.pid = folder, folder / "mode", 0
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start, where it does not run, and return when it answers."""
        if self.pid:
            return
        # Loaded once for all studies.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import mlflow.server  # noqa: F401
        self._mode.unlink(missing_ok=True)
        self.pid = os.fork()
        if not self.pid:
            self._serve()
        until = now() + 60
        while now() < until:
            with (
                suppress(OSError, urllib.error.URLError),
                urllib.request.urlopen(f"{self.url}/health", timeout=5),
            ):
                return
            time.sleep(0.05)
        raise TimeoutError(f"no MLflow server at {self.url}")

    def stop(self) -> None:
        if self.pid:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            self.pid = 0

    def be(self, mode: str) -> None:
        """``500 …`` or ``403 …``: the status of every answer; ``slow S``: seconds before each;
        empty: all is well."""
        self._mode.write_text(mode)

    def _serve(self) -> NoReturn:
        try:
            os.setsid()
            os.environ |= {
                "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{self.database}",
                "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
                "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
                "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(self._folder / "served"),
                "MLFLOW_DISABLE_TELEMETRY": "true",
            }
            for standard in (1, 2):
                os.dup2(
                    os.open(self._folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), standard
                )
            from werkzeug.serving import make_server

            make_server("127.0.0.1", self._port, self._answer, threaded=True).serve_forever(
                poll_interval=0.1
            )
        finally:
            os._exit(1)

    def _answer(self, environ: dict[str, Any], start: Answer) -> Iterable[bytes]:
        mode = self._mode.read_text() if self._mode.exists() else ""
        if mode.startswith("slow"):
            time.sleep(float(mode.split()[1]))
        elif mode:
            start(mode, [("Content-Type", "text/plain")])
            return [b"no"]
        from mlflow.server import app

        reply: Iterable[bytes] = app(environ, start)
        return reply
