"""The loads of a launch: the sequence of measurements on one warm server.

The workloads of the study as they are, the first of them raised as far as the limits are kept where
that was asked for (``--find-load``), then the first one with a few other numbers of requests in
flight (``--ladder``). Real servers and the simulated node measure the same `Load`s in the same
order, and both fill a launch's metrics by `Load.add`.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from autotune.base import BadInput, StringDict
from autotune.engines import Context, Library
from autotune.load.capacity.judge import LOOKS
from autotune.load.capacity.search import CONFIRM_S
from autotune.load.load import Load
from autotune.load.workloads import LEAST_OF_HALF, Workload, how_fixed, load_workload
from autotune.load.workloads.lengths import SessionLengths

from ..trial import Role, Rungs, Trial
from .options import RunOptions
from .spec import StudySpec

PROMPTS, SENT = "prompts", "sent"
"""Keys, among a workload's metrics in finals: ``unseen`` or ``seen`` by the search, and what was
sent in its place."""
FACTS = (PROMPTS, SENT)
LEAST_PROMPTS = 32
"""Prompts of the lightest loads: fewer give a mean latency with too wide an interval."""
PER_PLACE = 8
"""Prompts of a load per unit of its concurrency; a steady state needs three
(`metrics.formulas`)."""
SEEDS_OF_FINALS = 2**32
"""Added to the seed of a finals launch: beyond every ``--seed``, so that its prompts differ from
the search's."""
_COMPARED = (Role.BASELINE, Role.CONTROL, Role.FINAL)


def context_of(spec: StudySpec, version: str, library: Library) -> Context:
    """Return what an engine's expressions see of a study under all its workloads."""
    loads = [load_workload(name, library) for name in spec.sent]
    fixed = spec.load.fixed
    return replace(
        spec.context(version, max(load.longest_request for load in loads)),
        concurrency=max(load.concurrency for load in loads) if fixed else math.inf,
        tokens_in_flight=max(load.tokens_in_flight for load in loads) if fixed else math.inf,
        prefix_tokens=max(load.prefix_tokens for load in loads),
        allowed=spec.allowed,
    )


def loads_of(spec: StudySpec, trial: Trial, library: Library, looks: int = LOOKS) -> list[Load]:
    """Return the loads of a launch, in order.

    The rungs have the same prompts in every launch: the few requests of a light load differ more
    from seed to seed than launches do. A rate that a load search with several
    `looks` finds is confirmed by a long load where launches are compared.
    """
    loads = []
    first_seed = spec.seed + trial.launch_index
    if trial.role is Role.FINAL:
        first_seed += SEEDS_OF_FINALS
    for name in trial.workloads:
        (workload, about), search = workload_of(spec, trial.role, name, library), None
        if name == spec.workloads[0]:
            confirm_s = CONFIRM_S if looks > 1 and trial.role in _COMPARED else 0.0
            search = spec.load.search(workload, spec.slos, looks, spec.request_limits, confirm_s)
        loads.append(Load(name, workload, first_seed, search, about=about))
    first, _ = workload_of(spec, Role.SEARCH, trial.workloads[0], library)
    for rung in trial.rungs:
        loads.append(Load(loads[0].study_name, rung_of(first, rung), spec.seed, rung=rung))
    return loads


def workload_of(
    spec: StudySpec, role: Role, name: str, library: Library
) -> tuple[Workload, StringDict]:
    """Return the load sent under a workload's name, and its description in the metrics.

    Finals send prompts that no launch of the search sent: of ``--final-workload``, the second half
    of a file, or prompts that are drawn anew. Finals of a smaller budget are launches of the search
    now.
    """
    final = role is Role.FINAL
    given = spec.final_workload if name == spec.workloads[0] else None
    workload = load_workload(given if final and given else name, library)
    halved = spec.divided and not given and workload.limited
    half = workload.half(2 if final else 1) if halved else None
    others = half is not None or given not in (None, *spec.workloads)
    unseen = not workload.limited or (others and not spec.finals_from)
    about = {PROMPTS: "unseen" if unseen else "seen", **({SENT: given} if given else {})}
    return half or workload, about if final else {}


def rung_of(workload: Workload, concurrency: int) -> Workload:
    """Return a workload of one load with this number of requests in flight.

    Lengths come from the same distribution. A light load has fewer prompts, `PER_PLACE` per request
    in flight and `LEAST_PROMPTS` at least: a thousand prompts one at a time would take most of an
    hour. Sessions are sent whole.
    """
    load = workload.with_concurrencies([concurrency])
    point = load.points[0]
    few = point.prompts
    if not isinstance(point.lengths, SessionLengths):
        few = min(few, max(LEAST_PROMPTS, PER_PLACE * concurrency))
    # Give it a name of its own, and with that prompts of its own.
    return load.with_fields(
        name=f"{workload.name}-ladder-{point.label}", points=[point.with_fields(prompts=few)]
    )


Measurable = Callable[[StudySpec, Rungs, Library], tuple[Rungs, Sequence[str]]]
"""Return the measurable rungs of a study, and notes; raises `BadInput` for none."""


def with_loads(
    spec: StudySpec, options: RunOptions, measurable: Measurable, library: Library, *, sent: bool
) -> StudySpec:
    """Return a study with the rungs that were typed; checks its load search.

    Args:
        sent: False where launches are recorded.

    Raises:
        BadInput: the loads contradict each other or the goals, or cannot be measured.
    """
    text = options.ladder
    if not spec.load.fixed and text is not None:
        raise BadInput(
            "--ladder: the load search already has a curve; remove --ladder or --find-load"
        )
    if not spec.load.fixed and spec.weights:
        raise BadInput(
            "--weights: the load search uses only the first workload; remove --weights or "
            "--find-load"
        )
    rungs: Rungs = ()
    notes = []
    if text is not None:
        words = text.split(",")
        if not all(re.fullmatch(r"[1-9]\d{0,5}", word.strip()) for word in words):
            raise BadInput(
                f"--ladder {text!r}: write concurrencies, whole numbers of at least 1, e.g. "
                "1,4,16,64,256"
            )
        rungs = tuple(sorted(set(map(int, words))))
        if len(rungs) < len(words):
            notes.append("--ladder: each concurrency is measured once")
    if sent:
        spec.load.check(load_workload(spec.workloads[0], library), spec.slos)
        spec = _with_finals(spec, options.final_workload, library)
    if rungs:
        try:
            rungs, further_notes = measurable(spec, rungs, library)
        except BadInput as error:
            raise BadInput(f"--ladder: {error}") from error
        notes += further_notes
    return spec.with_fields(ladder=rungs, notes=(*spec.notes, *notes))


def _with_finals(spec: StudySpec, given: str | None, library: Library) -> StudySpec:
    """Return a study whose finals send other prompts than its search, with notes on the method or
    the obstacle."""
    notes = []
    divided = False
    if given is not None:
        if spec.weights or spec.pareto:
            raise BadInput(
                "--final-workload replaces the one workload of one objective: no --weights or "
                "--pareto"
            )
        workload = load_workload(given, library)
        workload.check_fits(spec.model.architecture.context_limit)
        spec.load.check(workload, spec.slos)
        notes.append(
            f"the finals send {given} in place of {spec.workloads[0]}; their figures have the "
            "latter's name"
        )
    for name in spec.workloads[given is not None :]:
        whole = load_workload(name, library)
        if not whole.limited:
            continue
        halves = [half for number in (1, 2) if (half := whole.half(number)) is not None]
        if len(halves) == 2:
            divided = True
            search, final = (sum(point.prompts for point in half.points) for half in halves)
            notes.append(
                f"{whole.name} is divided: the search sends {search:,} of its requests, and the "
                f"finals {final:,} that the search does not use; --final-workload {whole.name} "
                "sends all of them in both"
            )
        else:
            notes.append(
                f"{whole.name} is too short to be divided (half of it has less than "
                f"{LEAST_OF_HALF} requests, or less than requested): the finals repeat the "
                "search's prompts; --final-workload names other prompts"
            )
    return spec.with_fields(final_workload=given, divided=divided, notes=(*spec.notes, *notes))


def check_free(name: str, library: Library) -> None:
    """Raise `BadInput` for a workload with a fixed load, which has no rungs."""
    if fixed := how_fixed(load_workload(name, library)):
        raise BadInput(
            f"{name} {fixed}, so its concurrency is fixed; a ladder needs one load that is sent all "
            "at once, such as sharegpt or random:3200:800. The loads of such a workload are "
            "measured without --ladder"
        )
