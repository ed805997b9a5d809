"""Predict candidates' memory before any launch: whether they start, and their longest requests."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from autotune.base import BadInput
from autotune.engines import (
    Candidate,
    Configuration,
    Context,
    EngineCard,
    EngineSpace,
    GivenUp,
    Knobs,
    Library,
    ModelCard,
    admitted,
    weight_bytes_per_gpu,
)
from autotune.engines.command import gpus_of_a_server
from autotune.engines.expression import evaluate
from autotune.engines.promises import Promised, given_up_by, promises_of
from autotune.node.calibration import ServerSetup, calibration_of, coefficients_of
from autotune.node.coefficients import Coefficients
from autotune.node.memory import TOO_CLOSE, MemoryPlan, plan_memory
from autotune.node.server import SimulatedServer
from autotune.node.steady import Memo

from ..backends import backend_of
from ..study.spec import StudySpec
from ..trial import SURE_TO_START

MEMORY = "memory"
"""Name under which candidates removed for memory are counted."""
HOPELESS = 0.08
"""Share of the weights that must be missing before any KV cache for a real node to skip the
candidate: two estimates of the weights of DeepSeek-V3.2 on a GPU with eight attention replicas
differ by 7 %."""


class MemoryPlans:
    """Memory plans of a study's candidates, each computed once."""

    def __init__(self, spec: StudySpec, library: Library) -> None:
        self._spec = spec
        self._calibration = calibration_of(library)
        self._coefficients = Memo(self._compute)
        self._known = dict[str, MemoryPlan | None]()
        self._models = dict[str, ModelCard]()

    def set_model(self, space: EngineSpace) -> None:
        """Plan an engine's candidates with the model as its passed options make the engine load
        it."""
        self._models[space.engine.name] = space.context.model

    def plan_of(self, configuration: Configuration, version: str) -> MemoryPlan | None:
        """Return the plan; None for an engine or a machine unknown to the simulated node."""
        name = configuration.fingerprint
        if name not in self._known:
            self._known[name] = None
            where = configuration.knobs, configuration.engine, version
            # Values that no server could have make these errors.
            with suppress(BadInput, ArithmeticError, ValueError, TypeError):
                server = SimulatedServer(self._setup(*where), self._coefficients(*where))
                self._known[name] = plan_memory(server)
        return self._known[name]

    def weights_of(self, configuration: Configuration, context: Context) -> float:
        """Return the bytes of weights on a GPU: planned, else its files' even share, if known; 0 on
        a CPU."""
        if plan := self.plan_of(configuration, context.version):
            return plan.weights
        files = context.model.architecture.checkpoint_gb * (context.hardware.vendor != "cpu")
        return files * 1e9 / gpus_of_a_server(configuration, context.gpus)

    def _setup(self, knobs: Knobs, engine: str, version: str) -> ServerSetup:
        spec = self._spec
        node = self._models.get(engine, spec.model), spec.hardware, spec.gpus
        return ServerSetup(engine, version, knobs, *node, self._calibration)

    def _compute(self, knobs: Knobs, engine: str, version: str) -> Coefficients:
        if self._spec.hardware.vendor == "cpu":
            raise BadInput("the memory of servers on a CPU is unknown")
        return coefficients_of(self._setup(knobs, engine, version))


def leave_out_by_memory(spec: StudySpec, space: EngineSpace, plans: MemoryPlans) -> str | None:
    """Remove the candidates whose memory excludes a recommendation; give the reason if an engine
    has none left.

    A candidate must hold a request of ``--min-context``. On the simulator, whose plan is the
    evidence, it must start with odds of `SURE_TO_START`. On a real node it must have a KV cache if
    the plan is wrong by `HOPELESS`, or if the GPUs share the weights evenly; without a plan, room
    for these. An engine's default need not start, and all are kept if no other would be left.
    """
    simulated = backend_of(spec).virtual
    floor = spec.min_context or 0
    version = space.context.version
    planned = [(one, plans.plan_of(one, version)) for one in space.space.configurations]
    least = 0.5 if simulated else TOO_CLOSE
    kept = [row for row in planned if not floor or row[1] is None or row[1].holds(floor) >= least]
    if planned and not kept:
        longest = max(plan.capacity_tokens for _, plan in planned if plan)
        return f"no KV cache holds the {floor} tokens of --min-context; the largest holds {longest}"
    default = space.effective({})
    may_start = [
        (one, plan)
        for one, plan in kept
        if one == default
        or _may_start(space, one, plan, plans.weights_of(one, space.context), simulated)
    ]
    if any(one != default for one, _ in may_start):
        kept = may_start
    space.space.keep([one for one, _ in kept], MEMORY)
    return None


def _may_start(
    space: EngineSpace, one: Configuration, plan: MemoryPlan | None, weights: float, simulated: bool
) -> bool:
    """Return whether a server may start; on a real node its share of a GPU may hold the weights:
    planned, less `HOPELESS`; at least evenly."""
    if plan and simulated:
        return plan.fit_probability >= SURE_TO_START
    if plan is None and not weights:
        return True
    context = space.context
    share = own_share(space.card, space.context, one)
    room = 1e9 * (context.hardware.driver_memory_gb or context.hardware.memory_gb)
    if share is not None:
        room *= share
    if plan is None:
        return room > weights
    whole = weight_bytes_per_gpu(context.model.architecture, 1, 1, 1, mtp=False)
    least = max(whole / gpus_of_a_server(one, context.gpus), (1 - HOPELESS) * weights)
    return plan.kv_cache + 3 * plan.cache_sigma > -HOPELESS * weights and room > least


def own_share(card: EngineCard, context: Context, one: Configuration) -> float | None:
    """Compute the share of a GPU that the engine plans for weights and KV cache; None if the card
    has none."""
    knob = card.knobs.get("memory_fraction")
    cases = knob.becomes if knob else ()
    values = [case.value for case in cases if case.is_for(context.version)]
    return float(evaluate(values[-1], context.scope(one.knobs))) if values else None


def promises_kept(
    candidates: Sequence[Candidate], spaces: Mapping[str, EngineSpace], plans: MemoryPlans
) -> tuple[dict[int, tuple[GivenUp, ...]], Promised]:
    """List the candidates' trade-offs, by position, and find the longest promised request, the
    first candidate's."""
    for space in spaces.values():
        plans.set_model(space)
    configurations = [one.configuration for one in candidates]
    first = candidates[0].configuration
    marks = {
        name: promises_of(one.card, one.context, first.knobs, one.chosen, own=one.own)
        for name, one in spaces.items()
    }

    def longest_of(one: Configuration) -> int:
        context = spaces[one.engine].context
        plan = plans.plan_of(one, context.version)
        most = admitted(one, context)
        # A plan without room is of a server that does not start; if it does, its launch tells.
        return min(most, plan.longest_request_tokens) if plan and plan.capacity_tokens else most

    plan = plans.plan_of(first, candidates[0].engine_version)
    served = admitted(first, spaces[first.engine].context)
    if plan is None or plan.starts:
        served = longest_of(first)
    pinned = [space.pins.get("context_length") for space in spaces.values()]
    promised = Promised(served, max((n for n in pinned if isinstance(n, int)), default=0))
    return given_up_by(configurations, first, marks, longest_of, promised), promised
