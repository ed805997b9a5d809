"""The typed options of ``autotune run``, ``verify``, ``simulate``, ``bench`` and ``calibrate``.

A field is an option of the command line: name, type and default are the field's, flag, help and
group stand in `option`. `autotune.cli.shared.options_of` makes click's options of them, and
`command_line` asks a study's question again by them, so that a new option is one line here.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from autotune.study.spec import StudySpec

FIRST, GOAL, SPACE = "Common options", "Goals and measurement", "Search space"
PLACE, STUDY = "Where launches run", "The study"
GROUPS = (FIRST, GOAL, SPACE, PLACE, STUDY)
"""Headings of ``autotune run --help``, in their order."""


@dataclass(frozen=True, slots=True)
class Option:
    """A command-line option declared by a field.

    Attributes:
        least, most: bounds of a whole number.
        existing: True if a path must name a file that is there.
        needs: ``launch``: means nothing where a file answers; ``search``: nor where a bundle does.
        again: what asks for it again, of a study; None: the study's field of the same name.
        row: heading and form of its row in a report's table of what was asked; empty: it has none
            of its own.
    """

    flag: str
    help: str
    group: str = ""
    least: int | None = None
    most: int | None = None
    existing: bool = False
    needs: Literal["launch", "search"] | None = None
    again: Callable[[StudySpec], object] | None = None
    row: tuple[str, str] | None = None


def _nothing(spec: StudySpec) -> None:
    """Omit an option when a study is asked again: other options imply it."""


def option(flag: str, help: str, group: str = "", *, default: Any = None, **more: Any) -> Any:
    return field(default=default, metadata={"option": Option(flag, help, group, **more)})


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of ``autotune run``; `given` names the typed ones, default values included."""

    # fmt: off
    model: str = option("--model", "Hugging Face id, a folder with config.json, or a YAML file.", FIRST, default="", again=lambda spec: spec.model.id)
    hardware: str = option("--hw", "Hardware by name (h200, mi300x), local, or a YAML file.", FIRST, default="", again=lambda spec: spec.hardware.name)
    gpus: int | None = option("--gpus", "GPUs to use; default: all of the node.", FIRST)
    engines: Sequence[str] = option("--engine", "E.g. vllm, or vllm==0.32.0; repeatable. Default: all that fit.", FIRST, default=(), needs="search", again=lambda spec: [one.name for one in spec.engines])
    model_id: str | None = option("--model-id", "The model's id, when --model is a path.", STUDY, again=_nothing)
    workloads: Sequence[str] = option("--workload", "Name, random:IN:OUT[:N] or file; the first is the objective's. Default: sharegpt.", FIRST, default=())
    final_workload: str | None = option("--final-workload", "Workload of the finals. Default: prompts of the first workload that the search did not send.", GOAL, needs="launch", row=("Finals' workload", "{}"))
    speedup: float | None = option("--speedup", "Replay trace:FILE this many times faster. Default: 1.", GOAL, needs="search", again=_nothing)
    objective: str | None = option("--objective", "Metric to optimize. Default: total_token_throughput.", GOAL)
    weights: str | None = option("--weights", "Objective over several workloads, e.g. sharegpt=2,long=1: weighted geometric mean.", GOAL)
    pareto: str | None = option("--pareto", "Second metric, for a Pareto front, e.g. p99_ttft_ms.", GOAL)
    slos: Sequence[str] = option("--slo", "Limit that the command must meet, e.g. 'p99_ttft_ms<=2000'; repeatable.", FIRST, default=())
    find_load: Literal["concurrency", "rate"] | None = option("--find-load", "With --slo: find the highest load that meets every limit, to within 10 %.", FIRST, needs="search", row=("Load", "raised as far as the limits are met, by {}"))
    goodput: Sequence[str] = option("--goodput", "Limits of a good request, in ms, e.g. 'ttft:2000 tpot:50'.", GOAL, default=(), needs="launch", again=lambda spec: [f"{name}:{_word(limit)}" for name, limit in spec.goodput.items()])
    baseline: str | None = option(
        "--baseline",
        "Engine command line to beat, or recipe[:ENGINE] for the vendor's published one (replay: 'column=value,…'). "
        "Default: vLLM at its defaults on all GPUs.",
        FIRST,
        again=lambda spec: f"recipe:{spec.recipe}" if spec.baseline and spec.recipe else spec.baseline,
    )
    accuracy: str | None = option("--accuracy", "Check answers: builtin, a FILE.jsonl of tasks, or 'command {url} {model}' that prints a score.", GOAL)
    ladder: str | None = option("--ladder", "Concurrencies at which baseline and finalist are also measured, e.g. 1,4,16,64,256.", GOAL, needs="search", row=("Ladder (in flight)", "{}"))
    gpu_hour_price: float | None = option("--gpu-hour-price", "Price of one GPU for an hour: adds cost_per_million_tokens.", GOAL, row=("Price of a GPU-hour", "{}"))
    pins: Sequence[str] = option("--set", "Pin a knob, e.g. kv_cache_dtype=bfloat16, tensor_parallel=8; repeatable.", SPACE, default=(), needs="search")
    drop: Sequence[str] = option("--drop", "Option of --baseline that no candidate keeps, e.g. enable-lora; repeatable.", SPACE, default=(), needs="launch")
    engine_args: Sequence[str] = option("--engine-arg", "Options added to every command of an engine, the baseline's too, e.g. sglang='--trust-remote-code'.", SPACE, default=(), needs="launch")
    min_context: int | None = option("--min-context", "Longest request, in tokens, that must be served.", SPACE, least=1, needs="launch")
    allow: Sequence[Literal["shorter-context", "no-prefix-caching", "lossy"]] = option("--allow", "Allowed trade-off for speed. Default: none; repeatable.", SPACE, default=())
    space: Path | None = option("--space", "Your space file or folder.", SPACE)
    sampler: str = option("--sampler", "gp is autotune's; Optuna's: tpe, random, nsgaii, optuna-gp.", SPACE, default="gp", needs="search")
    sources: Sequence[str] = option("--from", "Earlier study, or replay file, to learn from; repeatable.", SPACE, default=(), needs="search")
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
    engine_bins: Sequence[str] = option("--engine-bin", "An installed engine, e.g. sglang=/opt/venv/bin/python.", PLACE, default=(), needs="launch", again=lambda spec: {name: one.program[0] for name, one in spec.installed.items() if os.path.isabs(one.program[0])})
    images: Sequence[str] = option("--image", "For docker: ENGINE=IMAGE; default: the engine's own.", PLACE, default=(), needs="launch")
    api_key_env: str | None = option("--api-key-env", "For external:URL: environment variable that holds the API key.", PLACE, needs="search")
    api_key_file: str | None = option("--api-key-file", "For external:URL: file that holds the API key.", PLACE, needs="search")
    hf_token_file: str | None = option("--hf-token-file", "File with the Hugging Face token for launched servers; default: HF_TOKEN.", PLACE, needs="launch")
    calibration: Path | None = option(
        "--calibration",
        "Coefficients of the simulated node; default: coefficients.yaml in the home folder, else the shipped ones.",
        PLACE,
        existing=True,
        again=_nothing,
    )
    study: str | None = option("--study", "Name of the study; default: model, hardware and time.", STUDY, again=_nothing)
    # fmt: on
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    given: frozenset[str] = frozenset()

    def needing(self, *needs: str) -> list[str]:
        """List the flags of typed options that need a launch, or a search."""
        return [
            typed.flag
            for one, typed in _declared(RunOptions)
            if typed.needs in needs and self.says(one.name)
        ]

    def says(self, name: str) -> bool:
        """Return whether an option was typed, or differs from its default."""
        own = next(one for one in fields(self) if one.name == name)
        return name in self.given or getattr(self, name) not in (own.default, ())


def command_line(spec: StudySpec) -> str:
    """Return the ``autotune run`` or ``autotune verify`` command of a study, secrets included."""
    lines = ["autotune run" if spec.verifies is None else f"autotune verify {spec.verifies.study}"]
    for one, declared in _declared(RunOptions if spec.verifies is None else VerifyOptions):
        for value in _typed(one, declared, spec):
            lines.append(
                declared.flag
                if isinstance(one.default, bool)
                else f"{declared.flag} {shlex.quote(value)}"
            )
    return " \\\n  ".join(lines)


def rows_of(spec: StudySpec) -> dict[str, str]:
    """Return the report rows of set options, by heading."""
    asked = ((declared.row, _typed(one, declared, spec)) for one, declared in _declared(RunOptions))
    return {row[0]: row[1].format(*values) for row, values in asked if row and values}


def _declared(kind: type) -> list[tuple[Field[Any], Option]]:
    return [(one, one.metadata["option"]) for one in fields(kind) if "option" in one.metadata]


def _typed(one: Field[Any], declared: Option, spec: StudySpec) -> list[str]:
    """Return the values of an option in a repeated study, one for each time it is typed."""
    value = declared.again(spec) if declared.again is not None else getattr(spec, one.name)
    if value is None or value is False:
        return []
    if isinstance(value, Mapping):
        value = [f"{name}={_word(each)}" for name, each in value.items()]
    if not isinstance(value, list | tuple):
        return [_word(value)]
    words = [_word(each) for each in value]
    return words if one.default == () else [",".join(words)] * bool(words)


def _word(value: object) -> str:
    """Format a value as typed: a number in its shortest form."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def same(name: str) -> Any:
    """Declare a field that is also an option of ``autotune run``."""
    one = next(one for one in fields(RunOptions) if one.name == name)
    return field(default=one.default, metadata=one.metadata)


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The typed options of ``autotune verify``; its study has the others."""

    study: str
    on: str | None = option(
        "--on",
        "process, docker, emulator or external:URL. Default: process, if this machine has the hardware.",
    )
    top: int = option(
        "--top", "Commands in addition to the baseline.", default=3, least=1, again=_nothing
    )
    launches: int | None = option(
        "--launches", "Most launches; default: each command once, and 12.", least=1
    )
    engine_bins: Sequence[str] = same("engine_bins")
    images: Sequence[str] = same("images")


@dataclass(frozen=True, slots=True)
class RegressOptions:
    """The typed options of ``autotune regress``; its study has the others."""

    # fmt: off
    study: str
    engines: Sequence[str] = option("--engine", "The new version, simulated or emulated, or of an image: vllm==0.33.0.", default=())
    engine_bins: Sequence[str] = option("--engine-bin", "The new version, installed: vllm=/opt/vllm-new.", default=())
    images: Sequence[str] = option("--image", "The new version, for docker: ENGINE=IMAGE.", default=())
    old_engine_bins: Sequence[str] = option("--old-engine-bin", "The old version. Default: the study's, if it is still installed.", default=())
    old_images: Sequence[str] = option("--old-image", "The old version, for docker. Default: the study's.", default=())
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
    find_load: Literal["concurrency", "rate"] | None = same("find_load")
    slos: Sequence[str] = same("slos")
    replicas: int = option("--replicas", "Servers that share the load.", default=1, least=1)
    gpu_hour_price: float | None = same("gpu_hour_price")
    seed: int = same("seed")
    calibration: Path | None = same("calibration")
    versus: str | None = option(
        "--versus",
        "Compare with another version of the engine, or with another command line in quotes.",
    )


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The typed options of ``autotune bench``; without a seed, the prompts' seed is random."""

    # fmt: off
    url: str
    seed: int
    model: str = option("--model", "The model's name on the server. Default: the one it serves.", default="")
    workload: str = option("--workload", "A name, random:IN:OUT[:N], sharegpt:FILE[:N] …", default="sharegpt")
    speedup: float | None = same("speedup")
    concurrency: Sequence[int] = option("--concurrency", "Closed loop with this many requests in flight; repeated: a sweep.", default=())
    request_rate: float | None = option("--request-rate", "Open loop: requests per second, Poisson arrivals.")
    burstiness: float = option("--burstiness", "Burstiness of a request rate: 1 is Poisson, inf evenly spaced.", default=1.0)
    prompts: Literal["ids", "text"] | None = option("--prompts", "Random prompts as token ids or as text.")
    repeats: int = option("--repeats", "Number of measurements, each with the next seed.", default=1, least=1)
    workers: int | None = option("--workers", "Processes that send the load; default: as many as needed.", least=1)
    slo: Sequence[str] = option("--slo", "Limit for goodput, e.g. 'p99_ttft_ms<=2000'; repeat for several.", default=())
    goodput: Sequence[str] = same("goodput")
    gpu_hour_price: float | None = same("gpu_hour_price")
    find_load: Literal["concurrency", "rate"] | None = same("find_load")
    accuracy: str | None = same("accuracy")
    gpus: int | None = option("--gpus", "GPUs of the server: adds figures per GPU, and costs with a price.", least=1)
    keep_cache: bool = option("--keep-cache", "Do not empty the server's prefix cache before each load.", default=False)
    same_prompts: bool = option("--same-prompts", "Every repeat sends the same prompts.", default=False)
    endpoint: Literal["/v1/completions", "/v1/chat/completions"] = option("--endpoint", "", default="/v1/completions")
    tokenizer: Path | None = option("--tokenizer", "tokenizer.json, or its folder, for text.")
    api_key_env: str | None = option("--api-key-env", "Environment variable that holds the API key.")
    save_result: Path | None = option("--save-result", "Write JSON, and next to it a row per request.")
    reference: Sequence[Path] = option(
        "--reference",
        "With --accuracy: earlier answers (from --save-result) to compare with; repeat for several of one server.",
        default=(),
    )
    # fmt: on


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """The typed options of ``autotune calibrate``."""

    files: Sequence[Path] = option("--data", "Measurements; repeatable.", default=())
    studies: Sequence[str] = option(
        "--study", "One of your measured studies; repeatable.", default=()
    )
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
