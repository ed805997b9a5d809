"""``autotune bench``: one workload against a server that runs already."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import click
from rich.console import Console

from autotune.errors import LoadFailed
from autotune.loadgen import LoadOptions, Measurement, Target, measure
from autotune.loadgen import Progress as LoadProgress
from autotune.loadgen.bench import result_file, table
from autotune.loadgen.bench.options import Bench, api_key, check_writable, load_options, tokenizer_of, workload_of
from autotune.loadgen.bench.progress import LiveLine
from autotune.loadgen.bench.repeats import Repeats, measure_repeats
from autotune.loadgen.control import ServerClient
from autotune.loadgen.prefix_cache import PrefixCache
from autotune.loadgen.workloads import Workload
from autotune.space.library import Library
from autotune.trial import Evidence

_messages = Console(stderr=True, soft_wrap=True)


def bench(asked: Bench, as_json: bool) -> None:
    """Measure, write, print, judge.

    Raises:
        BadInput: nothing listens, another model is served, or an option is wrong; nothing is written then.
        LoadFailed: requests failed or the client did not keep up; the result is written.
        KeyboardInterrupt: nothing is written, as a part of a load is no result.
    """
    workload, seeds = workload_of(asked), asked.seeds
    key = api_key(asked.api_key_env)
    target = Target.parse(asked.url, key)
    check_writable(asked.save_result)
    evidence = _evidence(target, asked.model)
    options = load_options(asked, key, tokenizer_of(asked, workload, target))
    with ServerClient(target) as server:
        cache = PrefixCache.of(server, Library().engines.values())
        options = replace(options, cache=cache.kept() if asked.keep_cache else cache)
        measured = _measured(asked, workload, seeds, options)
    result = result_file.result(asked, workload, evidence, measured, options.tokenizer)
    if asked.save_result is not None:
        result = result_file.save(asked.save_result, result, measured.loads)
        _messages.print(f"wrote {asked.save_result} and {result['requests_file']}", highlight=False, markup=False)
    if as_json:
        click.echo(json.dumps(result, indent=2, allow_nan=False))
    else:
        click.echo("\n".join(table.lines(result)))
    _judge(measured)


def _evidence(target: Target, model: str) -> Evidence:
    """What the server's numbers will be; raises `BadInput` when it does not answer or serves another model."""
    with ServerClient(target) as server:
        server.check_model(model)
        return Evidence.EMULATED if server.emulated() else Evidence.MEASURED


def _measured(asked: Bench, workload: Workload, seeds: Sequence[int], options: LoadOptions) -> Repeats:
    with LiveLine(_messages) as live:

        def once(repeat: int) -> Measurement:
            name = f"repeat {repeat + 1} of {len(seeds)}" if len(seeds) > 1 else ""

            def tell(label: str, progress: LoadProgress) -> None:
                live.tell(", ".join(part for part in (name, label) if part), progress)

            # The first repeat leaves a warm server behind.
            how = replace(options, warm_up=options.warm_up and not repeat, on_progress=tell)
            return measure(asked.url, asked.model, workload, seeds[repeat], how)

        return measure_repeats(len(seeds), once, asked.slos)


def _judge(measured: Repeats) -> None:
    if measured.failure:
        raise LoadFailed(measured.failure)
    if measured.invalid:
        raise LoadFailed(measured.invalid)
