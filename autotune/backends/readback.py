"""Reads the resolved arguments of a ready server, and keeps them beside its log.

Best effort: an engine that reports nothing, or in an unknown form, is no failure; its configuration is then taken as it
was asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autotune import redact
from autotune.engines import Engine
from autotune.engines.report_back import compare, parse_reported, settings
from autotune.loadgen.client.target import Target
from autotune.loadgen.server_client import ServerClient
from autotune.serving.logs import read_head
from autotune.serving.server import Server
from autotune.space.context import Context
from autotune.space.entry import in_range
from autotune.space.promises import admitted
from autotune.space.schema import EngineCard
from autotune.space.serving import ResolvedSource
from autotune.study.home import make_trial_folder, write_atomically
from autotune.trial import Resolved, Trial

FILE_NAME = "resolved.json"
ANSWER_S = 60.0
"""Seconds that a server may take to tell its arguments: vLLM collects facts of its machine for that answer."""


@dataclass(frozen=True, slots=True)
class ReportedSettings:
    """The settings that one source of an engine reported.

    Attributes:
        origin: where it was read, in words.
    """

    name: str
    origin: str
    settings: Mapping[str, Any]


def read_back(
    server: Server, engine: Engine, trial: Trial, context: Context, folder: Path
) -> tuple[Resolved | None, dict[str, Any]]:
    """Ask a ready server for its resolved arguments; compare and keep them, see `compare_reported`.

    Of the sources of one name the first counts that reports something. Also returns the fields of a result about the
    requests that the server takes, by its log and its context.
    """
    documents: dict[str, Any] = {}
    log = read_head(server.log, server.log_offset) if server.log is not None else ""
    reported: dict[str, ReportedSettings] = {}
    with ServerClient(Target.parse(server.url, server.api_key), ANSWER_S) as client:
        for source in engine.card.resolved:
            if source.name in reported or not in_range(trial.engine_version, source.versions):
                continue
            if source.path is not None:
                if source.path not in documents:
                    documents[source.path] = client.get_json(source.path)
                answer = of_answer(source, documents[source.path])
            else:
                answer = of_log(source, log)
            if answer is not None and answer.settings:
                reported[source.name] = answer
    resolved = compare_reported(engine, trial, context, list(reported.values()), folder, server.secrets)
    tokens = kv_cache_tokens(engine.card, log, trial.engine_version)
    differs = resolved.differs if resolved is not None else {}
    ran = trial.configuration.with_knobs(**{name: got for name, (_, got) in differs.items()})
    longest = None if tokens is None else min(tokens, admitted(ran, context))
    return resolved, {"kv_cache_tokens": tokens, "longest_request_tokens": longest, "odds_of_starting": 1.0}


def kv_cache_tokens(card: EngineCard, log: str, version: str) -> int | None:
    """The least KV cache of a replica, in tokens, that a log tells; None where it tells none."""
    for one in card.kv_cache_tokens:
        found = list(re.finditer(one.pattern or "", log)) if in_range(version, one.versions) else []
        if found:
            return min(int(match[1].replace(",", "")) for match in found)
    return None


def compare_reported(
    engine: Engine,
    trial: Trial,
    context: Context,
    sources: Sequence[ReportedSettings],
    folder: Path,
    secrets: Collection[str] = (),
) -> Resolved | None:
    """Compare reported with requested knobs, and keep both in the trial's folder; None when no knob is reported.

    Args:
        secrets: values that the server was given, to be masked in what is kept.
    """
    asked = trial.configuration
    if not sources or not asked.knobs.keys() >= engine.card.knobs.keys():
        return None
    told, ran = parse_reported(engine, asked, context, {source.name: source.settings for source in sources})
    origin = " and ".join(dict.fromkeys(source.origin for source in sources))
    resolved = replace(compare(engine, asked, context, trial.command, ran), source=origin)
    # A server of somebody else's knows nothing of the command.
    all_secrets = {*secrets, *redact.secrets_in(trial.command.argv, trial.command.env)}
    document = {
        "engine": trial.configuration.engine,
        "engine_version": trial.engine_version,
        **asdict(resolved),
        "asked_fingerprint": asked.fingerprint,
        "told": told,
        "config": dict(ran.knobs),
        "sources": [{"name": s.name, "from": s.origin, "settings": s.settings} for s in sources],
    }
    make_trial_folder(folder)
    masked = json.dumps(redact.document(document, all_secrets), indent=1, default=str)
    write_atomically(folder / FILE_NAME, masked + "\n")
    return resolved if told else None


def of_answer(source: ResolvedSource, document: Any) -> ReportedSettings | None:
    """Read a source in the answer of its path; None where it is not there."""
    for key in filter(None, source.key.split(".")):
        document = document.get(key) if isinstance(document, dict) else None
    return ReportedSettings(source.name, f"GET {source.path}", document) if isinstance(document, dict) else None


def of_log(source: ResolvedSource, text: str) -> ReportedSettings | None:
    """Read a source in a log; None where no line matches."""
    match = re.search(source.pattern or "", text)
    if match is None:
        return None
    groups = {name: value for name, value in match.groupdict().items() if value is not None}
    printed = groups.pop("settings", None)
    return ReportedSettings(source.name, "the startup log", groups if printed is None else settings(printed))
