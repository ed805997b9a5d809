"""Division of this machine's GPUs into disjoint shares, one for each launch that runs side by side with others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from autotune.machine.gpu import Gpu, gpus
from autotune.notify import Notify
from autotune.serving.preflight import VISIBLE, Node
from autotune.study.places import share_name
from autotune.study.spec import StudySpec, most_at_once

_LAUNCHED_HERE = ("process", "docker", "emulator")
_OF_VENDOR = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}

Share = tuple[int, ...]
"""Numbers of GPUs, ascending as the vendor's tools count them."""


def shares_of(
    spec: StudySpec,
    most_places: int,
    notify: Notify,
    present: Callable[[], Sequence[Gpu]] = gpus,
    environment: Mapping[str, str] = os.environ,
) -> list[Share]:
    """The shares of this machine's GPUs on which a study's launches run side by side; fewer than two: they do not.

    A share has as many GPUs as the study uses, next to each other. One that has a GPU which is not idle is left out.

    Args:
        most_places: that the budget is worth; the first share counts twice, as it is measured alone too.
        present: asks for the GPUs as they are now.
    """
    if spec.on not in _LAUNCHED_HERE or spec.hardware.vendor == "cpu":
        return []
    # An emulated node's GPUs have nobody else on them.
    known = () if spec.on == "emulator" else present()
    numbers = [gpu.index for gpu in known] if spec.on != "emulator" else list(range(spec.hardware.gpus))
    numbers, count = _visible(numbers, environment), spec.gpus
    whole = [tuple(numbers[i : i + count]) for i in range(0, len(numbers) - count + 1, count)]
    most = min(most_places - 1, most_at_once(spec.executor) or len(whole))
    if min(len(whole), most) < 2:
        return []
    idle = []
    for share in whole:
        busy = [problem for gpu in known if gpu.index in share and (problem := Node().busy(gpu))]
        if busy:
            notify(f"{share_name(share)} are not used: {busy[0]}")
        else:
            idle.append(share)
    return idle[:most]


def _visible(numbers: list[int], environment: Mapping[str, str]) -> list[int]:
    """The GPUs that an environment leaves visible, in its order; none where it names them otherwise than by number."""
    text = next((environment[name] for name in VISIBLE if environment.get(name)), None)
    if text is None:
        return numbers
    words = [word.strip() for word in text.split(",")]
    # Named by UUID nobody knows which GPU must be idle for which share.
    return [int(word) for word in words if int(word) in numbers] if all(map(str.isdecimal, words)) else []


def visible_to(share: Share, vendor: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variable that shows a process the GPUs of a share alone: the one that is set, or the vendor's."""
    name = next((name for name in VISIBLE if environment.get(name)), _OF_VENDOR.get(vendor, VISIBLE[0]))
    return {name: ",".join(map(str, share))}
