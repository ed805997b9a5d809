"""A node without GPUs: `simulate(server, workload, seed) -> SimulatedOutcome`.

    server.py        what the engine makes of the knobs
    coefficients.py  the figures of search_spaces/<engine>/simulator.yaml, per engine, version and GPU
    memory.py        the memory plan, and out-of-memory
    steptime.py      seconds per step: rooflines, communication, host
    scheduling.py    continuous batching: the scheduler, also the emulator's, and the loop over it in virtual time
    replica.py       one attention replica: front end, queue, admission, KV pool, prefix cache
    steady.py        a fast prediction of all candidates, the search's prior: the load as a fluid, without the loop

Its numbers are *simulated*: never to be mixed with measured ones.
"""

from collections.abc import Sequence
from dataclasses import field, replace

from autotune.base import frozen
from autotune.engines import Failure, FailureKind
from autotune.load.metrics.formulas import Slo, summarize_loads
from autotune.load.metrics.records import RequestRecords
from autotune.load.metrics.table import Metrics
from autotune.load.workloads import Workload

from .calibration import ServerSetup
from .coefficients import conditional_knobs, speed_card
from .memory import TOO_CLOSE, MemoryPlan, plan_memory, start_failure, start_warning, startup_s
from .scheduling import Batching
from .server import RecordedKnobs, SimulatedServer


@frozen
class SimulatedOutcome:
    """Result of a simulated launch: metrics of the whole workload, and `runs` as a client sees its
    load points.

    `memory` is None where a rule failed before; `knobs_read` are those that the arithmetic asked
    for, set or not; `warning` says why the start is too close to call.
    """

    metrics: Metrics = field(default_factory=dict)
    failure: Failure | None = None
    startup_s: float = 0.0
    memory: MemoryPlan | None = None
    warning: str | None = None
    preemptions: int = 0
    knobs_read: frozenset[str] = frozenset()
    runs: tuple[RequestRecords, ...] = ()


def simulate(
    server: ServerSetup, workload: Workload, seed: int, slos: Sequence[Slo] = ()
) -> SimulatedOutcome:
    """Run a workload's load points on a server in virtual time, one after the other; the seed fixes
    the prompts."""
    names: set[str] = set()
    recorded = replace(server, knobs=RecordedKnobs(server.knobs, names))
    outcome = run_server(SimulatedServer(recorded), workload, seed, slos)
    return replace(outcome, knobs_read=frozenset(names))


def knobs_read(setup: ServerSetup, workload: Workload) -> frozenset[str]:
    """Return the knobs that the arithmetic asks for, set or not, whether or not such a server would
    start."""
    names = set(conditional_knobs(speed_card(setup.engine), setup.version, setup.scope))
    server = SimulatedServer(replace(setup, knobs=RecordedKnobs(setup.knobs, names)))
    plan = plan_memory(server)
    start_failure(server, plan)
    too_long(server, plan, workload)
    requests = workload.draw(0, 0)
    Batching(
        server, requests, max(plan.capacity_tokens, len(requests) * workload.longest_request)
    ).run()
    return frozenset(names)


def run_server(
    server: SimulatedServer, workload: Workload, seed: int, slos: Sequence[Slo] = ()
) -> SimulatedOutcome:
    """Simulate a server with resolved settings; calibration passes its own coefficients this
    way."""
    plan = plan_memory(server)
    outcome = SimulatedOutcome(
        startup_s=startup_s(server, plan), memory=plan, warning=start_warning(server, plan)
    )
    if failure := start_failure(server, plan) or too_long(server, plan, workload):
        return replace(outcome, failure=failure)
    runs = []
    cached = read = 0.0
    preemptions = 0
    for position in range(len(workload.points)):
        requests = workload.draw(position, seed)
        if failure := beyond_step(server, int(requests.input_tokens.max())):
            return replace(outcome, failure=failure)
        # A pool too close to call for the longest request just holds it.
        pool = max(plan.capacity_tokens, workload.longest_request + server.block_tokens)
        batchings = [Batching(server, share, pool) for share in server.shares_of(requests)]
        runs.append(RequestRecords.side_by_side([batching.run() for batching in batchings]))
        read += float(requests.input_tokens.sum())
        for batching in batchings:
            cached += batching.scheduler.cached_tokens
            preemptions += batching.scheduler.preemptions
    metrics = summarize_loads(runs, slos)
    metrics["cache_hit_rate"] = cached / read
    if server.speculative_tokens:
        metrics["spec_decode_acceptance_length"] = batchings[-1].scheduler.gain
    metrics["client_bound"] = False
    return replace(outcome, metrics=metrics, preemptions=preemptions, runs=tuple(runs))


def too_long(server: SimulatedServer, plan: MemoryPlan, workload: Workload) -> Failure | None:
    """Refuse requests longer than the server's context or, certainly, than the whole KV pool of one
    that started."""
    longest = workload.longest_request
    pool = plan.capacity_tokens
    if plan.holds(longest) >= TOO_CLOSE * plan.fit_probability:
        pool = max(pool, longest)
    for limit, name in (
        (server.context_length, "context_length"),
        (pool, "the KV cache of a replica"),
    ):
        if longest > limit:
            return _load_errors(
                f"Requests of up to {longest} tokens do not fit {name} ({limit} tokens)"
            )
    return None


def beyond_step(server: SimulatedServer, prompt: int) -> Failure | None:
    """Refuse prompts that no step can compute whole without chunks."""
    if server.prompt_limit is None or prompt <= server.prompt_limit:
        return None
    return _load_errors(
        f"Prompts of up to {prompt} tokens do not fit a step of {server.prompt_limit} tokens and "
        "chunked prefill is off"
    )


def _load_errors(message: str) -> Failure:
    return Failure(FailureKind.LOAD_ERRORS, f"{message}; the server rejects them.", "")
