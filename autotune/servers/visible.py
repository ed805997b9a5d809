"""The GPUs that the environment leaves visible, by the drivers' rules, and how a launch chooses
among them.

CUDA reads indices and UUIDs up to the first that is none or is not there; an empty list, and one
with an entry twice, show nothing (CUDA C++ Programming Guide, "CUDA Environment Variables"; PyTorch
torch/cuda/__init__.py, ``_parse_visible_devices``). On AMD ``ROCR_VISIBLE_DEVICES`` hides GPUs
from the runtime below HIP. What it leaves is counted anew, from 0, by ``HIP_VISIBLE_DEVICES``, for
which ``CUDA_VISIBLE_DEVICES`` stands in (ROCm documentation, "GPU isolation techniques"); vLLM
refuses these two with different values.
"""

import os
import re
from collections.abc import Sequence

from autotune.base import BadInput, Environment, StringDict, Strings, frozen
from autotune.engines.command import DEVICES

CUDA, HIP, ROCR = VISIBLE = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
)
"""Environment variables that select a machine's GPUs."""
_ENTRY = re.compile(r"\d+|(?:GPU|MIG)-[\w./-]+")


@frozen
class VisibleGpus:
    """The GPUs that a process may use.

    Attributes:
        words: each one's index on this machine, or its UUID, in the process's order.
        set_by: the variables that select them, with the entries by which each one's last list names
            them.
        source: the settings in words.
    """

    words: Strings
    set_by: Strings
    entries: Strings
    source: str

    @property
    def indices(self) -> tuple[int, ...] | None:
        """Return the indices on this machine; None if any is named by its UUID."""
        return tuple(map(int, self.words)) if all(map(str.isdecimal, self.words)) else None

    def chosen(self, places: Sequence[int]) -> StringDict:
        """Return the settings that leave those at some places, counted from 0; raises `BadInput`
        for one that is not there."""
        if places and max(places) >= len(self.words):
            raise BadInput(
                f"{self.source} shows {len(self.words)} GPUs, but GPU {max(places)} is needed"
            )
        return dict.fromkeys(self.set_by, ",".join(self.entries[place] for place in places))


def visible_gpus(vendor: str, environment: Environment | None = None) -> VisibleGpus | None:
    """Return the GPUs of a vendor that an environment, by default this process's, leaves visible;
    None: all of them."""
    shell = os.environ if environment is None else environment
    lists = {name: _listed(shell[name]) for name in VISIBLE if name in shell}
    outer = lists.get(ROCR) if vendor == "amd" else None
    # Set all that are there alike, also one that another vendor's driver reads.
    inner = [name for name in ((HIP, CUDA) if vendor == "amd" else (CUDA,)) if name in lists]
    names = inner or ([ROCR] if outer is not None else [])
    if not names:
        return None
    entries = lists[names[0]]
    words = entries
    if inner and outer is not None:
        words = _among(outer, entries)
        entries = entries[: len(words)]
    of = [ROCR, *inner] if outer is not None else names
    source = " ".join(f"{name}={shell[name]}" for name in dict.fromkeys(of))
    return VisibleGpus(words, tuple(names), entries, source)


def _listed(text: str) -> Strings:
    """Return the entries of a list that a driver reads."""
    valid = []
    for word in map(str.strip, text.split(",")):
        if not _ENTRY.fullmatch(word):
            break
        valid.append(word)
    return () if len(set(valid)) < len(valid) else tuple(valid)


def _among(outer: Sequence[str], entries: Sequence[str]) -> Strings:
    """Return the GPUs that entries name among those which an outer list leaves."""
    words = []
    for entry in entries:
        if entry.isdecimal() and int(entry) >= len(outer):
            break
        words.append(outer[int(entry)] if entry.isdecimal() else entry)
    return tuple(words)


def among_visible(own: Environment) -> StringDict:
    """Return the settings of a server's GPUs, counted from 0, as this process, which may see only
    some of them, passes them on."""
    vendor = next((vendor for vendor, name in DEVICES.items() if name in own), "")
    chosen = visible_gpus(vendor) if vendor else None
    if chosen is None:
        return dict(own)
    return chosen.chosen([int(number) for number in own[DEVICES[vendor]].split(",")])
