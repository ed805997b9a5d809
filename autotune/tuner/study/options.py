"""The typed options of ``autotune run``, ``verify``, ``simulate``, ``bench`` and ``calibrate``.

A field is an option of the command line: name, type and default are the field's, flag, help and
group stand in `option`. `autotune.cli.shared.options_of` makes click's options of them, and
`command_line` asks a study's question again by them, so that a new option is one line here.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from autotune.base.options import (
    FIRST,
    GOAL,
    PLACE,
    SPACE,
    STUDY,
    Option,
    declared_options,
    not_again,
    option,
    repeatable,
    same,
    typed_word,
)
from autotune.engines.command import referenced
from autotune.load.options import BenchOptions

if TYPE_CHECKING:
    from .spec import StudySpec


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of ``autotune run``; `given` names the typed ones, default values included."""

    # fmt: off
    model: str = option("--model", "Hugging Face id, a folder with config.json, or a YAML file.", FIRST, default="", again=lambda spec: spec.model.id)
    hardware: str = option("--hw", "Hardware by name (h200, mi300x), local, or a YAML file.", FIRST, default="", again=lambda spec: spec.hardware.name)
    gpus: int | None = option("--gpus", "GPUs to use; default: all of the node.", FIRST)
    engines: Sequence[str] = repeatable("--engine", "E.g. vllm, or vllm==0.32.0; repeatable. Default: all that fit.", FIRST, needs="search", again=lambda spec: [one.name for one in spec.engines])
    model_id: str | None = option("--model-id", "The model's id, when --model is a path.", STUDY, again=not_again)
    workloads: Sequence[str] = repeatable("--workload", "Name, random:IN:OUT[:N] or file; the first is the objective's. Default: sharegpt.", FIRST)
    final_workload: str | None = option("--final-workload", "Workload of the finals. Default: prompts of the first workload that the search did not send.", GOAL, needs="launch", row=("Finals' workload", "{}"))
    speedup: float | None = same(BenchOptions, "speedup")
    objective: str | None = option("--objective", "Metric to optimize. Default: total_token_throughput.", GOAL)
    weights: str | None = option("--weights", "Objective over several workloads, e.g. sharegpt=2,long=1: weighted geometric mean.", GOAL)
    pareto: str | None = option("--pareto", "Second metric, for a Pareto front, e.g. p99_ttft_ms.", GOAL)
    slos: Sequence[str] = repeatable("--slo", "Limit that the command must meet, e.g. 'p99_ttft_ms<=2000'; repeatable.", FIRST)
    find_load: Literal["concurrency", "rate"] | None = same(BenchOptions, "find_load")
    goodput: Sequence[str] = same(BenchOptions, "goodput")
    baseline: str | None = option(
        "--baseline",
        "Engine command line to beat, or recipe[:ENGINE] for the vendor's published one (replay: 'column=value,…'). "
        "Default: vLLM at its defaults on all GPUs.",
        FIRST,
        again=lambda spec: f"recipe:{spec.recipe}" if spec.baseline and spec.recipe else spec.baseline,
    )
    accuracy: str | None = same(BenchOptions, "accuracy")
    ladder: str | None = option("--ladder", "Concurrencies at which baseline and finalist are also measured, e.g. 1,4,16,64,256.", GOAL, needs="search", row=("Ladder (in flight)", "{}"))
    gpu_hour_price: float | None = same(BenchOptions, "gpu_hour_price")
    pins: Sequence[str] = repeatable("--set", "Pin a knob, e.g. kv_cache_dtype=bfloat16, tensor_parallel=8; repeatable.", SPACE, needs="search")
    drop: Sequence[str] = repeatable("--drop", "Option of --baseline that no candidate keeps, e.g. enable-lora; repeatable.", SPACE, needs="launch")
    engine_args: Sequence[str] = repeatable("--engine-arg", "Options added to every command of an engine, the baseline's too, e.g. sglang='--trust-remote-code'.", SPACE, needs="launch")
    env: Sequence[str] = repeatable("--env", "Variable of every server: NAME=VALUE, or NAME with the shell's value; repeatable.", SPACE, needs="launch", again=not_again)
    clean_env: bool = option("--clean-env", "Servers get none of the shell's variables of engines and libraries.", SPACE, default=False, needs="launch", again=not_again)
    min_context: int | None = option("--min-context", "Longest request, in tokens, that must be served.", SPACE, least=1, needs="launch")
    allow: Sequence[Literal["shorter-context", "no-prefix-caching", "lossy"]] = repeatable("--allow", "Allowed trade-off for speed. Default: none; repeatable.", SPACE)
    space: Path | None = option("--space", "Your space file or folder.", SPACE)
    sampler: str = option("--sampler", "gp is autotune's; Optuna's: tpe, random, nsgaii, optuna-gp.", SPACE, default="gp", needs="search")
    sources: Sequence[str] = repeatable("--from", "Earlier study, or replay file, to learn from; repeatable.", SPACE, needs="search")
    screen: Literal["auto", "off"] = option("--screen", "auto: rank candidates by launches with random weights, if that saves hours.", STUDY, default="auto", needs="launch", again=lambda spec: "auto" if spec.screened else "off" if spec.may_screen else None)
    explain: Literal["model", "measured"] = option("--explain", "measured: keep a quarter of --launches for the winner without each of its settings.", STUDY, default="model", needs="search", again=lambda spec: None if spec.explain == "model" else spec.explain)
    launches: int = option("--launches", "Most server launches, finals and those with random weights included; if random weights prove useless, theirs come on top.", FIRST, default=30)
    hours: float | None = option("--hours", "Most hours of the study; virtual hours when simulated.", STUDY)
    seed: int = option("--seed", "Seed of the search, the prompts and simulated noise.", STUDY, default=0, least=0, most=2**32 - 1)
    noise: float | None = option("--noise", "Sigma of launch-to-launch noise; default 0.03 on the simulator, 0 on a replay.", STUDY)
    on: str = option(
        "--on",
        "auto, process, docker, external:URL, emulator, simulator, or replay:FILE: recorded launches, a CSV, a "
        "study's results.jsonl, or a bundle.",
        FIRST,
        default="auto",
    )
    executor: str = option(
        "--executor",
        "local[:N]: at most N launches at a time (as --gpus allows); or ray[:HOST:PORT]: a Ray cluster.",
        PLACE,
        default="local",
        needs="search",
    )
    engine_bins: Sequence[str] = repeatable("--engine-bin", "An installed engine, e.g. sglang=/opt/venv/bin/python.", PLACE, needs="launch", again=lambda spec: {name: one.program[0] for name, one in spec.installed.items() if os.path.isabs(one.program[0])})
    images: Sequence[str] = repeatable("--image", "For docker: ENGINE=IMAGE; default: the engine's own.", PLACE, needs="launch")
    api_key_env: str | None = option("--api-key-env", "For external:URL: environment variable that holds the API key.", PLACE, needs="search")
    api_key_file: str | None = option("--api-key-file", "For external:URL: file that holds the API key.", PLACE, needs="search")
    hf_token_file: str | None = option("--hf-token-file", "File with the Hugging Face token for launched servers; default: HF_TOKEN.", PLACE, needs="launch")
    calibration: Path | None = option(
        "--calibration",
        "Coefficients of the simulated node; default: coefficients.yaml in the home folder, else the shipped ones.",
        PLACE,
        existing=True,
        again=not_again,
    )
    study: str | None = option("--study", "Name of the study; default: model, hardware and time.", STUDY, again=not_again)
    # fmt: on
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    given: frozenset[str] = frozenset()

    def needing(self, *needs: str) -> list[str]:
        """List the flags of typed options that need a launch, or a search."""
        return [
            typed.flag
            for one, typed in declared_options(RunOptions)
            if typed.needs in needs and self.says(one.name)
        ]

    def says(self, name: str) -> bool:
        """Return whether an option was typed, or differs from its default."""
        own = next(one for one in fields(self) if one.name == name)
        return name in self.given or getattr(self, name) not in (own.default, ())


def command_line(spec: StudySpec, unused: Sequence[str] = ()) -> str:
    """Return the ``autotune run`` or ``autotune verify`` command of a study, secrets included.

    Args:
        unused: options that mean nothing where it runs, see `Backend.unused_options`.
    """
    plain = {n: value for n, value in (spec.inherited or {}).items() if not referenced(value)}
    words = [f"{name}={shlex.quote(value)}" for name, value in plain.items()]
    words.append(
        "autotune run" if spec.verifies is None else f"autotune verify {spec.verifies.study}"
    )
    lines = [" ".join(words)]
    for one, declared in declared_options(RunOptions if spec.verifies is None else VerifyOptions):
        for value in _typed(one, declared, spec) if one.name not in unused else ():
            lines.append(f"{declared.flag} {shlex.quote(value)}")
    return " \\\n  ".join(lines)


def rows_of(spec: StudySpec) -> dict[str, str]:
    """Return the report rows of set options, by heading."""
    asked = (
        (declared.row, _typed(one, declared, spec))
        for one, declared in declared_options(RunOptions)
    )
    return {row[0]: row[1].format(*values) for row, values in asked if row and values}


def _typed(one: Field[Any], declared: Option, spec: StudySpec) -> list[str]:
    """Return the values of an option in a repeated study, one for each time it is typed."""
    value = declared.again(spec) if declared.again is not None else getattr(spec, one.name)
    if value is None:
        return []
    if isinstance(value, Mapping):
        value = [f"{name}={typed_word(each)}" for name, each in value.items()]
    if not isinstance(value, list | tuple):
        return [typed_word(value)]
    words = [typed_word(each) for each in value]
    if one.default == () or not words:
        return words
    return [",".join(words)]


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The typed options of ``autotune verify``; its study has the others."""

    study: str
    on: str | None = option(
        "--on",
        "process, docker, emulator or external:URL. Default: process, if this machine has the hardware.",
    )
    top: int = option(
        "--top", "Commands in addition to the baseline.", default=3, least=1, again=not_again
    )
    launches: int | None = option(
        "--launches", "Most launches; default: each command once, and 12.", least=1
    )
    engine_bins: Sequence[str] = same(RunOptions, "engine_bins")
    images: Sequence[str] = same(RunOptions, "images")


@dataclass(frozen=True, slots=True)
class RegressOptions:
    """The typed options of ``autotune regress``; its study has the others."""

    # fmt: off
    study: str
    engines: Sequence[str] = repeatable("--engine", "The new version, simulated or emulated, or of an image: vllm==0.33.0.")
    engine_bins: Sequence[str] = repeatable("--engine-bin", "The new version, installed: vllm=/opt/vllm-new.")
    images: Sequence[str] = repeatable("--image", "The new version, for docker: ENGINE=IMAGE.")
    old_engine_bins: Sequence[str] = repeatable("--old-engine-bin", "The old version. Default: the study's, if it is still installed.")
    old_images: Sequence[str] = repeatable("--old-image", "The old version, for docker. Default: the study's.")
    with_baseline: bool = option("--with-baseline", "Compare the baseline, too: is the recommended command still ahead of it?", default=False)
    margin: float = option("--margin", "Percent by which the new version may be slower.", default=5.0)
    launches: int | None = option("--launches", "Most launches; default: 16 for each command.", least=1)
    on: str | None = option("--on", "process, docker, emulator or simulator. Default: as in the study.")
    calibration: Path | None = option("--calibration", "Coefficients of the new version's simulated node.", existing=True)
    # fmt: on


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """The typed options of ``autotune simulate``, some of them those of ``run``."""

    hardware: str
    engine_command: Sequence[str]
    gpus: int | None = None
    engine_version: str | None = None
    model_id: str | None = None
    workload: str = option("--workload", "", default="sharegpt")
    concurrency: int | None = option(
        "--concurrency", "Send the workload's prompts in a closed loop of this many."
    )
    find_load: Literal["concurrency", "rate"] | None = same(RunOptions, "find_load")
    slos: Sequence[str] = same(RunOptions, "slos")
    replicas: int = option("--replicas", "Servers that share the load.", default=1, least=1)
    gpu_hour_price: float | None = same(RunOptions, "gpu_hour_price")
    seed: int = same(RunOptions, "seed")
    calibration: Path | None = same(RunOptions, "calibration")
    versus: str | None = option(
        "--versus",
        "Compare with another version of the engine, or with another command line in quotes.",
    )

    # fmt: on


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """The typed options of ``autotune calibrate``."""

    files: Sequence[Path] = repeatable("--data", "Measurements; repeatable.")
    studies: Sequence[str] = repeatable("--study", "One of your measured studies; repeatable.")
    start: Literal["shipped", "physics"] = option("--from", "Start.", default="shipped")
    output: Path | None = option("-o --output", "Default: coefficients.yaml in --home.")
    cross_validate: bool = option(
        "--cross-validate", "Also fit without whole engines, GPUs, workloads …", default=False
    )
    allow_unmeasured: bool = option(
        "--allow-unmeasured", "Accept simulated, emulated or replayed studies.", default=False
    )
    compare: bool = option(
        "--compare",
        "Neither fit nor write: show the errors of the current coefficients.",
        default=False,
    )
