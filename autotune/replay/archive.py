"""An archive of named members that is checked before it is used, and never unpacked to disk.

A zip with ``manifest.json``, which lists every other member with its size and SHA-256 and has a checksum of its own.
The same members make the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile, ZipInfo

from autotune.errors import BadInput, MalformedFile

SCHEMA = 1
"""Of the members and the manifest; larger in archives that this version cannot read."""
MANIFEST = "manifest.json"
BEGINNING = b"PK"
"""How a zip begins, and no table of launches does."""

_MOST_MEMBERS = 10_000
_MOST_BYTES = 256 * 2**20
"""Of all members together; a small file can claim to hold far more."""
_NAME = re.compile(r"[A-Za-z0-9][\w.=-]*(/[A-Za-z0-9][\w.=-]*)*", re.ASCII)
_NO_TABLE = "It is no text, so no table either: that is a CSV in UTF-8, or a study's results.jsonl"
_BROKEN = (BadZipFile, zlib.error, OSError, EOFError, ValueError, KeyError, IndexError, RuntimeError, OverflowError)
"""What `zipfile` and `json` raise for content that is no archive of ours."""


def pack(about: Mapping[str, Any], members: Mapping[str, bytes]) -> bytes:
    """Write an archive.

    Args:
        about: further keys of the manifest.

    Raises `BadInput` where they are more than `unpack` takes.
    """
    if len(members) >= _MOST_MEMBERS or sum(map(len, members.values())) > _MOST_BYTES - 2**20:
        raise BadInput(f"a bundle of more than {_MOST_BYTES:,} bytes could not be read again; leave out the prompts")
    listed = {name: {"bytes": len(members[name]), "sha256": _sha256(members[name])} for name in sorted(members)}
    manifest = {"schema": SCHEMA, **about, "members": listed}
    manifest["sha256"] = _own_sha256(manifest)
    buffer = BytesIO()
    with ZipFile(buffer, "w") as archive:
        for name, content in {MANIFEST: json.dumps(manifest, indent=1).encode(), **members}.items():
            # Without a date: the earliest that the format has.
            info = ZipInfo(name)
            info.compress_type, info.create_system, info.external_attr = ZIP_DEFLATED, 3, 0o644 << 16
            archive.writestr(info, content)
    return buffer.getvalue()


def unpack(path: Path, content: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest and the members of an archive, all checked.

    Args:
        path: for messages.

    Raises:
        MalformedFile: it is cut short, damaged, tampered with, larger than any of ours, or of a newer version.
    """
    try:
        with ZipFile(BytesIO(content)) as archive:
            infos = archive.infolist()
            if len(infos) > _MOST_MEMBERS or sum(info.file_size for info in infos) > _MOST_BYTES:
                raise MalformedFile(path, f"holds more than {_MOST_MEMBERS:,} members or {_MOST_BYTES:,} bytes")
            members = {info.filename: _read(archive, info) for info in infos}
    except _BROKEN as error:
        raise MalformedFile(path, f"cut short, damaged, or no bundle ({error}); copy it again. {_NO_TABLE}") from None
    if len(members) < len(infos):
        raise MalformedFile(path, "tampered with: it has several members of one name")
    manifest = _manifest(path, members)
    listed = manifest["members"]
    for name in {*listed, *members} - {MANIFEST}:
        if not _NAME.fullmatch(name):
            raise MalformedFile(path, f"tampered with: the member {name!r} would lie outside of its folder")
        if name not in listed or name not in members:
            where = "not in it" if name in listed else f"not in its {MANIFEST}"
            raise MalformedFile(path, f"tampered with: the member {name!r} is {where}")
        if listed[name] != {"bytes": len(members[name]), "sha256": _sha256(members[name])}:
            raise MalformedFile(path, f"tampered with: {name} is not what {MANIFEST} says")
    return manifest, members


def _read(archive: ZipFile, info: ZipInfo) -> bytes:
    """Read a member; ``ValueError`` where it holds more than it says."""
    with archive.open(info) as stream:
        content = stream.read(info.file_size + 1)
    if len(content) != info.file_size:
        raise ValueError(f"{info.filename} has another size than it says")
    return content


def _manifest(path: Path, members: Mapping[str, bytes]) -> dict[str, Any]:
    try:
        manifest = json.loads(members.get(MANIFEST, b""))
        schema = int(manifest["schema"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise MalformedFile(path, f"no bundle of a study: it has no {MANIFEST} of one. {_NO_TABLE}") from None
    if schema > SCHEMA:
        made_by = f"autotune {manifest.get('autotune')}, schema {schema}"
        raise MalformedFile(path, f"made by a newer version ({made_by}; this one reads {SCHEMA}): update autotune")
    if manifest.get("sha256") != _own_sha256(manifest) or not isinstance(manifest.get("members"), dict):
        raise MalformedFile(path, f"tampered with: {MANIFEST} does not have its own checksum")
    return dict(manifest)


def _own_sha256(manifest: Mapping[str, Any]) -> str:
    others = {key: value for key, value in manifest.items() if key != "sha256"}
    return _sha256(json.dumps(others, sort_keys=True).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
