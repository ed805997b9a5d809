"""``autotune bench --accuracy``: answers of a running server are checked, and no load is sent."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

from autotune.accuracy.check import Check, CheckEvidence, check_of, read_evidence, timed
from autotune.cli.shared import MESSAGES, answer, say
from autotune.errors import BadInput, LoadFailed
from autotune.loadgen.bench.options import BenchOptions
from autotune.loadgen.client.target import Target
from autotune.loadgen.server_client import ServerClient
from autotune.study.home import write_atomically
from autotune.trial import Accuracy, Evidence


def bench(options: BenchOptions, as_json: bool) -> None:
    """Ask, write, print, and judge where earlier answers are given.

    Raises:
        BadInput: nothing listens, an option is wrong, or the command fails.
        LoadFailed: the answers do not pass, beside earlier ones.
        NoAnswers: the server does not answer.
    """
    if options.accuracy is None:
        raise BadInput("--reference: earlier answers are compared with those of --accuracy; give that too")
    check = check_of(options.accuracy)
    references = [read_evidence(path, check.kind) for path in options.reference]
    if check.kind == "builtin" and not references and options.save_result is None:
        raise BadInput(
            "--accuracy builtin compares with earlier answers: add --reference FILE; such a FILE is written by "
            "--accuracy builtin --save-result FILE on the server that is to be compared with"
        )
    options.check_result_file()
    target = options.target
    with ServerClient(target) as server:
        model, emulated = server.model(options.model), server.emulated()
    evidence = _asked(check, target, model)
    if options.save_result is not None:
        write_atomically(options.save_result, json.dumps(evidence), mode=0o600)
        MESSAGES.print(f"wrote {options.save_result}", highlight=False, markup=False)
    came = _judged(check, references, evidence, target, model) if references else check.alone(evidence)
    origin = Evidence.EMULATED if emulated else Evidence.MEASURED
    answer(as_json, {"model": model, "evidence": origin.value, **_plain(came)}, lines(came))
    if came.passed is False:
        raise LoadFailed(f"the answers do not pass: {'; '.join(came.reasons)}")


def _judged(
    check: Check, references: Sequence[CheckEvidence], evidence: CheckEvidence, target: Target, model: str
) -> Accuracy:
    """Beside earlier answers; too few of these say nothing of what is ordinary, so the server is asked once more."""
    if len(references) >= check.baselines:
        return check.judge(references, evidence)
    MESSAGES.print("asking once more, as one reference does not tell what differs by itself", highlight=False)
    again = _asked(check, target, model)
    # Of one launch, which differ less than two do: more --reference files of fresh launches are better.
    return check.judge(references, evidence, again)


def _asked(check: Check, target: Target, model: str) -> dict[str, Any]:
    """What the server answers; shown meanwhile: how many prompts it has answered."""
    count, one_at_a_time = itertools.count(1), threading.Lock()
    with MESSAGES.status("asking the server") if MESSAGES.is_interactive else nullcontext() as line:

        def answered(prompts: int) -> None:
            with one_at_a_time:
                done = next(count)
                told = f"{done} of {prompts} prompts answered"
                if line is not None:
                    line.update(told)
                # In a log the number of lines must not grow with that of prompts, and the first ones take longest.
                elif done.bit_count() == 1 or done == prompts:
                    say(told)

        return timed(check, target, model, answered)


def _plain(came: Accuracy) -> dict[str, Any]:
    row = asdict(came)
    return {"kind": row.pop("kind"), **row}


def lines(came: Accuracy) -> list[str]:
    """The outcome for people."""
    rows, unit = [], "" if came.kind == "command" else " %"
    if came.passed is not None:
        rows.append("passes" if came.passed else f"fails: {'; '.join(came.reasons)}")
    if came.score is None:
        rows.append(f"{came.kind}: the answers are kept; compare another server's with --reference FILE")
    else:
        within = f" (95 % interval {came.ci95[0]:.4g} to {came.ci95[1]:.4g}{unit})" if came.ci95 else ""
        what = "agreement" if came.kind == "builtin" else "score"
        rows.append(f"{came.kind}: {what} {came.score:.4g}{unit}{within}")
    if came.passed is not None:
        rows.append(f"reference {came.baseline:.4g}{unit}, threshold {came.threshold:.4g}{unit}")
    rows += filter(None, [came.note])
    for one in came.examples:
        rows += ["", f"prompt     {one.prompt}", f"reference  {one.baseline}", f"here       {one.finalist}"]
    return [*rows, f"took {came.seconds:.1f} s"]
