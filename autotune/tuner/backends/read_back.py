"""The settings of a ready server are read back and kept beside its log, as far as it reports them.

An engine that reports nothing, or in an unknown form, is no failure; its configuration is then taken
as requested.
"""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from autotune.base import Json, JsonObject, frozen, redact, write_atomically
from autotune.engines import Context, Engine, EngineCard, Resolved, admitted
from autotune.engines.cards import kv_bytes_per_token
from autotune.engines.command import Configuration
from autotune.engines.layers import cached_type
from autotune.engines.report_back import compare, parse_reported, settings
from autotune.engines.serving import ResolvedSource
from autotune.load.server_client import ServerClient
from autotune.servers.logs import read_head, remarks_in
from autotune.servers.server import Server

from ..study.home import make_trial_folder
from ..trial import Trial

FILE_NAME = "resolved.json"
ANSWER_S = 60.0
"""Seconds for a server to report its arguments: vLLM collects facts of its machine for that
answer."""


@frozen
class ReportedSettings:
    """Settings reported by one source of an engine, and their origin in words."""

    name: str
    origin: str
    settings: JsonObject


def read_back(
    server: Server, engine: Engine, trial: Trial, context: Context, folder: Path
) -> tuple[Resolved | None, Json]:
    """Query a ready server for its resolved arguments; compare and store them, see
    `compare_reported`.

    Also returns the fields of a result about the requests that the server takes, and what it
    remarks, by its log and its context.
    """
    log = read_head(server.log, server.log_offset) if server.log else ""
    reported = reported_by(server, engine.card, trial.engine_version, log)
    resolved = compare_reported(engine, trial, context, reported, folder, server.secrets)
    asked = trial.configuration
    ran = asked if resolved is None else resolved.applied_to(asked)
    tokens = kv_cache_tokens(engine.card, log, ran, context)
    longest = None if tokens is None else min(tokens, admitted(ran, context))
    return resolved, {
        "kv_cache_tokens": tokens,
        "longest_request_tokens": longest,
        "odds_of_starting": 1.0,
        "remarks": remarks_in(log),
    }


def reported_by(
    server: Server, card: EngineCard, version: str, log: str = ""
) -> list[ReportedSettings]:
    """Return what a ready server and its log report; of the sources of one name the first that
    reports something."""
    reported = {}
    with ServerClient(server.target, ANSWER_S) as client:
        document_at = cache(client.get_json)
        for source in card.resolved:
            if source.name in reported or not source.is_for(version):
                continue
            answer = read_source(source, document_at(source.path) if source.path else log)
            if answer and answer.settings:
                reported[source.name] = answer
    return list(reported.values())


def kv_cache_tokens(card: EngineCard, log: str, ran: Configuration, context: Context) -> int | None:
    """Return the tokens of the smallest KV cache that a log reports; None if it reports none.

    Of caches in GiB of a rank the largest counts: there are smaller ones to measure memory, and of
    drafts.
    """
    for one in card.kv_cache_tokens:
        matches = re.finditer(one.pattern or "", log) if one.is_for(context.version) else ()
        sizes = [(match.lastgroup, float(match[1].replace(",", ""))) for match in matches]
        if sizes and sizes[0][0] == "gib":
            # Bytes that a token takes on all stages of a rank.
            ranks, stages = (
                int(ran.knobs.get(f"{way}_parallel") or 1) for way in ("tensor", "pipeline")
            )
            kind = cached_type(ran.knobs["kv_cache_dtype"])
            token = kv_bytes_per_token(context.model.architecture, kind, ranks) / stages
            return int(max(sizes)[1] * 2**30 / token)
        if sizes:
            return int(min(sizes)[1])
    return None


def compare_reported(
    engine: Engine,
    trial: Trial,
    context: Context,
    sources: Sequence[ReportedSettings],
    folder: Path,
    secrets: Collection[str] = (),
) -> Resolved | None:
    """Compare reported with requested knobs, and store both in the trial's folder, masked; None for
    no knob."""
    requested = trial.configuration
    if not sources or not requested.knobs.keys() >= engine.card.knobs.keys():
        return None
    told_knobs, ran = parse_reported(
        engine, requested, context, {source.name: source.settings for source in sources}
    )
    resolved = replace(
        compare(engine, requested, context, trial.command, ran),
        source=" and ".join(dict.fromkeys(source.origin for source in sources)),
    )
    # A server of somebody else's knows nothing of the command.
    all_secrets = {*secrets, *redact.secrets_in(trial.command.argv, trial.command.env)}
    document = {
        "engine": requested.engine,
        "engine_version": trial.engine_version,
        **asdict(resolved),
        "asked_fingerprint": requested.fingerprint,
        "told": told_knobs,
        "config": dict(ran.knobs),
        "sources": [{"name": s.name, "from": s.origin, "settings": s.settings} for s in sources],
    }
    make_trial_folder(folder)
    write_atomically(
        folder / FILE_NAME,
        json.dumps(redact.document(document, all_secrets), indent=1, default=str) + "\n",
    )
    return resolved if told_knobs else None


def read_source(source: ResolvedSource, content: Any) -> ReportedSettings | None:
    """Read a source in the answer of its path, or without a path in a log; None if it is
    missing."""
    if source.path is not None:
        for key in filter(None, source.key.split(".")):
            content = content.get(key) if isinstance(content, dict) else None
        if not isinstance(content, dict):
            return None
        return ReportedSettings(source.name, f"GET {source.path}", content)
    match = re.search(source.pattern or "", content)
    if match is None:
        return None
    groups = {name: value for name, value in match.groupdict().items() if value is not None}
    if "settings" in groups:
        groups = settings(groups["settings"])
    return ReportedSettings(source.name, "the startup log", groups)
