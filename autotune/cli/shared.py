"""Options that several commands take; options in groups, examples, and one line for what click refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Markdown, TableElement
from rich.table import Table
from rich.text import Text


def common(home_is_used: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add ``--json`` and ``--home``, which every command takes; one that keeps nothing ignores ``--home``."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        command = click.option(
            "--json", "as_json", is_flag=True, help="One JSON object on stdout, messages on stderr."
        )(command)
        return click.option(
            "--home",
            type=click.Path(path_type=Path),
            envvar="AUTOTUNE_HOME",
            default=Path("mlruns"),
            show_default="./mlruns, or AUTOTUNE_HOME",
            expose_value=home_is_used,
            help="Where studies and the MLflow database lie.",
        )(command)

    return decorate


calibration = click.option(
    "--calibration",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Coefficients of the simulated node; default: coefficients.yaml in the home folder, else the shipped ones.",
)


hardware = click.option(
    "--hw", "hardware", required=True, help="Hardware by name (h200, mi300x), local, or a YAML file."
)
gpus = click.option("--gpus", type=int, help="GPUs to use; default: all of the node.")
find_load = click.option(
    "--find-load",
    type=click.Choice(["concurrency", "rate"]),
    help="With --slo: raise the load as far as every limit is kept, to within 10 %.",
)
pins = click.option("--set", "pins", multiple=True, help="Pin a knob, e.g. kv_cache_dtype=bfloat16, tp=8; repeatable.")
speedup = click.option("--speedup", type=float, help="Replay trace:FILE so many times as fast. Default: 1.")
space = click.option("--space", type=click.Path(path_type=Path), help="Space file or folder of your own.")
goodput = click.option(
    "--goodput", multiple=True, help="What each request must keep to be good, in ms, e.g. 'ttft:2000 tpot:50'."
)
gpu_hour_price = click.option("--gpu-hour-price", type=float, help="Of one GPU: adds cost_per_million_tokens.")
accuracy = click.option(
    "--accuracy", help="Check answers: builtin, a FILE.jsonl of tasks, or 'command {url} {model}' that prints a score."
)
engine_bins = click.option(
    "--engine-bin", "engine_bins", multiple=True, help="Where an engine is, e.g. sglang=/opt/venv/bin/python."
)
images = click.option("--image", "images", multiple=True, help="For docker: ENGINE=IMAGE; default: the engine's own.")
seed = click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)


def given() -> frozenset[str]:
    """The options of the running command that were typed, by parameter."""
    context = click.get_current_context()
    return frozenset(n for n in context.params if context.get_parameter_source(n) is not ParameterSource.DEFAULT)


def engine_command(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the commands that take an engine's command line."""
    for option in (
        hardware,
        gpus,
        click.option("--engine-version", help="Parse and behave as this version; default: the newest known."),
        click.option("--model-id", help="The model's id, when the command line names a path."),
    ):
        command = option(command)
    return command


GROUPS = {
    "What to serve": ("model", "model_id", "hardware", "gpus", "engines"),
    "What to improve": (
        *("workloads", "speedup", "objective", "weights", "pareto", "slos", "find_load", "goodput"),
        "baseline",
    ),
    "What to measure besides": ("accuracy", "ladder", "gpu_hour_price"),
    "What may be tried": ("pins", "engine_args", "min_context", "allow", "space", "sampler", "sources"),
    "How much": ("launches", "hours", "seed", "noise"),
    "Where launches run": (
        *("on", "executor", "engine_bins", "images", "fetch"),
        *("api_key_env", "api_key_file", "hf_token_file", "calibration"),
    ),
    "The study": ("study", "dry_run", "home", "as_json"),
}
"""Heading to the options of ``autotune run`` under it, by parameter; others follow at the end."""

EXAMPLES = """\
\b
Examples:
  autotune run --model deepseek-ai/DeepSeek-V3.2 --hw h200 --dry-run
  autotune run --model deepseek-ai/DeepSeek-V3.2 --hw h200 --engine vllm --launches 12
  autotune run --model deepseek-ai/DeepSeek-R1 --hw mi300x --workload long --slo 'p99_ttft_ms<=120000'
  autotune run --model ./my-model --hw local --on process --baseline 'vllm serve ./my-model -tp 8'
"""


class GroupedCommand(click.Command):
    """A command that lists its options under the headings of `GROUPS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups in their order, and what is in none as *Other options*."""
        rows = {p.name: row for p in self.get_params(ctx) if (row := p.get_help_record(ctx)) is not None}
        grouped = {name for names in GROUPS.values() for name in names}
        groups = {**GROUPS, "Other options": tuple(name for name in rows if name not in grouped)}
        for heading, names in groups.items():
            listed = [rows[name] for name in names if name in rows]
            if listed:
                with formatter.section(heading):
                    formatter.write_dl(listed)


_WORDS = {
    **{"a valid integer range": "a whole number", "a valid integer": "a whole number", "a valid float": "a number"},
    **{"No such": "Unknown", ". Did": "; did"},
}
"""Click's words, and ours."""


def refusal(error: click.ClickException) -> str:
    """Put a usage error of click in one line, as our own messages are: option, problem, and where help is."""
    said = error.format_message()
    if isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter) and error.param:
        said = f"{error.param.opts[-1]}: {error.message}"
    for words, ours in _WORDS.items():
        said = said.replace(words, ours)
    said = said[:1].lower() + said[1:].rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    return said if context is None or said.endswith("?") else f"{said}; see `{context.command_path} --help`"


MESSAGES = Console(stderr=True, soft_wrap=True)


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """The answer of a command with ``--json``."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def answer(as_json: bool, value: Mapping[str, Any] | Sequence[Any], lines: Iterable[str]) -> None:
    """Print what a command found: one JSON object, or lines for people."""
    if as_json:
        print_json(value)
    else:
        click.echo("\n".join(lines))


def say(text: str) -> None:
    """A message, word for word."""
    MESSAGES.print(text, highlight=False, markup=False)


class _Block(CodeBlock):
    """A command, whose lines the terminal breaks, so that it can be copied."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(str(self.text).rstrip("\n"), no_wrap=True, overflow="ignore")


class _Table(TableElement):
    """A table that breaks names that are too long, and cuts none."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in super().__rich_console__(console, options):
            for column in part.columns if isinstance(part, Table) else ():
                column.overflow = "fold"
            yield part


class _Rendered(Markdown):
    elements = {**Markdown.elements, "fence": _Block, "table_open": _Table}  # noqa: RUF012


def print_markdown(text: str) -> None:
    """Print Markdown on the terminal that stdout is; pictures are left out."""
    Console().print(_Rendered(re.sub(r"^!\[.*\)$\n*", "", text, flags=re.MULTILINE)), crop=False)
