"""``autotune bench``."""

from __future__ import annotations

from dataclasses import replace

from autotune.cli import accuracy
from autotune.cli.shared import MESSAGES, answer
from autotune.errors import LoadFailed, NothingFeasible
from autotune.loadgen.bench import printing, results
from autotune.loadgen.bench.options import BenchOptions
from autotune.loadgen.capacity.search import CONFIRM_S, LoadSearch
from autotune.loadgen.client.messages import Progress
from autotune.loadgen.measuring import FoundCapacity, find_load, measure
from autotune.loadgen.prefix_cache import PrefixCache
from autotune.loadgen.results import LoadOptions, Measurement
from autotune.loadgen.server_client import ServerClient
from autotune.loadgen.speculation import DraftReader
from autotune.loadgen.workloads import Workload
from autotune.space.library import Library
from autotune.trial import Evidence


def bench(options: BenchOptions, as_json: bool) -> None:
    """Measure a server that runs already: measure, write, print, judge.

    Raises:
        BadInput: nothing listens, another model is served, or an option is wrong; nothing is written then.
        LoadFailed: requests failed or the client did not keep up; the result is written.
        NothingFeasible: the lightest load breaks a limit that a load is searched for; the result is written.
        KeyboardInterrupt: nothing is written, as a part of a load is no result.
    """
    if options.accuracy is not None or options.reference:
        accuracy.bench(options, as_json)
        return
    workload, seeds, target = options.load_workload(), options.seeds, options.target
    options.check()
    with ServerClient(target) as server:
        options = replace(options, model=server.model(options.model))
        evidence = Evidence.EMULATED if server.emulated() else Evidence.MEASURED
        load_options = options.load_options(workload, target)
        cache = PrefixCache.of(server, Library().engines.values())
        load_options = replace(
            load_options,
            cache=replace(cache, reset=None, judged=False) if options.keep_cache else cache,
            drafts=DraftReader(server, Library().engines.values()),
        )
        if options.find_load is not None:
            came = _search(options, workload, load_options)
            _conclude(options, workload, evidence, came, load_options, as_json)
            return
        runs = _measured(options, workload, seeds, load_options)
    result = results.result(options, workload, evidence, runs, load_options.tokenizer)
    if options.save_result is not None:
        result = results.save(options.save_result, result, runs)
        MESSAGES.print(f"wrote {options.save_result} and {result['requests_file']}", highlight=False, markup=False)
    answer(as_json, result, printing.table(result))
    if problem := result["failure"] or result["invalid"]:
        raise LoadFailed(problem)


def _measured(
    options: BenchOptions, workload: Workload, seeds: list[int], load_options: LoadOptions
) -> list[Measurement]:
    runs: list[Measurement] = []
    with printing.LiveLine(MESSAGES) as live:
        for number, seed in enumerate(seeds, start=1):
            name = f"repeat {number} of {len(seeds)}" if len(seeds) > 1 else ""

            def show(label: str, progress: Progress, name: str = name) -> None:
                live.show(", ".join(part for part in (name, label) if part), progress)

            # The first repeat leaves a warm server behind.
            how = replace(load_options, warm_up=number == 1, on_progress=show)
            runs.append(measure(options.url, options.model, workload, seed, how))
            if runs[-1].warm_up_failed:
                break  # a server that answers no request gets no further load
    return runs


def _search(options: BenchOptions, workload: Workload, load_options: LoadOptions) -> FoundCapacity:
    """Search for the server's capacity, and print a line for each load."""
    assert options.find_load is not None

    def say(line: str) -> None:
        MESSAGES.print(line, highlight=False, markup=False, soft_wrap=True)

    with printing.LiveLine(MESSAGES) as live:
        how = replace(load_options, on_progress=live.show)
        plan = LoadSearch.of(options.find_load, options.slos, workload, limits=load_options.slos, confirm_s=CONFIRM_S)
        return find_load(options.url, options.model, workload, options.seed, plan, how, say)


def _conclude(
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
    if problem := result["failure"] or result["invalid"]:
        raise LoadFailed(problem)
    if came.found.missed is not None:
        raise NothingFeasible("; ".join(came.found.sentences()))
