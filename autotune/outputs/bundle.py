"""Bundle a study: one archive from which another machine replays it.

Secrets are masked in every member. Prompts, the files of workloads and the lines of logs that quote
some, are left out unless they are asked for.
"""

import hashlib
import json
import os
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from autotune import __version__
from autotune.base import BadInput, Json, Notify, redact
from autotune.engines import Candidate, Library
from autotune.engines.command import reference_in
from autotune.load.workloads import load_workload
from autotune.servers.command import inherited_secrets, read_secret, server_logs
from autotune.servers.watchdog import read_ends
from autotune.tuner.backends import backend_of
from autotune.tuner.prepare.candidates import prepare
from autotune.tuner.replay.bundle import (
    CANDIDATES,
    RECOMMENDATION,
    STUDY,
    KnownCandidate,
    KnownCandidates,
    pack,
)
from autotune.tuner.search.decide.simplify import ablations
from autotune.tuner.study.home import Home, library_of
from autotune.tuner.study.results import RESULTS, row_of
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch, Role, Trial

_LOG_BYTES = (
    12_000  # Bytes of each end of a log: the start holds versions and arguments, the end the error
)
_LONGEST_LINE = 2_000
_PROMPT = re.compile(
    r"prompt(_token_ids|s)?['\"]?\s*[:=]|['\"]?messages['\"]?\s*[:=]|received request",
    re.IGNORECASE,
)


def bundle(home: Home, study: str, notify: Notify, *, prompts: bool = False) -> bytes:
    """Return the bytes of a study's bundle; equal files give equal bytes. `prompts` includes the
    prompts.

    Raises `BadInput`: there is no such study, it has no launch, or its candidates are no more.
    """
    spec = home.spec(study)
    launches = home.launches(study)
    folder = home.study_folder(study)
    if not launches:
        raise BadInput(f"study {study!r} has no finished launch, so there is nothing to bundle")
    library = library_of(spec)
    known = _candidates(spec, launches, library, notify)
    secrets = _secrets(spec, launches)
    described = {}
    files = {}
    for name in spec.workloads:  # A workload that is gone, or a file of it, is left out.
        with suppress(BadInput, OSError):
            workload = load_workload(name, library)
            described[name] = workload.model_dump(mode="json")
            for point in workload.points:
                if file := getattr(point.lengths, "file", None):
                    files[file] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    documents: Json = {
        CANDIDATES: known.model_dump(mode="json", by_alias=True),
        "workloads.json": {
            "workloads": described,
            "files": {Path(file).name: sha for file, sha in files.items()},
        },
    }
    if done := home.recommendation(study):
        documents[RECOMMENDATION] = done.to_json()
    question = redact.document(spec.model_dump(mode="json"), secrets)
    members = {STUDY: yaml.safe_dump(question, sort_keys=False, width=120).encode()}
    kept = launches
    if not prompts:
        kept = [replace(launch, result=launch.result.without_prompts()) for launch in launches]
    # Rows in the form of their file: enumerations are texts, tuples are lists.
    plain = json.loads(json.dumps(list(map(row_of, kept))))
    rows = (json.dumps(row, allow_nan=False) for row in redact.document(plain, secrets))
    members[RESULTS] = "".join(f"{row}\n" for row in rows).encode()
    for launch in launches:
        place = f"trials/{launch.number:04d}"
        for name, log in server_logs(folder / place).items():
            with suppress(OSError):
                members[f"{place}/{name}"] = _trimmed(log, secrets, prompts=prompts)
        with suppress(OSError, ValueError):
            resolved = f"{place}/resolved.json"
            documents[resolved] = json.loads((folder / resolved).read_bytes())
    members |= {name: _masked(document, secrets) for name, document in documents.items()}
    if prompts:
        members |= {f"workloads/{sha}": Path(file).read_bytes() for file, sha in files.items()}
    about = {
        "study": spec.study,
        "autotune": __version__,
        "engines": {choice.name: choice.version for choice in spec.engines},
        "seed": spec.seed,
        "launches": len(launches),
        "prompts": prompts,
    }
    return pack(about, dict(sorted(members.items())))


def _candidates(
    spec: StudySpec, launches: Sequence[Launch], library: Library, notify: Notify
) -> KnownCandidates:
    """Collect the facts of candidates that decisions need; raises `BadInput` if a launch has no
    candidate."""
    if backend_of(spec).foreign:
        # The one server; to prepare the study would be to connect to it.
        return KnownCandidates(items=(_known(launches[0].trial),), baseline=0)
    notify("enumerating the launched configurations")
    prepared = prepare(spec, library, notify, anywhere=True)
    trials = [launch.trial for launch in launches]
    finals = (one.configuration for one in trials if one.role is Role.FINAL)
    candidates = prepared.candidates.including(one.configuration for one in trials).near(finals)
    asked = {launch.fingerprint for launch in launches}
    if missing := [fingerprint for fingerprint in asked if fingerprint not in candidates]:
        raise BadInput(
            f"{len(missing)} of the launched configurations are no longer candidates: the search "
            "spaces or autotune itself have changed since the study ran"
        )
    answers = {launch.result.resolved.fingerprint for launch in launches if launch.result.resolved}
    launched = {candidates.position(one) for one in asked | answers if one in candidates}
    for launch in launches:
        if launch.role is Role.FINAL:
            launched |= set(ablations(candidates, candidates.position(launch.fingerprint)))
    kept = sorted({candidates.baseline, *candidates.defaults, *launched})
    items = [
        _known(
            candidates.items[position],
            default=position in candidates.defaults,
            unseen=position in candidates.unseen,
            gives_up=candidates.given_up.get(position, ()),
        )
        for position in kept
    ]
    return KnownCandidates(
        items=tuple(items),
        baseline=kept.index(candidates.baseline),
        as_they_are=candidates.as_they_are,
        excluded=prepared.excluded,
    )


def _known(one: Candidate | Trial, **facts: Any) -> KnownCandidate:
    return KnownCandidate(
        engine=one.configuration.engine,
        engine_version=one.engine_version,
        config=dict(one.configuration.knobs),
        **facts,
    )


def _trimmed(path: Path, secrets: Collection[str], *, prompts: bool) -> bytes:
    """Return both ends of a log; lines that may quote a prompt are removed unless `prompts`."""
    text = read_ends(path, _LOG_BYTES).decode(errors="replace")
    lines = [line[:_LONGEST_LINE] for line in redact.text(text, secrets).split("\n")]
    if not prompts:
        lines = [
            "[a line that may quote a prompt is left out]" if _PROMPT.search(line) else line
            for line in lines
        ]
    return "\n".join(lines).encode()


def _secrets(spec: StudySpec, launches: Sequence[Launch]) -> set[str]:
    """Return the known secrets, to be masked in every text."""
    found = inherited_secrets(os.environ)
    for file in (spec.api_key_file, spec.hf_token_file):
        with suppress(BadInput):
            found.add(read_secret(None, file, "") or "")
    names = {spec.api_key_env}
    for launch in launches:
        command = launch.trial.command
        found |= redact.secrets_in(command.words, command.env)
        names |= {reference_in(word)[1] for word in (*command.words, *command.env.values())}
    found |= {os.environ.get(name, "") for name in names if name is not None}
    return found - {"", redact.MASK}


def _masked(document: Any, secrets: Collection[str]) -> bytes:
    return (
        json.dumps(redact.document(document, secrets), indent=1, allow_nan=False).encode() + b"\n"
    )
