"""Programs that stand in for installed engines: real parsers made from a table of options, and a
Python that has them.

A stand-in is a script with a first line, a ``dist-info`` folder beside its packages, and a parser
of `argparse` or `click`. It notes how often it was started.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from autotune.engines.option_table import read_rows

SPACES = Path(__file__).resolve().parents[2] / "search_spaces"
TYPES = {"int": int, "float": float}
Row = Mapping[str, Any]


def rows(engine: str, version: str) -> list[dict[str, Any]]:
    """The options of a shipped table."""
    head, found = read_rows(lambda one: SPACES / engine / "options" / f"{one}.json", version)
    switch = {"action": "enable_disable"} if head.get("pairs") else {}
    return [
        {**row, **(switch if row.get("action") == "boolean_optional" else {})}
        for row in found
        if "flags" in row
    ]


class EnableDisableAction(argparse.BooleanOptionalAction):
    """A switch with its inverse, as vLLM has it from 0.33 on: ``--disable-x`` for ``--enable-x``."""

    def __init__(self, option_strings: Sequence[str], dest: str, **common: Any) -> None:
        super().__init__(option_strings, dest, **common)
        words = (("--enable-", "--disable-"), ("--disable-", "--enable-"))
        inverses = [
            other + flag.removeprefix(word)
            for flag in option_strings
            for word, other in words
            if flag.startswith(word)
        ]
        self.negative_option_strings = {*self.option_strings, *inverses} - {*option_strings}
        if inverses:
            self.option_strings = [*option_strings, *inverses]


SWITCHES = {
    "boolean_optional": argparse.BooleanOptionalAction,
    "enable_disable": EnableDisableAction,
}


def argparse_parser(options: Sequence[Row]) -> argparse.ArgumentParser:
    """The parser of an engine that uses `argparse`."""
    parser = argparse.ArgumentParser("engine")
    groups = [parser.add_argument_group("Some of them", "what a group says of itself"), parser]
    for i, row in enumerate(options):
        common: dict[str, Any] = {"dest": row["dest"], "help": "what it does, in %% of a whole"}
        if "default" in row:
            common["default"] = row["default"]
        action = row.get("action", "store")
        if action in SWITCHES:
            groups[i % 2].add_argument(*row["flags"], action=SWITCHES[action], **common)
        elif action in {"store_true", "store_false"}:
            groups[i % 2].add_argument(*row["flags"], action=action, **common)
        else:
            for key in ("nargs", "const", "choices"):
                if key in row:
                    common[key] = row[key]
            common["type"] = TYPES.get(row.get("type", "str"), str)
            groups[i % 2].add_argument(*row["flags"], action=action, **common)
    return parser


def click_command(options: Sequence[Row]) -> click.Command:
    """The command of an engine that uses `click`."""
    parameters: list[click.Parameter] = [click.Argument(["model"])]
    for row in options:
        switch = row.get("action") in {"store_true", "boolean_optional"}
        flags = row["flags"]
        if row.get("action") == "boolean_optional":
            flags = [f"{flag}/--no-{flag[2:]}" for flag in flags]
        kind = {"int": click.INT, "float": click.FLOAT}.get(row.get("type", "str"), click.STRING)
        parameters.append(
            click.Option(
                [*flags, row["dest"]],
                type=None if switch else click.Choice(row["choices"]) if "choices" in row else kind,
                is_flag=switch,
                multiple=row.get("action") == "append",
                default=row.get("default"),
                show_default=True,
                help="What it does, at some length, so that the text is broken over lines.",
            )
        )
    return click.Command("serve", params=parameters)


def main(table: Path, layout: str, argv: Sequence[str]) -> None:
    """The stand-in's own program: it parses its command line, and serves nothing."""
    with table.with_suffix(".asked").open("a") as stream:
        stream.write("asked\n")
    options = json.loads(table.read_text())
    if layout == "click":
        group = click.Group("trtllm-serve", commands={"serve": click_command(options)})
        group.main(list(argv))
    else:
        argparse_parser(options).parse_args([word for word in argv if word != "serve"])


@dataclass(frozen=True)
class StandIn:
    """An engine that was put into a folder laid out like a virtual environment."""

    folder: Path
    program: Path
    table: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python3"

    @property
    def times_asked(self) -> int:
        log = self.table.with_suffix(".asked")
        return len(log.read_text().splitlines()) if log.exists() else 0


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def python_with(folder: Path, **distributions: str) -> Path:
    """A Python in a folder that has these distributions, beside those of the running one."""
    packages = folder / "packages"
    for name, version in distributions.items():
        info = packages / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    path = f"{packages}:{Path(__file__).parent}:{':'.join(sys.path)}"
    return executable(
        folder / "bin" / "python3", f'#!/bin/sh\nPYTHONPATH="{path}" exec "{sys.executable}" "$@"\n'
    )


def install(folder: Path, engine: str, version: str, options: Sequence[Row]) -> StandIn:
    """Put an engine into a folder: its Python, its distribution, and its script or module."""
    shutil.rmtree(folder, ignore_errors=True)
    python = python_with(folder, **{engine: version})
    table = folder / "options.json"
    table.write_text(json.dumps(list(options)))
    layout = "click" if engine == "tensorrt_llm" else "argparse"
    call = f"main(Path({str(table)!r}), {layout!r}, sys.argv[1:])"
    body = f"import sys\nfrom pathlib import Path\nfrom stand_ins import main\n\n{call}\n"
    if engine == "sglang":
        package = folder / "packages" / "sglang"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "launch_server.py").write_text(body)
        return StandIn(folder, python, table)
    name = {"vllm": "vllm", "tensorrt_llm": "trtllm-serve"}[engine]
    # A first line cannot hold a space; pip then writes a script that is a shell's first and
    # Python's afterwards.
    first = (
        f"#!{python}\n"
        if " " not in str(python)
        else f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"
    )
    return StandIn(folder, executable(folder / "bin" / name, first + body), table)
