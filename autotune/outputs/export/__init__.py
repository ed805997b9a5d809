"""The recommended configuration in the form in which people deploy it.

A format is one function in one file of this package and one line in `FORMATS`: `(winner) -> str`, where the winner is
the recommended configuration with what the study knows of it. No output holds a secret: where the study used one, the
output asks for it or leaves it out and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.errors import BadInput, UnknownName
from autotune.outputs.export import compose, config_files, dstack, gpustack, kubernetes, shell
from autotune.outputs.export.winner import Winner, render_json, winner_of

__all__ = ["FORMATS", "Format", "Winner", "all_of", "export", "winner_of"]


@dataclass(frozen=True, slots=True)
class Format:
    """One way to write a recommendation down: its text, the usual file name, and the file's permissions.

    Attributes:
        engine: the only engine that reads it; None: any.
        without_command: it can say something of a replayed row of which no command is known.
        container: it runs a container image.
    """

    render: Callable[[Winner], str]
    filename: str
    engine: str | None = None
    mode: int = 0o644
    without_command: bool = False
    container: bool = False

    def fits(self, winner: Winner) -> bool:
        """Return whether a winner of this engine, and with what is known of its command, has this form."""
        return self.engine in (None, winner.choice.engine) and (self.without_command or not winner.choice.stand_in)


FORMATS: dict[str, Format] = {
    "shell": Format(shell.render, "serve.sh", mode=0o755, without_command=True),
    "docker": Format(shell.render_docker, "docker-run.sh", mode=0o755, container=True),
    "compose": Format(compose.render, "compose.yaml", container=True),
    "k8s": Format(kubernetes.render, "kubernetes.yaml", container=True),
    "dstack": Format(dstack.service, "service.dstack.yml", container=True),
    "dstack-task": Format(dstack.task, "task.dstack.yml", container=True),
    "gpustack": Format(gpustack.render, "gpustack.yaml", container=True),
    "vllm-config": Format(config_files.render_config, "vllm.yaml", engine="vllm"),
    "sglang-config": Format(config_files.render_config, "sglang.yaml", engine="sglang"),
    "trtllm-config": Format(config_files.render_trtllm, "trtllm.yaml", engine="tensorrt_llm"),
    "json": Format(render_json, "recommendation.json", without_command=True),
}


def check_format(name: str) -> Format:
    """Return the format of that name; raises `UnknownName` with those that there are."""
    if name not in FORMATS:
        raise UnknownName("export format", name, FORMATS)
    return FORMATS[name]


def export(winner: Winner, name: str) -> str:
    """Return the winner's text in a format of `FORMATS`.

    Raises `UnknownName` for no format, `BadInput` for one that this winner, its engine or its image does not have.
    """
    wanted = check_format(name)
    if winner.image is not None and not wanted.container:
        those = ", ".join(known for known, form in FORMATS.items() if form.container)
        raise BadInput(f"--image is for the formats that run a container ({those}), not for {name}")
    if wanted.fits(winner):
        return wanted.render(winner)
    fitting = ", ".join(known for known, form in FORMATS.items() if form.fits(winner))
    if winner.choice.stand_in:
        raise BadInput(
            f"the replayed table does not tell the command of {winner.choice.engine}, so there is none to write as "
            f"{name}; formats that fit: {fitting}"
        )
    raise BadInput(
        f"format {name!r} is for {wanted.engine}, but the study recommends {winner.choice.engine}; "
        f"formats that fit: {fitting}"
    )


def all_of(winner: Winner) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return file name to text in every format that fits this winner, and reason to the file names denied."""
    texts: dict[str, str] = {}
    denied: dict[str, list[str]] = {}
    for name, form in FORMATS.items():
        if form.fits(winner):
            try:
                texts[form.filename] = export(winner, name)
            except BadInput as error:
                denied.setdefault(str(error), []).append(form.filename)
    return texts, denied
