"""``autotune bench``: send and measure a load, or check answers with ``--accuracy``."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

from autotune.base import (
    BadInput,
    Evidence,
    Json,
    LoadFailed,
    NothingFeasible,
    beside,
    write_atomically,
)
from autotune.engines import Library
from autotune.engines.entry import parse_yaml
from autotune.load.bench import results
from autotune.load.bench.results import Bench
from autotune.load.capacity.search import load_in_words
from autotune.load.client.messages import Progress
from autotune.load.client.target import Target
from autotune.load.measuring import LoadOptions, Measurement, send
from autotune.load.metrics.table import HEADLINE, STEADY, shown_in
from autotune.load.options import BenchOptions
from autotune.load.prefix_cache import DraftReader, PrefixCache
from autotune.load.server_client import ServerClient
from autotune.load.workloads import Workload
from autotune.tuner.accuracy.check import Check, check_of, read_evidence, timed

from .screens import printed
from .shared import MESSAGES, answer, load_of, say

_FIGURES = parse_yaml(beside(__file__, "bench.yaml"))


def bench(asked: BenchOptions, as_json: bool, home: Path) -> None:
    """Measure a running server: measure, write, print, judge.

    Raises:
        BadInput: nothing listens, another model is served, or an option is wrong; nothing is
            written then.
        LoadFailed: requests failed or the client did not keep up; the result is written.
        NothingFeasible: the lightest load breaks a limit that a load is searched for; the result is
            written.
        KeyboardInterrupt: nothing is written, as a part of a load is no result.
    """
    options = Bench(**{one.name: getattr(asked, one.name) for one in fields(asked)})
    if options.accuracy is not None or options.reference:
        _check_answers(options, as_json)
        return
    searched = not options.goal.fixed
    load = partial(load_of, window=options.window, home=home, searched=searched)
    workload = options.load_workload(load)
    for note in workload.notes:
        say(note)
    target = options.target
    options.check()
    with ServerClient(target) as server:
        options = replace(options, model=server.model(options.model))
        evidence = Evidence.EMULATED if server.emulated() else Evidence.MEASURED
        load_options = options.load_options(workload, target)
        cache = PrefixCache.for_engines(server, Library().engines.values())
        load_options = replace(
            load_options,
            cache=replace(cache, reset=None, judged=False) if options.keep_cache else cache,
            drafts=DraftReader(server, Library().engines.values()),
        )
        runs = _repeats(options, workload, load_options)
        result = results.result(options, workload, evidence, runs, load_options.tokenizer)
    if options.save_result is not None:
        result = results.save(options.save_result, result, runs)
        say(f"wrote {options.save_result} and {result['requests_file']}")
    answer(as_json, result, [_table(result)])
    if problem := result["failure"] or result["invalid"]:
        raise LoadFailed(problem)
    if result.get("nearest_miss"):
        raise NothingFeasible("; ".join(result["load_search"]))


def _table(result: Json) -> str:
    measured = result["evidence"] == Evidence.MEASURED
    return printed(
        "bench",
        result=result,
        label="" if measured else f" ({result['evidence'].upper()})",
        rows=_FIGURES,
        capacity=shown_in("capacity"),
        derived=shown_in("bench"),
        load_in_words=load_in_words,
        headline=HEADLINE,
        steady=STEADY,
        mean_interval=results.mean_interval,
    )


def _repeats(
    options: Bench, workload: Workload, load_options: LoadOptions
) -> Sequence[Measurement]:
    """Measure each repeat, until a server answers no request of the warm-up; print a line for each
    load of a search."""
    loads = options.loads(workload, load_options.slos)
    runs = []
    with results.LiveLine(MESSAGES) as live:
        for number, load in enumerate(loads, start=1):
            name = f"repeat {number} of {len(loads)}" if len(loads) > 1 else ""

            def show(label: str, progress: Progress, name: str = name) -> None:
                live.show(", ".join(part for part in (name, label) if part), progress)

            # Warm up once: the first repeat leaves a warm server behind.
            how = replace(load_options, warm_up=number == 1, on_progress=show)
            runs.append(send(options.url, options.model, load, how, say))
            if runs[-1].warm_up_failed:
                break  # a server that answers no request gets no further load
    return runs


def _check_answers(options: Bench, as_json: bool) -> None:
    """Ask, write, print; with earlier answers raise `LoadFailed` unless the new ones agree with
    them."""
    if options.accuracy is None:
        raise BadInput("--reference needs --accuracy: it compares earlier answers with new ones")
    check = check_of(options.accuracy)
    references = [read_evidence(path, check.kind) for path in options.reference]
    if check.kind == "builtin" and not references and options.save_result is None:
        raise BadInput(
            "--accuracy builtin compares with earlier answers: add --reference FILE, written by "
            "--accuracy builtin --save-result FILE on the reference server"
        )
    options.check_result_file()
    target = options.target
    with ServerClient(target) as server:
        model = server.model(options.model)
        emulated = server.emulated()
    ask = partial(_ask, check, target, model)
    answers = ask()
    if options.save_result is not None:
        write_atomically(options.save_result, json.dumps(answers), mode=0o600)
        say(f"wrote {options.save_result}")
    if not references:
        outcome = check.alone(answers)
    elif len(references) >= check.baselines:
        outcome = check.judge(references, answers)
    else:
        say("asking twice, because one reference does not show the normal variation")
        # Two answers of one launch differ less than those of two: more --reference files of fresh
        # launches are better.
        outcome = check.judge(references, answers, ask())
    origin = Evidence.EMULATED if emulated else Evidence.MEASURED
    text = printed("answers", outcome=outcome)
    answer(as_json, {"model": model, "evidence": origin.value, **asdict(outcome)}, [text])
    if outcome.passed is False:
        raise LoadFailed(f"the answers do not pass: {'; '.join(outcome.reasons)}")


def _ask(check: Check, target: Target, model: str) -> Json:
    """Ask the server; show the number of answered prompts."""
    done = 0
    with MESSAGES.status("asking the server") if MESSAGES.is_interactive else nullcontext() as line:

        def answered(prompts: int) -> None:
            nonlocal done
            done += 1
            progress = f"{done} of {prompts} prompts answered"
            if line is not None:
                line.update(progress)
            # Log powers of two, so that lines do not grow with the prompts: the first ones take
            # longest.
            elif done.bit_count() == 1 or done == prompts:
                say(progress)

        return timed(check, target, model, answered)
