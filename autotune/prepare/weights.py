"""Check that the weights are complete on a machine before a server is launched; fetch them with ``--fetch``.

Only what is certain counts as missing: a server would download it while its readiness is waited for, or not start.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from autotune.child import die_with_parent
from autotune.engines.engine import Engine, ParsedCommand
from autotune.errors import BadInput
from autotune.machine.gpu import disk_free_bytes
from autotune.notify import Notify
from autotune.prepare.candidates import Prepared
from autotune.prepare.hub import MODEL_ID, hub_folder, snapshots
from autotune.serving.secrets import read_secret
from autotune.study.spec import StudySpec, is_local
from autotune.trial import Command, Failure, FailureKind, Trial

_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".engine")
_SHARD = re.compile(r"(.+-)(\d+)(-of-)(\d+)(\.\w+)")
_POINTER_BYTES = 200
"""A file that git left in place of a large one is smaller, and no weights are."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Weights that are not complete: what they lack, where, 10^9 bytes to fetch, and the command that does.

    The command is empty where the model's id on the Hub is not known.
    """

    what: str
    folder: Path
    gb: float
    fetch: tuple[str, ...]


def check_fetch(fetch: bool, on: str, executor: str) -> bool:
    """Return ``--fetch``; raises `BadInput` where it would do nothing."""
    if fetch and (on not in ("process", "docker") or not is_local(executor)):
        where = on if is_local(executor) else f"--executor {executor}"
        raise BadInput(f"--fetch is for --on process and docker on this machine, and launches are on {where}")
    return fetch


def check_weights(prepared: Prepared) -> None:
    """Raise `BadInput` where weights are incomplete and ``--fetch`` was not given; on Ray each node checks its own."""
    if not prepared.spec.fetch and is_local(prepared.spec.executor) and (told := missing_weights(prepared)):
        raise BadInput(told)


def missing_weights(prepared: Prepared) -> str:
    """What the weights lack on this machine and how they are fetched; empty where that is nothing, or not certain."""
    one = _missing(prepared)
    return "" if one is None else _with_fetch(one)


def weights_failure(trial: Trial, kind: Engine, spec: StudySpec) -> Failure | None:
    """What a trial's weights lack on this node of a cluster; None where that is nothing, or not certain."""
    if spec.on not in ("process", "docker") or is_local(spec.executor):
        return None  # Here they were checked before the first launch.
    if (installed := spec.installed.get(kind.name)) is not None:
        kind = kind.installed(installed.program, kind.table(installed.version))
    one = _missing_for(trial.command, kind, trial.engine_version, spec)
    return None if one is None else Failure(FailureKind.INFRASTRUCTURE, _with_fetch(one, "on this node:"), lasting=True)


def _with_fetch(one: Missing, option: str = "with --fetch or") -> str:
    way_out = f"fetch them first, {option}\n{shlex.join(one.fetch)}" if one.fetch else "put them there"
    return f"{one.what}; {way_out}"


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
    spec, items = prepared.spec, prepared.candidates.items
    if spec.on not in ("process", "docker"):
        return None
    first = {one.configuration.engine: one for one in reversed(items)}
    for candidate in (items[prepared.candidates.baseline], *first.values()):
        kind = prepared.spaces[candidate.configuration.engine].engine
        one = _missing_for(prepared.command_of(candidate), kind, candidate.engine_version, spec)
        if one is not None:
            return one
    return None


def _missing_for(command: Command, kind: Engine, version: str, spec: StudySpec) -> Missing | None:
    # A table that the version borrows need not know every word that was passed through.
    with suppress(BadInput):
        parsed = kind.parse(command, version)
        return _missing_of(parsed, spec) if kind.card.checkpoint_files else None
    return None


def _missing_of(command: ParsedCommand, spec: StudySpec) -> Missing | None:
    environment, model, place = {**os.environ, **command.env}, Path(command.model), command.args.get("download_dir")
    load_format = command.config.get("load_format") or command.args.get("load_format") or "auto"
    foreign = any(name.endswith("_USE_MODELSCOPE") for name in environment)
    if foreign or str(load_format).lower() not in ("auto", "safetensors"):
        return None
    if model.is_dir():
        names = (n for n in (spec.model.id, *spec.model.aliases) if MODEL_ID.fullmatch(n) and not Path(n).exists())
        return _lacking([model], model, next(names, ""), [f"--local-dir={model}"], spec)
    if model.exists() or not MODEL_ID.fullmatch(command.model) or (place and spec.on == "docker"):
        return None
    if spec.on == "docker":
        # A container sees HF_HOME and no other cache of this machine.
        environment = {name: value for name, value in environment.items() if not name.endswith("_HUB_CACHE")}
    hub, revision = Path(place) if place else hub_folder(environment), command.args.get("revision")
    options = [] if hub == hub_folder(os.environ) else [f"--cache-dir={hub}"]
    options += [f"--revision={revision}"] if revision else []
    return _lacking(snapshots(hub, command.model, revision or "main"), hub, command.model, options, spec)


def _lacking(folders: list[Path], place: Path, model_id: str, options: list[str], spec: StudySpec) -> Missing | None:
    """What the most complete of a model's folders lacks."""
    lacking, count = min(map(missing_shards, folders), key=lambda one: len(one[0]), default=([""], 1))
    if not lacking:
        return None
    gb = spec.model.weights_gb * len(lacking) / count
    some = f"{len(lacking)} of {count} files are missing ({lacking[0]} …)" if lacking[0] else "none of them are there"
    what = f"the weights of {model_id or spec.model.id} are not complete in {place}: {some}, about {gb:,.1f} GB"
    return Missing(what, place, gb, (_downloader(spec), "download", model_id, *options) if model_id else ())


def missing_shards(folder: Path) -> tuple[list[str], int]:
    """The weight files that a model's folder lacks, and of how many; of several formats, in the most complete one.

    Known by its indices, else by the files' numbers (``…-00001-of-00163…``); without any file, one without a name.
    """
    files = (path for path in folder.glob("*") if path.suffix in _SUFFIXES and os.path.exists(path))
    there = {path.name for path in files if path.stat().st_size > _POINTER_BYTES}
    listed = [set[str]()]
    for index in folder.glob("*.index.json"):
        with suppress(OSError, ValueError, KeyError, AttributeError):
            listed.append(set(json.loads(index.read_bytes())["weight_map"].values()))
    formats = [names for names in (*listed, *map(_series, there.difference(*listed))) if names]
    return min(((sorted(n - there), len(n)) for n in formats), key=lambda one: len(one[0]), default=([""], 1))


def _series(name: str) -> set[str]:
    """The names of all shards that belong with one; a file without a number is alone."""
    shard = _SHARD.fullmatch(name)
    if shard is None:
        return {name}
    begin, number, of, count, end = shard.groups()
    return {f"{begin}{i:0{len(number)}}{of}{count}{end}" for i in range(1, int(count) + 1)}


def _downloader(spec: StudySpec) -> str:
    """The Hub's command on the PATH, else beside an engine; ``hf``, or what it was called before 0.34."""
    beside = [os.path.dirname(one.program[0]) for one in spec.installed.values() if os.path.isabs(one.program[0])]
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *beside])
    name = next((name for name in ("hf", "huggingface-cli") if shutil.which(name, path=path)), "hf")
    return name if shutil.which(name) else shutil.which(name, path=path) or name
