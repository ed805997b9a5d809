"""Find the missing weight files of a model on this machine, in the command's folder or the Hub's
cache.

Only what is certain counts as missing: a server would download it while its readiness is waited
for, or not start.
"""

import json
import os
import re
import shlex
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from autotune.base import BadInput, Environment
from autotune.engines import Command, Engine, ModelCard, ParsedCommand
from autotune.engines.installed import InstalledEngine
from autotune.engines.library import server_environment

from .docker_run import models_folder

MODEL_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".engine")
_SHARD = re.compile(r"(.+-)(\d+)(-of-)(\d+)(\.\w+)")
_TRUE = ("1", "ON", "YES", "TRUE")
"""Values of ``HF_HUB_OFFLINE`` that huggingface_hub takes for true."""
_POINTER_BYTES = 200  # Largest size of a git pointer file, which is no weights


def weights_problem(
    command: Command,
    kind: Engine,
    version: str,
    model: ModelCard,
    installed: Collection[InstalledEngine],
    *,
    contained: bool,
) -> str:
    """Say which weights a command lacks, how large they are (10^9 bytes), and what fetches them;
    empty for none.

    Empty also where it is not certain. In a container the command sees HF_HOME alone.

    Args:
        installed: engines of this machine; the Hub's downloader may stand beside one of them.
    """
    # A table that the version borrows need not know every word that was passed through.
    with suppress(BadInput):
        parsed = kind.parse(command, version)
        missing = _missing_vocabulary(model, {**os.environ, **command.env})
        if kind.card.checkpoint_files:
            missing = _missing_of(parsed, model, installed, contained) or missing
        return missing
    return ""


def _missing_vocabulary(model: ModelCard, environment: Environment) -> str:
    """Describe the files that a server would download where it cannot, or would not find."""
    for needed in server_environment().downloads:
        named = environment.get(needed.variable)
        offline = environment.get("HF_HUB_OFFLINE", "").upper() in _TRUE
        lacking = [name for name in needed.files if not Path(named or "", name).is_file()]
        if needed.family == model.family and lacking and (named or offline):
            where = (
                f"{needed.variable}={named}" if named else f"a machine without {needed.variable}"
            )
            return (
                f"{where} lacks {', '.join(lacking)}, {needed.reason}; put the files of {needed.url} "
                f"into a folder, and name it by {needed.variable}"
            )
    return ""


def _missing_of(
    command: ParsedCommand,
    model: ModelCard,
    installed: Collection[InstalledEngine],
    contained: bool,
) -> str:
    args = command.args
    model_name = command.model
    environment = {**os.environ, **command.env}
    path = Path(model_name)
    place = args.get("download_dir")
    load_format = command.config.get("load_format") or args.get("load_format") or "auto"
    if any(name.endswith("_USE_MODELSCOPE") for name in environment):
        return ""
    if str(load_format).lower() not in ("auto", "safetensors"):
        return ""
    fetch = [_downloader(installed), "download"]
    if path.is_dir():
        ids = [name for name in model.names if MODEL_ID.fullmatch(name)]
        named = next((name for name in ids if not Path(name).exists()), "")
        return _describe_missing([path], path, model, named, [*fetch, named, f"--local-dir={path}"])
    if path.exists() or not MODEL_ID.fullmatch(model_name) or (place and contained):
        return ""
    if contained:
        environment = {
            name: value for name, value in environment.items() if not name.endswith("_HUB_CACHE")
        }
        if os.path.exists(named := os.environ.get("HF_HUB_CACHE", "")):
            environment["HF_HUB_CACHE"] = named  # It is mounted.
    hub = Path(place) if place else hub_folder(environment)
    revision = args.get("revision")
    options = [] if hub == hub_folder(os.environ) else [f"--cache-dir={hub}"]
    options += [f"--revision={revision}"] if revision else []
    folders = snapshots(hub, model_name, revision or "main")
    return _describe_missing(folders, hub, model, model_name, [*fetch, model_name, *options])


def _describe_missing(
    folders: list[Path], place: Path, model: ModelCard, model_id: str, fetch: list[str]
) -> str:
    """Describe what the most complete of a model's folders lacks."""
    lacking, count = min(
        map(missing_shards, folders), key=lambda one: len(one[0]), default=([""], 1)
    )
    if not lacking:
        return ""
    some = "none of them exist"
    if lacking[0]:
        some = f"{len(lacking)} of {count} files are missing ({lacking[0]} …)"
    problem = (
        f"the weights of {model_id or model.id} are not complete in {place}: {some}, about "
        f"{model.weights_gb * len(lacking) / count:,.1f} GB"
    )
    if not model_id:
        return f"{problem}; put them there"
    return f"{problem}; fetch them there first:\n{shlex.join(fetch)}"


def missing_shards(folder: Path) -> tuple[list[str], int]:
    """List the missing weight files of a model's folder, and count all; of several formats, the
    most complete one.

    Known by its indices, else by the files' numbers (``…-00001-of-00163…``); without any file, one
    without a name.
    """
    files = (path for path in folder.glob("*") if path.suffix in _SUFFIXES and os.path.exists(path))
    complete = {path.name for path in files if path.stat().st_size > _POINTER_BYTES}
    listed = [set[str]()]
    for index in folder.glob("*.index.json"):
        with suppress(OSError, ValueError, KeyError, AttributeError):
            listed.append(set(json.loads(index.read_bytes())["weight_map"].values()))
    formats = [names for names in (*listed, *map(_series, complete.difference(*listed))) if names]
    return min(
        ((sorted(n - complete), len(n)) for n in formats),
        key=lambda one: len(one[0]),
        default=([""], 1),
    )


def _series(name: str) -> set[str]:
    """Return all shards of a file's series; a file without a number is alone."""
    shard = _SHARD.fullmatch(name)
    if shard is None:
        return {name}
    begin, number, of, count, end = shard.groups()
    return {f"{begin}{i:0{len(number)}}{of}{count}{end}" for i in range(1, int(count) + 1)}


def _downloader(installed: Collection[InstalledEngine]) -> str:
    """Return the Hub's command on the PATH, else next to an engine; ``hf``, or its name before
    0.34."""
    programs = [one.program[0] for one in installed]
    beside = [os.path.dirname(program) for program in programs if os.path.isabs(program)]
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *beside])
    for name in ("hf", "huggingface-cli"):
        if found := shutil.which(name, path=path):
            return name if shutil.which(name) else found
    return "hf"


def hub_folder(environment: Environment) -> Path:
    """Locate the models of huggingface_hub; raises `BadInput` for a user without a home folder."""
    named = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    return Path(named or Path(models_folder(environment), "hub")).expanduser()


def snapshots(hub: Path, model_id: str, revision: str = "main") -> list[Path]:
    """List the folders that may be a model's revision: its commit's, or all if ``main`` has no
    known commit."""
    folder = hub / f"models--{model_id.replace('/', '--')}"
    commit = "*" if revision == "main" else revision
    with suppress(OSError):
        commit = (folder / "refs" / revision).read_text(encoding="utf-8").strip()
    return sorted(folder.glob(f"snapshots/{commit}"))
