"""Measure studies that search knobs which the simulator does not read: ``python
benchmarks/tuner/knobs.py [--mode MODE …] [--seeds FROM TO] [--launches N]``.

The studies are those of ``--on docker``; a node with hidden effects (`knobs_node.py`) gives the
results of launches, with 3 % noise. Modes:

    none       these knobs have no effect, also where one is published
    published  every published effect is true
    planted    one value of a knob without a published effect adds 10 %; the seed draws the knob among
               those that are tried beside the fastest configuration
    old        as none, and no value is tried beside the best

Each seed belongs to one question. Results: the launches to 98 % of the node's best, the baseline
counted as the first, the recommended configuration's share of the best, and whether it has the
planted value.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from time import process_time
from typing import Any

from knobs_node import (
    HiddenNode,
    Planted,
    no_effects,
    planted_at,
    published_effects,
    settings_of,
)

from autotune.tuner.recommend import recommend
from autotune.tuner.search.study import Study

MODES = ("none", "published", "planted", "old")
MODELS = (
    "deepseek-ai/DeepSeek-V3.2",
    "deepseek-ai/DeepSeek-R1-0528",
    "openai/gpt-oss-120b",
    "Qwen/Qwen3-32B",
    "MiniMaxAI/MiniMax-M2.5",
)
QUESTIONS = tuple(f"{model}@{node}" for node in ("h200", "b200") for model in MODELS)
NOISE = 0.03


def studies_of(question: str, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """All studies of one question, as JSON."""
    model, _, hardware = question.partition("@")
    node = HiddenNode.of(model, hardware, asked.away, asked.cache)
    size = len(node.prepared.candidates)
    print(f"{question}: {size} candidates, fastest {node.leader.engine}", flush=True)
    rows = []
    known = QUESTIONS if question in QUESTIONS else asked.question
    place, count = known.index(question), len(known)
    seeds = [seed for seed in range(*asked.seeds) if seed % count == place]
    for mode, launches, seed in product(asked.mode, asked.launches, seeds):
        row = {"question": question, "mode": mode, "budget": launches, "seed": seed}
        row |= study_of(node, mode, seed, launches, asked)
        shown = {k: v for k, v in row.items() if k not in ("qualities", "settings", "roles")}
        print(json.dumps(shown), flush=True)
        rows.append(row)
    return rows


def study_of(
    node: HiddenNode, mode: str, seed: int, launches: int, asked: argparse.Namespace
) -> dict[str, Any]:
    """One study's figures as JSON."""
    began_s = process_time()
    effects = published_effects if mode == "published" else no_effects
    row: dict[str, Any] = {}
    planted = None
    if mode == "planted":
        try:
            planted = planted_at(node, node.leader, seed, math.log(1 + asked.gain))
        except LookupError as error:
            return row | {"skipped": str(error)}
        effects = planted
        row["planted"] = " ".join(map(str, planted.setting))
    best, whose = node.best(effects, grown=mode != "old")
    played = _played(node, mode, seed, launches, effects)
    # A vendor's recipe is launched to compare with, whatever it gives up.
    kept = node.keeping(played["visited"])
    scores = [node.score(v, effects) if v in kept else -math.inf for v in played["visited"]]
    best = max(best, *scores)
    quality = [math.exp(score - best) for score in scores]
    chosen = played["recommended"]
    row |= {
        "best": round(math.exp(best), 1),
        "best_is": [whose.engine, *settings_of(node, whose)],
        "launches": len(quality),
        "to_98": next((i for i, q in enumerate(quality, 1) if q >= 0.98), None),
        "visited": round(max(quality), 4),
        "recommended": 0.0
        if chosen is None
        else round(math.exp(node.score(chosen, effects) - best), 4),
        "chosen": [] if chosen is None else [chosen.engine, *settings_of(node, chosen)],
        "qualities": [round(q, 4) for q in quality],
        "settings": [" ".join([one.engine, *settings_of(node, one)]) for one in played["visited"]],
        "roles": played["roles"],
        "stop": played["stop"],
        "candidates": played["candidates"],
        "seconds": round(process_time() - began_s, 1),
    }
    if isinstance(planted, Planted):
        has = (i for i, one in enumerate(played["visited"], 1) if planted.has(one))
        row["launched"] = next(has, None)
        row["found"] = chosen is not None and planted.has(chosen)
    return row


def _played(node: HiddenNode, mode: str, seed: int, launches: int, effects: Any) -> dict[str, Any]:
    """Play one study on a node."""
    spec = node.prepared.spec.with_fields(launches=launches, seed=seed, noise=NOISE)
    prepared = replace(node.prepared, spec=spec)
    if mode == "old":
        prepared = replace(prepared, candidates=replace(prepared.candidates, growth=None))
    with (
        tempfile.TemporaryDirectory(prefix="autotune-knobs-") as folder,
        closing(Study.of(Path(folder), prepared, node.priors)) as study,
    ):
        while (trial := study.ask()) is not None:
            study.tell(node.launch(trial, seed, NOISE, effects))
        rows = study.launches
        found = recommend(spec, prepared.candidates, rows, (), study.stop_reason).recommended
        chosen = next(
            (r.trial.configuration for r in rows if found and r.fingerprint == found.fingerprint),
            None,
        )
        return {
            "visited": [row.trial.configuration for row in rows],
            "roles": [row.trial.role.value for row in rows],
            "recommended": chosen,
            "stop": study.stop_reason,
            "candidates": len(prepared.candidates),
        }


def table(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each mode and budget."""
    lines = [
        "mode       launches  studies  98 % reached  launches to 98 %, sorted  recommended, mean (worst)  found  launched"
    ]
    for mode, launches in dict.fromkeys((r["mode"], r["budget"]) for r in rows):
        own = [r for r in rows if (r["mode"], r["budget"]) == (mode, launches)]
        played = [r for r in own if "skipped" not in r]
        if not played:
            continue
        to = sorted(math.inf if r["to_98"] is None else r["to_98"] for r in played)
        shares = [r["recommended"] for r in played]
        line = f"{mode:<9}  {launches:>8}  {len(played):>7}  {sum(n < math.inf for n in to):>3}"
        line += f"  {' '.join('–' if n == math.inf else str(n) for n in to)}"
        line += f"  {100 * statistics.fmean(shares):.1f} % ({100 * min(shares):.1f} %)"
        if mode == "planted":
            line += f"  {sum(r['found'] for r in played)} of {len(played)}"
            line += f"  {sum(r['launched'] is not None for r in played)}"
        lines.append(line)
    return lines


def main() -> None:
    """Play the studies and print a line for each, then the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--mode", nargs="+", choices=MODES, default=list(MODES))
    add("--question", nargs="+", default=list(QUESTIONS), metavar="MODEL@NODE")
    add("--seeds", type=int, nargs=2, default=(0, 20), metavar=("FROM", "TO"))
    add("--launches", type=int, nargs="+", default=[40])
    add("--gain", type=float, default=0.10, help="of the planted value")
    add("--away", type=float, default=0.2, help="spread of the node's figures, a logarithm")
    add("--jobs", type=int, default=2)
    add("--cache", type=Path, default=Path(tempfile.gettempdir()) / "autotune-search-benchmark")
    add("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    rows = []
    with ProcessPoolExecutor(asked.jobs) as pool:
        for found in pool.map(partial(studies_of, asked=asked), asked.question):
            rows += found
            if asked.json:
                asked.json.write_text(json.dumps(rows, indent=1) + "\n")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
