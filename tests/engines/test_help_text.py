"""The reader of help texts, against texts that `argparse` and `click` write from the shipped tables."""

from __future__ import annotations

from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engines import engine
from autotune.engines.help_text import parse_help
from autotune.engines.options import Option, OptionTable
from tests.engines.settings import VERSIONS
from tests.engines.stand_ins import argparse_parser, click_command, rows

ARGPARSE = [(name, version) for name, version in VERSIONS if name != "tensorrt_llm"]
CLICK = [(name, version) for name, version in VERSIONS if name == "tensorrt_llm"]
RETIRED = "retired"


def shown(table: OptionTable) -> dict[str, Option]:
    """What a table says of each option that its engine shows."""
    return {option.flags[0]: option for option in table.options if option.action != RETIRED}


def rows_shown(name: str, version: str) -> list[dict[str, Any]]:
    return [row for row in rows(name, version) if row.get("action") != RETIRED]


@pytest.mark.parametrize("with_defaults", [True, False])
@pytest.mark.parametrize(("name", "version"), ARGPARSE)
def test_what_argparse_shows_is_read_back(name: str, version: str, with_defaults: bool) -> None:
    table = engine(name).table(version)
    for width in (80, 10_000):
        parser = argparse_parser(rows_shown(name, version), with_defaults=with_defaults, width=width)
        read = parse_help(parser.format_help(), "argparse", table, version)
        assert shown(read) == shown(table)


@pytest.mark.parametrize(("name", "version"), CLICK)
def test_what_click_shows_is_read_back(name: str, version: str) -> None:
    table = engine(name).table(version)
    command = click_command(rows(name, version))
    for width in (80, 10_000):
        context = click.Context(command, info_name="serve", terminal_width=width, max_content_width=width)
        read = parse_help(command.get_help(context), "click", table, version)
        assert {flags_of(option): option_without_flags(option) for option in read.options} == {
            flags_of(option): option_without_flags(option) for option in table.options
        }
        assert read.config_keys == table.config_keys


def flags_of(option: Option) -> frozenset[str]:
    return frozenset(option.flags)


def option_without_flags(option: Option) -> tuple[Any, ...]:
    return (option.dest, option.action, option.type, option.choices, option.default)


def test_a_version_without_a_table_of_its_own_takes_types_from_a_near_one() -> None:
    near = engine("sglang").table("0.5.6.post2")
    options = rows_shown("sglang", "0.5.23")
    table = parse_help(argparse_parser(options, with_defaults=False).format_help(), "argparse", near, "0.5.23")
    real = engine("sglang").table("0.5.23")
    assert table.flags == real.flags - {f for option in real.options if option.action == RETIRED for f in option.flags}
    theirs, mine = shown(real), shown(table)
    both = {flag for option in near.options for flag in option.flags if option.action != RETIRED} & set(theirs)
    assert len(both) > 200
    agreeing = [flag for flag in both if mine[flag].type == theirs[flag].type and mine[flag].dest == theirs[flag].dest]
    assert len(agreeing) > 0.95 * len(both), "types that did not change between the two"


WORD = st.text("abcdefghijklmnopqrstuvwxyz", min_size=2, max_size=9)
CHOICE = st.text("abcdefgh_0123.+", min_size=1, max_size=6).filter(lambda text: not text.strip("0123").__eq__(""))
EXPLANATION = st.text("abc -,.()[]{}:;/'\"|=", max_size=90).map(lambda text: f"says {text}")
VALUED = st.fixed_dictionaries(
    {"help": EXPLANATION},
    optional={
        "nargs": st.sampled_from(["?", "*", "+", 2, 3]),
        "choices": st.lists(CHOICE, min_size=2, max_size=5, unique=True),
    },
)
SWITCH = st.fixed_dictionaries(
    {"help": EXPLANATION, "action": st.sampled_from(["store_true", "boolean_optional"]), "default": st.just(False)}
)


@settings(max_examples=60, deadline=None)
@given(entries=st.dictionaries(WORD, st.one_of(VALUED, SWITCH), min_size=6, max_size=12), short=st.booleans())
def test_any_argparse_options_are_read_back(entries: dict[str, dict[str, Any]], short: bool) -> None:
    options = [
        {"flags": [f"--{word}", *([f"-x{word}"] if short else [])], "dest": word, **entry}
        for word, entry in entries.items()
        if word not in ("help", "no")
    ]
    nothing = OptionTable("engine", "1", "typed", ())
    read = parse_help(argparse_parser(options).format_help(), "argparse", nothing, "1")
    got = {option.dest: (option.action, option.nargs, option.choices, option.flags) for option in read.options}
    assert got == {
        row["dest"]: (row.get("action", "store"), row.get("nargs"), tuple(row.get("choices", ())), tuple(row["flags"]))
        for row in options
    }


def test_suggestions_are_no_choices() -> None:
    text = "options:\n" + "".join(f"  --o{i} {{a,b}}\n" for i in range(5))
    text += "  --free ['x', 'y']\n                        Any name. (default: x)\n  --open {x,y} or a name\n"
    table = parse_help(text, "argparse", OptionTable("engine", "1", "typed", ()), "1")
    found = {option.dest: option for option in table.options}
    assert (found["free"].choices, found["free"].default, found["open"].choices) == ((), "x", ())
    assert found["o1"].choices == ("a", "b")


@pytest.mark.parametrize("text", ["", "Segmentation fault", "usage: ls [OPTION]\n  -a, --all  show all\n"])
def test_another_program_s_text_is_no_help(text: str) -> None:
    with pytest.raises(ValueError, match="a help text with"):
        parse_help(text, "argparse", engine("vllm").table("0.32.0"), "0.32.0")
