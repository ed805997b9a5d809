"""The recommended command as an image runs it: the program by its name there, the model in front, whole paths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from autotune.engines import Engine, ParsedCommand
from autotune.errors import BadInput
from autotune.outputs.export import words
from autotune.outputs.export.winner import Winner
from autotune.replay.table import UNKNOWN
from autotune.serving.command import absolute_paths
from autotune.study.recommendation import Choice
from autotune.trial import Command


def in_image(winner: Winner) -> list[str]:
    """The winner's command, secrets as ``${NAME}``, the program as the image has it on its path.

    Raises `BadInput` when an image cannot run it.
    """
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
    return words.without_secrets([*program, *absolute_paths(arguments, winner.choice.files)])


def model_first(choice: Choice, kind: Engine) -> list[str]:
    """The engine's words, ``-tp 8 MODEL`` as ``MODEL -tp 8``.

    The engine's parser alone can tell that it is no value of ``-tp``: whoever takes options apart without it cannot.
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
    """The command as the engine reads it; None for options that our copy of its parser does not know."""
    try:
        command = Command(tuple(choice.engine_argv), choice.env, choice.files)
        return kind.parse(command, version_of_parser(choice, kind))
    except BadInput:
        return None


def text_of(parsed: ParsedCommand | None, option: str) -> str | None:
    """An option's value, the first where it takes several; None where it has none."""
    value = parsed.args.get(option) if parsed else None
    if isinstance(value, list):
        value = value[0] if value else None
    return value if isinstance(value, str) else None


def model_named(argv: Sequence[str], kind: Engine) -> str | None:
    """The model as a command names it: after its option, or as the first word that is none."""
    flag = kind.card.model_flag or "--model"
    for word, following in zip(argv, (*argv[1:], ""), strict=True):
        if word == flag and following:
            return following
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    first = (kind.arguments(argv) or ("-",))[0]
    return None if first.startswith("-") else first
