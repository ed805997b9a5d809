"""``autotune space show`` and ``autotune space check``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from autotune.cli.output import answer
from autotune.prepare.build_spec import build_spec
from autotune.study.options import RunOptions
from autotune.study.user_library import library_for

if TYPE_CHECKING:
    from autotune.space.cards import ModelCard


def space_show(options: RunOptions, as_json: bool) -> None:
    """``autotune space show``."""
    from autotune.prepare.candidates import prepare

    spec = build_spec(options)
    prepared = prepare(spec, library_for(options.space), anywhere=True)
    report: dict[str, dict[str, Any]] = {
        name: {
            "version": space.context.version,
            "combinations": space.space.combinations,
            "candidates": len(space.space.configurations),
            "twins": space.space.equivalents,
            "removed": {rule: count for rule, count in space.space.removed.items() if count},
        }
        for name, space in prepared.spaces.items()
    }
    excluded = {e.engine: e.reason for e in prepared.excluded}
    figures = _figures(spec.model)
    lines = [
        f"{spec.model.id}: {figures['parameters'] / 1e9:,.1f} billion parameters, "
        f"{figures['active'] / 1e9:,.1f} billion active per token, {figures['weight_gb']:,.0f} GB of weights"
    ]
    for name, row in report.items():
        lines.append(
            f"{name} {row['version']}: {row['candidates']:,} candidates of {row['combinations']:,} combinations"
        )
        if row["twins"]:
            lines.append(f"  {row['twins']:>12,}  equivalents of another one under the engine's own effects")
        removed = sorted(row["removed"].items(), key=lambda item: -item[1])
        lines += [f"  {count:>12,}  removed by {rule}" for rule, count in removed]
    lines += [f"{name}: excluded, {reason}" for name, reason in excluded.items()]
    names = {"model": spec.model.id, "hardware": spec.hardware.name}
    answer(as_json, {**names, "figures": figures, "engines": report, "excluded": excluded}, lines)


def _figures(model: ModelCard) -> dict[str, float]:
    """Parameters and weights of a model, by which a misread model file is seen at a glance."""
    from autotune.simulator.node.weights import active_parameters, total_parameters, weight_bytes_per_gpu

    a = model.architecture
    weight_gb = weight_bytes_per_gpu(a, 1, 1, 1, mtp=False) / 1e9
    return {"parameters": total_parameters(a), "active": active_parameters(a), "weight_gb": weight_gb}


def space_check(path: Path | None, engines: Sequence[str], as_json: bool) -> None:
    """``autotune space check``."""
    from autotune.loadgen.workloads import Workload
    from autotune.prepare.recipes import check_recipes
    from autotune.simulator.emulator.card import EmulationCard
    from autotune.simulator.node.calibration import Calibration, Physics
    from autotune.simulator.node.coefficients import SpeedCard
    from autotune.space.checking import check
    from autotune.space.library import kind_of

    schemas: dict[str, type[BaseModel]] = {
        "workloads": Workload,
        "simulation": SpeedCard,
        "physics": Physics,
        "calibrations": Calibration,
        "emulation": EmulationCard,
    }
    checked = check(path, engines, schemas)
    for card in (file for file in checked if kind_of(file) == "engines"):
        check_recipes(card, library_for(path))
    answer(as_json, {"checked": [str(p) for p in checked]}, [f"{file}: valid" for file in checked])
