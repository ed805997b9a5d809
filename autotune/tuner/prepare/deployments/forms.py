"""Containers in the text of a deployment: ``docker run``, Compose or Kubernetes."""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from autotune.base import BadInput, Json, MalformedFile, StringDict, StringMap, frozen
from autotune.engines import settings_in_front, spaces_root
from autotune.engines.command import plain
from autotune.engines.entry import LOADER, Entry
from autotune.engines.library import load
from autotune.engines.shell import commands, known

YAML = (".yaml", ".yml")
_PROGRAM = re.compile(r"(?:.*/)?(?:docker|podman|nerdctl)")
_REFERENCE = re.compile(
    r"\$(?:\$|(?P<bare>\w+)"
    r"|\{(?P<name>\w+)(?:(?P<sign>:?[-?+])(?P<other>(?:[^{}]|\{[^{}]*\})*))?\})"
)
_OF_POD = re.compile(r"\$(?:\$|\((\w+)\))")
_UNIT_ROW = re.compile(
    r"^(ExecStart|Environment|EnvironmentFile)=[-@:+!|]*((?:.*\\\n)*.*)", re.MULTILINE
)
_ASSIGNMENT = re.compile(r"^[ \t]*(?:export[ \t]+)?(\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", re.MULTILINE)


class KnownImage(Entry):
    """Images of an engine, by the name of their repository.

    Attributes:
        entrypoint: the words in front of a container's command.
        versioned: a number in a tag is the engine's version.
    """

    repository: str
    entrypoint: list[str]
    versioned: bool = True
    source: str


class Facts(Entry):
    """Schema of ``search_spaces/deployments.yaml``."""

    switches: list[str]
    options: StringDict
    images: list[KnownImage]
    gpu_variables: list[str]
    parts: StringDict
    edits: dict[str, list[tuple[str, str]]]


@cache
def facts() -> Facts:
    return load(spaces_root() / "deployments.yaml", Facts)


@frozen
class Container:
    """A container that a deployment starts, or the command of a script.

    Attributes:
        names: by which people choose it.
        image: with its tag; empty for a script.
        entrypoint: in place of the image's; None: the image's.
        env: variables; one whose value is elsewhere is a reference to it.
        gpus: a number, ``all``, or ``device=0,1``; empty: not said.
        folders: a folder of the container to that of the host.
        files: name to the content that the deployment has for it.
        notes: a sentence on each part that is not read.
    """

    names: Sequence[object] = ()
    image: str = ""
    entrypoint: Sequence[str] | None = None
    command: Sequence[str] = ()
    env: StringMap = {}
    gpus: str = ""
    replicas: int = 1
    folders: StringMap = {}
    files: StringMap = {}
    notes: Sequence[str] = ()

    @property
    def words(self) -> list[str]:
        return [*(self.entrypoint or ()), *self.command]


def containers(text: str, name: str) -> list[Container]:
    """List the containers in a text; `name` is its file, empty for a command line."""
    if not name.endswith(YAML):
        return list(_run_lines(text))
    try:
        documents = [one for one in yaml.load_all(text, LOADER) if isinstance(one, dict)]
    except yaml.YAMLError as error:
        raise MalformedFile(name, f"not YAML: {error}") from error
    files = {
        str(key): str(content)
        for one in documents
        if one.get("kind") == "ConfigMap"
        for key, content in (one.get("data") or {}).items()
    }
    folder = Path(name).parent
    return [
        one
        for document in documents
        for one in (
            _services(document, folder)
            if "services" in document
            else _of_pods(document, document, files)
        )
    ]


def _at(node: Any, *keys: str) -> Any:
    """Return what stands under nested keys; None for nothing."""
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _of_pods(whole: Any, node: Any, files: StringMap) -> Iterator[Container]:
    """List the containers of each pod in a Kubernetes object or list."""
    if _at(node, "kind"):
        whole = node
    if (size := _at(node, "leaderWorkerTemplate", "size") or 1) > 1:
        raise BadInput(
            f"{_at(whole, 'metadata', 'name')}: leaderWorkerTemplate.size is {size}: several nodes "
            "are out of scope; give a server on one node"
        )
    for one in _at(node, "containers") or ():
        yield _of_pod(whole, node, one, files)
    for inner in node.values() if isinstance(node, dict) else node:
        if isinstance(inner, dict | list):
            yield from _of_pods(whole, inner, files)


def _of_pod(whole: Any, pod: Any, one: Any, files: StringMap) -> Container:
    env = StringDict()

    def filled(word: object) -> str:
        return _OF_POD.sub(lambda m: env.get(m[1], m[0]) if m[1] else "$", str(word))

    for row in one.get("env") or ():
        reference = f"${{{row['name']}}}"
        env[row["name"]] = reference if "valueFrom" in row else filled(row.get("value", ""))
    hosts = {row["name"]: _at(row, "hostPath", "path") for row in pod.get("volumes") or ()}
    command = one.get("command")
    limits = _at(one, "resources", "limits") or {}
    return Container(
        [_at(one, "name"), _at(whole, "metadata", "name")],
        str(one.get("image", "")),
        command and list(map(filled, command)),
        list(map(filled, one.get("args") or ())),
        env,
        next((str(n) for key, n in limits.items() if str(key).endswith(".com/gpu")), ""),
        int(_at(whole, "spec", "replicas") or 1),
        {
            row["mountPath"]: host
            for row in one.get("volumeMounts") or ()
            if (host := hosts.get(row["name"]))
        },
        files,
        [
            f"the variables of {_at(source, 'name')} (envFrom) are not read"
            for row in one.get("envFrom") or ()
            for source in row.values()
        ],
    )


def _services(document: Any, folder: Path) -> Iterator[Container]:
    """List the services of Compose, with values of the environment and of ``.env``."""
    variables = {**_assigned(folder / ".env"), **os.environ}

    def value(match: re.Match[str]) -> str:
        name, sign = match["bare"] or match["name"], match["sign"] or ""
        if name is None:
            return "$"
        given = variables.get(name)
        there = bool(given) if ":" in sign else given is not None
        if sign[-1:] in ("-", "+") and there is (sign[-1] == "+"):
            return _REFERENCE.sub(value, match["other"])
        return f"${{{name}}}" if given is None else given

    def filled(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: filled(inner) for key, inner in node.items()}
        if isinstance(node, list):
            return list(map(filled, node))
        return _REFERENCE.sub(value, node) if isinstance(node, str) else node

    document = filled(document)
    for name, one in document["services"].items():
        base = _at(document, "services", _at(one, "extends", "service")) or {}
        one = {**base, **one, "environment": {**_settings(base), **_settings(one)}, "names": [name]}
        one["files"] = {
            Path(row["target"]).name: _at(document, "configs", row["source"], "content")
            for row in one.get("configs") or ()
        }
        yield _service(one, folder)


def _service(one: Any, folder: Path) -> Container:
    """Return a service of Compose, or the options of ``docker run`` under the same keys."""
    named = one.get("env_file") or []
    paths = [
        folder / (_at(row, "path") or row) for row in ([named] if isinstance(named, str) else named)
    ]
    env = {name: text for path in paths for name, text in _assigned(path).items()}
    asked = one.get("gpus") or _at(one, "deploy", "resources", "reservations", "devices") or ()
    if not isinstance(asked, str):
        ids = [str(number) for row in asked for number in row.get("device_ids") or ()]
        counts = [str(row.get("count", "all")) for row in asked]
        asked = f"device={','.join(ids)}" if ids else "".join(counts[:1])
    mounts: list[Any] = [
        (row.get("source"), row.get("target")) if isinstance(row, dict) else f"{row}:".split(":")
        for row in one.get("volumes") or ()
    ]
    return Container(
        one["names"],
        str(one.get("image", "")),
        _words(one.get("entrypoint")),
        _words(one.get("command")) or (),
        env | _settings(one),
        asked,
        int(_at(one, "deploy", "replicas") or one.get("scale") or 1),
        {place: str(folder / host) for host, place, *_ in mounts if host and "/" in host},
        one.get("files", {}),
        [
            f"{path} is not there; its variables are not read"
            for path in paths
            if not path.is_file()
        ],
    )


def _settings(one: Any) -> StringDict:
    """Return the variables of a service; one without a value comes from elsewhere."""
    rows = one.get("environment") or {}
    pairs: Any = rows.items() if isinstance(rows, dict) else map(_pair, rows)
    return {name: f"${{{name}}}" if value is None else plain(value) for name, value in pairs}


def _pair(setting: object) -> tuple[str, str | None]:
    name, equals, value = str(setting).partition("=")
    return name, value if equals else None


def _words(given: Any) -> list[str] | None:
    return shlex.split(given) if isinstance(given, str) else given and list(map(plain, given))


def _assigned(path: Path) -> StringDict:
    """Read a file of variables; empty for none."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return {name: value.strip("'\"") for name, value in _ASSIGNMENT.findall(text)}


def of_unit(text: str) -> tuple[Container, str]:
    """Return the variables of a systemd unit, and the command that it starts; of a script itself,
    without any."""
    rows: dict[str, list[str]] = {}
    for key, value in _UNIT_ROW.findall(text):
        rows.setdefault(key, []).append(value.replace("\\\n", " "))
    settings = [word for row in rows.get("Environment", ()) for word in shlex.split(row)]
    unit = {"names": (), "environment": settings, "env_file": rows.get("EnvironmentFile", ())}
    return _service(unit, Path()), "\n".join(rows.get("ExecStart", [text]))


def _run_lines(text: str) -> Iterator[Container]:
    """List the containers that a script or a command line starts: ``OPTION… IMAGE WORD…``."""
    unit, script = of_unit(text)
    for simple in commands(script, {**os.environ, **unit.env}):
        words = simple.typed
        start = next((i for i, word in enumerate(words) if _PROGRAM.fullmatch(word)), len(words))
        if "run" not in words[start:]:
            continue
        given: Json = {
            "files": {Path(name).name: content for name, content in simple.files.items()}
        }
        own = {**unit.env, **simple.env, **settings_in_front(words)[0]}
        rest = iter(words[words.index("run", start) + 1 :])
        while (word := next(rest, "")).startswith("-"):
            flag, equals, value = word.partition("=")
            if not word.startswith("--"):
                # Letters of switches, the last of which may be an option with its value.
                at = next(
                    (i for i, c in enumerate(word[1:], 1) if f"-{c}" not in facts().switches), 1
                )
                flag, value = f"-{word[at]}", word[at + 1 :].removeprefix("=")
                equals = value
            if flag not in facts().switches:
                key = facts().options.get(flag, flag)
                given.setdefault(key, []).append(value if equals else next(rest, ""))
        # Docker reads such a file as settings on the command line, quotes and all.
        lines = (Path(file).read_text().splitlines() for file in given.pop("env_file", ()))
        settings = [one for file in lines for one in file if one.strip() and one[0] != "#"]
        settings += given.get("environment", ())
        cards = [one.partition(".com/gpu=")[2] for one in given.get("devices", ())]
        listed = ",".join(filter(None, cards))
        yield _service(
            {
                "names": (),
                **given,
                "image": known(word),
                "command": list(map(known, rest)),
                "entrypoint": "entrypoint" in given and [*filter(None, given["entrypoint"])],
                "gpus": next(iter(given.get("gpus", ())), listed and f"device={listed}"),
                "environment": [_own(one, own) for one in settings],
            },
            Path(),
        )


def _own(setting: str, env: StringMap) -> str:
    """Return a setting with the value that the script has for it; that which only a run of it would
    tell comes from elsewhere."""
    name, equals, _ = setting.partition("=")
    setting = setting if equals or name not in env else f"{name}={env[name]}"
    return name if "\0" in setting else setting
