"""Compare TensorRT-LLM's own lists of options and keys with our table of a version.

    python scripts/compare_tensorrt_llm.py /path/to/TensorRT-LLM [--version 1.3.0rc24]

Its repository keeps two files that its tests hold against the code: the options of `trtllm-serve`
with their defaults, and the keys of its configuration file that telemetry may send, which are
numbers, booleans and choices, without defaults. Printed is what our table lacks, what it has and
they lack, and other choices and defaults. Keys of free text and objects are not compared.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from autotune.engines.option_table import FileKey
from autotune.engines.registry import engine

OPTIONS = "tests/unittest/api_stability/references/trtllm_serve_cli.yaml"
KEYS = "tensorrt_llm/usage/llm_args_golden_manifest.json"
_UNLISTED = {"any", "str", "dict", "custom-error"}
"""Kinds of values of which the manifest lists none, or not as choices."""


def choices(check: Mapping[str, Any]) -> list[str]:
    """The words that a key's values, or items of them, are chosen from."""
    inner = [check["items_schema"]] if "items_schema" in check else check.get("choices", [])
    return list(check.get("expected", ())) or [word for one in inner for word in choices(one)]


def options_of(clone: Path) -> dict[str, dict[str, Any]]:
    """Every option of `trtllm-serve serve` by its name in Python."""
    document = yaml.safe_load((clone / OPTIONS).read_text())
    found: dict[str, dict[str, Any]] = document["commands"]["serve"]["options"]
    return found


def keys_of(clone: Path) -> dict[str, list[str]]:
    """Every key, with its choices; none where any number or text is taken."""
    rows = json.loads((clone / KEYS).read_text())["TorchLlmArgs"]
    return {
        row["path"]: [] if row["converter"] == "allowlist" else row["allowed_values"]
        for row in rows
    }


def option_lines(theirs: Mapping[str, Mapping[str, Any]], version: str) -> Iterator[str]:
    """Differences of the options."""
    ours = {option.dest: option for option in engine("tensorrt_llm").table(version).options}
    for name in sorted(theirs.keys() - ours.keys()):
        yield f"option unknown to us: {' '.join(theirs[name]['flags'])}"
    for name in sorted(ours.keys() - theirs.keys()):
        yield f"option gone: {' '.join(ours[name].flags)}"
    for name in sorted(ours.keys() & theirs.keys()):
        mine, other = ours[name], theirs[name]
        spelled = {flag for flag in other["flags"] if not flag.startswith("--no-")}
        if spelled != set(mine.flags):
            yield f"{name}: spelled {sorted(spelled)}, ours {sorted(mine.flags)}"
        if (mine.default or None) != (other["default"] or None):
            yield f"{name}: default {other['default']!r}, ours {mine.default!r}"
        kind = str(other["type"])
        listed = ast.literal_eval(kind[len("Choice(") : -1]) if kind.startswith("Choice(") else []
        if set(listed) != set(mine.choices):
            more, fewer = set(listed) - set(mine.choices), set(mine.choices) - set(listed)
            yield f"{name}: choices more {sorted(more)}, fewer {sorted(fewer)}"


def key_lines(theirs: Mapping[str, list[str]], keys: tuple[FileKey, ...]) -> Iterator[str]:
    """Differences of the keys."""
    ours = {one.key: one.check for one in keys}
    for key in sorted(theirs.keys() - ours.keys()):
        yield f"key unknown to us: {key}"
    for key, check in sorted(ours.items()):
        if key not in theirs:
            if check["type"] not in _UNLISTED and check != {"type": "list"}:
                yield f"key gone, or not sent: {key}"
        elif set(theirs[key]) != set(words := choices(check)) and check["type"] not in _UNLISTED:
            more, fewer = set(theirs[key]) - set(words), set(words) - set(theirs[key])
            yield f"{key}: choices more {sorted(more)}, fewer {sorted(fewer)}"


def main() -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = engine("tensorrt_llm").card.versions
    parser.add_argument("clone", type=Path, help="folder of NVIDIA/TensorRT-LLM")
    parser.add_argument("--version", choices=known, default=known[-1], help="of our table")
    args = parser.parse_args()
    if missing := [file for file in (OPTIONS, KEYS) if not (args.clone / file).is_file()]:
        print(f"{args.clone} has no {' and no '.join(missing)}", file=sys.stderr)
        return 2
    table = engine("tensorrt_llm").table(args.version)
    options, keys = options_of(args.clone), keys_of(args.clone)
    lines = [*option_lines(options, args.version), *key_lines(keys, table.file_keys)]
    print(*lines, sep="\n")
    unlisted = sum(one.key not in keys for one in table.file_keys) - sum(
        line.startswith("key gone") for line in lines
    )
    print(
        f"{len(options)} options and {len(keys)} keys against our table of {args.version}: "
        f"{len(lines)} differences; {unlisted} keys of ours are of no kind that is listed"
    )
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
