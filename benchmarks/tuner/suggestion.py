"""What one suggestion costs: seconds and memory, over the size of the space and the trials that are
known.

    python benchmarks/tuner/suggestion.py

Seconds are of the process's CPU time, the best of three, on one thread; memory is the highest that
the process held above what the candidates themselves take. Every case runs in a process of its own.
"""

from __future__ import annotations

import itertools
import json
import resource
import subprocess
import sys
import time

import numpy as np
from decisions import study_spec

from autotune.engines.command import Configuration
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.tuner.search.acquisition import suggest
from autotune.tuner.search.entry import Entry
from autotune.tuner.search.gp.kernels import Encoding, Kernels, Prior, one_thread
from autotune.tuner.search.history import History
from autotune.tuner.trial import Role

SIZES = (10**2, 10**4, 10**5, 10**6)
TRIALS = (10, 100, 500)
LEVELS = {
    10**2: (5, 5, 2, 2),
    10**4: (10, 10, 5, 5, 2, 2),
    10**5: (10,) * 3 + (5, 5, 2, 2),
    10**6: (10,) * 6,
}
CASE = "--case"


def candidates(size: int) -> CandidateSet:
    """All combinations of so many sizes that are powers of two."""
    names = [f"k{i}" for i in range(len(LEVELS[size]))]
    values = itertools.product(*[[2**i for i in range(count)] for count in LEVELS[size]])
    return CandidateSet(
        [Candidate(Configuration("x", dict(zip(names, v, strict=True))), "1") for v in values], 0
    )


def mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(size: int, trials: int) -> dict[str, float]:
    """CPU seconds of a suggestion, and mebibytes above the candidates."""
    space = candidates(size)
    held_mib = mebibytes()
    begun_s = time.process_time()
    encoding = Encoding(space)
    codes = encoding.codes[:, encoding.varying].astype(float)
    truth = -0.05 * ((codes - codes.max(axis=0) / 2) ** 2 @ np.linspace(1, 0.1, codes.shape[1]))
    kernels = Kernels(encoding, [Prior("rough", 0.5 * truth)])
    made_s = time.process_time() - begun_s
    generator = np.random.default_rng(0)
    places = generator.choice(size, min(trials, size - 1), replace=False)
    places = np.concatenate([places, generator.choice(places, trials - len(places))]).tolist()
    scores = truth[places] + 0.03 * generator.standard_normal(trials)
    rows = enumerate(zip(places, scores.tolist(), strict=True))
    seen = History(
        study_spec(trials),
        space,
        tuple(Entry(n, Role.SEARCH, p, y, violations={}) for n, (p, y) in rows),
    )
    seconds = []
    for _ in range(3):
        begun_s = time.process_time()
        with one_thread():
            suggest(kernels, seen, trials)
        seconds.append(time.process_time() - begun_s)
    return {"made_s": made_s, "suggestion_s": min(seconds), "mib": mebibytes() - held_mib}


def main() -> None:
    if CASE in sys.argv:
        size, trials = map(int, sys.argv[sys.argv.index(CASE) + 1 :])
        print(json.dumps(measure(size, trials)))
        return
    print("candidates  trials  kernels once, s  suggestion, s  memory, MiB")
    for size, trials in itertools.product(SIZES, TRIALS):
        command = [sys.executable, __file__, CASE, str(size), str(trials)]
        found = json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout
        )
        print(
            f"{size:10,}  {trials:6}  {found['made_s']:15.2f}  {found['suggestion_s']:13.2f}  {found['mib']:11,.0f}"
        )


if __name__ == "__main__":
    main()
