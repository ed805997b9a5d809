"""The recommended configuration in the form in which people deploy it.

A format is one function in one file of this package and one line in `FORMATS`:
`(recommendation, choice) -> str`, where the choice is the recommended configuration. No output holds a
secret: where the study used one, the output asks for it or leaves it out and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.errors import BadInput, UnknownName
from autotune.export import engine_config, json_file, shell, trtllm_config
from autotune.recommendation import Choice, Recommendation


@dataclass(frozen=True, slots=True)
class Format:
    """One way to write a recommendation down.

    Attributes:
        render: makes the text.
        filename: what the file is usually called.
        engine: the only engine that reads it; None = any.
        executable: whether the file is to be run.
    """

    render: Callable[[Recommendation, Choice], str]
    filename: str
    engine: str | None = None
    executable: bool = False


FORMATS: dict[str, Format] = {
    "shell": Format(shell.render, "serve.sh", executable=True),
    "vllm-config": Format(engine_config.render, "vllm.yaml", engine="vllm"),
    "sglang-config": Format(engine_config.render, "sglang.yaml", engine="sglang"),
    "trtllm-config": Format(trtllm_config.render, "trtllm.yaml", engine="tensorrt_llm"),
    "json": Format(json_file.render, "recommendation.json"),
}


def export(recommendation: Recommendation, format: str) -> str:
    """The recommendation in a format of `FORMATS`.

    Raises `UnknownName` for a format that does not exist, `BadInput` for one of another engine and for a
    study that recommends nothing.
    """
    if format not in FORMATS:
        raise UnknownName("export format", format, FORMATS)
    choice = recommendation.recommended
    if choice is None:
        raise BadInput(
            f"study {recommendation.study!r} has no recommendation to export (verdict {recommendation.verdict.value}); "
            f"`autotune report {recommendation.study}` says why"
        )
    if choice.external:
        raise BadInput(f"somebody else runs the server ({choice.argv[0]}), so there is no command to export")
    wanted = FORMATS[format]
    if choice.stand_in and wanted.engine is not None:
        raise BadInput(
            f"the replayed table does not tell the command of {choice.engine}, so there is none to write as {format}; "
            "formats that fit: shell, json"
        )
    if wanted.engine not in (None, choice.engine):
        fitting = [name for name, known in FORMATS.items() if known.engine in (None, choice.engine)]
        raise BadInput(
            f"format {format!r} is for {wanted.engine}, but the study recommends {choice.engine}; "
            f"formats that fit: {', '.join(fitting)}"
        )
    return wanted.render(recommendation, choice)
