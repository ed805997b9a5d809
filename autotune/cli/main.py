"""The command line: parse, one call, print. No logic, and no heavy import before a command needs
it."""

import errno
import os
import signal
import sys

import click

from autotune import __version__
from autotune.base import AutotuneError, BadInput, Interrupted, Terminated, redact

from .shared import COMMANDS, command_of, refusal


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Names of commands and options complete with TAB after: "
    'eval "$(_AUTOTUNE_COMPLETE=bash_source autotune)" (zsh_source, fish_source)',
)
@click.version_option(__version__, prog_name="autotune")
def cli() -> None:
    """Find the serving command that gives an LLM node its highest throughput, and prove it."""


_SPACE = click.Group("space", help="Show or check the search spaces.")

for _name, _row in COMMANDS["commands"].items():
    _group, _, _own_name = _name.rpartition(" ")
    (_SPACE if _group else cli).add_command(command_of(_own_name, _row))
cli.add_command(_SPACE)


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
