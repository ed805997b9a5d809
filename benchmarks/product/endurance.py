"""What a long study costs the machine: memory, descriptors, threads, disk and CPU of the tuner
against its launches.

    python benchmarks/product/endurance.py --launches 300                              # on the simulator: the tuner's own share
    python benchmarks/product/endurance.py --launches 1000 --on emulator --json a.json # with real processes; 3 to 5 s a launch
    python benchmarks/product/endurance.py --launches 300 --nodes 4 --json b.json      # on four Ray nodes of this machine
    python benchmarks/product/endurance.py --launches 4 --on emulator --workload random:64:1000:4 --fault flood:10000
    python benchmarks/product/endurance.py --draw a.json b.json --plot docs/endurance.svg

Prints a row about every tenth of the launches, and the slopes of the second half; exit code 1 where
descriptors or threads of the second half grow, where a launch is lost or doubled in
``results.jsonl`` or in MLflow, or where processes or temporary files are left. ``--json FILE``
keeps every sample.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path

from endurance_plot import Series, draw
from faults_machine import TOKEN, processes_of
from faults_ray import RayNodes

_TICK_S = 0.5
_GONE_S = 10.0
_FEW = 20
"""So few launches are looked at while they run, too."""
_STUDY = "long"
_TRACKED = """
    select number.value from tags as number
    join tags as study on number.run_uuid = study.run_uuid and study.key = 'study' and study.value = ?
    join runs on runs.run_uuid = number.run_uuid and runs.lifecycle_stage = 'active'
    where number.key = 'number'
"""


@dataclass(frozen=True)
class Sample:
    """The tuner at one moment.

    Attributes:
        cpu_s: its own.
        children_cpu_s: of the processes that it started and that have ended: servers, watchdogs,
            workers of the load.
        memory_mb: resident.
        disk_mb: of the home folder.
        processes: that live besides the tuner, nodes of Ray and their workers among them.
        temporary: entries of the folder for temporary files.
    """

    launches: int
    seconds: float
    cpu_s: float
    children_cpu_s: float
    memory_mb: float
    descriptors: int
    threads: int
    disk_mb: float
    processes: int
    temporary: int


@dataclass(frozen=True)
class Question:
    """What is run.

    Args:
        on: ``simulator`` or ``emulator``.
        nodes: Ray nodes on this machine; 0: no Ray.
        fault: of every emulated engine, as in ``docs/emulator.md``; empty: none.
    """

    launches: int
    on: str
    nodes: int
    model: str
    engines: Sequence[str]
    workload: str
    fault: str

    @property
    def title(self) -> str:
        where = f"{self.nodes} Ray nodes" if self.nodes else "no Ray"
        return f"{self.launches:,} launches, {self.on}, {where}"

    def words(self, home: Path, address: str) -> list[str]:
        """The command line."""
        words = [
            "run",
            "--model",
            self.model,
            "--hw",
            "h200",
            "--on",
            self.on,
            "--launches",
            str(self.launches),
        ]
        # Random search never ends early.
        words += [
            "--workload",
            self.workload,
            "--sampler",
            "random",
            "--study",
            _STUDY,
            "--home",
            str(home),
        ]
        words += [word for engine in self.engines for word in ("--engine", engine)]
        return [*words, "--executor", f"ray:{address}" if address else "local"]


def sample(pid: int, launches: int, folder: Path, token: str, began_s: float) -> Sample | None:
    """Look at a tuner; None when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None
    facts = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    if "VmRSS" not in facts:
        return None
    own, children = (sum(map(int, times[i : i + 2])) / os.sysconf("SC_CLK_TCK") for i in (11, 13))
    return Sample(
        launches,
        round(time.monotonic() - began_s, 1),
        own,
        children,
        int(facts["VmRSS"].split()[0]) / 1000,
        descriptors,
        int(facts["Threads"]),
        _size(folder / "home") / 1e6,
        len(processes_of(token).keys() - {pid}),
        len(os.listdir(folder / "tmp")),
    )


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        # A launch that runs may remove what it made.
        try:
            total += path.stat().st_blocks * 512
        except OSError:
            continue
    return total


def watch(question: Question) -> tuple[list[Sample], list[str]]:
    """Run a study to its end, and look at its tuner whenever launches have ended.

    Returns:
        The samples, and what is wrong at the end.
    """
    token = uuid.uuid4().hex
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="endurance-")))
        (folder / "tmp").mkdir()
        results = folder / "home" / "studies" / _STUDY / "results.jsonl"
        # Servers start three times as fast with what Python keeps of their modules.
        unwanted = ("MLFLOW_TRACKING_URI", "PYTHONDONTWRITEBYTECODE")
        environment = {name: value for name, value in os.environ.items() if name not in unwanted}
        environment |= {TOKEN: token, "TMPDIR": str(folder / "tmp")}
        environment["AUTOTUNE_EMULATE_FAULT"] = f"slow-start:0.1,{question.fault}"
        address = ""
        if question.nodes:
            cluster = stack.enter_context(closing(RayNodes(token, question.nodes)))
            environment, address = environment | cluster.environment, cluster.address
        words = question.words(folder / "home", address)
        began_s, samples, size = time.monotonic(), list[Sample](), -1
        with subprocess.Popen(
            [sys.executable, "-m", "autotune", *words], stdout=subprocess.DEVNULL, env=environment
        ) as tuner:
            while tuner.poll() is None:
                time.sleep(_TICK_S)
                now = results.stat().st_size if results.exists() else 0
                if now == size and question.launches > _FEW:
                    continue
                size = now
                launches = results.read_bytes().count(b"\n") if now else 0
                seen = sample(tuner.pid, launches, folder, token, began_s)
                samples += [seen] if seen is not None else []
        if tuner.returncode:
            raise SystemExit(f"the study ended with exit code {tuner.returncode}")
        problems = list(_wrong(folder, results))
        problems += _left_behind(folder, token) if not question.nodes else []
        return samples, problems


def _wrong(folder: Path, results: Path) -> Iterable[str]:
    """Launches that are lost or doubled."""
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    numbers = sorted(row["number"] for row in rows)
    states = {
        state: sum(row["state"] == state for row in rows)
        for state in sorted({row["state"] for row in rows})
    }
    with closing(sqlite3.connect(folder / "home" / "mlflow.db")) as database:
        tracked = sorted(int(number) for (number,) in database.execute(_TRACKED, (_STUDY,)))
    told = ", ".join(f"{count} {state}" for state, count in states.items())
    print(f"{len(rows)} rows ({told}), {len(tracked)} runs in MLflow")
    for where, found in (("results.jsonl", numbers), ("MLflow", tracked)):
        if found != list(range(len(rows))):
            yield f"{where}: numbers lost or doubled"


def _left_behind(folder: Path, token: str) -> list[str]:
    until = time.monotonic() + _GONE_S
    while (alive := processes_of(token)) and time.monotonic() < until:
        time.sleep(0.2)
    return [f"left behind: {command[:100]}" for command in alive.values()] + [
        f"left behind: temporary {name}" for name in os.listdir(folder / "tmp")
    ]


def slope(samples: Sequence[Mapping[str, float]], name: str) -> float:
    """By how much a figure grows per launch."""
    if len({one["launches"] for one in samples}) < 2:
        return 0.0
    found = statistics.linear_regression(
        [one["launches"] for one in samples], [one[name] for one in samples]
    )
    return found.slope


def show(series: Series) -> dict[str, float]:
    """Print a table, and the slopes of the second half, which are returned."""
    print(f"\n{series.title}; load of the machine when it ended: {series.load}")
    names = list(series.samples[0])
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    most, shown = max(one["launches"] for one in series.samples), -1
    for one in series.samples:
        if (tenth := int(10 * one["launches"] / most)) > shown:
            shown = tenth
            print(f"| {' | '.join(f'{value:g}' for value in one.values())} |")
    print(
        "the most: "
        + ", ".join(f"{name} {max(one[name] for one in series.samples):g}" for name in names[1:])
    )
    half = [one for one in series.samples if one["launches"] >= most / 2]
    slopes = {name: slope(half, name) for name in names[1:]}
    print(
        "per launch, second half: "
        + ", ".join(f"{name} {value:.4g}" for name, value in slopes.items())
    )
    return slopes


def main() -> int:
    """Run the study that is asked for, or draw those that were run, and print what they took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launches", type=int, default=100)
    parser.add_argument("--on", choices=["simulator", "emulator"], default="simulator")
    parser.add_argument("--nodes", type=int, default=0, help="Ray nodes on this machine; 0: no Ray")
    parser.add_argument("--model", default="openai/gpt-oss-120b")
    parser.add_argument("--engine", action="append", help="default: vllm; `all` for every one")
    parser.add_argument("--workload", default="random:64:8:16")
    parser.add_argument("--fault", default="", help="of every emulated engine")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--draw", type=Path, nargs="+", default=[], help="files of --json; nothing is run"
    )
    parser.add_argument("--plot", type=Path, help="an SVG")
    asked = parser.parse_args()
    engines = [] if asked.engine == ["all"] else asked.engine or ["vllm"]
    question = Question(
        asked.launches, asked.on, asked.nodes, asked.model, engines, asked.workload, asked.fault
    )
    every, problems = [Series(**json.loads(path.read_text())) for path in asked.draw], list[str]()
    if not every:
        samples, problems = watch(question)
        every = [Series(question.title, os.getloadavg()[2], [asdict(one) for one in samples])]
    if asked.json is not None:
        asked.json.write_text(json.dumps(asdict(every[0])))
    for series in every:
        slopes = show(series)
        growing = [name for name in ("descriptors", "threads", "temporary") if slopes[name] > 0.05]
        problems += [f"{series.title}: {name} grow" for name in growing]
    if asked.plot is not None:
        draw(every, asked.plot)
    print("\n".join(problems))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
