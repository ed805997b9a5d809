"""Check that the weights are complete on this machine before a server is launched; fetch them with ``--fetch``."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess

from autotune.backends import Backend
from autotune.child import die_with_parent
from autotune.errors import BadInput
from autotune.machine import disk_free_bytes
from autotune.notify import Notify
from autotune.prepare.candidates import Prepared
from autotune.serving.command import read_secret
from autotune.serving.weights import Missing, missing_for
from autotune.study.spec import is_local


def check_fetch(fetch: bool, backend: Backend, executor: str) -> bool:
    """Return ``--fetch``; raises `BadInput` where it would do nothing."""
    if fetch and not (backend.on_gpus and is_local(executor)):
        where = backend.on if is_local(executor) else f"--executor {executor}"
        raise BadInput(f"--fetch is for --on process and docker on this machine, and launches are on {where}")
    return fetch


def check_weights(prepared: Prepared) -> None:
    """Raise `BadInput` where weights are incomplete and ``--fetch`` was not given; on Ray each node checks its own."""
    if not prepared.spec.fetch and is_local(prepared.spec.executor) and (told := missing_weights(prepared)):
        raise BadInput(told)


def missing_weights(prepared: Prepared) -> str:
    """Say what the weights lack on this machine and how they are fetched; empty for nothing, and where not certain."""
    one = _missing(prepared)
    return "" if one is None else one.told()


def fetch_weights(prepared: Prepared, notify: Notify) -> None:
    """Fetch what is missing by the Hub's own command, which shows its progress on stderr and ends with this process.

    Raises `BadInput` where that fails or there is no room.
    """
    token = read_secret(None, prepared.spec.hf_token_file, "--hf-token")
    environment = {**os.environ, **({} if token is None else {"HF_TOKEN": token})}
    tried: list[tuple[str, ...]] = []
    while (one := _missing(prepared)) is not None:
        room_gb = disk_free_bytes(one.folder) / 1e9
        if not one.fetch or one.fetch in tried:
            raise BadInput(f"--fetch: {one.what}, and {'that stays so' if tried else 'its id on the Hub is not known'}")
        if shutil.which(one.fetch[0]) is None:
            raise BadInput(f"--fetch: {one.what}, and {one.fetch[0]} is not on the PATH; pip install huggingface_hub")
        if room_gb < one.gb:
            raise BadInput(f"--fetch: {one.what}, and there is room for {room_gb:,.1f} GB; make room there")
        tried.append(one.fetch)
        told = shlex.join(one.fetch)
        notify(f"{one.what}; fetching them: {told}")
        # All its words go to stderr, as stdout is for the answer.
        with subprocess.Popen(
            one.fetch, stdin=subprocess.DEVNULL, stdout=2, env=environment, preexec_fn=die_with_parent
        ) as process:
            try:
                code = process.wait()
            finally:
                process.kill()
        if code != 0:
            raise BadInput(f"--fetch: {told} ended with exit code {code}; what it said stands above")


def _missing(prepared: Prepared) -> Missing | None:
    """Find what the baseline or an engine lacks on this machine; None where that is nothing, or not certain."""
    spec, items, backend = prepared.spec, prepared.candidates.items, prepared.backend
    if not backend.on_gpus:
        return None
    first = {one.configuration.engine: one for one in reversed(items)}
    for candidate in (items[prepared.candidates.baseline], *first.values()):
        kind = prepared.spaces[candidate.configuration.engine].engine
        command, version = prepared.command_of(candidate), candidate.engine_version
        one = missing_for(command, kind, version, spec, contained=backend.contained)
        if one is not None:
            return one
    return None
