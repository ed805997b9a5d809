"""What every format is made from: the recommended configuration, and what the study knows of it besides."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import yaml

from autotune import redact
from autotune.engines import Engine, ParsedCommand, engine
from autotune.errors import BadInput
from autotune.outputs.report import words
from autotune.replay.table import UNKNOWN
from autotune.serving.command import absolute_paths
from autotune.serving.docker_run import image_of
from autotune.space.context import gpus_of, replicas_of, servers_of
from autotune.space.entry import in_range
from autotune.study.recommendation import Choice, Recommendation, Verdict
from autotune.study.spec import StudySpec
from autotune.study.user_library import library_of
from autotune.trial import Command, Configuration, Evidence, Launch, State, reference_in

_NUMBER = re.compile(r"-(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?")


def variable_of(name: str) -> str:
    """Return the environment variable for the secret under an option's or a variable's name: ``API_KEY``."""
    variable = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").upper() or "SECRET"
    return variable if not variable[0].isdigit() else f"_{variable}"


def without_secrets(argv: Sequence[str]) -> list[str]:
    """Replace secrets by ``${NAME}``, word for word; a word that holds one in its midst is a secret itself."""
    words: list[str] = []
    for word, option in redact.hidden(argv):
        name, equals, _ = word.partition("=")
        reference = f"${{{variable_of(option)}}}" if option is not None else word
        words.append(f"{name}={reference}" if option is not None and equals and word.startswith("-") else reference)
    return words


def settings_without_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables, with ``${NAME}`` in place of a secret."""
    secret = {name for name, value in redact.env(env).items() if value != env[name]}
    return {name: f"${{{variable_of(name)}}}" if name in secret else value for name, value in env.items()}


def doubled(text: str) -> str:
    """Return text in which Kubernetes, Compose and dstack replace no variable."""
    return text.replace("$", "$$")


def required(variable: str) -> str:
    """Return a variable's value to a shell and to Compose, which stop with a message where it is not set."""
    return f"${{{variable}:?set {variable} to the secret that this command needs}}"


def asked_for(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return the variables that the words refer to, each once, in their order."""
    found = (reference_in(word)[1] for word in (*env.values(), *argv))
    return list(dict.fromkeys(name for name in found if name))


def groups(argv: Sequence[str]) -> list[list[str]]:
    """Split words into the program's, those before the first option among them, and each option with its values."""
    # In `python3 -m module` the -m is none of the server's options.
    program = 3 if list(argv[1:2]) == ["-m"] else 1
    split: list[list[str]] = [list(argv[:program])]
    for word in argv[program:]:
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            split.append([word])
        else:
            split[-1].append(word)
    return split


_WHY = {
    Evidence.EMULATED: "not measured on this hardware",
    Evidence.SIMULATED: "not measured on this hardware",
    Evidence.REPLAYED: "read from recorded launches",
}


def heading(winner: Winner) -> list[str]:
    """Return lines that say what is recommended and why, without comment signs."""
    recommendation, choice = winner.recommendation, winner.choice
    why = _WHY.get(recommendation.origin)
    worth = f"{recommendation.label}, {why}" if why else recommendation.label
    objective = choice.objective
    return [
        f"{choice.engine} {choice.engine_version} for {recommendation.model} "
        f"on {recommendation.gpus} x {recommendation.hardware}",
        f"recommended by autotune, study {recommendation.study}, configuration {choice.fingerprint}",
        *([f"{winner.replicas} servers of {winner.gpus} GPUs each share the load"] if winner.replicas > 1 else []),
        f"evidence: {worth}",
        f"{objective.metric} on {objective.workload}: {objective.value:.2f}",
        f"gain over the baseline: {gain(recommendation)}",
        *words.promises(recommendation),
        *(f"{other.label}: {redact.text(other.command)}" for other in recommendation.alternatives),
    ]


def image_notes(winner: Winner) -> list[str]:
    """Warn where autotune names a container's image and does not know that there is one of that version."""
    if winner.image is not None or winner.choice.container:
        return []
    entry = image_of(winner.engine.card, winner.spec.hardware, winner.choice.engine_version)
    if entry is None or in_range(winner.choice.engine_version, entry.seen):
        return []
    return [f"image: the tag follows the names of earlier versions, check that it exists ({entry.source})"]


def gain(recommendation: Recommendation) -> str:
    """Return the gain with its interval and verdict, in one phrase."""
    if recommendation.verdict is Verdict.UNOPPOSED or recommendation.gain_percent is None:
        return "unknown, the baseline did not run"
    chosen, baseline = recommendation.recommended, recommendation.baseline
    if chosen and baseline and chosen.fingerprint == baseline.fingerprint:
        return "none, this is the baseline itself"
    text = f"{recommendation.gain_percent:+.1f} %"
    if recommendation.gain_ci95 is not None:
        low, high = recommendation.gain_ci95
        node = words.on_a_node(recommendation)
        text += f" (95 % interval {low:+.1f} to {high:+.1f} %{f'; {node}' if node else ''})"
    if recommendation.verdict is Verdict.INDISTINGUISHABLE:
        text += ", not distinguishable from none"
    elif recommendation.holds_on_a_node is not None:
        text += f", {recommendation.qualified_verdict}"
    return text


def comment(texts: list[str]) -> str:
    """Return lines as comments of shell or YAML; nothing inside a text can end the comment or is refused in one."""
    return "".join(f"# {''.join(sign if sign.isprintable() else ' ' for sign in text)}\n" for text in texts)


_PLAIN = re.compile(r"(?:--?[A-Za-z]|[A-Za-z/])[A-Za-z0-9_./:-]+")
"""Text that no reader takes for anything else: ``1e3`` is text to PyYAML and a number to Kubernetes and Compose."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if _PLAIN.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dump_yaml(*documents: Any) -> str:
    """Return YAML documents, keys in their order, lines not folded; readers of YAML 1.1 and 1.2 agree on them."""
    # No allow_unicode: PyYAML would write line breaks such as U+0085 that it reads back as a space.
    return "---\n".join(yaml.dump(d, Dumper=_Dumper, sort_keys=False, width=2**20) for d in documents)


def yaml_file(winner: Winner, about: list[str], *documents: Any) -> str:
    """Return YAML documents of a server in a container; the first lines say what they are and how they are used."""
    return comment([*heading(winner), *image_notes(winner), *about]) + dump_yaml(*documents)


def render_json(winner: Winner) -> str:
    """Return ``recommendation.json`` for other programs, without secrets."""
    recommendation = winner.recommendation
    choices = [choice for choice in (winner.choice, recommendation.baseline) if choice is not None]
    secrets = set().union(*(redact.secrets_in(choice.argv, choice.env) for choice in choices))
    return json.dumps(redact.document(recommendation.to_json(), secrets), indent=2) + "\n"


@dataclass(frozen=True, slots=True)
class Winner:
    """A recommendation that somebody can start.

    Attributes:
        ready_s: seconds from launch to ready of each launch that became ready.
        gpus: GPUs of each of its servers.
        image: the user's container image; None: the measured one, else the one that is known for it.
    """

    recommendation: Recommendation
    choice: Choice
    spec: StudySpec
    ready_s: tuple[float, ...]
    gpus: int
    image: str | None = None

    @property
    def servers(self) -> tuple[dict[str, str], ...]:
        """Settings of each of several servers besides the common ones; empty of one."""
        return servers_of(self.choice.config, self.spec.hardware.vendor)

    @property
    def replicas(self) -> int:
        """Number of servers."""
        return replicas_of(self.choice.config)

    @property
    def engine(self) -> Engine:
        """The engine that it runs on."""
        return engine(self.choice.engine, library_of(self.spec))


def winner_of(
    recommendation: Recommendation, spec: StudySpec, launches: Sequence[Launch], image: str | None = None
) -> Winner:
    """Return the recommendation of a finished study with these launches, in a container `image` of the user's own.

    Raises `BadInput`: it recommends nothing, or a server that somebody else runs.
    """
    choice = recommendation.recommended
    if choice is None:
        raise BadInput(
            f"study {recommendation.study!r} has no recommendation to export (verdict {recommendation.verdict.value}); "
            f"`autotune report {recommendation.study}` says why"
        )
    if choice.external:
        raise BadInput(f"somebody else runs the server ({choice.argv[0]}), so there is no command to export")
    same = [
        launch.result
        for launch in launches
        if launch.trial.configuration.fingerprint == choice.fingerprint and launch.result.state is State.COMPLETE
    ]
    return Winner(
        recommendation,
        choice,
        spec,
        ready_s=tuple(result.times_s["ready"] for result in same if result.times_s.get("ready")),
        gpus=gpus_of(Configuration(choice.engine, choice.config), recommendation.gpus) // replicas_of(choice.config),
        image=image,
    )


def in_image(winner: Winner) -> list[str]:
    """Return the command as an image runs it, secrets as ``${NAME}``; raises `BadInput` if none can."""
    kind = winner.engine
    argv, installed = model_first(winner.choice, kind), winner.spec.installed.get(kind.name)
    arguments = kind.arguments(argv)
    if arguments is not None:
        name, *rest = argv[: len(argv) - len(arguments)]
        name = PurePosixPath(name).name
        program = ["python3" if name.startswith("python") else name, *rest]
    elif installed is not None and tuple(argv[: len(installed.program)]) == installed.program:
        program, arguments = list(kind.card.program), tuple(argv[len(installed.program) :])
    else:
        raise BadInput(f"{argv[0]!r} is not how {kind.card.title} is started, so its command in an image is not known")
    # A folder named from where the study was made lies elsewhere in a container.
    return without_secrets([*program, *absolute_paths(arguments, winner.choice.files)])


def model_first(choice: Choice, kind: Engine) -> list[str]:
    """Return the engine's words, ``-tp 8 MODEL`` as ``MODEL -tp 8``.

    Only the engine's parser can tell that MODEL is no value of ``-tp``; other readers of the words cannot.
    """
    argv, parsed = choice.engine_argv, parsed_command(choice, kind)
    arguments = kind.arguments(argv)
    if parsed is None or kind.card.model_flag or not arguments or not arguments[0].startswith("-"):
        return argv
    start = len(argv) - len(arguments)
    for place in (i for i, word in enumerate(argv) if i > start and word == parsed.model):
        moved = [*argv[:start], argv[place], *argv[start:place], *argv[place + 1 :]]
        if parsed_command(choice.model_copy(update={"argv": [*choice.container, *moved]}), kind) == parsed:
            return moved
    return argv


def version_of_parser(choice: Choice, kind: Engine) -> str:
    """Return the version whose parser reads the command: the newest for a replayed row that names no version."""
    return kind.card.newest if choice.engine_version == UNKNOWN else choice.engine_version


def parsed_command(choice: Choice, kind: Engine) -> ParsedCommand | None:
    """Return the command as the engine reads it; None for options that our copy of its parser does not know."""
    try:
        command = Command(tuple(choice.engine_argv), choice.env, choice.files)
        return kind.parse(command, version_of_parser(choice, kind))
    except BadInput:
        return None


def text_of(parsed: ParsedCommand | None, option: str) -> str | None:
    """Return an option's value, the first of several; None where it has none."""
    value = parsed.args.get(option) if parsed else None
    if isinstance(value, list):
        value = value[0] if value else None
    return value if isinstance(value, str) else None


def model_named(argv: Sequence[str], kind: Engine) -> str | None:
    """Return the model as a command names it: after its option, or as the first word that is none."""
    flag = kind.card.model_flag or "--model"
    for word, following in zip(argv, (*argv[1:], ""), strict=True):
        if word == flag and following:
            return following
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    first = (kind.arguments(argv) or ("-",))[0]
    return None if first.startswith("-") else first
