"""Take the command of a running server as the baseline: ``--baseline live:URL``."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from autotune.base import BadInput, JsonObject, StringDict, redact
from autotune.engines import (
    Command,
    Configuration,
    Context,
    Engine,
    Library,
    engine,
    flag_of,
    is_version,
)
from autotune.engines.report_back import parse_reported
from autotune.servers.command import read_secret

from ..backends import Backend
from ..study.options import RunOptions

FORM = "live:"


def with_running(
    options: RunOptions, context: Context, backend: Backend, library: Library
) -> tuple[RunOptions, StringDict, list[str]]:
    """Replace ``--baseline live:URL`` by the command of that server; with the version by engine,
    and a note.

    Raises `BadInput` where the server does not tell its configuration, or serves another model;
    of a server that is measured itself the note says so.
    """
    form, _, url = (options.baseline or "").partition(FORM)
    if form or not url:
        return options, {}, []
    # Only here, because the HTTP client takes a while to load.
    from autotune.servers.server import connect

    from ..backends.read_back import reported_by

    key = read_secret(options.api_key_env, options.api_key_file, "--api-key")
    server = connect(url, context.model.names, key)
    try:
        kind = engine(server.owner, library)
        versions = filter(is_version, (server.version, *reversed(kind.card.versions)))
        # Its paths depend on the version, which it may tell there only.
        answers = (reported_by(server, kind.card, version) for version in versions)
        told = {one.name: one.settings for one in next(filter(None, answers), ())}
        version = kind.version(told.get("info", {}).get("version") or server.version or None)
        command = _command(kind, replace(context, version=version).as_read(kind.card), told)
    except BadInput as error:
        if not backend.foreign:
            raise BadInput(
                f"--baseline {options.baseline}: {error}; give its command, --baseline '<command>': "
                "it stands in the manifest or script that started it, or in ps -eo args on its machine"
            ) from error
        return replace(options, baseline=None), {}, [f"{url}: {error}; give it with --baseline"]
    shell = command.shell()
    note = f"the baseline is that of {url}, {kind.card.title} {version}: {shell}"
    return replace(options, baseline=shell), {kind.name: version}, [note]


def _command(kind: Engine, context: Context, told: Mapping[str, JsonObject]) -> Command:
    """Return the command that a server was started with, else one of the settings that it tells,
    which has no other options; raises `BadInput` for neither."""
    serving = kind.card.serving
    words = str(told.get("info", {}).get(serving.told_command or "") or "").split()
    public = [
        word
        for word, secret in redact.hidden(words)
        if secret is None and not redact.is_secret_name(flag_of(word))
    ]
    with suppress(BadInput):
        command = Command((*kind.program, *public))
        if public and kind.parse(command, context.version):
            return command
    if not told:
        needs = f" (it does with {serving.tells_with})" if serving.tells_with else ""
        raise BadInput(f"{kind.card.title} does not tell its configuration there{needs}")
    usual = Configuration(kind.name, kind.default_knobs(context))
    _, ran = parse_reported(kind, usual, context, told)
    for name, value in usual.knobs.items():
        try:
            kind.knob_additions(name, context.scope(ran.knobs), context.version)
        except BadInput:  # Its own choice, for which it has no option
            ran = ran.with_knobs(**{name: value})
    return kind.command(ran, context)
