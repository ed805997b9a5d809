"""A router in front of servers, as vllm-router is: completions go round, every other request to the
first; standard library only, run as a program with the servers' URLs."""

from __future__ import annotations

import http.client
import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    servers: ClassVar[list[str]] = []
    turns: ClassVar[Iterator[str]]

    def do_GET(self) -> None:
        self._pass_on(self.servers[0])

    def do_POST(self) -> None:
        self._pass_on(next(self.turns) if "completions" in self.path else self.servers[0])

    def _pass_on(self, server: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        connection = http.client.HTTPConnection(server)
        connection.request(self.command, self.path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers.get("Content-Type", ""))
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while piece := answer.read1(65536):
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")
        connection.close()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def router(*urls: str) -> Iterator[str]:
    """A router of these servers as a process, until the block ends; gives its URL."""
    with subprocess.Popen([sys.executable, __file__, *urls], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.kill()


if __name__ == "__main__":
    Handler.servers = [url.removeprefix("http://") for url in sys.argv[1:]]
    Handler.turns = itertools.cycle(Handler.servers)
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{serving.server_port}", flush=True)
    serving.serve_forever()
