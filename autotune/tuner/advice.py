"""Advise on a server that carries traffic: what its configuration could carry, and the options to
look at first, both by the simulator.

The requests are those of the traffic, sent all at once. An option is shown by a candidate: of those
with its value in the fastest one the one that differs least from the running configuration.
"""

from pathlib import Path

from autotune.engines import Library, Scalar, recognise, split_command
from autotune.load.live import carried
from autotune.load.metrics.table import HEADLINE
from autotune.load.workloads import load_workload
from autotune.load.workloads.arrivals import Arrival
from autotune.node.calibration import calibration_of
from autotune.node.prediction_intervals import Predicted, compare_predictions
from autotune.node.resolve_command import prediction, resolve_command
from autotune.node.steady import SteadyNode

from .prepare.candidates import prepare
from .study.options import command_line
from .study.recommendation import Advice, ChangedOptions
from .study.spec import StudySpec

_PROMPTS = 4000
"""Prompts that are sent: their beginning and end are little of the load."""
_MOST, _LEAST_PERCENT = 4, 2.0
"""Most options that are shown, and the least predicted gain of one."""
_UNUSED = "on engines launches seed noise sampler screen executor api_key_env api_key_file"
"""Options of the study that the command which measures leaves at their defaults."""
_LIKELY = 0.5
"""Least odds of starting."""


def advise(spec: StudySpec, library: Library, folder: Path) -> Advice | None:
    """Advise on the baseline of a study in a folder under its first workload; None where it does not
    run on the simulated node."""
    assert spec.baseline
    own = recognise(split_command(spec.baseline).argv, library).name
    engines = tuple(one for one in spec.engines if one.name == own)
    asked = spec.with_fields(on="simulator", engines=engines, keeps_unread=True)
    prepared = prepare(asked, library)
    load = load_workload(spec.workloads[0], library).with_arrival(Arrival()).with_prompts(_PROMPTS)
    candidates, calibration = prepared.candidates, calibration_of(library)
    items, base = candidates.items, candidates.baseline
    node = SteadyNode(spec.model.assumed, spec.hardware, spec.gpus, load, calibration)

    def speed(position: int) -> float:
        one = items[position]
        it = node.predict(one.configuration.engine, one.engine_version, one.configuration.knobs)
        return it.metrics.get(HEADLINE, 0.0) if it.starts > _LIKELY else 0.0

    def changed(position: int) -> dict[str, tuple[Scalar, Scalar]]:
        theirs = items[position].configuration.knobs
        pairs = items[base].configuration.knobs.items()
        return {name: (value, theirs[name]) for name, value in pairs if theirs[name] != value}

    def simulated(position: int) -> Predicted:
        one = items[position]
        context = asked.context(one.engine_version, load.longest_request)
        resolved = resolve_command(prepared.command_of(one), library, context, one.engine_version)
        return resolved.setup, prediction(resolved, load, spec.seed)

    refused = candidates.giving_up(frozenset(spec.allow))
    speeds = {i: speed(i) for i in {*range(len(items))}.difference(refused) | {base}}
    best = max(speeds, key=speeds.__getitem__)
    shown = {best: None}
    for name, (_, value) in changed(best).items():
        alike = [i for i in speeds if items[i].configuration.knobs[name] == value]
        shown[min(alike, key=lambda i: (len(changed(i)), -speeds[i]))] = None
    setup, now = simulated(base)
    if now["failure"]:
        return None
    rows = []
    for position in sorted(shown, key=speeds.__getitem__, reverse=True)[: _MOST + 1]:
        versus = compare_predictions(simulated(position), (setup, now), load)
        if (versus["gain_percent"] or 0.0) > _LEAST_PERCENT:
            versus["options"] = changed(position)
            versus["command"] = prepared.command_of(items[position]).shell()
            rows.append(ChangedOptions.model_validate(versus))
    # The rate that can go on, without the beginning and the end of the load.
    scale = now["steady_total_token_throughput"] / now[HEADLINE]
    requests = scale * now["completed"] / (now["total_input_tokens"] + now["total_output_tokens"])
    return Advice(
        command=spec.baseline,
        request_rate=now[HEADLINE] * requests,
        request_rate_interval90=[end * requests for end in now["interval90"]],
        total_token_throughput=now[HEADLINE] * scale,
        options=rows,
        measure=_measuring(spec, folder),
    )


def _measuring(spec: StudySpec, folder: Path) -> str:
    """Return the command that measures the options: by the load within limits, else by all requests
    at once, and also with as many in flight as now."""
    pages = folder.absolute() / "traffic" / "0"
    flying = round(carried(pages)["mean_concurrent_requests"])
    loads = {"find_load": "rate"} if spec.slos else {"ladder": (max(1, flying),)}
    asked = spec.with_fields(workloads=(f"metrics:{pages}",), **loads)
    return command_line(asked, _UNUSED.split()).replace(" \\\n  ", " ")
