"""Take the command of a running server as the baseline: ``--baseline live:URL``."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from autotune.base import BadInput, JsonObject, redact
from autotune.engines import Command, Configuration, Context, Engine, Library, engine
from autotune.engines.engine import flag_of
from autotune.engines.entry import is_version
from autotune.engines.report_back import parse_reported
from autotune.servers.command import read_secret

from ..study.options import RunOptions

FORM = "live:"


def with_running(
    options: RunOptions, context: Context, library: Library
) -> tuple[RunOptions, dict[str, str], list[str]]:
    """Replace ``--baseline live:URL`` by the command of that server; with the version by engine,
    and notes.

    Raises `BadInput` where the server does not tell its configuration, or serves another model.
    """
    url = (options.baseline or "").partition(FORM)[2]
    if not (options.baseline or "").startswith(FORM):
        return options, {}, []
    # Only here, because the HTTP client takes a while to load.
    from autotune.servers.server import connect

    from ..backends.read_back import reported_by

    names = context.model.id, *context.model.aliases
    server = connect(
        url, names, read_secret(options.api_key_env, options.api_key_file, "--api-key")
    )
    if server.owner not in library.engines:
        raise BadInput(
            f"--baseline {options.baseline}: {server.owner or 'its engine'} is no known engine; {_WAY}"
        )
    kind = engine(server.owner, library)
    told: dict[str, JsonObject] = {}
    # Its paths depend on the version, which it may tell there only.
    for version in filter(is_version, (server.version, *reversed(kind.card.versions))):
        told = {o.name: o.settings for o in reported_by(server, kind.card, version)}
        if told:
            break
    version = str(told.get("info", {}).get("version") or server.version)
    here = replace(context, version=kind.version(version or None)).as_read(kind.card)
    command, how = _command(kind, here, told)
    if command is None:
        needs = kind.card.serving.tells_with
        problem = f"{kind.card.title} does not tell its configuration there"
        if needs:
            problem += f" (it does with {needs})"
        raise BadInput(f"--baseline {options.baseline}: {problem}; {_WAY}")
    note = f"the baseline is {how} at {url}, {kind.card.title} {here.version}: {command.shell()}"
    return replace(options, baseline=command.shell()), {kind.name: here.version}, [note]


_WAY = (
    "give its command, --baseline 'vllm serve …': it stands in the manifest or the script that "
    "started it, or in ps -eo args on its machine"
)


def _command(
    kind: Engine, context: Context, told: dict[str, JsonObject]
) -> tuple[Command | None, str]:
    """Return the command that a server was started with, else one of the settings that it tells;
    and which one it is."""
    words = str(told.get("info", {}).get(kind.card.serving.told_command or "") or "").split()
    public = [
        word
        for word, secret in redact.hidden(words)
        if secret is None and not redact.is_secret_name(flag_of(word))
    ]
    with suppress(BadInput):
        command = Command((*kind.program, *public))
        if public and kind.parse(command, context.version):
            return command, "the command"
    usual = Configuration(kind.name, kind.default_knobs(context))
    reported, ran = parse_reported(kind, usual, context, told)
    scope = context.scope(ran.knobs)
    for name in reported:
        try:
            kind.knob_additions(name, scope, context.version)
        except BadInput:  # Its own choice, for which it has no option
            ran = ran.with_knobs(**{name: usual.knobs[name]})
    how = f"made of {len(reported)} reported settings (options that are no knobs are not reported)"
    return (kind.command(ran, context) if told and reported else None), how
