"""Commands and their parameters from ``commands.yaml``; options in groups, examples, and one line for
click's refusals."""

from __future__ import annotations

import json
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, Field, fields
from functools import partial
from pathlib import Path
from random import randrange
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Markdown, TableElement
from rich.table import Table
from rich.text import Text

from autotune.base import BadInput, Json, JsonObject, beside
from autotune.engines.entry import parse_yaml
from autotune.tuner.study.options import GROUPS, Option, RunOptions, declared_options

if TYPE_CHECKING:
    from autotune.load.live import Readings
    from autotune.load.workloads import Workload

COMMANDS = parse_yaml(beside(__file__, "commands.yaml"))
_TYPES = {
    "count": click.IntRange(min=1),
    "file": click.Path(path_type=Path, dir_okay=False),
    "format": click.Choice(["md", "html"]),
    "path": click.Path(path_type=Path),
    "seed": click.IntRange(0, 2**62),
    "words": click.UNPROCESSED,
}


def command_of(name: str, row: Json) -> click.Command:
    """Make a command of its row in ``commands.yaml``."""
    kind = pkgutil.resolve_name(row["options"]) if "options" in row else None
    last = {**row.get("last", {}), **COMMANDS["common"], **row.get("instead", {})}
    form = GroupedCommand if kind is RunOptions and "only" not in row else click.Command
    return form(
        name,
        params=[*_own(row.get("first", {})), *_declared(kind, row.get("only")), *_own(last)],
        callback=partial(_call, row["calls"], kind),
        help=row["help"],
        epilog=EXAMPLES if form is GroupedCommand else None,
        context_settings=row.get("settings"),
    )


def _call(calls: str, kind: type | None, **values: Any) -> None:
    """Call a command's function, which is imported only now; its result is the exit code."""
    asked = []
    if kind is not None:
        own = {one.name: values.pop(one.name) for one in fields(kind) if one.name in values}
        if kind is RunOptions:
            own["given"] = typed_options()
        asked = [kind(**own)]
    code = pkgutil.resolve_name(calls)(*asked, **values)
    if code is not None:
        sys.exit(code)


def _own(rows: Json) -> Iterator[click.Parameter]:
    """Make parameters of their rows in ``commands.yaml``."""
    for name, row in rows.items():
        given = {**row, "type": _TYPES.get(row.get("type"))}
        flags = given.pop("flag", "").split()
        if given.pop("drawn", False):
            given["default"] = lambda: randrange(10**6)
        yield click.Option([*flags, name], **given) if flags else click.Argument([name], **given)


def _declared(kind: type | None, only: Sequence[str] | None) -> Iterator[click.Option]:
    """Make options of a dataclass's fields (`autotune.tuner.study.options`)."""
    hints = get_type_hints(kind) if kind else {}
    for one, declared in declared_options(kind) if kind else ():
        if only is None or one.name in only:
            yield _option(one, declared, hints[one.name])


def _option(one: Field[Any], declared: Option, hint: Any) -> click.Option:
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
    return click.Option([*declared.flag.split(), one.name], help=declared.help or None, **more)


def typed_options() -> frozenset[str]:
    """Return the typed options of the running command, by parameter."""
    context = click.get_current_context()
    return frozenset(
        n for n in context.params if context.get_parameter_source(n) is not ParameterSource.DEFAULT
    )


EXAMPLES = """\
\b
Examples:
  autotune run --model deepseek-ai/DeepSeek-V3.2 --hw h200 --dry-run
  autotune run --model deepseek-ai/DeepSeek-V3.2 --hw h200 --engine vllm --launches 12
  autotune run --model deepseek-ai/DeepSeek-R1 --hw mi300x --workload long --slo 'p99_ttft_ms<=130000'
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
    elements = {**Markdown.elements, "fence": _Block, "table_open": _Table}


def print_markdown(text: str) -> None:
    """Print Markdown on the terminal that stdout is; pictures are left out."""
    Console().print(_Rendered(re.sub(r"^!\[.*\)$\n*", "", text, flags=re.MULTILINE)), crop=False)
