"""``autotune bench``."""

from __future__ import annotations

from dataclasses import replace

from autotune.cli import accuracy, find_load
from autotune.cli.output import MESSAGES, answer
from autotune.errors import LoadFailed
from autotune.loadgen.bench import printing, results
from autotune.loadgen.bench.options import BenchOptions
from autotune.loadgen.client.messages import Progress
from autotune.loadgen.measuring import measure
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
            came = find_load.search(options, workload, load_options)
            find_load.conclude(options, workload, evidence, came, load_options, as_json)
            return
        runs = _measured(options, workload, seeds, load_options)
    result = results.result(options, workload, evidence, runs, load_options.tokenizer)
    if options.save_result is not None:
        result = results.save(options.save_result, result, runs)
        MESSAGES.print(f"wrote {options.save_result} and {result['requests_file']}", highlight=False, markup=False)
    answer(as_json, result, printing.table(result))
    problem = result["failure"] or next((run.invalid for run in runs if run.invalid), "")
    if problem:
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
