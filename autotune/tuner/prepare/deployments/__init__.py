"""A deployment as a baseline: a ``docker run`` line, a script, services of Compose, containers of
Kubernetes; and the same text with other settings.

>>> deployment = read("docker run --gpus all vllm/vllm-openai:v0.33.0 Qwen/Qwen3-8B -tp 2")
>>> deployment.command.argv, deployment.version
(('vllm', 'serve', 'Qwen/Qwen3-8B', '-tp', '2'), '0.33.0')
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from autotune.base import BadInput, StringDict, StringMap, frozen, redact
from autotune.engines import Command, Engine, Words, server_environment
from autotune.engines.command import DEVICES, reference_in, referenced
from autotune.engines.environment import stored
from autotune.engines.library import Library
from autotune.engines.registry import recognise, typed_command
from autotune.servers.docker_run import version_in_tag

from .changes import edited, knob_variables, steps
from .forms import YAML, Container, KnownImage, containers, facts, of_unit

_FILE = re.compile(r"(?:(?:bash|sh|sbatch) +)?(?P<name>[^\s#]+)(?:#(?P<part>.*))?")
_TEMPLATE = re.compile(r"\{\{-?\s*(?:\.(?:Values|Release|Chart)\b|include\s|define\s)")
_RUN = re.compile(r"\b(?:docker|podman|nerdctl)\s(?!compose)(?:.*\s)?run\s", re.DOTALL)

_NONE = (
    "no service of Compose, pod of Kubernetes or docker run line is in it; of a chart give what `helm "
    "template` prints"
)


@frozen
class Deployment:
    """One server of a deployment, and the text that it stands in.

    Attributes:
        command: the engine's own words, with the variables that it or its libraries read; a secret
            is a reference.
        version: of the engine, as the image's tag tells it; None: it does not.
        notes: one sentence each.
        name: its file; empty for a command line.
        part: the server's name in the file.
        others: containers of the text with another command.
    """

    container: Container
    kind: Engine
    command: Command
    version: str | None
    notes: Sequence[str]
    library: Library | None
    name: str = ""
    part: str = ""
    text: str = ""
    others: Sequence[Container] = ()

    @property
    def gpus(self) -> int | None:
        """Return how many GPUs the server gets; None: all of the node's."""
        return gpus_of(self.container)

    @property
    def model(self) -> str:
        """Return the model that it serves, as it is named there."""
        return self.kind.parse(self.command, self.kind.version(self.version)).model

    def rewritten(
        self,
        argv: Words,
        env: StringMap,
        gpus: int | None = None,
        replicas: int | None = None,
    ) -> str:
        """Return the text with the knobs of another command and other numbers, and nothing else
        changed.

        Args:
            argv: a command of the same engine: options that no knob is read from are left alone.
            env: its variables; only those of knobs count.
            gpus: of each server; None: as they are.
            replicas: how many servers take the place of each; None: one.

        Raises `BadInput` for a change that cannot be made by place.
        """
        here, version = self, self.kind.version(self.version)
        old, new = (self.kind.arguments(words) or () for words in (self.command.argv, argv))
        program = self.command.argv[: len(self.command.argv) - len(old)]
        for edit, about, wanted in steps(self.kind, version, old, new):
            here = here._changed(edit, about, argv=(*program, *wanted))
        for name in sorted(knob_variables(self.kind, version)):
            was, value = self.command.env.get(name), env.get(name)
            if was != value:
                here = here._with_variable(name, was, value)
        if gpus and self.gpus not in (None, gpus):
            about = {"VALUE": str(gpus), "LESS": str(gpus - 1)}
            here = here._changed("gpus", about, gpus=gpus)
        if replicas not in (None, 1):
            count = self.container.replicas * (replicas or 1)
            here = here._changed("replicas", {"VALUE": str(count)}, replicas=count)
        return here.text

    def _with_variable(self, name: str, was: str | None, value: str | None) -> Deployment:
        edit = "add" if was is None else "drop" if value is None else "set"
        kept = {key: text for key, text in self._env.items() if key != name}
        about = {"NAME": name, "VALUE": value or "", "PROGRAM": self.command.argv[0]}
        about["OLD"] = f"(?:{'|'.join(map(re.escape, kept)) or '(?!)'})"
        return self._changed(edit, about, env=kept if value is None else {**kept, name: value})

    def _changed(self, edit: str, about: StringMap, **wanted: object) -> Deployment:
        """Return the first edited deployment that reads as wanted, and else as before."""
        right = {**self._read(), **wanted}
        for text in edited(self.text, edit, about):
            with suppress(BadInput):
                there = _chosen(text, self.name, self.part, self.library)
                if there._read() == right:
                    return there
        what = about["VALUE"] or about["NAME"].replace("\\", "")
        raise BadInput(
            f"{self.name or 'the command line'}: no place for {edit.replace('_', ' ')} {what}; change it "
            "by hand"
        )

    @property
    def _env(self) -> StringDict:
        """Return the variables but those that choose GPUs."""
        chosen = facts().gpu_variables
        return {name: text for name, text in self.container.env.items() if name not in chosen}

    def _read(self) -> dict[str, object]:
        """Return what is read, without how the command is spelt and which GPUs it gets."""
        one = self.container
        # Other containers of a pod are started with it.
        others = [
            replace(other, replicas=1) if {*other.names} & {*one.names} else other
            for other in self.others
        ]
        return {
            "argv": self.command.argv,
            "env": self._env,
            "gpus": self.gpus,
            "replicas": one.replicas,
            "rest": (one.names, one.image, one.folders, one.files, one.notes, others),
        }


def read(typed: str, library: Library | None = None) -> Deployment | None:
    """Read ``FILE[#PART]``, or a ``docker run`` line; None for an engine's own command line.

    A file with another suffix than YAML's is a script, or a unit of systemd.

    Raises `BadInput` for a file that cannot be read, and for several servers, or none.
    """
    match = _FILE.fullmatch(typed.strip())
    name = os.path.expanduser(match["name"]) if match else ""
    if match and (name.endswith((*YAML, ".sh", ".service")) or os.path.isfile(name)):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise BadInput(f"{name} cannot be read: {getattr(error, 'strerror', error)}") from error
        if _TEMPLATE.search(text):
            raise BadInput(f"{name} is a template of a chart: give what `helm template` prints")
        return _chosen(text, name, match["part"] or "", library)
    return _chosen(typed, "", "", library) if _RUN.search(typed) else None


def _chosen(text: str, name: str, part: str, library: Library | None) -> Deployment:
    """Return the one server of a text that an engine serves, or that is named."""
    try:
        found = containers(text, name)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"{name}: no deployment as Compose or Kubernetes has it ({error})"
        ) from error
    if not found and not name.endswith(YAML):
        unit, script = of_unit(text)
        typed = typed_command(script, {**os.environ, **unit.env, "0": name}, library)
        command, notes = typed.command, (*unit.notes, *typed.notes)
        server = replace(unit, entrypoint=command.argv, files=command.files, notes=notes)
        found = [
            replace(server, env={**unit.env, **command.env, **own})
            for own in command.servers or ({},)
        ]
    made, problems = list[Deployment](), list[tuple[bool, str]]()
    for one in found:
        if not part or part in one.names:
            try:
                made.append(_deployment(one, library))
            except BadInput as error:
                said = ": ".join([*map(str, one.names[-1:]), str(error)])
                problems.append((known_image(one.image) is None, said))
    if not made:
        there = ", ".join(f"{name}#{one.names[-1]}" for one in found if one.names)
        missing = f"no server {part} is in {name}; there is {there}" if there else _NONE
        raise BadInput(min(problems)[1] if problems else missing)
    if len({one.command.argv for one in made}) > 1:
        parts = " or ".join(f"{name}#{one.container.names[-1]}" for one in made)
        raise BadInput(f"{len(made)} servers: choose {parts}")
    # Several that differ in their GPUs alone share the load.
    seen = [
        {
            key: env[key]
            for key in DEVICES.values()
            if key in (env := one.container.env) and referenced(env[key]) is None
        }
        for one in made
    ]
    first, *more = made
    command = replace(first.command, servers=tuple(seen if more else ()))
    others = [one for one in found if one.words != first.container.words]
    return replace(first, command=command, name=name, part=part, text=text, others=others)


def _deployment(one: Container, library: Library | None) -> Deployment:
    image, words = known_image(one.image), one.words
    try:
        typed = typed_command(shlex.join(words), one.env, library)
        kind = recognise(typed.command.argv, library)
    except BadInput:
        if image is None or one.entrypoint:
            raise
        typed = typed_command(shlex.join([*image.entrypoint, *words]), one.env, library)
        kind = recognise(typed.command.argv, library)
    env, files = {**one.env, **typed.command.env}, {**one.files, **typed.command.files}
    hidden = [key for key, value in env.items() if stored(key, value) != value]
    argv = list[str]()
    for word, option in redact.hidden(typed.command.argv):
        head, name_ = reference_in(word)
        if name_ and not any(map(redact.is_secret_name, (name_, head, *argv[-1:]))):
            raise BadInput(f"{name_} is not set here: export it, or write its value")
        if option:
            hidden.append(option)
            head = f"{option}=" if word.startswith("-") else ""
            word = f"{head}${{{option.strip('-').replace('-', '_').upper()}}}"
        argv.append(_on_host(word, one.folders))
    version, releases = version_in_tag(one.image), kind.card.releases
    if version and image and not image.versioned:
        # The tag of somebody's own image may count its builds.
        among = Version(releases[0]) <= Version(version) <= Version(releases[-1])
        version = version if among else version_in_tag(one.image, named=True)
    read_by = {*server_environment().record(env), *knob_variables(kind, kind.version(version))}
    notes = [*typed.notes, *one.notes]
    if hidden:
        notes.append(f"secrets are not stored: {', '.join(hidden)}")
    if one.image and version is None:
        title = kind.card.title
        notes.append(f"{one.image} names no version of {title}: the newest known one is taken")
    if one.replicas > 1:
        notes.append(f"{one.replicas} replicas: one of them is tuned")
    command = Command(
        tuple(argv),
        {
            key: stored(key, value)
            for key, value in env.items()
            # A value that is elsewhere, and no secret, is not known here.
            if key in read_by and (key in hidden or referenced(value) is None)
        },
        {last: files[last] for word in argv if (last := Path(word).name) in files},
    )
    return Deployment(one, kind, command, version, notes, library)


def _on_host(word: str, folders: StringMap) -> str:
    """Return a path of the container as the host's, where that is there."""
    option, equals, path = word.rpartition("=")
    hosts = (
        f"{host}{path.removeprefix(place)}"
        for place, host in folders.items()
        if f"{path}/".startswith(f"{place}/")
    )
    return f"{option}{equals}{next(filter(os.path.exists, hosts), path)}"


def gpus_of(one: Container) -> int | None:
    """Return how many GPUs a container gets, or sees; None: all."""
    seen = [one.env.get(name, "") for name in facts().gpu_variables]
    seen += re.findall(r"device=([^\"']+)", one.gpus)
    counts = [len(text.split(",")) for text in seen if re.fullmatch(r"[\w-]*\d(,[\w-]*\d)*", text)]
    counts += map(int, re.findall(r"^(?:count=)?(\d+)$", one.gpus))
    return min(counts, default=None)


def known_image(image: str) -> KnownImage | None:
    """Return what is known of an image, by its repository."""
    repository = re.sub(r"(:[^/]*)?(@.*)?$", "", image)
    return next((one for one in facts().images if re.fullmatch(one.repository, repository)), None)
