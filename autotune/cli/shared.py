"""Options that several commands take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource


def common(home_is_used: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add ``--json`` and ``--home``, which every command takes; one that keeps nothing ignores ``--home``."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        command = click.option(
            "--json", "as_json", is_flag=True, help="One JSON object on stdout, messages on stderr."
        )(command)
        return click.option(
            "--home",
            type=click.Path(path_type=Path),
            envvar="AUTOTUNE_HOME",
            default=Path("mlruns"),
            show_default="./mlruns, or AUTOTUNE_HOME",
            expose_value=home_is_used,
            help="Where studies and the MLflow database lie.",
        )(command)

    return decorate


calibration = click.option(
    "--calibration",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Coefficients of the simulated node; default: coefficients.yaml in the home folder, else the shipped ones.",
)


hardware = click.option(
    "--hw", "hardware", required=True, help="Hardware by name (h200, mi300x), local, or a YAML file."
)
gpus = click.option("--gpus", type=int, help="GPUs to use; default: all of the node.")
find_load = click.option(
    "--find-load",
    type=click.Choice(["concurrency", "rate"]),
    help="With --slo: raise the load as far as every limit is kept, to within 10 %.",
)
pins = click.option("--set", "pins", multiple=True, help="Pin a knob, e.g. kv_cache_dtype=bfloat16, tp=8; repeatable.")
speedup = click.option("--speedup", type=float, help="Replay trace:FILE so many times as fast. Default: 1.")
space = click.option("--space", type=click.Path(path_type=Path), help="Space file or folder of your own.")
goodput = click.option(
    "--goodput", multiple=True, help="What each request must keep to be good, in ms, e.g. 'ttft:2000 tpot:50'."
)
gpu_hour_price = click.option("--gpu-hour-price", type=float, help="Of one GPU: adds cost_per_million_tokens.")
accuracy = click.option(
    "--accuracy", help="Check answers: builtin, a FILE.jsonl of tasks, or 'command {url} {model}' that prints a score."
)
seed = click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)


def given() -> frozenset[str]:
    """The options of the running command that were typed, by parameter."""
    context = click.get_current_context()
    return frozenset(n for n in context.params if context.get_parameter_source(n) is not ParameterSource.DEFAULT)


def engine_command(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the commands that take an engine's command line."""
    for option in (
        hardware,
        gpus,
        click.option("--engine-version", help="Parse and behave as this version; default: the newest known."),
        click.option("--model-id", help="The model's id, when the command line names a path."),
    ):
        command = option(command)
    return command
