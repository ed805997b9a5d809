"""How many settings a recommended command has that have not earned their place, by budget.

    python benchmarks/tuner/settings.py [--model ID] [--hardware h200] [--budgets 6 8 12 30] [--seeds 10]
    [--json FILE] python benchmarks/tuner/settings.py --read BEFORE AFTER

Whole studies of the simulated node. Counted in each recommended command: its settings, those that
are unlikely to help by the report's own table (a mean below 0.5 % or odds below 0.5), and those that
the simulator does not read. The truth of a command is its objective without noise; its regret is what that falls short
of the best that any study recommended and of the best of the ``--simulate`` candidates that the
fast prediction has in front. ``--read`` prints what several runs wrote side by side, over the seeds
that all have, with one best for all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

from recommended import best_known, truth

from autotune.engines.command import Configuration
from autotune.load.workloads import load_workload
from autotune.node.resolve_command import knobs_modelled, resolve_for
from autotune.tuner.backends.simulator import SimulatedEvaluator
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import Prepared, no_effect_by_rule, prepare
from autotune.tuner.recommend import recommend
from autotune.tuner.search.gp.kernels import Prior
from autotune.tuner.search.priors import priors_of
from autotune.tuner.search.study import Study
from autotune.tuner.study.home import library_of
from autotune.tuner.study.options import RunOptions
from autotune.tuner.study.recommendation import Recommendation, Verdict
from autotune.tuner.trial import Launch

_made: dict[str, Any] = {}
"""What the forked processes inherit."""


def played(budget: int, seed: int) -> Recommendation:
    """One study by the product's own path."""
    prepared: Prepared = _made["prepared"]
    priors: list[Prior] = _made["priors"]
    spec = prepared.spec.model_copy(update={"launches": budget, "seed": seed})
    launch = SimulatedEvaluator(spec, prepared.library)
    with (
        tempfile.TemporaryDirectory(prefix="autotune-settings-") as folder,
        closing(
            Study(Path(folder), spec, prepared.candidates, prepared.command_of, priors)
        ) as study,
    ):
        while (trial := study.ask()) is not None:
            study.tell(Launch(trial, launch(trial)))
        told = study.explanation(partial(no_effect_by_rule, prepared))
        return recommend(spec, prepared.candidates, study.launches, (), study.stop_reason, told)


def row_of(task: tuple[int, int]) -> dict[str, Any]:
    """One study's figures as JSON."""
    began_s, prepared = perf_counter(), _made["prepared"]
    found, spec = played(*task), prepared.spec
    chosen = found.recommended
    row = {
        "budget": task[0],
        "seed": task[1],
        "verdict": found.verdict.value,
        "value": 0.0,
        "command": "",
    }
    row |= {"settings": 0, "doubtful": [], "unread": [], "gain_percent": found.gain_percent}
    if chosen is None:
        return row
    # Studies add candidates near their best.
    candidates = prepared.candidates.including([Configuration(chosen.engine, chosen.config)])
    candidate = candidates.items[candidates.position(chosen.fingerprint)]
    space = prepared.spaces[candidate.configuration.engine]
    resolved = resolve_for(space.engine, prepared.command_of(candidate), space.context)
    read = (
        knobs_modelled(
            resolved, resolved.simulate(load_workload(spec.workloads[0], prepared.library), 0)
        )
        or frozenset()
    )
    rows = [one for one in found.contributions if one.knob != "engine"]
    return row | {
        "value": truth(prepared, spec.model_copy(update={"seed": 0}), candidate),
        "command": chosen.command,
        "settings": len(space.without(candidate.configuration)),
        "doubtful": [f"{one.knob} {one.odds:.2f}" for one in rows if one.unlikely],
        "unread": [name for one in rows for name in one.knob.split("+") if name not in read],
        "seconds": round(perf_counter() - began_s, 1),
    }


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """All studies of one question."""
    options = RunOptions(
        model=asked.model, hardware=asked.hardware, on="simulator", study="settings"
    )
    spec = build_spec(options)
    prepared = prepare(spec, library_of(spec), anywhere=True)
    _made.update(prepared=prepared, priors=list(priors_of(prepared)))
    best = best_known(prepared, spec.model_copy(update={"seed": 0}), asked.simulate)
    rows, tasks = [], [(budget, seed) for budget in asked.budgets for seed in range(asked.seeds)]
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("fork")) as pool:
        for row in pool.map(row_of, tasks):
            rows.append(row)
            print(f"{row['budget']} launches, seed {row['seed']}: {row}", flush=True)
    return {"question": f"{asked.model} on {asked.hardware}", "best": best, "rows": rows}


def table(runs: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """A line for each budget and run."""
    best = max(
        row["value"] for _, found in runs for row in [{"value": found["best"]}, *found["rows"]]
    )
    common = set.intersection(
        *({(r["budget"], r["seed"]) for r in found["rows"]} for _, found in runs)
    )
    lines = [f"{runs[0][1]['question']}, best {best:,.0f}"]
    lines.append(
        "budget  run         studies  mean regret  median  settings  doubtful  unread  better"
    )
    for budget in sorted({budget for budget, _ in common}):
        for name, found in runs:
            rows = [
                r for r in found["rows"] if r["budget"] == budget and (budget, r["seed"]) in common
            ]
            regret = [100 * (1 - r["value"] / best) for r in rows]
            counts = [
                statistics.fmean(map(len, (r[k] for r in rows))) for k in ("doubtful", "unread")
            ]
            settings = statistics.fmean(r["settings"] for r in rows)
            better = sum(r["verdict"] == Verdict.BETTER.value for r in rows)
            lines.append(
                f"{budget:>6}  {name:<10}  {len(rows):>7}  {statistics.fmean(regret):>9.1f} %  "
                f"{statistics.median(regret):>4.1f} %  {settings:>8.1f}  {counts[0]:>8.2f}  {counts[1]:>6.2f}  "
                f"{better:>3} of {len(rows)}"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="deepseek-ai/DeepSeek-V3.2")
    parser.add_argument("--hardware", default="h200")
    parser.add_argument("--budgets", type=int, nargs="+", default=[6, 8, 12, 30])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument(
        "--simulate", type=int, default=150, help="candidates, the best by the fast prediction"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every study")
    parser.add_argument(
        "--read",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="print what --json wrote, and run nothing",
    )
    asked = parser.parse_args()
    if asked.read:
        runs = [(path.stem, json.loads(path.read_text())) for path in asked.read]
    else:
        runs = [("now", run(asked))]
        if asked.json:
            asked.json.write_text(json.dumps(runs[0][1], indent=1) + "\n")
    print("\n".join(table(runs)))


if __name__ == "__main__":
    main()
