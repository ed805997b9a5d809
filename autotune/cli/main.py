"""The command line: parse, one call, print. No logic, and no heavy import before a command needs
it."""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path
from random import randrange
from typing import Any

import click

from autotune import __version__
from autotune.base import AutotuneError, BadInput, Interrupted, Terminated, redact
from autotune.load.options import BenchOptions
from autotune.tuner.study.options import (
    CalibrateOptions,
    EmulateOptions,
    RegressOptions,
    RunOptions,
    SimulateOptions,
    VerifyOptions,
)

from . import shared
from .shared import EXAMPLES, GroupedCommand, refusal

_MULTILINE = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Names of commands and options complete with TAB after: "
    'eval "$(_AUTOTUNE_COMPLETE=bash_source autotune)" (zsh_source, fish_source)',
)
@click.version_option(__version__, prog_name="autotune")
def cli() -> None:
    """Find the serving command that gives an LLM node its highest throughput, and prove it."""


@cli.command(cls=GroupedCommand, epilog=EXAMPLES)
@shared.options_of(RunOptions)
@click.option("--dry-run", is_flag=True, help="Show the candidates, and launch nothing.")
@shared.common
def run(home: Path, as_json: bool, dry_run: bool, **options: Any) -> None:
    """Tune: search, measure, and recommend one serving command."""
    from . import tuning

    tuning.run(RunOptions(**options, given=shared.typed_options()), home, as_json, dry_run)


@cli.command()
@click.argument("study")
@click.option(
    "--launches", type=click.IntRange(min=1), help="New, larger budget, also of a finished study."
)
@shared.common
def resume(**asked: Any) -> None:
    """Continue an interrupted study; a finished one prints its recommendation again."""
    from . import tuning

    tuning.resume(**asked)


@cli.command()
@click.argument("study")
@shared.options_of(VerifyOptions)
@shared.common
def verify(home: Path, as_json: bool, **options: Any) -> None:
    """Measure the predictions of a simulated study: baseline, recommended and next best command, on
    real servers."""
    from . import tuning

    tuning.verify(VerifyOptions(**options), home, as_json)


@cli.command()
@click.argument("study")
@shared.options_of(RegressOptions)
@shared.common
def regress(home: Path, as_json: bool, **options: Any) -> None:
    """Compare a study's commands on a new version of their engine with the old one: exit 0 pass, 5
    slower, 6 open."""
    from . import tuning

    sys.exit(tuning.regress(RegressOptions(**options), home, as_json))


@cli.command(context_settings=_MULTILINE)
@shared.engine_command
@shared.options_of(SimulateOptions)
@shared.common
def simulate(home: Path, as_json: bool, **options: Any) -> None:
    """Predict the metrics of one engine command line, given after `--`."""
    from . import prediction

    prediction.simulate(SimulateOptions(**options), home, as_json)


@cli.command()
@shared.options_of(BenchOptions)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**62),
    default=lambda: randrange(10**6),
    show_default="random, and printed",
    help="Seed of the prompts: an earlier one repeats them.",
)
@shared.common
def bench(home: Path, as_json: bool, **options: Any) -> None:
    """Load a running server over HTTP and measure it."""
    from autotune.load.bench.results import Bench

    from .bench import bench as measure

    measure(Bench(**options), as_json, home)


@cli.command()
@click.argument("a")
@click.argument("b")
@shared.common
def compare(**asked: Any) -> None:
    """Compare two studies (names or bundles), or two results of `bench`, vLLM, SGLang,
    AIPerf, GuideLLM or InferenceX."""
    from . import studies

    studies.compare(**asked)


@cli.command()
@click.argument("study")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write.",
)
@click.option(
    "--with-prompts",
    is_flag=True,
    help="Include prompts: workload files, and log lines with prompts.",
)
@shared.common
def bundle(**asked: Any) -> None:
    """Write a study to one file from which `run --on replay:FILE` reads its answers, on any
    machine."""
    from . import studies

    studies.bundle(**asked)


@cli.command(context_settings=_MULTILINE)
@shared.engine_command
@shared.options_of(EmulateOptions)
@shared.common
def emulate(home: Path, as_json: bool, **options: Any) -> None:
    """Emulate an engine on a node with GPUs: a server with the simulated node's times."""
    from . import prediction

    sys.exit(prediction.emulate(EmulateOptions(**options), home, as_json))


@cli.command()
@shared.options_of(CalibrateOptions)
@shared.common
def calibrate(home: Path, as_json: bool, **options: Any) -> None:
    """Fit the simulator's coefficients to measurements, and write them."""
    from . import calibration

    calibration.calibrate(CalibrateOptions(**options), home, as_json)


@cli.command()
@click.argument("study")
@click.option(
    "--format", "format_", type=click.Choice(["md", "html"]), default="md", show_default=True
)
@shared.common
def report(**asked: Any) -> None:
    """Print a study's report; for an unfinished study, the results so far."""
    from . import studies

    studies.report(**asked)


@cli.command()
@click.argument("study")
@click.option(
    "--to",
    "format_",
    help="docker, compose, k8s, dstack, gpustack, shell, vllm-config, capacity, json …",
)
@click.option(
    "--onto", metavar="FILE[#PART]", help="Your deployment, with the recommended command."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Default: stdout."
)
@click.option(
    "--image", help="Container image to run in. Default: the measured one, else the known one."
)
@shared.common
def export(**asked: Any) -> None:
    """Write the recommended configuration in a deployment format."""
    from . import studies

    studies.export(**asked)


@cli.command("list")
@shared.common
def list_(**asked: Any) -> None:
    """List the studies of the home folder, the newest last."""
    from . import studies

    studies.list_studies(**asked)


@cli.command()
@click.option("--engine-bin", "engine_bins", multiple=True, help="An installed engine, as for run.")
@shared.common
def doctor(**asked: Any) -> None:
    """Check this machine for missing prerequisites of --on process and --on docker."""
    from .doctor import doctor as examine

    examine(**asked)


@cli.group()
def space() -> None:
    """Show or check the search spaces."""


@space.command()
@click.option("--engine", "engines", multiple=True, help="Default: every engine.")
@click.option("--model", default="deepseek-ai/DeepSeek-V3.2", show_default=True)
@click.option("--hw", "hardware", default="h200", show_default=True)
@shared.options_of(RunOptions, "gpus", "workloads", "pins", "space")
@shared.common_without_home
def show(as_json: bool, **options: Any) -> None:
    """Print each engine's knobs and candidates, and the combinations that each rule removed."""
    from . import spaces

    spaces.space_show(RunOptions(**options), as_json)


@space.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option(
    "--engine", "engines", multiple=True, help="Check only these engines' packaged files."
)
@shared.common_without_home
def check(**asked: Any) -> None:
    """Validate a space file or folder (default: the packaged ones); errors name the line."""
    from . import spaces

    spaces.space_check(**asked)


def _terminate(*_: object) -> None:
    raise Terminated


def _check_names() -> None:
    """Raise `BadInput` for a name that this locale's encoding cannot write: a library would fail
    with it."""
    for name in (*sys.argv[1:], os.environ.get("AUTOTUNE_HOME", ""), os.getcwd()):
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise BadInput(
                f"{name!a} has letters that this locale's encoding, "
                f"{sys.getfilesystemencoding()}, lacks; set LC_ALL=C.UTF-8 or PYTHONUTF8=1"
            ) from error


def main() -> None:
    """Run the console script: one message, and the contract's exit code, for every error of
    ours."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        _check_names()
        cli.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except (AutotuneError, click.ClickException) as error:
        text = refusal(error) if isinstance(error, click.ClickException) else str(error)
        click.echo(f"autotune: {redact.text(text)}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.exceptions.Abort) as stop:
        click.echo("autotune: interrupted", err=True)
        # Look behind click's own error, which it raises because of ours.
        sys.exit(getattr(stop.__cause__ or stop, "exit_code", Interrupted.exit_code))
    except BrokenPipeError:
        # Nothing is wrong: the reader of our output went away (`autotune list | head`).
        sys.stderr.close()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        click.echo(
            f"autotune: this file name is too long: {str(error.filename)[:60]!r} …", err=True
        )
        sys.exit(BadInput.exit_code)
