"""Files written so that a reader, a crash or a second machine never sees a part of one."""

import errno
import glob
import os
import platform
from contextlib import suppress
from pathlib import Path

from .errors import BadInput


def beside(module: str, name: str) -> str:
    """Read a packaged text file that lies beside a module, given by its ``__file__``."""
    return Path(module).with_name(name).read_text(encoding="utf-8")


def sync_folder(folder: Path) -> None:
    """Flush a folder's names to disk, if its file system supports that: a file's own `fsync` does
    not."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Write a file so that a reader sees the old or the new content, never a part; it is on disk on
    return.

    A link stays, and the file that it leads to is replaced; a pipe or device, as /dev/stdout, is
    written to. A draft that cannot be finished is removed, and so is what a killed process left of
    an earlier one.
    """
    content = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    path = Path(os.path.realpath(path))
    draft = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.tmp")
    try:
        with open(draft, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        draft.chmod(mode)
        draft.replace(path)
        sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
    # Other machines may share the folder, and write.
    for draft in path.parent.glob(f".{glob.escape(f'{path.name}.{platform.node()}')}.*.tmp"):
        writer = draft.name.split(".")[-2]
        if writer.isdecimal() and not Path("/proc", writer).exists():
            draft.unlink(missing_ok=True)


def expanded(path: str, variable: str) -> Path:
    """Expand ``~`` in a path; raises `BadInput` for a user without a home folder, naming the
    variable to set."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise BadInput(
            f"this user has no home folder; set {variable} to a folder that can be written"
        ) from error
