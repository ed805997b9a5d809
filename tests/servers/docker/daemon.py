"""A stand-in for the Docker daemon: it starts containers as plain processes that are no children of
the docker command.

It listens on ``daemon.sock`` in its folder and reads ``images.json`` there: image to
``{"entrypoint": […], "path": folder with its programs, "memory_is_used_up": true}``, and
``registry.json`` with the images that can be pulled. A container has no environment but its own, so
that nothing of its launch's environment tells it from others; only its label does, as with Docker.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SOCKET, IMAGES, REGISTRY, RUNS = "daemon.sock", "images.json", "registry.json", "runs.jsonl"
MARK = "STAND_IN_CONTAINER"


@dataclass
class Container:
    identity: str
    asked: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None
    code: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    def state(self) -> dict[str, Any]:
        started = self.process is not None
        killed = self.code == 128 + signal.SIGKILL
        return {
            "Pid": self.process.pid if self.process is not None and not self.ended.is_set() else 0,
            "ExitCode": self.code,
            "OOMKilled": killed and bool(self.asked["image"].get("memory_is_used_up")),
            "StartedAt": "2026-01-01T00:00:00Z" if started else "0001-01-01T00:00:00Z",
        }


class Daemon:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._containers: dict[str, Container] = {}
        self._lock = threading.Lock()

    def serve(self) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self._folder / SOCKET))
            listener.listen(64)
            print("listening", flush=True)
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            data, descriptors, _, _ = socket.recv_fds(connection, 2**20, 2)
            request = json.loads(data)
            operation = getattr(self, "do_" + request.pop("do"))
            try:
                answer = operation(*descriptors, **request)
            except LookupError as error:
                answer = {"error": str(error.args[0])}
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            try:
                connection.sendall(json.dumps(answer).encode())
            except BrokenPipeError:
                return

    def _read(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self._folder / name).read_text())
        return document

    def do_inspect_image(self, image: str) -> Any:
        if image not in self._read(IMAGES):
            raise LookupError(f"Error response from daemon: No such image: {image}")
        return {}

    def do_pull(self, image: str) -> Any:
        with self._lock:
            known = self._read(REGISTRY)
            if image not in known:
                name = image.partition(":")[0]
                raise LookupError(
                    f"Error response from daemon: pull access denied for {name}, repository does not exist or may "
                    "require 'docker login'"
                )
            (self._folder / IMAGES).write_text(
                json.dumps({**self._read(IMAGES), image: known[image]})
            )
        return {}

    def do_create(self, options: dict[str, Any], image: str, words: list[str]) -> Any:
        found = self._read(IMAGES)
        if image not in found:
            raise LookupError(f"Error response from daemon: No such image: {image}")
        with self._lock:
            if any(
                options["name"] == other.asked["options"]["name"]
                for other in self._containers.values()
            ):
                raise LookupError(
                    "Error response from daemon: Conflict. The container name is already in use"
                )
            identity = uuid.uuid4().hex * 2
            self._containers[identity] = Container(
                identity, {"options": options, "image": found[image], "words": words}
            )
            with (self._folder / RUNS).open("a") as runs:
                runs.write(json.dumps({"options": options, "image": image, "words": words}) + "\n")
        return {"id": identity}

    def do_start(self, output: int, errors: int, identity: str) -> Any:
        container = self._containers[identity]
        options, image = container.asked["options"], container.asked["image"]
        entry = image.get("entrypoint") or []
        if options.get("entrypoint") is not None:
            entry = [options["entrypoint"]] if options["entrypoint"] else []
        argv = [*entry, *container.asked["words"]]
        program = shutil.which(argv[0], path=image["path"])
        if program is None:
            raise LookupError(
                "Error response from daemon: failed to create task for container: OCI runtime create failed: exec: "
                f'"{argv[0]}": executable file not found in $PATH: unknown'
            )
        first = (
            [sys.executable, "-S", str(Path(__file__).with_name("init.py"))]
            if options["init"]
            else []
        )
        environment = {
            "PATH": f"{image['path']}:/usr/bin:/bin",
            **dict(options["env"]),
            MARK: identity,
        }
        container.process = subprocess.Popen(
            [*first, program, *argv[1:]],
            env=environment,
            cwd=workdir(options),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        threading.Thread(target=self._collect, args=(container,), daemon=True).start()
        return {}

    def _collect(self, container: Container) -> None:
        assert container.process is not None
        code = container.process.wait()
        container.code = 128 - code if code < 0 else code
        # With its first process a container ends, whatever session the others went to.
        kill_marked(container.identity)
        container.ended.set()

    def do_wait(self, identity: str) -> Any:
        container = self._containers[identity]
        container.ended.wait()
        return {"code": container.code}

    def do_signal(self, identity: str, number: int) -> Any:
        process = self._containers[identity].process
        if process is not None:
            process.send_signal(number)
        return {}

    def do_list(self, label: str) -> Any:
        return {
            "ids": [
                c.identity
                for c in self._containers.values()
                if label in c.asked["options"]["label"]
            ]
        }

    def do_remove(self, identity: str) -> Any:
        container = self._find(identity)
        if container.process is not None:
            container.process.kill()
            container.ended.wait()
        self._containers.pop(container.identity, None)
        return {}

    def do_inspect(self, name: str) -> Any:
        return {"state": self._find(name).state()}

    def _find(self, name: str) -> Container:
        for container in list(self._containers.values()):
            if name in (container.identity, container.asked["options"]["name"]):
                return container
        raise LookupError(f"Error: No such container: {name}")


def workdir(options: dict[str, Any]) -> str:
    """Nothing is mounted: the folder of the files that would lie in the working folder stands for
    it."""
    inside = options.get("workdir")
    sources = [
        volume.split(":")[0] for volume in options["volume"] if inside and f":{inside}/" in volume
    ]
    return os.path.dirname(sources[0]) if sources else "/"


def kill_marked(identity: str) -> None:
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdecimal()
                and f"{MARK}={identity}".encode() in (entry / "environ").read_bytes()
            ):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue


if __name__ == "__main__":
    Daemon(Path(sys.argv[1])).serve()
