"""The input of every export format: the recommended server, with everything needed to run it
elsewhere.

Images, devices, caches and where files lie in a container are those of a launch by ``--on docker``
(`autotune.servers.docker_run`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import yaml
from packaging.version import InvalidVersion, Version

from autotune.base import BadInput, Evidence, StringDict, StringMap, Strings, beside, frozen, redact
from autotune.engines import Command, Configuration, Engine, ParsedCommand, engine
from autotune.engines.command import PORT, gpu_settings_of_servers, gpus_of_a_server, reference_in
from autotune.engines.entry import in_range, parse_yaml
from autotune.engines.kept import given_options, grouped, missing_files
from autotune.load.metrics import readable
from autotune.load.metrics.table import Metrics, curve_of
from autotune.servers import StartupTimeouts
from autotune.servers.command import absolute_paths, with_serving
from autotune.servers.docker_run import (
    docker_card,
    image_of,
    mounted_paths,
    own_entrypoint,
    volume_name,
)
from autotune.tuner.prepare.deployments import Deployment
from autotune.tuner.replay.table import UNKNOWN
from autotune.tuner.search.spread import Spread, mean
from autotune.tuner.study.home import library_of
from autotune.tuner.study.recommendation import Choice, Recommendation
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch, Role, State

from ..report import sentences
from ..report.templates import write
from .fleet import Fleet

ANYWHERE = "0.0.0.0"
"""Listen address in a container, whose loopback is not reachable from outside."""
NAME_LENGTH = 40
"""Most characters of a name: a dstack run's name has at most 41; a DNS label with an ending such as
``-cache``, 63."""

_START_MARGIN = 3.0
"""Allowed start time over the slowest measured one: a cold page cache, a slower disk, kernels still
to compile."""
_LEAST_START_S = 600.0
_MODELS = "HF_HOME"
_ROOM = 1.25  # Volume size over weights: room for compiled kernels, tokenizer, temporary files of a download


def variable_of(name: str) -> str:
    """Return the environment variable for the secret under an option's or a variable's name:
    ``API_KEY``."""
    variable = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").upper() or "SECRET"
    return variable if not variable[0].isdigit() else f"_{variable}"


def without_secrets(argv: Sequence[str]) -> list[str]:
    """Replace secrets by ``${NAME}``, word by word; a word that contains a secret is replaced as a
    whole."""
    words = []
    for word, option in redact.hidden(argv):
        if option is not None:
            name, equals, _ = word.partition("=")
            lead = f"{name}=" if equals and word.startswith("-") else ""
            word = f"{lead}${{{variable_of(option)}}}"
        words.append(word)
    return words


def settings_without_secrets(env: StringMap) -> StringDict:
    """Return the variables, with ``${NAME}`` in place of a secret."""
    shown = redact.env(env)
    return {
        name: value if value == shown[name] else f"${{{variable_of(name)}}}"
        for name, value in env.items()
    }


def doubled(text: str) -> str:
    """Escape text so that Kubernetes, Compose and dstack replace no variable in it."""
    return text.replace("$", "$$")


def required(variable: str) -> str:
    """Return a reference to a variable, at which a shell and Compose stop with a message if it is
    not set."""
    return f"${{{variable}:?set {variable} to the secret that this command needs}}"


def asked_for(argv: Sequence[str], env: StringMap) -> list[str]:
    """Return the variables that the words refer to, each once, in their order."""
    variables = dict.fromkeys(reference_in(word)[1] for word in (*env.values(), *argv))
    return [name for name in variables if name]


def groups(argv: Sequence[str]) -> list[list[str]]:
    """Split words into the program's (those before the first option) and each option with its
    values."""
    # In `python3 -m module` the -m is none of the server's options.
    program = 3 if list(argv[1:2]) == ["-m"] else 1
    first, *options = grouped(argv[program:])
    return [[*argv[:program], *first], *options]


_ABOUT = parse_yaml(beside(__file__, "about.yaml"))


def about(name: str, winner: Winner, **known: object) -> list[str]:
    """Return lines for the head of a file, without comment signs."""
    made = write(
        _ABOUT[name],
        winner=winner,
        outcome=winner.recommendation,
        choice=winner.choice,
        fleet=winner.fleet,
        sentences=sentences,
        **known,
    )
    return [line for line in made.splitlines() if line]


def image_notes(winner: Winner) -> list[str]:
    """Warn of files that a container does not see, and of an image whose name is derived and may
    not exist."""
    choice = winner.choice
    kind = winner.engine
    version = winner.parser_version
    words = kind.arguments(choice.engine_argv) or ()
    lost: Sequence[str] = ()
    derived_from = ""
    with suppress(BadInput):
        prepared = kind.prepare(words, version, winner.command)
        lost = missing_files(kind.card, given_options(kind, prepared, version))
    if winner.image is None and not choice.container:
        entry = image_of(kind.card, winner.spec.hardware, choice.engine_version)
        if entry and not in_range(choice.engine_version, entry.seen):
            derived_from = entry.source
    return about("image", winner, lost=lost, derived_from=derived_from)


def comment(texts: list[str]) -> str:
    """Return lines as comments of shell or YAML; no text can end the comment or make the file
    invalid."""
    return "".join(
        f"# {''.join(sign if sign.isprintable() else ' ' for sign in text)}\n" for text in texts
    )


_PLAIN = re.compile(r"(?:--?[A-Za-z]|[A-Za-z/])[A-Za-z0-9_./:-]+")
"""Text that every reader takes as text: ``1e3`` is text to PyYAML and a number to Kubernetes and
Compose."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if _PLAIN.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dump_yaml(*documents: Any) -> str:
    """Return YAML documents, keys in their order, lines not folded; readers of YAML 1.1 and 1.2
    agree."""
    # No allow_unicode: PyYAML would write line breaks such as U+0085 that it reads back as a space.
    return "---\n".join(
        yaml.dump(d, Dumper=_Dumper, sort_keys=False, width=2**20) for d in documents
    )


def render_json(winner: Winner) -> str:
    """Return ``recommendation.json`` for other programs, without secrets."""
    recommendation = winner.recommendation
    secrets = set[str]()
    for choice in (winner.choice, recommendation.baseline):
        if choice:
            secrets |= redact.secrets_in(choice.argv, choice.env)
    return json.dumps(redact.document(recommendation.to_json(), secrets), indent=2) + "\n"


def _round_down(value: float) -> str:
    """Format a figure that is divided by, rounded down: fewer replicas would not be enough."""
    unit = 10 ** (math.floor(math.log10(value)) - 2)
    return readable.number(math.floor(value / unit * (1 + 1e-12)) * float(unit))


def render_capacity(winner: Winner) -> str:
    """Return the load of one deployment within the limits, for programs that compute the number of
    replicas."""
    load = winner.spec.load
    goal = winner.choice.objective
    capacities = [load.found(row) or 0.0 for row in winner.capacities]
    logs = [math.log(capacity / winner.fleet.count) for capacity in capacities]
    half = Spread.pooled([logs]).half_width([len(logs)]) or 0.0
    per_replica, low, high = (math.exp(mean(logs) + end) for end in (0.0, -half, half))
    on_a_node = None
    least = low
    name = "95 % interval"
    if goal.interval90_on_a_node:
        lowest, highest = (per_replica * end / goal.value for end in goal.interval90_on_a_node)
        on_a_node = [min(low, lowest), max(high, highest)]
        least = on_a_node[0]
        name = "90 % interval on a node"
    rate = least
    bound = f"the lower end of the {name}"
    if load.by == "concurrency":
        loads = [
            one
            for row, capacity in zip(winner.capacities, capacities, strict=True)
            for one in curve_of(row)
            if one[load.key] == capacity
        ]
        seconds = mean([one["mean_e2el_ms"] for one in loads]) / 1000
        rate = least / seconds
        bound += (
            f", {_round_down(least)} requests in flight, since each takes "
            f"{readable.number(seconds)} s at this load; bursts need more (--find-load rate "
            "measures them)"
        )
    document = {
        "unit": "requests/s" if load.by == "rate" else "requests in flight",
        "per_replica": per_replica,
        "interval95": [low, high],
        "interval90_on_a_node": on_a_node,
        "load": load.shape,
        "requests_per_s": rate,
        "arithmetic": f"N replicas carry R requests/s: N = ceil(R / {_round_down(rate)}), "
        f"from {bound}",
        "start_s": max(winner.ready_s, default=None),
        "slo": [str(slo) for slo in winner.spec.slos],
        "evidence": winner.recommendation.evidence.value,
        "evidence_of": winner.recommendation.evidence_of,
        "launches": len(logs),
        "workload": winner.spec.workloads[0],
        "gpus": winner.gpus,
    }
    return json.dumps(document, indent=2) + "\n"


@frozen
class Winner:
    """A recommendation with a start command, on `gpus` for each of its servers.

    `ready_s` are the seconds from launch to ready of each launch that became ready. `image` is the
    user's; None: the measured one, else the one that is known for it. `capacities` are the metrics
    of its launches with a load search: of the finals, where it has any.
    """

    recommendation: Recommendation
    choice: Choice
    spec: StudySpec
    ready_s: tuple[float, ...]
    gpus: int
    image: str | None = None
    capacities: tuple[Metrics, ...] = ()

    @property
    def fleet(self) -> Fleet:
        return Fleet(
            self.gpus,
            self.port,
            gpu_settings_of_servers(self.choice.config, self.spec.hardware.vendor),
        )

    @property
    def port(self) -> int:
        """Return the port, of several servers that before the first, at which people reach it: the
        command's own."""
        return Command(tuple(self.choice.engine_argv)).apart_from_port()[1]

    @property
    def engine(self) -> Engine:
        return engine(self.choice.engine, library_of(self.spec))

    @property
    def parser_version(self) -> str:
        """Return the version whose parser reads the command: the newest if a replayed row names no
        version."""
        version = self.choice.engine_version
        return self.engine.card.newest if version == UNKNOWN else version

    @property
    def command(self) -> Command:
        """Return the engine's command, without a container around it."""
        choice = self.choice
        servers = tuple(self.fleet.servers)
        return Command(tuple(choice.engine_argv), choice.env, choice.files, servers=servers)

    def put_into(self, deployment: Deployment) -> str:
        """Return the text of a deployment with the command; raises `BadInput` where it has no
        place."""
        if self.fleet.servers and not re.search(r"^kind:", deployment.text, re.MULTILINE):
            raise BadInput(
                f"--onto {deployment.name}: {self.fleet.heading}, but Docker would give all of "
                "them the same GPUs; --to compose or docker gives each its own, or tune with --set "
                "replicas=1"
            )
        count = self.fleet.count
        return deployment.rewritten(self.choice.engine_argv, self.choice.env, self.gpus, count)

    def resized(self, deployment: Deployment) -> list[tuple[str, str]]:
        """Return the numbers of a deployment that change, before and after."""
        gpus, count = deployment.gpus or self.gpus, deployment.container.replicas
        numbers = [("GPUs", gpus, self.gpus), ("replicas", count, count * self.fleet.count)]
        return [(f"{name}: {a}", str(b)) for name, a, b in numbers if a != b]

    def parse(self, argv: Sequence[str]) -> ParsedCommand | None:
        """Parse words of the command as the engine does; None for options unknown to the bundled
        copy of its parser."""
        with suppress(BadInput):
            command = Command(tuple(argv), self.choice.env, self.choice.files)
            return self.engine.parse(command, self.parser_version)
        return None

    def text_of(self, option: str) -> str | None:
        """Return an option's value, the first of several; None without one."""
        parsed = self.parse(self.choice.engine_argv)
        value = parsed.args.get(option) if parsed else None
        values = value if isinstance(value, list) else [value]
        return values[0] if values and isinstance(values[0], str) else None

    def model_first(self) -> list[str]:
        """Return the engine's words with the model first: ``-tp 8 MODEL`` becomes ``MODEL -tp 8``.

        Only the engine's parser can tell that MODEL is no value of ``-tp``; other readers of the
        words cannot.
        """
        argv = self.choice.engine_argv
        kind = self.engine
        arguments = kind.arguments(argv)
        parsed = self.parse(argv)
        if not parsed or kind.card.model_flag or not arguments or not arguments[0].startswith("-"):
            return argv
        start = len(argv) - len(arguments)
        for place in range(start + 1, len(argv)):
            moved = [*argv[:start], argv[place], *argv[start:place], *argv[place + 1 :]]
            if argv[place] == parsed.model and self.parse(moved) == parsed:
                return moved
        return argv


def winner_of(
    recommendation: Recommendation,
    spec: StudySpec,
    launches: Sequence[Launch],
    image: str | None = None,
) -> Winner:
    """Return a study's recommendation, in a container `image`; raises `BadInput` if it has no start
    command."""
    choice = recommendation.recommended
    if not choice:
        raise BadInput(
            f"study {recommendation.study!r} has no recommendation to export "
            f"(verdict {recommendation.verdict.value}); see `autotune report {recommendation.study}`"
        )
    if choice.external:
        raise BadInput(
            f"autotune did not start the server ({choice.argv[0]}), so there is no command to "
            "export"
        )
    same = [
        launch
        for launch in launches
        if launch.fingerprint == choice.fingerprint
        and launch.result.state is State.COMPLETE
        and not launch.without_meaning
    ]
    finals = [launch for launch in same if launch.role is Role.FINAL]
    starts_s = (launch.result.times_s.get("ready") for launch in same)
    return Winner(
        recommendation,
        choice,
        spec,
        ready_s=tuple(start_s for start_s in starts_s if start_s),
        gpus=gpus_of_a_server(Configuration(choice.engine, choice.config), recommendation.gpus),
        image=image,
        capacities=tuple(launch.result.metrics[spec.workloads[0]] for launch in finals or same)
        if not spec.load.fixed
        else (),
    )


def in_image(winner: Winner) -> list[str]:
    """Return the command as an image runs it, with secrets as ``${NAME}``; raises `BadInput` if no
    image can."""
    kind = winner.engine
    argv = winner.model_first()
    installed = winner.spec.installed.get(kind.name)
    program = list(kind.card.program)
    arguments = kind.arguments(argv)
    if arguments is not None:
        name, *rest = argv[: len(argv) - len(arguments)]
        name = PurePosixPath(name).name
        program = ["python3" if name.startswith("python") else name, *rest]
    elif installed and tuple(argv[: len(installed.program)]) == installed.program:
        arguments = tuple(argv[len(installed.program) :])
    else:
        raise BadInput(
            f"{argv[0]!r} is not a start command of {kind.card.title}: no command in an image is "
            "known"
        )
    # A folder named from where the study was made lies elsewhere in a container.
    return without_secrets([*program, *absolute_paths(arguments, winner.choice.files)])


@dataclass(frozen=True)
class Container:
    """A server in a container. Secrets stand as ``${NAME}`` in `argv` and `env`.

    Attributes:
        name: a DNS label of at most `NAME_LENGTH` characters that begins with a letter.
        argv: the engine's command, listening on `ANYWHERE` and `PORT`.
        own_entrypoint: the image's own entry point runs these words; else it has to be set aside.
        env: the recommended variables but `gpu_choice`, which choose among a node's GPUs, and this
            machine's caches.
        files: name to content of files in the working folder.
        mounts: files and folders of the host that the command names.
        caches: folders that should outlive the container, to a volume's name that tells image and
            GPU.
        health: the path that answers 200 when the server is ready.
        model: an id at Hugging Face, or an absolute path; `served` is the name in requests.
        weights: the host's Hugging Face cache as the recommended variables name it; None: they do
            not.
        storage_gib: of the caches, in whole tens; room for the weights unless they are mounted.
    """

    winner: Winner
    name: str
    image: str
    argv: Strings
    own_entrypoint: bool
    env: StringMap
    gpu_choice: StringMap
    files: StringMap
    mounts: Strings
    caches: StringMap
    health: str
    start_limit_s: int
    start_limit_source: str
    model: str
    served: str
    revision: str | None
    weights: str | None
    storage_gib: int
    vendor: str

    @property
    def model_is_local(self) -> bool:
        """Return whether the model is a folder, not a name at Hugging Face."""
        return self.model.startswith("/")

    @property
    def plain_env(self) -> StringDict:
        return {name: value for name, value in self.env.items() if reference_in(value)[1] is None}

    @property
    def secrets(self) -> list[str]:
        """Return the variables that hold the command's secrets."""
        return asked_for(self.argv, self.env)


def container_of(winner: Winner) -> Container:
    """Return the winner in a container; raises `BadInput` if no image is known for it."""
    choice = winner.choice
    hardware = winner.spec.hardware
    kind = winner.engine
    argv = in_image(winner)
    image = _image(winner)
    parsed = winner.parse(argv)
    model = parsed.model if parsed else winner.spec.model.id
    if model.startswith("."):
        raise BadInput(
            f"the model folder {model!r} does not exist here; export on the machine of the study"
        )
    env = settings_without_secrets(choice.env)
    weights = env.pop(_MODELS, None)
    # Mount the paths of the command that exist here, and a model's folder, which may lie on another
    # machine.
    mounts = mounted_paths(argv)
    is_local = model.startswith("/")
    if is_local and not any(PurePosixPath(model).is_relative_to(path) for path in mounts):
        mounts.append(model)
    limit_s, limit_source = _start_limit(winner)
    caches = docker_card().caches
    storage_gib = 0 if is_local else _ROOM * winner.spec.model.weights_gb * 1e9 / 2**30
    last = winner.recommendation.model.rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^a-z0-9]+", "-", f"{choice.engine}-{last}".lower()).strip("-")
    return Container(
        winner=winner,
        vendor=hardware.vendor,
        name=(name if name[:1].isalpha() else f"server-{name}")[:NAME_LENGTH].rstrip("-"),
        image=image,
        # Without what a launch needs besides, to be measured: it is no part of the recommendation.
        argv=with_serving(
            argv,
            kind.card.serving.model_copy(update={"arguments": [], "port_flags": {}}),
            ANYWHERE,
            PORT,
        ),
        own_entrypoint=own_entrypoint(kind.card, hardware, image),
        env={name: value for name, value in env.items() if not chooses_gpus(name)},
        gpu_choice={name: value for name, value in env.items() if chooses_gpus(name)},
        files=choice.files,
        mounts=tuple(sorted(mounts)),
        caches={folder: volume_name(image, hardware.name, folder) for folder in caches},
        health=kind.card.serving.health,
        start_limit_s=limit_s,
        start_limit_source=limit_source,
        model=model,
        served=winner.text_of("served_model_name") or model,
        revision=winner.text_of("revision"),
        weights=weights if weights and weights.startswith("/") else None,
        storage_gib=10 * max(2, math.ceil(storage_gib / 10)),
    )


def chooses_gpus(variable: str) -> bool:
    """Return whether a variable selects GPUs of a machine by number, as
    ``CUDA_VISIBLE_DEVICES``."""
    return variable.endswith("_VISIBLE_DEVICES")


def _start_limit(winner: Winner) -> tuple[int, str]:
    """Return the time limit of a start, in seconds, and the source of the figure in words."""
    limit_s = StartupTimeouts().total_s
    slowest_s = 0.0
    if winner.recommendation.origin is not Evidence.EMULATED:
        slowest_s = max(winner.ready_s, default=0.0)
    if slowest_s:
        limit_s = max(_LEAST_START_S, _START_MARGIN * slowest_s)
    known = {"slowest_s": slowest_s, "limit_s": math.ceil(limit_s), "margin": _START_MARGIN}
    return math.ceil(limit_s), "".join(about("start_limit", winner, **known))


def _image(winner: Winner) -> str:
    choice = winner.choice
    hardware = winner.spec.hardware
    card = winner.engine.card
    if winner.image is not None:
        if not winner.image or any(sign.isspace() for sign in winner.image):
            raise BadInput(
                f"--image {winner.image!r}: name an image with its tag, e.g. "
                "vllm/vllm-openai:v0.32.0"
            )
        return winner.image
    if choice.container:
        return choice.container[-1]
    version = choice.engine_version
    with suppress(InvalidVersion):
        version = Version(version).public
        if known := image_of(card, hardware, version):
            return known.image.replace("{version}", version)
    raise BadInput(
        f"no container image of {card.title} {version} for {hardware.vendor} "
        f"{hardware.generation} is known; name one with --image IMAGE"
    )
