"""``autotune bench --find-load``."""

from __future__ import annotations

from dataclasses import replace

from autotune.cli.output import MESSAGES, answer
from autotune.errors import LoadFailed, NothingFeasible
from autotune.loadgen.bench import printing, results
from autotune.loadgen.bench.options import BenchOptions
from autotune.loadgen.capacity.search import LoadSearch
from autotune.loadgen.finding import FoundCapacity, find_load
from autotune.loadgen.results import LoadOptions
from autotune.loadgen.workloads import Workload
from autotune.trial import Evidence


def search(options: BenchOptions, workload: Workload, load_options: LoadOptions) -> FoundCapacity:
    """Search for the server's capacity; a line for each load that was sent."""
    assert options.find_load is not None

    def say(line: str) -> None:
        MESSAGES.print(line, highlight=False, markup=False, soft_wrap=True)

    with printing.LiveLine(MESSAGES) as live:
        how = replace(load_options, on_progress=live.show)
        plan = LoadSearch.of(options.find_load, options.slos, workload, limits=load_options.slos)
        return find_load(options.url, options.model, workload, options.seed, plan, how, say)


def conclude(
    options: BenchOptions,
    workload: Workload,
    evidence: Evidence,
    came: FoundCapacity,
    load_options: LoadOptions,
    as_json: bool,
) -> None:
    """Write and print the result; raises `NothingFeasible` or `LoadFailed` where there is no capacity."""
    result = results.searched(options, workload, evidence, came, load_options.tokenizer)
    if options.save_result is not None:
        result = results.save(options.save_result, result, came.shown)
        MESSAGES.print(f"wrote {options.save_result} and {result['requests_file']}", highlight=False, markup=False)
    answer(as_json, result, printing.search_table(result))
    if came.failure or came.invalid:
        raise LoadFailed(came.failure or came.invalid)
    if came.found.missed is not None:
        raise NothingFeasible("; ".join(came.found.sentences()))
