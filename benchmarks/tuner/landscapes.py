"""The landscapes of the search benchmark by name.

Building the simulated ones takes minutes, once: they are kept in a folder of the user's
(`Sources.cache`).

    landscape.py              the value and its figures
    landscapes_simulated.py   the simulated node, its coefficients drawn away from the packaged ones
    landscapes_tables.py      tables: NVIDIA's kernel measurements, the performance-lab documents, tuning tables
    landscapes_altered.py     made-up ones, and what can go wrong with any other
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from landscape import Landscape, Sources
from landscapes_altered import ALTERED, MADE_UP
from landscapes_simulated import SIMULATED, simulated
from landscapes_tables import kernels, measured, tuning

NAMES = (
    "v32",
    "r1",
    "kernels-r1",
    "kernels-v32",
    "calibrated:v32",
    "calibrated:r1",
    "calibrated:kernels-r1",
    "calibrated:kernels-v32",
    "measured",
    "tuning:convolution_w7800",
    "tuning:dedispersion_a4000",
    "tuning:gemm",
    "tuning:pnpoly",
    "needle",
    "plateau",
    "overlooked",
    "misplaced",
    "misplaced:kernels-v32",
    "walled",
    "walled:kernels-r1",
    "crashing",
    "unknown-knobs",
    "relabelled",
    "reversed",
    "shuffled",
    "noisy",
    "words",
    "partial-words",
)


@cache
def build(name: str, sources: Sources) -> Landscape:
    """The landscape of a name; ``misplaced``, ``walled`` … take a base behind a colon, e.g.
    ``walled:r1``.

    Raises:
        Absent: its data is not there.
        KeyError: no such landscape.
    """
    kind, _, base = name.partition(":")
    if kind in MADE_UP:
        return MADE_UP[kind]()
    if kind in SIMULATED:
        return simulated(kind, sources)
    if kind == "tuning":
        return tuning(name, sources)
    if kind == "measured":
        return measured(sources)
    if kind.startswith("kernels-"):
        return kernels(kind, sources)
    default, alter = ALTERED[kind]
    altered = alter(build(base or default, sources))
    return replace(altered, name=name)
