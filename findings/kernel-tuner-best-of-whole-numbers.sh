#!/usr/bin/env bash
# Kernel Tuner 1.5.0: where the objective is a whole number (or of NumPy's float32), best_config is the configuration that came first.
#
# Guess: env["best_config"] is the configuration with the best objective of those returned, whatever kind of number it is; a whole time
# in a cache file ("time": 1000) is the time that 1000.0 is.
# Seen: only instances of Python's float count (NumPy's float64 is one). All others have the worst value there is, and among equals the
# first wins, here 1,000 tokens/s for 4,000. Nothing is said. The search itself reads the numbers right, and so do the rows that
# tune_kernel returns: take the best of those.
# Who meets it: whoever has a rate rounded with int() or counted by NumPy, an objective that is a count, or simulates from a cache file that
# another program wrote: JSON has one kind of number.
#
# Output seen (2026-11-29, CPython 3.11, Linux, gcc; a function in C that does nothing, rates 1000, 3000, 4000 and 2000 for 64 to 512):
#   metric of float: best_config is 256
#   metric of float64: best_config is 256
#   metric of float32: best_config is 64
#   metric of int64: best_config is 64
#   metric of int: best_config is 64
#   time in the cache file 1000.0: best_config is 256
#   time in the cache file 1000: best_config is 64
# Needs gcc.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check kernel-tuner==1.5.0 numpy==2.4.6 scipy==1.17.1
cat >"$folder/tune.py" <<'PYTHON'
"""Try every configuration, measured or from a cache file; print which is the best by Kernel Tuner."""

import json
import warnings
from pathlib import Path

import numpy as np
from kernel_tuner import tune_kernel

warnings.simplefilter("ignore")
RATES = {64: 1000, 128: 3000, 256: 4000, 512: 2000}


def best(**more):
    """Return the batch of best_config."""
    source = "float work(float *x) { x[0] = 0; return 1.0f; }"
    _, about = tune_kernel("work", source, 1, [np.zeros(1, np.float32)], {"batch": list(RATES)}, lang="C", quiet=True, **more)
    return about["best_config"]["batch"]


for kind in (float, np.float64, np.float32, np.int64, int):
    found = best(metrics={"rate": lambda row: kind(RATES[row["batch"]])}, objective="rate", objective_higher_is_better=True)
    print(f"metric of {kind.__name__}: best_config is {found}")
cache = Path("cache.json")
best(cache=str(cache))
content = json.loads(cache.read_text())
for kind in (float, int):
    for row in content["cache"].values():
        row["time"] = kind(4_000_000 / RATES[row["batch"]])
    cache.write_text(json.dumps(content))
    print(f"time in the cache file {kind(1000)}: best_config is {best(cache=str(cache), simulation_mode=True)}")
PYTHON
cd "$folder"
env/bin/python tune.py | tee seen
diff - seen <<'SEEN'
metric of float: best_config is 256
metric of float64: best_config is 256
metric of float32: best_config is 64
metric of int64: best_config is 64
metric of int: best_config is 64
time in the cache file 1000.0: best_config is 256
time in the cache file 1000: best_config is 64
SEEN
echo "as stated"
