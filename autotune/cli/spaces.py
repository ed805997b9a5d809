"""``autotune space show`` and ``autotune space check``."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel

from autotune.base import Json
from autotune.engines import CandidateSet, EngineSpace, Scalar, engine, names
from autotune.engines.cards import active_parameters, total_parameters, weight_bytes_per_gpu
from autotune.engines.engine import RULE
from autotune.engines.options import check_readings
from autotune.engines.schema import holding
from autotune.engines.space import CONTRADICTS
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import prepare, unknown_parts
from autotune.tuner.prepare.left_out import PROMISES, UNJUDGED
from autotune.tuner.prepare.predicted_memory import MEMORY
from autotune.tuner.study.home import library_for
from autotune.tuner.study.options import RunOptions
from autotune.tuner.trial import SURE_TO_START

from .screens import printed
from .shared import answer


def space_show(options: RunOptions, as_json: bool) -> None:
    """``autotune space show``."""
    spec = build_spec(options)
    prepared = prepare(spec, library_for(options.space), anywhere=True)
    report = {name: _row(space, prepared.candidates) for name, space in prepared.spaces.items()}
    excluded = {e.engine: e.reason for e in prepared.excluded}
    architecture = spec.model.architecture
    figures = {
        "parameters": total_parameters(architecture),
        "active": active_parameters(architecture),
        "weight_gb": weight_bytes_per_gpu(architecture, 1, 1, 1, mtp=False) / 1e9,
    }
    unknown = unknown_parts(spec.model, ())
    if unknown:
        figures = {"weight_gb": architecture.checkpoint_gb}
    notes = prepared.spec.notes
    study = {"model": spec.model.id, "hardware": spec.hardware.name}
    shown = {"figures": figures, "notes": notes, "engines": report, "excluded": excluded}
    text = printed("space", model=spec.model.id, unknown=unknown, **shown)
    answer(as_json, {**study, **shown}, [text])


def _row(engine: EngineSpace, candidates: CandidateSet) -> Json:
    """Describe an engine's space: its combinations, the rules that removed some, and its knobs."""
    space = engine.space
    removed = {rule: count for rule, count in space.removed.items() if count}
    reasons = {
        **{one.name: one.reason for one in engine.card.rules},
        PROMISES: "these turn prefix caching off; `autotune run --allow no-prefix-caching` includes them",
        MEMORY: f"by the memory plan these start with odds below {SURE_TO_START:.0%}",
        UNJUDGED: "this version cannot force the acceptance of drafts of random tokens to that on text",
        RULE: "the version's parser refuses them",
        CONTRADICTS: f"{engine.passed.option} contradicts them",
    }
    version = engine.context.version
    return {
        "version": version,
        "combinations": space.combinations,
        "candidates": len(space.configurations),
        "twins": space.equivalents,
        "removed": removed,
        "reasons": {rule: reasons[rule] for rule in removed},
        "knobs": _knobs(engine, candidates),
        "not_searched": [
            one.model_dump(include={"what", "reason", "source"})
            for one in holding(engine.card.not_searched, engine.context.scope({}), version)
        ],
    }


def _knobs(space: EngineSpace, candidates: CandidateSet) -> dict[str, Json]:
    """Describe each knob of the version: values with their candidates, default, options that set
    it, trade-offs."""
    version = space.context.version
    default = space.effective({}).knobs
    costs: dict[tuple[str, Scalar], str] = {}
    for position, trade_offs in candidates.given_up.items():
        if candidates.items[position].configuration.engine == space.engine.name:
            costs |= {(one.knob, one.to): one.what for one in trade_offs}
    measured = replace(space, unread=frozenset())
    beside = Counter(
        (name, value)
        for one in space.space.configurations
        for name, values in measured.beside_values(one).items()
        for value in values
    )
    knobs: dict[str, Json] = {}
    for name, knob in space.card.knobs.items():
        if not knob.exists_in(version):
            continue
        counts = Counter(one.knobs[name] for one in space.space.configurations)
        options = []
        for addition in knob.emit:
            if addition.is_for(version):
                flags = (word for word in addition.args if word.startswith("-"))
                options += [*flags, *addition.env, *addition.config]
        knobs[name] = {
            "help": knob.help,
            "values": [
                {"value": value, "candidates": count, "gives_up": costs.get((name, value))}
                for value, count in counts.items()
            ],
            "beside": [value for one, value in beside if one == name and value not in counts],
            "default": default[name],
            "options": list(dict.fromkeys(options)),
            "published": [f"×{one.ratio:g}, {one.load} ({one.source})" for one in knob.published],
        }
    return knobs


def space_check(path: Path | None, engines: Sequence[str], as_json: bool) -> None:
    """``autotune space check``."""
    from autotune.engines import EngineCard
    from autotune.engines.library import check, kind_of, load
    from autotune.load.workloads import Workload
    from autotune.node.calibration import Calibration, Physics
    from autotune.node.coefficients import SpeedCard
    from autotune.node.emulator.launch import EmulationCard
    from autotune.tuner.prepare.recipes import check_recipes

    schemas: dict[str, type[BaseModel]] = {
        "workloads": Workload,
        "simulation": SpeedCard,
        "physics": Physics,
        "calibrations": Calibration,
        "emulation": EmulationCard,
    }
    checked = check(path, engines, schemas)
    for card in (file for file in checked if kind_of(file) == "engines"):
        library = library_for(path)
        check_recipes(card, library)
        if (name := load(card, EngineCard).engine) in names():
            check_readings(card, engine(name, library))
    answer(as_json, {"checked": [str(p) for p in checked]}, [f"{file}: valid" for file in checked])
