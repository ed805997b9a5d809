"""A server that serves nothing and misbehaves on request; standard library only, run as a program.

Every fault is an option, so that a test's command line says what happens.
"""

from __future__ import annotations

import argparse
import itertools
import json
import mmap
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

SHARED: list[mmap.mmap] = []


class Handler(BaseHTTPRequestHandler):
    options: ClassVar[argparse.Namespace]

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(503 if self.options.unhealthy else 200, {})
        elif self.path == "/v1/models":
            self._answer(200, {"data": [{"id": "tiny"}, {"id": "tiny-too"}]})
        else:
            self._answer(404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.options.hold_token:
            threading.Event().wait()
        if self.options.break_token:
            self._answer(500, {"error": "a broken kernel"})
            return
        if self.options.refuse_token or body["model"] not in ("tiny", "tiny-too"):
            self._answer(400, {"error": "no tokens here"})
            return
        self._answer(200, {"choices": [{"text": "."}], "usage": {"completion_tokens": 1}})
        if self.options.die_after_token_s is not None:
            threading.Timer(
                self.options.die_after_token_s, lambda: die(self.options.last_words)
            ).start()

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        say(f"INFO: {self.address_string()} - {format % args}")


def say(text: str) -> None:
    print(text, flush=True)


def detach(run: Any) -> None:
    """Run something in a grandchild that has a session of its own and no parent of ours."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            run()
        os._exit(0)
    os.wait()


def serve(options: argparse.Namespace) -> None:
    Handler.options = options
    server = ThreadingHTTPServer((options.host, options.port), Handler)
    say("serving")
    if options.leave_the_port:
        hold_port(server.socket)
    if options.die_after_s is not None:
        threading.Timer(options.die_after_s, lambda: die(options.last_words)).start()
    server.serve_forever()


def die(words: str) -> None:
    if words:
        say(words)
    os._exit(7)


def hold_port(listening: socket.socket) -> None:
    """A child of another session, deaf to SIGTERM and without our environment, keeps the listening
    socket."""
    listening.set_inheritable(True)
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    detach(lambda: os.execve(sys.executable, [sys.executable, "-S", "-c", program], {}))


def serve_after(parent: int, options: argparse.Namespace) -> None:
    """Serve once that process is gone and collected, so that whoever asks finds a server without a
    first process."""
    while Path(f"/proc/{parent}").exists():
        time.sleep(0.01)
    serve(options)


def forget_environment(name: str) -> None:
    """A child that has lost the marker and, by setsid, group and session; only descent still tells
    whose it is."""
    program = "import time; time.sleep(600)"
    detach(lambda: os.execve(sys.executable, [sys.executable, "-S", "-c", program, name], {}))


def share_memory() -> None:
    """Map a file in ``/dev/shm`` for as long as the process lives, and say which: the command does
    not name it."""
    path = f"/dev/shm/autotune-test-{uuid4().hex}"
    file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    say(f"shares {path}")
    os.ftruncate(file, mmap.PAGESIZE)
    SHARED.append(mmap.mmap(file, mmap.PAGESIZE))
    os.close(file)
    os.close(tempfile.mkstemp()[0])


def map_file(path: str) -> None:
    """Have a file open and mapped for as long as the process lives, as a server has its weights."""
    file = os.open(path, os.O_RDONLY)
    SHARED.append(mmap.mmap(file, 0, prot=mmap.PROT_READ))


def use_files(options: argparse.Namespace) -> None:
    if options.share_memory:
        share_memory()
    for path in options.map:
        map_file(path)
    if options.lock:
        os.open(options.lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY)


def repeat(line: str) -> None:
    """Print a line for ever, with the time and a count."""
    for count in itertools.count():
        say(line.format(count=count, clock=time.strftime("%m-%d %H:%M:%S")))
        time.sleep(0.02)


def options_given() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=1)
    parser.add_argument(
        "--shards", type=int, default=2, help="log lines before it serves, 20 ms each"
    )
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--silent", action="store_true")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument(
        "--fork-away", action="store_true", help="a grandchild of another session serves"
    )
    parser.add_argument(
        "--daemonise", action="store_true", help="as above, and the first process ends with code 0"
    )
    parser.add_argument(
        "--forget-environment", metavar="NAME", help="argument by which a test finds it again"
    )
    parser.add_argument("--say", default="", help="printed at the start")
    parser.add_argument("--say-last", default="", help="printed before --die-with ends it")
    parser.add_argument("--die-with", type=int)
    parser.add_argument("--die-after-s", type=float)
    parser.add_argument(
        "--die-after-token-s", type=float, help="so long after the token that shows it ready"
    )
    parser.add_argument("--last-words", default="", help="printed before either ends it")
    parser.add_argument(
        "--leave-the-port", action="store_true", help="a stranger of a child keeps it listening"
    )
    parser.add_argument(
        "--share-memory", action="store_true", help="and leave it, with a temporary file"
    )
    parser.add_argument(
        "--map", action="append", default=[], metavar="FILE", help="map it, and keep it open"
    )
    parser.add_argument(
        "--repeat", default="", help="printed again and again, with {clock} and {count}"
    )
    parser.add_argument("--lock", metavar="FILE", help="make it, and keep it open, as AITER does")
    parser.add_argument("--flood-mib", type=int, default=0)
    parser.add_argument("--hold-token", action="store_true")
    parser.add_argument("--unhealthy", action="store_true")
    parser.add_argument("--break-token", action="store_true")
    parser.add_argument("--refuse-token", action="store_true")
    return parser.parse_args()


def start(options: argparse.Namespace) -> None:
    """Everything before it serves; may not return."""
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in options.say.splitlines():
        say(line)
    if options.forget_environment:
        forget_environment(options.forget_environment)
    use_files(options)
    if options.flood_mib:
        block = b"all work and no play\n" * 50_000
        for _ in range(options.flood_mib):
            sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()
    if options.die_with is not None:
        say(options.say_last)
        sys.exit(options.die_with)
    if options.repeat:
        repeat(options.repeat)
    if options.silent:
        time.sleep(600)
    shard = 0
    while options.never_ready or shard < options.shards:
        shard += 1
        say(f"loading shard {shard}")
        time.sleep(0.02)


def main() -> None:
    options = options_given()
    start(options)
    if options.fork_away or options.daemonise:
        parent = os.getpid()
        detach(lambda: serve_after(parent, options) if options.daemonise else serve(options))
        if not options.daemonise:
            time.sleep(600)
    else:
        serve(options)


if __name__ == "__main__":
    main()
