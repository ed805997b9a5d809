#!/usr/bin/env bash
# A launch that fails teaches Optuna 5.0.0 (GPSampler) and Ax 1.3.1 nothing: they propose the same one until the budget ends. SMAC 2.4.1 ends.
#
# Guess: a failed trial is not proposed again at once: the sampler avoids it, or has chance enough to go elsewhere. Three tenths of the
# space do not start, so about as many of the launches fail, and fewer as the tuner learns.
# Seen, where the rate rises with the share of memory until the server does not start: a failed trial gives the model no row, so the next
# proposal is the same again, and more than half of 40 launches are one configuration, which never starts. TPE varies it, and most of its
# launches fail. In Ax "failed" can be proposed again and "abandoned" cannot. SMAC gives a crashed trial the cost infinity by default,
# which its model refuses: ValueError once the first design is through. With a bad value for what fails (0 tokens/s, a finite
# crash_cost) each goes on, and fewer than half of the launches fail.
# Who meets it: whoever searches batch sizes or shares of memory, where the best lies beside what runs out of memory. Tell a value.
#
# Output seen (2026-11-29, CPython 3.11, Linux; 40 launches, seed 0; standard error has the numbers: 30 failed, 28 of them the same; 3, 1;
# 25, 5; 9, 1; 35, 33; 15, 1; 12, 1):
#   Optuna, GPSampler, failed: more than half of the launches are one failed configuration
#   Optuna, GPSampler, 0 tokens/s: fewer than half fail
#   Optuna, TPESampler, failed: more than half of the launches are failed ones
#   Optuna, TPESampler, 0 tokens/s: fewer than half fail
#   Ax, failed: more than half of the launches are one failed configuration
#   Ax, abandoned: fewer than half fail
#   SMAC, crash_cost left out: ValueError, Input y contains NaN.
#   SMAC, crash_cost 1e5: fewer than half fail
# Needs 2 GB of disk, and up to ten minutes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/models"
"$folder/models/bin/pip" install -q --disable-pip-version-check torch==2.13.0+cpu botorch==0.18.1 ax-platform==1.3.1 optuna==5.0.0
python3 -m venv "$folder/smac"
"$folder/smac/bin/pip" install -q --disable-pip-version-check smac==2.4.1 ConfigSpace==1.2.2 numpy==2.4.6 scipy==1.17.1
export OMP_NUM_THREADS=1

cat >"$folder/rate.py" <<'PYTHON'
"""A server whose rate rises with its share of memory, and which does not start above 0.92; a count of launches."""

import sys
from collections import Counter

LAUNCHES = 40


def rate(tensor_parallel, doublings, steps):
    """Return tokens/s, or None where the server does not start."""
    share = 0.8 + 0.02 * steps
    return None if share > 0.93 else 10 * 2 ** (doublings / 2) * (1 + share) * (2 if tensor_parallel == 4 else 1)


def show(name, failed):
    """Print how many launches failed, and how many of them were one configuration."""
    (_, same), *_ = Counter(failed).most_common(1)
    half = LAUNCHES / 2
    of_what = "one failed configuration" if same > half else "failed ones"
    print(f"{name}: more than half of the launches are {of_what}" if len(failed) > half else f"{name}: fewer than half fail")
    print(f"{name}: {len(failed)} failed, {same} of them the same", file=sys.stderr)
PYTHON

cat >"$folder/optuna_and_ax.py" <<'PYTHON'
"""Search with Optuna and with Ax; a server that does not start is a failed trial, or has a value, or is abandoned."""

import logging
import warnings

import optuna
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from rate import LAUNCHES, rate, show

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
for name, sampler in {"GPSampler": optuna.samplers.GPSampler, "TPESampler": optuna.samplers.TPESampler}.items():
    for told in ("failed", "0 tokens/s"):
        study, failed = optuna.create_study(direction="maximize", sampler=sampler(seed=0)), []
        for _ in range(LAUNCHES):
            trial = study.ask()
            asked = (trial.suggest_categorical("tp", [1, 2, 4, 8]), trial.suggest_int("doublings", 6, 10), trial.suggest_int("steps", 0, 9))
            value = rate(*asked)
            if value is None:
                failed.append(asked)
            if value is None and told == "failed":
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, value or 0.0)
        show(f"Optuna, {name}, {told}", failed)

for told in ("failed", "abandoned"):
    client, failed = Client(random_seed=0), []
    client.configure_experiment(parameters=[
        ChoiceParameterConfig(name="tensor_parallel", values=[1, 2, 4, 8], parameter_type="int", is_ordered=False),
        RangeParameterConfig(name="doublings", bounds=(6, 10), parameter_type="int"),
        RangeParameterConfig(name="steps", bounds=(0, 9), parameter_type="int"),
    ])
    client.configure_optimization(objective="rate")
    for _ in range(LAUNCHES):
        for number, asked in client.get_next_trials(1).items():
            value = rate(**asked)
            if value is not None:
                client.complete_trial(number, raw_data={"rate": value})
                continue
            failed.append(tuple(asked.values()))
            (client.mark_trial_failed if told == "failed" else client.mark_trial_abandoned)(number)
    show(f"Ax, {told}", failed)
PYTHON

cat >"$folder/smac_search.py" <<'PYTHON'
"""Search with SMAC, whose target raises an error where the server does not start."""

import logging
import sys
import warnings

from ConfigSpace import Categorical, ConfigurationSpace, Integer
from rate import LAUNCHES, rate, show
from smac import HyperparameterOptimizationFacade, Scenario

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
failed = []


def seconds_of_a_million_tokens(configuration, seed=0):
    """Return what SMAC minimises."""
    asked = int(configuration["tp"]), configuration["doublings"], configuration["steps"]
    value = rate(*asked)
    if value is None:
        failed.append(asked)
        raise MemoryError
    return 1e6 / value


for name, changes in {"crash_cost left out": {}, "crash_cost 1e5": {"crash_cost": 1e5}}.items():
    failed.clear()
    space = ConfigurationSpace(seed=0)
    space.add(Categorical("tp", [1, 2, 4, 8]), Integer("doublings", (6, 10)), Integer("steps", (0, 9)))
    scenario = Scenario(space, deterministic=True, n_trials=LAUNCHES, seed=0, output_directory=f"{sys.argv[1]}/{len(changes)}", **changes)
    search = HyperparameterOptimizationFacade(scenario, seconds_of_a_million_tokens, logging_level=False)
    try:
        search.optimize()
        show(f"SMAC, {name}", failed)
    except ValueError as error:
        print(f"SMAC, {name}: ValueError, {error}")
PYTHON
PYTHONPATH="$folder" "$folder/models/bin/python" "$folder/optuna_and_ax.py" 2>"$folder/log" | tee "$folder/seen"
PYTHONPATH="$folder" "$folder/smac/bin/python" "$folder/smac_search.py" "$folder/runs" 2>>"$folder/log" | tee -a "$folder/seen"
grep ' of them the same' "$folder/log" >&2 || cat "$folder/log" >&2
diff - "$folder/seen" <<'SEEN'
Optuna, GPSampler, failed: more than half of the launches are one failed configuration
Optuna, GPSampler, 0 tokens/s: fewer than half fail
Optuna, TPESampler, failed: more than half of the launches are failed ones
Optuna, TPESampler, 0 tokens/s: fewer than half fail
Ax, failed: more than half of the launches are one failed configuration
Ax, abandoned: fewer than half fail
SMAC, crash_cost left out: ValueError, Input y contains NaN.
SMAC, crash_cost 1e5: fewer than half fail
SEEN
echo "as stated"
