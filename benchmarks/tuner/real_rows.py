"""Searches over published rows: ``python benchmarks/tuner/real_rows.py TABLE …``, tables of
`scripts/calibration_table.py`.

A group is what was measured of one model on one node under one workload; those with four
configurations or more are searched, each configuration once, in the order that a sampler asks for.
Told are launches, the baseline (the group's first row) as the first, until one is within 2 % of the
group's best. Rows that are one configuration are averaged. ``physics`` is ours with the physics of
which nothing was fitted, which never saw a row; ``none`` is ours without a prior; ``random`` and
``one-factor`` are those of `search_loops.py`. No noise is added: the rows have their own.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from landscape import Landscape, believed
from search_figures import launches_to
from search_loops import play

from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.engines.failure import Failure, FailureKind
from autotune.engines.library import Library
from autotune.node.fit.reading import MeasuredRow, read_file
from autotune.tuner.study.spec import EngineChoice, StudySpec

LEAST = 4
"""Configurations of a group."""
SHARE = 0.98
METRIC = "total_token_throughput"
COMPARED = {
    "physics": "ours-bare",
    "none": "ours-bare-no-prior",
    "random": "random",
    "one-factor": "one-factor",
}
Group = tuple[str, str, int, str]


def grouped(tables: Iterable[Path]) -> dict[Group, list[MeasuredRow]]:
    """Rows by model, node, GPUs and workload."""
    groups: dict[Group, list[MeasuredRow]] = {}
    for table in tables:
        for row in read_file(table).rows:
            setup = row.resolved.setup
            key = (setup.model.id, setup.hardware.name, setup.gpus, row.workload.name)
            groups.setdefault(key, []).append(row)
    return groups


def landscape(group: Group, rows: list[MeasuredRow]) -> Landscape | None:
    """The group as a table of candidates; None where it has too few that differ, or none that
    ran."""
    found: dict[str, Candidate] = {}
    logs: dict[str, list[float]] = {}
    for row in rows:
        configuration = row.resolved.effective.configuration
        key = configuration.fingerprint
        found.setdefault(key, Candidate(configuration, row.resolved.setup.version))
        if METRIC in row.metrics:
            logs.setdefault(key, []).append(math.log(row.metrics[METRIC]))
    if len(found) < LEAST or not logs:
        return None
    setup, library, items = rows[0].resolved.setup, Library(), tuple(found.values())
    engines = dict.fromkeys(item.configuration.engine for item in items)
    spec = StudySpec(
        study="rows",
        model=setup.model,
        hardware=setup.hardware,
        gpus=setup.gpus,
        engines=tuple(
            EngineChoice(name=name, version=library.engine(name).newest) for name in engines
        ),
        workloads=(group[3],),
    )
    truth = np.array([math.exp(np.mean(logs[key])) if key in logs else math.nan for key in found])
    candidates = CandidateSet(items, 0, monotone_memory=library.monotone_memory)
    failed = {
        i: Failure(FailureKind.CRASHED, "did not run")
        for i, key in enumerate(found)
        if key not in logs
    }
    return Landscape(
        " ".join(map(str, group)),
        "",
        "useful",
        spec,
        candidates,
        truth,
        believed(spec, candidates),
        failed,
        noise=0.0,
    )


def launches(sampler: str, table: Landscape, seeds: int) -> float:
    """The mean over seeds of the launches until one is so near the best."""
    counts = []
    for seed in range(seeds):
        run = play(sampler, table, seed, [len(table.candidates)])
        assert run is not None, sampler
        reached = launches_to(SHARE, [table.quality(position) for position in run.visited])
        counts.append(len(table.candidates) if reached is None else reached)
    return statistics.mean(counts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    asked = parser.parse_args()
    tables = [
        one
        for group, rows in grouped(asked.tables).items()
        if (one := landscape(group, rows)) is not None
    ]
    print(
        f"{len(tables)} groups; mean launches of {asked.seeds} seeds until one is within 2 % of the best"
    )
    print(f"{'group':56s}{'rows':>5s}" + "".join(f"{name:>12s}" for name in COMPARED))
    totals: dict[str, list[float]] = {name: [] for name in COMPARED}
    for table in sorted(tables, key=lambda one: one.name):
        cells = ""
        for name, sampler in COMPARED.items():
            # Where physics predicts no row of a group there is no prior to search with.
            known = "ours-bare-no-prior" if sampler == "ours-bare" and not table.priors else sampler
            totals[name].append(launches(known, table, asked.seeds if sampler != "random" else 200))
            cells += f"{totals[name][-1]:12.1f}"
        print(f"{table.name[:55]:56s}{len(table.candidates):5d}{cells}", flush=True)
    print(f"{'sum':61s}" + "".join(f"{sum(counts):12.1f}" for counts in totals.values()))


if __name__ == "__main__":
    main()
