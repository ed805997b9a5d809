"""The search of a model that is not predicted, with its guess and without a prior:
``python benchmarks/tuner/unpredicted.py CONFIG [--hw NAME] [--launches N] [--seeds N]``.

The ``config.json`` is of a model that the simulator knows: it answers the launches, with 3 % noise.
The study sees the file with layers of an unknown kind, and the size of the weights. Printed are the
best total throughput after 5 and 10 launches, and that of the recommended configuration without
noise.
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from autotune.engines import Library, ModelCard
from autotune.load.metrics.table import HEADLINE
from autotune.tuner.backends import ValidatedEvaluator
from autotune.tuner.backends.simulator import SimulatedEvaluator
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import Prepared, prepare
from autotune.tuner.recommend import recommend
from autotune.tuner.search.priors import priors_of
from autotune.tuner.search.study import Study
from autotune.tuner.study.home import library_of
from autotune.tuner.study.options import RunOptions
from autotune.tuner.trial import Launch, Role, TrialResult

_WORKLOAD = "sharegpt"


def _hidden(config: Path, truth: ModelCard, folder: Path) -> None:
    """Write the file with unknown layers, and the index of its weights."""
    document = json.loads(config.read_text(encoding="utf-8"))
    (document.get("text_config") or document)["block_configs"] = [{}]
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    index = {"metadata": {"total_size": truth.weights_gb * 1e9}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _throughput(result: TrialResult) -> float:
    return float(result.metrics.get(_WORKLOAD, {}).get(HEADLINE, 0.0))


def _study(
    prepared: Prepared, truth: ModelCard, folder: Path, *, guess: bool
) -> tuple[list[float], float]:
    """Return the throughput of each launch, 0 for a failed one, and that of the recommended one."""
    spec, priors = prepared.spec, priors_of(prepared) if guess else []
    launched, exact = (
        ValidatedEvaluator(SimulatedEvaluator(real, prepared.library), real)
        for noise in (0.03, 0.0)
        for real in [
            spec.with_fields(model=truth.with_fields(id=spec.model.id), on="simulator", noise=noise)
        ]
    )
    study = Study(folder, spec, prepared.candidates, prepared.command_of, priors)
    with closing(study):
        while (trial := study.ask()) is not None:
            result = launched(trial)
            # A server that runs has started, whatever its odds were.
            odds = 1.0 if result.metrics else result.odds_of_starting
            study.tell(Launch(trial, replace(result, odds_of_starting=odds)))
        found = recommend(
            spec, prepared.candidates, study.launches, (), study.stop_reason
        ).recommended
        seen = [_throughput(one.result) for one in study.launches]
    if found is None:
        return seen, 0.0
    best = next(one.trial for one in study.launches if one.fingerprint == found.fingerprint)
    return seen, _throughput(exact(replace(best, role=Role.FINAL, launch_index=0)))


def main() -> None:
    """Print a line for each seed and prior."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path)
    parser.add_argument("--hw", default="h200")
    parser.add_argument("--launches", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    truth = Library().model(str(asked.config))
    for seed in range(1, asked.seeds + 1):
        for guess in (True, False):
            with TemporaryDirectory() as name:
                _hidden(asked.config, truth, Path(name))
                options = RunOptions(name, asked.hw, on="docker", workloads=(_WORKLOAD,))
                spec = build_spec(replace(options, launches=asked.launches, seed=seed))
                prepared = prepare(spec, library_of(spec))
                seen, final = _study(prepared, truth, Path(name) / "study", guess=guess)
            print(
                f"seed {seed}, {'guess' if guess else 'no prior':8s}: baseline {seen[0]:,.0f}, "
                f"after 5 {max(seen[:5]):,.0f}, after 10 {max(seen[:10]):,.0f}, recommended {final:,.0f} "
                f"total tokens/s; {seen.count(0.0)} of {len(seen)} launches failed or ranked",
                flush=True,
            )


if __name__ == "__main__":
    main()
