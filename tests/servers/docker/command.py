"""A stand-in for the docker command: it takes the options that autotune uses as strictly as docker
does.

Its words and exit codes are those of the docker command 28.2 (docker/cli). `STAND_IN_DOCKER` names
the folder of the stand-in daemon; a file ``denied`` there stands for a socket that the user may not
open, ``rootless`` for a daemon without root.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

FOLDER = Path(os.environ["STAND_IN_DOCKER"])
AT = "unix:///var/run/docker.sock"
FLAGS = {"--rm", "--init"}
SINGLE = {"--name", "--network", "--ipc", "--gpus", "--entrypoint", "--workdir"}
FORMS = {
    "--label": r"[\w.-]+=\S+",
    "--env": r"[A-Za-z_]\w*(?:=.*)?",
    "--ulimit": r"\w+=-?\d+(?::-?\d+)?",
    "--volume": r"(?:\.{0,2}/[^:]*|[A-Za-z0-9][\w.-]+):/[^:]+(?::ro|:rw)?",
    "--device": r"/dev/\S+",
    "--group-add": r"\w+",
    "--cap-add": r"[A-Z_]+",
    "--security-opt": r"seccomp=\S+",
}


def fail(text: str, code: int) -> NoReturn:
    print(text, file=sys.stderr, flush=True)
    sys.exit(code)


def ask(code: int = 1, descriptors: tuple[int, ...] = (), **request: Any) -> dict[str, Any]:
    """One question to the daemon; ends the program with this code when there is no good answer."""
    if (FOLDER / "denied").exists():
        fail(f"permission denied while trying to connect to the Docker daemon socket at {AT}", code)
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(FOLDER / "daemon.sock"))
        except OSError:
            fail(
                f"Cannot connect to the Docker daemon at {AT}. Is the docker daemon running?", code
            )
        socket.send_fds(connection, [json.dumps(request).encode()], descriptors)
        answer: dict[str, Any] = json.loads(connection.recv(2**20))
    if "error" in answer:
        fail(answer["error"], code)
    return answer


def parse_run(words: list[str]) -> tuple[dict[str, Any], str, list[str]]:
    """Options up to the first word that is none, which is the image; what follows is the
    container's."""
    options: dict[str, Any] = {name[2:]: [] for name in FORMS} | {
        "rm": False,
        "init": False,
        "name": "unnamed",
    }
    rest = list(words)
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=")
        if name in FLAGS and not equals:
            options[name[2:]] = True
            continue
        if name not in SINGLE and name not in FORMS:
            fail(f"unknown flag: {name}\n\nRun 'docker run --help' for more information", 125)
        if not equals and not rest:
            fail(f"flag needs an argument: {name}", 125)
        value = value if equals else rest.pop(0)
        if name in SINGLE:
            options[name[2:]] = value
        elif re.fullmatch(FORMS[name], value, re.DOTALL) is None:
            fail(f'invalid argument "{value}" for "{name}" flag', 125)
        else:
            options[name[2:]].append(value)
    if not rest:
        fail("docker: 'docker run' requires at least 1 argument", 125)
    return checked(options), rest[0], rest[1:]


def checked(options: dict[str, Any]) -> dict[str, Any]:
    """A variable without a value has the one of this environment, and none where it is not set
    there."""
    pairs = [text.partition("=") for text in options["env"]]
    options["by_name"] = [name for name, equals, _ in pairs if not equals]
    known = [(name, value if equals else os.environ.get(name)) for name, equals, value in pairs]
    options["env"] = [[name, value] for name, value in known if value is not None]
    for volume in options["volume"]:
        source = volume.split(":")[0]
        if "/" in source and not Path(source).exists():
            fail(
                f"docker: Error response from daemon: bind source path does not exist: {source}",
                125,
            )
    if options.get("gpus", "all") != "all" or options.get("network") not in ("host", "none"):
        fail("docker: Error response from daemon: not in this stand-in", 125)
    return options


def run(words: list[str]) -> NoReturn:
    options, image, command = parse_run(words)
    identity = ask(125, do="create", options=options, image=image, words=command)["id"]

    def pass_on(number: int, frame: FrameType | None) -> None:
        ask(125, do="signal", identity=identity, number=number)

    signal.signal(signal.SIGTERM, pass_on)
    ask(127, (1, 2), do="start", identity=identity)
    code = ask(125, do="wait", identity=identity)["code"]
    if options["rm"]:
        ask(125, do="remove", identity=identity)
    sys.exit(code)


def pull(image: str) -> None:
    print(f"{image.rpartition(':')[2]}: Pulling from {image.partition(':')[0]}", flush=True)
    ask(do="pull", image=image)
    print(f"Status: Downloaded newer image for {image}", flush=True)


def main(words: list[str]) -> None:
    match words:
        case ["version", "--format", "{{.Server.Version}}"]:
            ask(do="list", label="")
            print("28.2.2")
        case ["info", "--format", "{{.SecurityOptions}}"]:
            rootless = " name=rootless" if (FOLDER / "rootless").exists() else ""
            print(f"[name=seccomp,profile=builtin{rootless}]")
        case ["image", "inspect", "--format", "{{.Id}}", image]:
            ask(do="inspect_image", image=image)
            print("sha256:0")
        case ["pull", image]:
            pull(image)
        case ["run", *rest]:
            run(rest)
        case ["ps", "--all", "--quiet", "--no-trunc", "--filter", text] if text.startswith(
            "label="
        ):
            print("\n".join(ask(do="list", label=text.removeprefix("label="))["ids"]))
        case ["rm", "--force", "--volumes", *identities]:
            for identity in identities:
                ask(do="remove", identity=identity)
        case ["inspect", "--type", "container", "--format", form, name]:
            state = ask(do="inspect", name=name)["state"]
            print({"{{.State.Pid}}": state["Pid"], "{{json .State}}": json.dumps(state)}[form])
        case _:
            fail(f"docker: unknown command: docker {' '.join(words)}", 125)


if __name__ == "__main__":
    main(sys.argv[1:])
