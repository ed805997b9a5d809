"""Options common to several commands; options in groups, examples, and one line for click's
refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field
from functools import partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Markdown, TableElement
from rich.table import Table
from rich.text import Text

from autotune.base import BadInput, Json, JsonObject
from autotune.tuner.study.options import GROUPS, Option, RunOptions, declared_options

if TYPE_CHECKING:
    from autotune.load.live import Readings
    from autotune.load.workloads import Workload

Function = Callable[..., Any]
"""A function that a command calls."""
Decorator = Callable[[Function], Function]


def common(command: Function, home_is_used: bool = True) -> Function:
    """Add ``--json`` and ``--home``, which every command has; a command that stores nothing ignores
    ``--home``."""
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
        help="Folder of studies and of the MLflow database.",
    )(command)


common_without_home = partial(common, home_is_used=False)


def options_of(kind: type, *names: str) -> Decorator:
    """Make click's options from a dataclass's fields of these names, or all
    (`autotune.tuner.study.options`)."""

    def decorate(command: Function) -> Function:
        hints = get_type_hints(kind)
        for one, declared in reversed(declared_options(kind)):
            if one.name in names or not names:
                command = _click_option(one, declared, hints[one.name])(command)
        return command

    return decorate


def _click_option(one: Field[Any], declared: Option, hint: Any) -> Decorator:
    many = get_origin(hint) is Sequence
    inner: Any = hint
    if many or NoneType in get_args(hint):
        # Take the X of `X | None` and of Sequence[X].
        inner = get_args(hint)[0]
    kind = inner
    if get_origin(inner) is Literal:
        kind = click.Choice(get_args(inner))
    elif inner is Path:
        kind = click.Path(path_type=Path, exists=declared.existing, dir_okay=not declared.existing)
    elif (declared.least, declared.most) != (None, None):
        kind = (click.IntRange if inner is int else click.FloatRange)(declared.least, declared.most)
    required = one.default is MISSING
    more: Json = {"is_flag": True}
    if inner is not bool:
        shown = not many and one.default not in (None, "", MISSING)
        more = {"type": kind, "multiple": many, "show_default": shown, "required": required}
    # A default of None would count as a value of a required option.
    if not required:
        more["default"] = None if many else one.default
    return click.option(*declared.flag.split(), one.name, help=declared.help or None, **more)


def typed_options() -> frozenset[str]:
    """Return the typed options of the running command, by parameter."""
    context = click.get_current_context()
    return frozenset(
        n for n in context.params if context.get_parameter_source(n) is not ParameterSource.DEFAULT
    )


engine_command = click.argument("engine_command", nargs=-1, type=click.UNPROCESSED, required=True)


EXAMPLES = """\
\b
Examples:
  autotune run --model deepseek-ai/DeepSeek-V3.2 --hw h200 --dry-run
  autotune run --model deepseek-ai/DeepSeek-V3.2 --hw h200 --engine vllm --launches 12
  autotune run --model deepseek-ai/DeepSeek-R1 --hw mi300x --workload long --slo 'p99_ttft_ms<=120000'
  autotune run --model ./my-model --hw local --on process --baseline 'vllm serve ./my-model -tp 8'
"""


class GroupedCommand(click.Command):
    """A command that lists its options under the headings of `autotune.tuner.study.options.GROUPS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups in order; options that are no field of `RunOptions` belong to the
        study."""
        group_of = {one.name: declared.group for one, declared in declared_options(RunOptions)}
        sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in GROUPS}
        for parameter in self.get_params(ctx):
            if (row := parameter.get_help_record(ctx)) is not None:
                sections[group_of.get(str(parameter.name), GROUPS[-1])].append(row)
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


_WORDS = {
    "a valid integer range": "a whole number",
    "a valid integer": "a whole number",
    "a valid float": "a number",
    "No such": "Unknown",
    ". Did": "; did",
}
"""Click's words, and their replacements."""


def refusal(error: click.ClickException) -> str:
    """Format a usage error of click in one line, as our own messages: option, problem, and where
    help is."""
    text = error.format_message()
    if (
        isinstance(error, click.BadParameter)
        and not isinstance(error, click.MissingParameter)
        and error.param
    ):
        option = error.param.opts[-1]
        kind = error.param.type
        text = f"{option}: {error.message}"
        if isinstance(kind, click.Choice) and error.message.startswith("'--"):
            text = f"{option} wants {' or '.join(kind.choices)} behind it"
    for words, ours in _WORDS.items():
        text = text.replace(words, ours)
    text = text[:1].lower() + text[1:].rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None or text.endswith("?"):
        return text
    return f"{text}; see `{context.command_path} --help`"


MESSAGES = Console(stderr=True, soft_wrap=True)


def print_json(value: JsonObject | Sequence[Any]) -> None:
    """Print the answer of a command with ``--json``."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def answer(as_json: bool, value: JsonObject | Sequence[Any], lines: Iterable[str]) -> None:
    """Print a command's result: one JSON object, or lines for people."""
    if as_json:
        print_json(value)
    else:
        click.echo("\n".join(lines))


def say(text: str) -> None:
    """Print a message verbatim."""
    MESSAGES.print(text, highlight=False, markup=False)


def traffic_of(
    names: Iterable[str], window: str | None, home: Path, *, searched: bool
) -> dict[str, tuple[Workload, Readings]]:
    """Read the workloads among these that are the traffic of servers, see `autotune.load.live`."""
    found = {}
    for name in dict.fromkeys(names):
        if name.startswith(("live:", "metrics:")):
            from autotune.load.live import read_traffic, workload_of

            readings = read_traffic(name, window, home / "traffic", say)
            found[name] = workload_of(name, readings, searched=searched), readings
    if window and not found:
        raise BadInput("--window is for --workload live:URL or metrics:FIRST,LAST")
    return found


def load_of(text: str, window: str | None, home: Path, *, searched: bool) -> Workload:
    """Return a workload by its name, or by servers' metrics, and print what it stands on."""
    from autotune.load.workloads import load_workload

    for workload, _ in traffic_of([text], window, home, searched=searched).values():
        say(workload.origin)
        return workload
    return load_workload(text)


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
