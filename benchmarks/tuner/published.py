"""Baseline, published recipe and best candidates by prediction, for models, nodes and engines.

    python benchmarks/tuner/published.py --workload random:8192:1024:64 --model openai/gpt-oss-120b

A row is one model on one node with one engine: the prediction of the defaults, of the recipe of the
load, and of the three best candidates that give up nothing, with the knobs in which each differs
from the recipe, or without one from the defaults. Nothing is launched.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

import numpy as np

from autotune.base.errors import BadInput
from autotune.engines.command import Scalar
from autotune.engines.library import Library
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import prepare
from autotune.tuner.search.priors import priors_of
from autotune.tuner.study.options import RunOptions

MODELS = (
    "deepseek-ai/DeepSeek-R1-0528",
    "deepseek-ai/DeepSeek-V3.2",
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8",
    "openai/gpt-oss-120b",
    "MiniMaxAI/MiniMax-M2.5",
    "zai-org/GLM-4.6-FP8",
)
NODES = ("mi300x", "mi325x", "mi355x", "h200", "b200", "b300")
ENGINES = ("vllm", "sglang", "tensorrt_llm")
BEST = 3


def differing(knobs: Mapping[str, Scalar], reference: Mapping[str, Scalar]) -> str:
    """The knobs with another value than in the reference."""
    return ", ".join(f"{n} {v}" for n, v in knobs.items() if reference.get(n, v) != v) or "the same"


def rows(model: str, node: str, engine: str, workload: str) -> Iterator[str]:
    """The lines of one cell."""
    options = RunOptions(
        model=model, hardware=node, engines=[engine], workloads=[workload], on="simulator"
    )
    found = prepare(build_spec(options), Library())
    candidates, (prior, *_) = found.candidates, priors_of(found)
    rates = np.where(np.isnan(prior.mean), 0.0, np.exp(prior.mean))
    knobs = [one.configuration.knobs for one in candidates.items]
    recipe = next(iter(candidates.recipes), None)
    reference = knobs[candidates.baseline if recipe is None else recipe]
    yield f"defaults {rates[candidates.baseline]:,.0f}"
    if recipe is not None:
        yield f"recipe {candidates.recipes[recipe]} {rates[recipe]:,.0f}"
    kept = [i for i in np.argsort(-rates) if int(i) not in candidates.given_up]
    for position in kept[:BEST]:
        yield f"{rates[position]:,.0f}: {differing(knobs[position], reference)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append")
    parser.add_argument("--node", action="append")
    parser.add_argument("--engine", action="append")
    parser.add_argument("--workload", default="random:8192:1024:64")
    asked = parser.parse_args()
    print(f"tokens/s, simulated, {asked.workload}")
    for model in asked.model or MODELS:
        for node in asked.node or NODES:
            for engine in asked.engine or ENGINES:
                print(f"\n{model} | {node} | {engine}", flush=True)
                try:
                    for line in rows(model, node, engine, asked.workload):
                        print(f"    {line}")
                except BadInput as error:
                    print(f"    {error}")


if __name__ == "__main__":
    main()
