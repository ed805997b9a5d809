"""Print the options of an engine's own parser as JSON; runs in the engine's interpreter with the
standard library only.

    PYTHON -c SOURCE SCRIPT [WORD ...]
    PYTHON -c SOURCE -m MODULE [WORD ...]

The engine's program runs until it parses its command line with `argparse` or `click`; there the
parser's options are printed, one JSON list behind `MARK`, and the program ends. A parser of fewer
than `LEAST` options is not the engine's own: the program goes on.
"""

import argparse
import json
import os
import runpy
import sys
from typing import Any

Json = dict[str, Any]
"""The same as ours, which the engine's interpreter cannot import."""
MARK = "engine-options="
LEAST = 5
_ACTIONS = {
    "_StoreTrueAction": "store_true",
    "_StoreFalseAction": "store_false",
    "BooleanOptionalAction": "boolean_optional",
    "EnableDisableAction": "enable_disable",  # vLLM's; its inverses are not options of their own
    "_AppendAction": "append",
}
_TYPES = {
    "int": "int",
    "float": "float",
    "bool": "bool",
    "loads": "json",
    "human_readable_int": "human_int",
    "human_readable_int_or_auto": "human_int",
    # Names of click's types
    "integer": "int",
    "integer range": "int",
    "float range": "float",
    "boolean": "bool",
}


def _tell(rows: list[Json]) -> None:
    if len(rows) >= LEAST:
        print("\n" + MARK + json.dumps(rows), flush=True)
        os._exit(0)  # No shutdown of what the engine has begun.


def _plain(value: Any) -> Any:
    """Return a value as JSON; None for other values and omitted defaults."""
    value = getattr(value, "value", value)  # a member of an enumeration
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value]
        return items if items and None not in items else None
    return (
        value if isinstance(value, (bool, int, float, str)) and value != argparse.SUPPRESS else None
    )


def _choice(value: Any) -> Any:
    plain = _plain(value)
    return str(value) if plain is None and value is not None else plain


def _row(action: argparse.Action) -> Json:
    valued = action.nargs != 0
    negated = {"--no-" + flag[2:] for flag in action.option_strings}
    negated |= {*getattr(action, "negative_option_strings", ())}
    return {
        "flags": [flag for flag in action.option_strings if flag not in negated],
        "dest": action.dest,
        "action": _ACTIONS.get(type(action).__name__, "store" if valued else "store_true"),
        "type": _TYPES.get(getattr(action.type, "__name__", "")),
        "nargs": action.nargs if valued else None,
        "choices": [_choice(choice) for choice in action.choices or ()],
        "const": _plain(action.const) if action.nargs == "?" else None,
        "default": _plain(action.default),
    }


def _click_row(option: Any) -> Json:
    switch = "boolean_optional" if option.secondary_opts else "store_true"
    return {
        "flags": list(option.opts),
        "dest": option.name,
        "action": switch if option.is_flag else "append" if option.multiple else "store",
        "type": _TYPES.get(
            option.type.name, option.type.name if option.type.name in _TYPES.values() else None
        ),
        "choices": list(getattr(option.type, "choices", ())),
        "default": _plain(option.default),
    }


def _watch_argparse() -> None:
    parse = argparse.ArgumentParser.parse_known_args

    def asked(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        actions = [
            a
            for a in self._actions
            if a.option_strings and not {"-h", "--help"} & set(a.option_strings)
        ]
        if not any(isinstance(action, argparse._SubParsersAction) for action in self._actions):
            _tell(
                [
                    _row(a)
                    for a in actions
                    if type(a).__name__ not in ("_VersionAction", "DeprecatedAction")
                ]
            )
        return parse(self, *args, **kwargs)

    argparse.ArgumentParser.parse_known_args = asked  # type: ignore[method-assign]


def _watch_click() -> None:
    try:
        import click
    except ImportError:
        return
    parse = click.Command.parse_args

    def asked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self, "list_commands"):
            _tell(
                [_click_row(option) for option in self.params if option.param_type_name == "option"]
            )
        return parse(self, *args, **kwargs)

    click.Command.parse_args = asked  # type: ignore[method-assign]


if __name__ == "__main__":
    _watch_argparse()
    _watch_click()
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
