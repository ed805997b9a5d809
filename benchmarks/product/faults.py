"""A campaign of faults: small studies that meet one to six of them at random moments, and what
became of them.

    python benchmarks/product/faults.py --faults 1000 --seed 1 --json faults.json     # as root with a C compiler: all kinds
    python benchmarks/product/faults.py --seed 1 --replay 17                          # study 17 of that seed again
    python benchmarks/product/faults.py --seed 1 --minimise 17                        # the fewest of its faults that do it
    python benchmarks/product/faults.py --table faults.json                           # the table of what was injected so far

A study runs on emulated engines, or on the simulator where a fault is about files alone. It is
resumed until it ends. After every end of a tuner nothing of it may live, and what was finished must
be there as it was; at the end no launch may be there twice, no temporary file or shared memory may
be left, the recommendation must be the undisturbed study's, and what happened must have been said.
``--json`` is a list with an object per injected fault, appended study by study; the same call goes
on where it was broken off. What is found wrong with a study is counted for each of its faults:
`--minimise` finds those that matter.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import chain, combinations
from pathlib import Path
from typing import Any

from faults_kinds import KINDS, steps_of
from faults_machine import Machine, prepare
from faults_ray import RayNodes
from faults_study import EXPECTED, LAUNCHES, FaultyStudy
from faults_values import Fault, Outcome

SIZES = {"emulator": (1, 2, 2, 3, 4), "simulator": (2, 4, 6, 8), "ray": (1, 2, 2, 3)}
"""Faults of a study; one is drawn."""
MEDIA = ("emulator", *["simulator"] * 4)
LONGEST_S = {"emulator": 5.0, "simulator": 1.0, "ray": 5.0}
"""A fault comes so late after a launch at most, or when the next one has ended."""
COUNTED = ("lost", "doubled", "left_behind", "changed", "condemned")


def schedule(
    seed: int,
    study: int,
    can: frozenset[str],
    kinds: Sequence[str] = (),
    asked: str = "",
    size: int = 0,
) -> tuple[str, list[Fault]]:
    """Where a study runs, and its faults in the order in which they come.

    Args:
        kinds: only these; empty: all.
        asked: where all studies run; empty: drawn.
        size: faults of each study; 0: drawn.
    """
    draw = random.Random(f"{seed}-{study}")
    drawn = draw.choice(MEDIA)
    on = asked or drawn
    # Ray does not bear that a tuner's clock jumps.
    can = can - {"clock"} if on == "ray" else can
    usable = [
        name
        for name, kind in KINDS.items()
        if on in kind.on and (not kind.needs or kind.needs in can)
    ]
    usable = [name for name in usable if not kinds or name in kinds]
    if not usable:
        return on, []
    faults, drawn_size = [], draw.choice(SIZES[on])
    size = size or drawn_size
    for _ in range(size):
        kind = draw.choice(usable)
        after = -1 if KINDS[kind].at_end else draw.randrange(LAUNCHES + size)
        faults.append(Fault(kind, after, draw.uniform(0, LONGEST_S[on]), draw.random()))
    return on, sorted(faults, key=lambda fault: (fault.after < 0, fault.after, fault.delay_s))


class Campaign:
    """Runs studies of a seed, one at a time."""

    def __init__(
        self, machine: Machine, seed: int, kinds: Sequence[str] = (), on: str = "", size: int = 0
    ) -> None:
        self._machine, self._seed, self._kinds, self._on = machine, seed, kinds, on
        self._size = size
        self._nodes: RayNodes | None = None
        self._database = machine.folder / "mlflow.db"
        make_database(self._database)
        self._known: set[str] = set()

    def schedule(self, number: int) -> tuple[str, list[Fault]]:
        """See `schedule`."""
        return schedule(self._seed, number, self._machine.can, self._kinds, self._on, self._size)

    def close(self) -> None:
        if self._nodes is not None:
            self._nodes.close()

    def _study(self, on: str) -> FaultyStudy:
        if on == "ray" and self._nodes is None:
            self._nodes = RayNodes(uuid.uuid4().hex)
        return FaultyStudy(
            self._machine, on, self._machine.folder / "study", self._database, self._nodes
        )

    def undisturbed(self, on: str) -> None:
        """Know what a study comes to without faults."""
        if on in self._known:
            return
        study = self._study(on)
        outcome = study.go([], steps_of)
        if outcome.problems:
            raise SystemExit(
                f"without a fault, on the {on}: {'; '.join(outcome.problems)}\n{study.said[-3000:]}"
            )
        found = json.loads((study.study / "recommendation.json").read_text())
        EXPECTED[on] = found["objective"]["value"]
        self._known.add(on)

    def run(
        self, number: int, only: Sequence[int] | None = None
    ) -> tuple[list[Fault], Outcome, FaultyStudy]:
        """Run one study; `only`: with these of its faults."""
        on, faults = self.schedule(number)
        faults = faults if only is None else [faults[i] for i in only]
        self.undisturbed(on)
        study = self._study(on)
        if any(KINDS[fault.kind].mlflow_server for fault in faults):
            study.mlflow_server  # noqa: B018 - it starts
        outcome = study.go(faults, steps_of)
        outcome.named = [named(fault, study.told) for fault in faults]
        if all(KINDS[fault.kind].blameless for fault in faults):
            outcome.condemned += study.condemned()
        for i, at in outcome.at.items():
            # Of two that meet one launch, the first may hide the other.
            if outcome.named[i] is False and list(outcome.at.values()).count(at) > 1:
                outcome.named[i] = None
            if outcome.named[i] is False:
                outcome.unnamed.append(f"{faults[i].kind} is not named")
        return faults, outcome, study

    def objects(
        self, number: int, faults: Sequence[Fault], outcome: Outcome, on: str
    ) -> list[dict[str, Any]]:
        """What the file says of the faults of a study that were injected."""
        counts = {name: len(getattr(outcome, name)) for name in COUNTED}
        about = {
            "seed": self._seed,
            "study": number,
            "on": on,
            "runs": outcome.runs,
            "problems": outcome.problems,
        }
        return [
            {
                "kind": fault.kind,
                "injected": 1,
                "recovered": outcome.recovered,
                "named": told,
                **counts,
                **about,
            }
            | {"fault": asdict(fault), "of": len(faults), "seconds": round(outcome.seconds, 1)}
            for fault, injected, told in zip(faults, outcome.injected, outcome.named, strict=True)
            if injected
        ]

    def minimise(self, number: int) -> list[int] | None:
        """The fewest faults of a study with which something is still wrong; None where nothing
        is."""
        _, faults = self.schedule(number)
        every = range(len(faults))
        for only in chain.from_iterable(
            combinations(every, size) for size in range(1, len(faults) + 1)
        ):
            _, outcome, _ = self.run(number, only)
            print(
                f"{', '.join(str(faults[i]) for i in only)}: {'; '.join(outcome.problems) or 'fine'}",
                flush=True,
            )
            if outcome.problems:
                return list(only)
        return None


def named(fault: Fault, said: str) -> bool | None:
    """Whether words that fit a fault were said; None where nobody could, or where nothing came of
    it."""
    kind = KINDS[fault.kind]
    if not kind.words:
        return None
    return bool(re.search(kind.words, said)) or (None if kind.absorbed else False)


def make_database(path: Path) -> None:
    """Make an MLflow database without runs."""
    from autotune.outputs.tracking.runs import connect, disconnect
    from autotune.tuner.study.home import database_file, database_uri

    with tempfile.TemporaryDirectory() as folder:
        uri = database_uri(Path(folder))
        disconnect(connect(uri))
        made = database_file(uri)
        assert made is not None
        path.write_bytes(made.read_bytes())


def table(objects: Sequence[dict[str, Any]]) -> str:
    """A row per kind of fault, in Markdown."""
    lines = [
        "| fault | injected | recovered | named | lost | doubled | left behind | changed | condemned |",
        "|---" * 9 + "|",
    ]
    kinds = Counter(found["kind"] for found in objects)
    for kind in [*KINDS, "all"]:
        ours = [found for found in objects if kind in ("all", found["kind"])]
        if not ours and kind in KINDS:
            continue
        due = [found["named"] for found in ours if found["named"] is not None]
        sums = [str(sum(bool(found.get(name)) for found in ours)) for name in COUNTED]
        recovered, told = (
            sum(found["recovered"] for found in ours),
            f"{sum(due)} of {len(due)}" if due else "–",
        )
        cells = [
            kind,
            str(kinds[kind] if kind in KINDS else len(ours)),
            str(recovered),
            told,
            *sums,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def campaign(work: Campaign, machine: Machine, faults: int, seed: int, file: Path | None) -> int:
    """Run studies until so many faults were injected; returns the exit code: 1 where something was
    wrong."""
    missing = sorted(
        name for name, kind in KINDS.items() if kind.needs and kind.needs not in machine.can
    )
    if missing:
        print(f"cannot be injected on this machine: {', '.join(missing)}", flush=True)
    objects: list[dict[str, Any]] = (
        json.loads(file.read_text()) if file is not None and file.exists() else []
    )
    ours = [found for found in objects if found["seed"] == seed]
    number = 1 + max((found["study"] for found in ours), default=0)
    injected = len(ours)
    while injected < faults:
        on, drawn = work.schedule(number)
        if drawn:
            ran, outcome, study = work.run(number)
            new = work.objects(number, ran, outcome, on)
            injected += len(new)
            objects += new
            if file is not None:
                draft = file.with_suffix(".draft")
                draft.write_text(
                    "[\n" + ",\n".join(json.dumps(found) for found in objects) + "\n]\n"
                )
                draft.replace(file)
            tell(number, on, ran, outcome, injected)
            if outcome.problems and file is not None:
                keep(file.with_name(f"{file.stem}-{seed}-{number}.txt"), ran, study)
        number += 1
    print(table([found for found in objects if found["seed"] == seed]))
    return int(any(found["problems"] for found in objects if found["seed"] == seed))


def tell(number: int, on: str, faults: Sequence[Fault], outcome: Outcome, injected: int) -> None:
    came = [
        ("" if done else "(not) ") + fault.kind
        for fault, done in zip(faults, outcome.injected, strict=True)
    ]
    problems = "; ".join(outcome.problems) or "fine"
    print(
        f"{injected:4d}  study {number} {on} {outcome.seconds:.0f} s  {', '.join(came)}: {problems}",
        flush=True,
    )


def keep(path: Path, faults: Sequence[Fault], study: FaultyStudy) -> None:
    """Keep what a study said with which something is wrong."""
    path.write_text("\n".join([*map(str, faults), study.said, *map(str, study.lines())]))


def replay(work: Campaign, number: int, only: Sequence[int] | None) -> int:
    """Run one study again and print what was said."""
    faults, outcome, study = work.run(number, only)
    print(study.said)
    for row in study.rows():
        print({name: row[name] for name in ("number", "role", "state", "failure")})
    for fault, injected in zip(faults, outcome.injected, strict=True):
        print(f"{fault}{'' if injected else ': its moment did not come'}")
    print("; ".join(outcome.problems) or "fine", f"({outcome.seconds:.0f} s)")
    return int(bool(outcome.problems))


def main() -> int:
    """Read the command line, and run what it asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--kind", action="append", default=[], choices=list(KINDS), help="only these"
    )
    parser.add_argument(
        "--on", choices=["emulator", "simulator", "ray"], help="all studies run there"
    )
    parser.add_argument("--size", type=int, default=0, help="faults of each study; default: drawn")
    parser.add_argument(
        "--folder", type=Path, help="where studies run; default: a temporary folder"
    )
    parser.add_argument("--replay", type=int, metavar="STUDY")
    parser.add_argument("--only", help="with --replay: the numbers of its faults, from 0, as 0,2")
    parser.add_argument("--minimise", type=int, metavar="STUDY")
    parser.add_argument("--table", type=Path, metavar="FILE")
    asked = parser.parse_args()
    if asked.table is not None:
        print(table(json.loads(asked.table.read_text())))
        return 0
    machine = prepare(
        (asked.folder or Path(tempfile.gettempdir()) / f"faults-{asked.seed}").absolute()
    )
    work = Campaign(machine, asked.seed, asked.kind, asked.on or "", asked.size)
    with closing(work):
        if asked.replay is not None:
            only = None if asked.only is None else [int(i) for i in asked.only.split(",") if i]
            return replay(work, asked.replay, only)
        if asked.minimise is not None:
            return shortest(work, asked.minimise, asked.seed, asked.kind, asked.on)
        return campaign(work, machine, asked.faults, asked.seed, asked.json)


def shortest(work: Campaign, number: int, seed: int, kinds: Sequence[str], on: str | None) -> int:
    """Print the command that replays the fewest faults of a study with which something is wrong."""
    found = work.minimise(number)
    options = "".join(f" --kind {kind}" for kind in kinds) + (f" --on {on}" if on else "")
    only = ",".join(map(str, found or []))
    again = f"python benchmarks/product/faults.py --seed {seed}{options} --replay {number} --only {only}"
    print(again if found else "nothing was wrong")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
