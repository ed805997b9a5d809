"""Write an engine version's options to ``search_spaces/<engine>/options/``, from its released wheel,
which is not imported.

    python scripts/snapshot_options.py vllm==0.30.0
    python scripts/snapshot_options.py vllm vllm-0.13.0-….whl

The first downloads the wheel without its dependencies, and deletes it. The newest version's table
is whole; every other one says what differs from the next newer. The version is entered in the
engine's card.

Each row is one option: ``flags``, ``dest``, and, where they differ from a plain string option,
``action``, ``type``, ``nargs``, ``choices``, ``default``. A default that the engine computes is
left out.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from packaging.version import Version
from parser_readers import add_from_dataclass, get_kwargs
from static_python import Interpreter, Intrinsic
from wheel_sources import UNKNOWN, Class, External, Function, Parser

from autotune.engines.option_table import read_rows, row_name

Row = dict[str, Any]
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
    action = _action(kwargs)
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


def _action(kwargs: dict[str, Any]) -> str:
    action = kwargs.get("action")
    if isinstance(action, str):
        return action
    if isinstance(action, Class):
        return _custom_action(action, kwargs)
    name = action.name.rpartition(".")[2] if isinstance(action, External) else ""
    return "boolean_optional" if name == "BooleanOptionalAction" else "store"


def _custom_action(action: Class, kwargs: dict[str, Any]) -> str:
    name = action.node.name
    if name == "DeprecatedStoreTrueAction":
        return "store_true"
    # It takes a value where ``nargs`` says so.
    if name == "DeprecatedStoreConstAction" and "nargs" not in kwargs:
        return "store_true"
    return "retired" if name == "DeprecatedAction" else "store"


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


def whole(engine: str, wheel: Path) -> tuple[Row, list[Row]]:
    """What a wheel's table says of itself, and its options by destination."""
    calls = {"vllm": vllm_calls, "sglang": sglang_calls}[engine](str(wheel))
    match = re.match(r"[A-Za-z_]+-([^-]+)-", wheel.name)
    assert match is not None
    head = {
        "engine": engine,
        "version": match[1],
        "generated_by": "scripts/snapshot_options.py",
        "wheel": wheel.name,
    }
    if engine == "vllm" and _has_pairs(wheel):
        head["pairs"] = True
    rows = [row(flags, kwargs) for flags, kwargs in calls if flags[0].startswith("-")]
    # Without those that are refused with a message.
    rows = [one for one in rows if one.get("action") != "retired"]
    return head, sorted(rows, key=lambda r: r["dest"])


def _has_pairs(wheel: Path) -> bool:
    """Whether each switch ``--enable-x`` has the inverse ``--disable-x``: 0.33.0 and newer."""
    with zipfile.ZipFile(wheel) as archive:
        file = "vllm/utils/argparse_utils.py"
        return file in archive.namelist() and b"class EnableDisableAction" in archive.read(file)


def differences(rows: list[Row], newer: list[Row]) -> tuple[list[str], list[Row]]:
    """The names of a newer version that these lack, and rows that are not in it or differ
    there."""
    mine, theirs = ({row_name(r): r for r in some} for some in (rows, newer))
    changed = []
    for name, own in mine.items():
        if own != (other := theirs.get(name, {})):
            fields = [field for field in {**own, **other} if own.get(field) != other.get(field)]
            same = {field: own[field] for field in ("key", "flags") if field in own}
            changed.append(same | {field: own.get(field) for field in fields})
    return [name for name in theirs if name not in mine], changed


def text(head: Row, rows: list[Row]) -> str:
    """The text of a table: one option per line."""
    lines = [json.dumps(head)[:-1] + ', "options": [']
    lines += [f"{json.dumps(r)}{',' if i + 1 < len(rows) else ''}" for i, r in enumerate(rows)]
    return "\n".join([*lines, "]}"]) + "\n"


def write(folder: Path, head: Row, rows: list[Row]) -> Path:
    """Write a version's table into a folder of tables, and its older neighbour's anew."""
    versions = {path.stem for path in folder.glob("*.json")} - {head["version"]}
    tables = {v: read_rows(lambda one: folder / f"{one}.json", v) for v in versions}
    tables[head["version"]] = head, rows
    ordered = sorted(tables, key=Version, reverse=True)
    for newer, version in zip([None, *ordered], ordered, strict=False):
        own, options = tables[version]
        about = {k: own[k] for k in own if k not in {"differs_from", "without", "options"}}
        if newer is not None:
            without, options = differences(options, tables[newer][1])
            about |= {"differs_from": newer, "without": without}
        (folder / f"{version}.json").write_text(text(about, options))
        found = read_rows(lambda one: folder / f"{one}.json", version)[1]
        assert found == tables[version][1], version
    return folder / f"{head['version']}.json"


def enter(card: Path, version: str) -> None:
    """Enter a version in the list of an engine's card."""
    before = card.read_text()
    line = re.search(r"^versions: (\[.*\])$", before, re.MULTILINE)
    assert line is not None
    known = sorted({*json.loads(line[1]), version}, key=Version)
    card.write_text(before.replace(line[0], f"versions: {json.dumps(known)}"))


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", help="vllm or sglang; with ==VERSION without a wheel")
    parser.add_argument("wheel", type=Path, nargs="?")
    parser.add_argument("--spaces", type=Path, default=SPACES, help="default: this repository's")
    args = parser.parse_args()
    began, engine = time.monotonic(), args.engine.partition("==")[0]
    with tempfile.TemporaryDirectory() as folder:
        if args.wheel is None:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            subprocess.run(
                [*pip, "--only-binary", ":all:", "--dest", folder, args.engine], check=True
            )
        head, rows = whole(engine, args.wheel or next(Path(folder).glob("*.whl")))
    path = write(args.spaces / engine / "options", head, rows)
    enter(args.spaces / engine / "engine.yaml", head["version"])
    lines = len(path.read_text().splitlines())
    told = f"{len(rows)} options, {lines} lines, {time.monotonic() - began:.1f} s"
    print(f"{engine} {head['version']}: {told}")


if __name__ == "__main__":
    main()
