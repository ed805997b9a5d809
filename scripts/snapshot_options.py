"""Write ``search_spaces/<engine>/options/<version>.json`` from a released wheel, without importing
it.

    python scripts/snapshot_options.py vllm vllm-0.13.0-….whl
    python scripts/snapshot_options.py sglang sglang-0.5.23-….whl

Each row is one option: ``flags``, ``dest``, and, where they differ from a plain string option,
``action``, ``type``, ``nargs``, ``choices``, ``default``. A default that the engine computes is
left out.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from parser_readers import add_from_dataclass, get_kwargs
from static_python import Interpreter, Intrinsic
from wheel_sources import UNKNOWN, Class, External, Function, Parser

SPACES = Path(__file__).resolve().parents[1] / "search_spaces"
_JSON_TYPES = ("json.loads", "orjson.loads", "json_list_type", "parse_cuda_graph_config_arg")
_NUMBERS = {"int", "float"}
_NO_VALUE = {"store_true", "store_false", "store_const", "count"}


def vllm_calls(wheel: str) -> list[tuple[list[str], dict[str, Any]]]:
    """Every ``add_argument`` of ``vllm serve``."""
    same: Intrinsic = lambda _interpreter, args, _kwargs: args[0]  # noqa: E731
    interpreter = Interpreter(
        wheel, {"get_kwargs": get_kwargs, "optional_type": same, "parse_type": same}
    )
    # Its module has moved: openai up to 0.26, launchers up to 0.32, common from 0.33 on.
    folders = ("openai", "launchers", "common")
    names = [f"vllm.entrypoints.{folder}.cli_args" for folder in folders]
    module = next(m for m in map(interpreter.sources.module, names) if m is not None)
    parser = Parser()
    interpreter.call(interpreter.resolve(module, "make_arg_parser"), [parser], {}, parser)
    return parser.calls


def sglang_calls(wheel: str) -> list[tuple[list[str], dict[str, Any]]]:
    """Every ``add_argument`` of ``sglang.launch_server``."""
    parser = Parser()
    interpreter = Interpreter(wheel, {"add_cli_args_from_dataclass": add_from_dataclass(parser)})
    module = interpreter.sources.module("sglang.srt.server_args")
    assert module is not None
    interpreter.call(
        interpreter.attribute(interpreter.resolve(module, "ServerArgs"), "add_cli_args"),
        [parser],
        {},
        parser,
    )
    return parser.calls


def row(flags: list[str], kwargs: dict[str, Any]) -> dict[str, Any]:
    """One option of the table from the arguments of one ``add_argument``."""
    action = _action(kwargs.get("action"))
    long = next((f for f in flags if f.startswith("--")), flags[0])
    out: dict[str, Any] = {
        "flags": [f for f in flags if f.startswith("-")],
        "dest": kwargs.get("dest") or long.lstrip("-").replace("-", "_"),
    }
    if action != "store":
        out["action"] = action
    kind = _type(kwargs.get("type"))
    if kind != "str" and action == "store":
        out["type"] = kind
    if kwargs.get("nargs") not in (None, UNKNOWN, 0):
        out["nargs"] = kwargs["nargs"]
    for key in ("choices", "const", "default"):
        value = _plain(kwargs.get(key))
        if value not in (None, [], "==SUPPRESS=="):
            out[key] = value
    if action == "store_true":
        out.pop("default", None)
    return out


def _action(action: Any) -> str:
    if isinstance(action, str):
        return action
    if isinstance(action, Class):
        return _custom_action(action)
    name = action.name.rpartition(".")[2] if isinstance(action, External) else ""
    return "boolean_optional" if name == "BooleanOptionalAction" else "store"


def _custom_action(action: Class) -> str:
    name = action.node.name
    return {"DeprecatedStoreTrueAction": "store_true", "DeprecatedAction": "retired"}.get(
        name, "store"
    )


def _type(kind: Any) -> str:
    name = kind.name if isinstance(kind, External) else kind.node.name if _named(kind) else "str"
    if name in _JSON_TYPES:
        return "json"
    if name in {"human_readable_int", "human_readable_int_or_auto"}:
        return "human_int"
    return name if name in {*_NUMBERS, "json", "json_or_str", "bool"} else "str"


def _named(kind: Any) -> bool:
    return isinstance(kind, Function) and hasattr(kind.node, "name")


def _plain(value: Any) -> Any:
    """The value as JSON; None when it is computed."""
    if isinstance(value, list | tuple):
        items = [_plain(v) if v is not None else None for v in value]
        return items if all(v is not None for v in items) or None in value else None
    if isinstance(value, bool | int | float | str):
        return value
    return value if value == {} else None


def table(engine: str, wheel: Path) -> str:
    """The text of the table: one option per line."""
    calls = {"vllm": vllm_calls, "sglang": sglang_calls}[engine](str(wheel))
    match = re.match(r"[A-Za-z_]+-([^-]+)-", wheel.name)
    assert match is not None
    rows = sorted(
        (row(flags, kwargs) for flags, kwargs in calls if flags[0].startswith("-")),
        key=lambda r: r["dest"],
    )
    head = {
        "engine": engine,
        "version": match[1],
        "generated_by": "scripts/snapshot_options.py",
        "wheel": wheel.name,
    }
    lines = [json.dumps(head)[:-1] + ', "options": [']
    lines += [f"{json.dumps(r)}{',' if i + 1 < len(rows) else ''}" for i, r in enumerate(rows)]
    return "\n".join([*lines, "]}"]) + "\n"


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", choices=["vllm", "sglang"])
    parser.add_argument("wheel", type=Path)
    args = parser.parse_args()
    text = table(args.engine, args.wheel)
    version = json.loads(text)["version"]
    path = SPACES / args.engine / "options" / f"{version}.json"
    path.write_text(text)
    print(f"{args.engine} {version}: {len(json.loads(text)['options'])} options")


if __name__ == "__main__":
    main()
