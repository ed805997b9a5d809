#!/usr/bin/env bash
# Ray Tune 2.60.0: tune.qrandint(16, 1024, 32) is 32, 64, … in random search, and 16, 48, … in OptunaSearch: no value is in both.
#
# Guess: a space has the same values for every search algorithm. Its help says that a value "will be a multiple of" the step, from the
# lower to the upper bound.
# Seen: Tune's own samplers draw multiples of the step, up to 1,024. OptunaSearch hands bounds and step to Optuna, which counts steps
# from the lower bound: 16 plus multiples of 32, up to 1,008. Where the lower bound is a multiple of the step both are the same. With
# floats (quniform) Tune refuses a lower bound that is no multiple. Optuna warns that the upper bound changes, and only where it does.
# Who meets it: whoever replaces random search by OptunaSearch over batch sizes, or compares the two: the values for which a kernel is
# tuned or a graph is captured (multiples of 32) are in one search and not in the other.
#
# Output seen (2026-11-29, CPython 3.11, Linux; 2,000 draws of each):
#   qrandint(32, 1024, 32): random search 32 64 96 … 1024, OptunaSearch 32 64 96 … 1024, 32 values in both
#   qrandint(16, 1024, 32): random search 32 64 96 … 1024, OptunaSearch 16 48 80 … 1008, 0 values in both
#   qrandint(1, 65, 8): random search 8 16 24 … 64, OptunaSearch 1 9 17 … 65, 0 values in both
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check "ray[tune]==2.60.0" optuna==5.0.0 numpy==2.4.6
cat >"$folder/draw.py" <<'PYTHON'
"""Draw from one space as random search does, and by the distribution that OptunaSearch makes of it."""

import logging

import optuna
from ray import tune
from ray.tune.search.optuna import OptunaSearch

logging.disable(logging.CRITICAL)
DRAWS = 2000


def shown(values):
    """Return the first three and the last."""
    return "{} {} {} … {}".format(*sorted(values)[:3], max(values))


for bounds in ((32, 1024, 32), (16, 1024, 32), (1, 65, 8)):
    space = {"max_num_seqs": tune.qrandint(*bounds)}
    drawn = set(space["max_num_seqs"].sample(size=DRAWS, random_state=0))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    asked = OptunaSearch.convert_search_space(space)
    proposed = {study.ask(asked).params["max_num_seqs"] for _ in range(DRAWS)}
    both = len(drawn & proposed)
    print(f"qrandint{bounds}: random search {shown(drawn)}, OptunaSearch {shown(proposed)}, {both} values in both")
PYTHON
"$folder/env/bin/python" -W ignore "$folder/draw.py" | tee "$folder/seen"
diff - "$folder/seen" <<'SEEN'
qrandint(32, 1024, 32): random search 32 64 96 … 1024, OptunaSearch 32 64 96 … 1024, 32 values in both
qrandint(16, 1024, 32): random search 32 64 96 … 1024, OptunaSearch 16 48 80 … 1008, 0 values in both
qrandint(1, 65, 8): random search 8 16 24 … 64, OptunaSearch 1 9 17 … 65, 0 values in both
SEEN
echo "as stated"
