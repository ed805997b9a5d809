"""A server as vLLM 0.32: after SIGTERM it lives until the last client of an open answer has left.

Every answer but one of a single token is such a one; standard library only, run as a program.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

EVENT = b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    open: ClassVar[set[int]] = set()

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "tiny"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["max_tokens"] == 1:
            self._answer({"choices": [{"text": "."}], "usage": {"completion_tokens": 1}})
            return
        number = threading.get_ident()
        self.open.add(number)
        print(f"{len(self.open)} open", flush=True)
        if body.get("stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(EVENT)
        # Readable means that the client has left: it sends nothing more.
        select.select([self.connection], [], [])
        self.open.discard(number)
        self.close_connection = True

    def _answer(self, document: dict[str, Any]) -> None:
        content = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def leave_last() -> None:
    while Handler.open:
        time.sleep(0.01)
    print("the last client has left", flush=True)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    server = ThreadingHTTPServer((options.host, options.port), Handler)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=leave_last).start())
    server.serve_forever()


if __name__ == "__main__":
    main()
