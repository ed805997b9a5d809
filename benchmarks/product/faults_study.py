"""A small study that faults meet, and what must be true of it afterwards."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from faults_machine import TOKEN, Machine, Tuner, now, processes_of, reap
from faults_mlflow import MlflowServer
from faults_ray import RayNodes
from faults_values import Fault, Outcome, Steps

from autotune.node.emulator.process import LEAKED
from autotune.tuner.search.history import History
from autotune.tuner.study.results import read_launches
from autotune.tuner.study.spec import StudySpec

MODEL = "openai/gpt-oss-120b"
SPACE = """\
narrow:
  vllm:
    search:
      tensor_parallel: [8]
      max_running_requests: [256]
      context_length: [131072, 65536, 32768]
"""
BASELINE = f"vllm serve {MODEL} --tensor-parallel-size 8 --max-num-seqs 1"
"""So slow that every candidate is four times as fast: no noise and no lost launch decides
otherwise."""
LAUNCHES = 4
"""That a study needs to decide. It has one more for each fault, which may cost one, and two more
for one that breaks a launch: where that is the finalist's, another finalist takes its place."""
_BREAKING = ("engine-", "kill-", "port-", "memory-")
WITHIN = 0.25
"""By how much the recommended throughput may differ: launches differ by 3 %, a busy machine slows
the emulator."""
_PATIENCE_S = 400.0
_RUNS = 14
_GONE_S = 8.0
_LOOK_S = 0.15
_LAUNCHED = ("autotune emulate", "autotune.servers.watchdog", "autotune.load.client.generator")


class FaultyStudy:
    """A study that is run, and resumed until it ends, while faults are injected.

    Args:
        on: ``emulator``, ``simulator``, or ``ray``: emulated engines on Ray nodes.
        folder: takes its home; removed and made anew.
        database: an MLflow database without runs.
        nodes: on which it runs; None: on this machine.
    """

    def __init__(
        self, machine: Machine, on: str, folder: Path, database: Path, nodes: RayNodes | None = None
    ) -> None:
        self.machine, self.on, self.nodes = machine, on, nodes
        self.name, self.launches = "s", LAUNCHES
        self.token = uuid.uuid4().hex if nodes is None else nodes.token
        shutil.rmtree(folder, ignore_errors=True)
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        shutil.copy(database, self.home / "mlflow.db")
        (self.home / "space.yaml").write_text(SPACE)
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.said_in = folder / "said"
        self.engine_fault = folder / "engine-fault"
        self.study = self.home / "studies" / self.name
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"},
            **{"AUTOTUNE_HOME": str(self.home), TOKEN: self.token, "TMPDIR": str(self.temporary)},
            # The start of an emulated engine takes a tenth of its second.
            "AUTOTUNE_EMULATE_FAULT": f"slow-start:0.1,@{self.engine_fault}",
            "COLUMNS": "200",
            **({} if nodes is None else nodes.environment),
        }
        self._folder, self._database = folder, database
        self._server: MlflowServer | None = None
        self.tuner: Tuner | None = None
        self.runs = 0
        self.kept: list[bytes] = []
        self._seen: set[bytes] = set()
        self.on_terminal = False
        self._counts_runs, self._looked_s = False, 0.0

    # What faults ask and do

    @property
    def results(self) -> Path:
        return self.study / "results.jsonl"

    def lines(self) -> list[bytes]:
        """The rows of ``results.jsonl`` that are whole."""
        try:
            lines = self.results.read_bytes().split(b"\n")[:-1]
        except OSError:
            return []
        return [line for line in lines if _is_row(line)]

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines()]

    @property
    def said(self) -> str:
        return self.said_in.read_text(errors="replace") if self.said_in.exists() else ""

    @property
    def told(self) -> str:
        """All that was said, and every row that was there at the end of a tuner."""
        return self.said + "".join(line.decode(errors="replace") for line in self._seen)

    def processes(self, part: str) -> list[int]:
        """Processes of the study whose command line has this part; none where it was asked a moment
        ago."""
        if now() - self._looked_s < _LOOK_S:
            return []
        self._looked_s = now()
        return [pid for pid, command in processes_of(self.token).items() if part in command]

    def kill_tuner(self) -> None:
        assert self.tuner is not None
        self.tuner.kill()

    @property
    def mlflow_server(self) -> MlflowServer:
        """The server that runs are sent to; from the first call on."""
        if self._server is None:
            self._server = MlflowServer(self._folder / "mlflow", self._database)
            self._server.start()
            self.environment["MLFLOW_TRACKING_URI"] = self._server.url
        return self._server

    def reads_kept(self) -> None:
        """Take what is finished now for finished."""
        self.kept = self.lines()
        self._seen.update(self.kept)

    def forgets_last(self) -> None:
        """The last finished launch has been lost on purpose."""
        self.kept = self.kept[:-1]

    def pause(self, seconds: float, injected: bool = True) -> Steps:
        """Wait within a fault, by default one that has been injected."""
        until = now() + seconds
        while now() < until:
            yield injected

    def start(self, arguments: Sequence[str] | None = None) -> Tuner:
        """Start a tuner on the study, new or not."""
        environment = dict(self.environment)
        return Tuner(arguments or self._arguments(), environment, self.said_in, self.on_terminal)

    def _arguments(self) -> list[str]:
        if (self.study / "study.yaml").exists():
            return ["resume", self.name]
        question = ["--model", MODEL, "--hw", "h200", "--engine", "vllm", "--study", self.name]
        question += ["--on", "emulator" if self.nodes is not None else self.on]
        question += ["--executor", "local" if self.nodes is None else f"ray:{self.nodes.address}"]
        few = [
            "--workload",
            "random:64:8:16",
            "--space",
            str(self.home / "space.yaml"),
            "--seed",
            "3",
        ]
        few += ["--launches", str(self.launches), "--baseline", BASELINE]
        return ["run", *question, *few]

    # The study

    def go(
        self, faults: Sequence[Fault], steps_of: Callable[[Fault, FaultyStudy], Steps]
    ) -> Outcome:
        """Run the study to its end."""
        began, outcome = now(), Outcome([False] * len(faults))
        self.machine.clocks.reset()
        breaking = [
            fault for fault in faults if self.on != "simulator" and fault.kind.startswith(_BREAKING)
        ]
        self.launches = LAUNCHES + len(faults) + 2 * len(breaking)
        # Three launches of a bad hour, and one that shows that it is over.
        self.launches += 3 * sum(fault.kind == "engine-bad-hour" for fault in faults)
        waiting = {i: fault for i, fault in enumerate(faults) if fault.after >= 0}
        # The end of a database that was spoilt is its user's to put right.
        kinds = {fault.kind for fault in faults}
        self._counts_runs = (
            any(kind.startswith("mlflow") for kind in kinds) and "mlflow-spoilt" not in kinds
        )
        self.on_terminal = any(fault.kind == "terminal-vanishes" for fault in faults)
        while self.runs < _RUNS and not outcome.recovered:
            self.tuner = self.start()
            self.runs += 1
            self._watch(waiting, outcome, steps_of)
            self._check_kept(outcome)
            outcome.left_behind += self._left_behind()
            outcome.recovered = self.tuner.code == 0
        for i, fault in enumerate(faults):
            if fault.after < 0 and outcome.recovered:
                self._after_the_end(i, fault, outcome, steps_of)
        self.machine.clocks.reset()
        if outcome.recovered and self._counts_runs:
            self._check_tracked(outcome)
        if self._server is not None:
            self._server.stop()
        self._check_end(outcome)
        outcome.runs, outcome.seconds = self.runs, now() - began
        return outcome

    def _watch(
        self,
        waiting: dict[int, Fault],
        outcome: Outcome,
        steps_of: Callable[[Fault, FaultyStudy], Steps],
    ) -> None:
        """Inject what is due until the tuner has ended."""
        assert self.tuner is not None
        began, reached, since, working = now(), -1, now(), dict[int, Steps]()
        try:
            while self.tuner.poll() is None:
                lines = len(self.lines()) if self.study.is_dir() else 0
                if lines != reached:
                    reached, since = lines, now()
                for i, fault in list(waiting.items()):
                    late = reached > fault.after or now() - since >= fault.delay_s
                    if self.study.is_dir() and reached >= fault.after and late:
                        working[i] = steps_of(waiting.pop(i), self)
                for i, steps in list(working.items()):
                    if (step := next(steps, None)) is None:
                        del working[i]
                    if step and not outcome.injected[i]:
                        outcome.injected[i], outcome.at[i] = True, reached
                if now() - began > _PATIENCE_S:
                    outcome.unnamed.append(f"a tuner did not end within {_PATIENCE_S:g} s")
                    self.kill_tuner()
                time.sleep(0.02)
        finally:
            for steps in working.values():
                steps.close()

    def _after_the_end(
        self,
        i: int,
        fault: Fault,
        outcome: Outcome,
        steps_of: Callable[[Fault, FaultyStudy], Steps],
    ) -> None:
        for step in steps_of(fault, self):
            outcome.injected[i] |= step
        self.tuner = self.start()
        outcome.recovered = self.tuner.wait(_PATIENCE_S) == 0
        self._check_kept(outcome)

    # What must be true

    def condemned(self) -> list[str]:
        """The configurations that count as failed for good at the end of the study: another launch is
        neither made nor left open."""
        spec = StudySpec.from_yaml((self.study / "study.yaml").read_text())
        launches = read_launches(self.results)
        history = History.from_launched_only(spec, launches)
        return [
            f"configuration {item.fingerprint} counts as failed"
            for position, item in enumerate(history.candidates.items)
            if history.broke(position) and position not in history.unexplained
        ]

    def _check_kept(self, outcome: Outcome) -> None:
        """Finished launches stay as they are, and none has the number of another."""
        lines = self.lines()
        self._seen.update(lines)
        for before, after in zip(self.kept, lines, strict=False):
            if before != after:
                outcome.lost.append(f"a finished row was changed: {before[:80]!r}")
        if len(lines) < len(self.kept):
            outcome.lost.append(f"{len(self.kept)} launches were finished, {len(lines)} are kept")
        self._seen.update(lines)
        self.kept = lines
        numbers = [row["number"] for row in self.rows()]
        if doubled := {number for number in numbers if numbers.count(number) > 1}:
            outcome.doubled.append(f"launches {sorted(doubled)} are there twice")

    def _left_behind(self) -> list[str]:
        """What is left once the tuner has ended and what it started has had time to."""
        until = now() + _GONE_S
        while (alive := self._alive()) and now() < until:
            reap()
            time.sleep(0.1)
        reap()
        left = [f"process {pid}: {command[:100]}" for pid, command in alive.items()]
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        return left

    def _alive(self) -> dict[int, str]:
        """What still lives of what was launched; the nodes live on."""
        return {
            pid: command
            for pid, command in processes_of(self.token).items()
            if self.nodes is None or any(part in command for part in _LAUNCHED)
        }

    def _check_end(self, outcome: Outcome) -> None:
        for path in Path("/dev/shm").glob(f"{LEAKED}*"):
            # Other campaigns' engines may live.
            if not Path("/proc", path.name.removeprefix(LEAKED)).exists():
                outcome.left_behind.append(f"shared memory {path.name}")
                path.unlink(missing_ok=True)
        outcome.left_behind += [f"temporary file {path.name}" for path in self.temporary.iterdir()]
        outcome.left_behind += [
            f"draft {path.name}" for path in [*self.study.rglob("*.tmp"), *self.home.glob("*.tmp")]
        ]
        outcome.left_behind += [f"lock {path}" for path in self.home.rglob("lock_emulated")]
        if "Traceback (most recent call last)" in self.said:
            outcome.unnamed.append("a traceback")
        if not outcome.recovered:
            return
        with suppress(ValueError):
            rows = self.rows()
            numbers = sorted(row["number"] for row in rows)
            if missing := set(range(len(numbers))) - set(numbers):
                outcome.lost.append(f"launches {sorted(missing)} are missing")
            for row in rows:
                if row["state"] != "complete" and not (row["failure"] or {}).get("message"):
                    outcome.unnamed.append(
                        f"launch {row['number']} is {row['state']} without a word"
                    )
        self._check_recommendation(outcome)

    def _check_recommendation(self, outcome: Outcome) -> None:
        found = json.loads((self.study / "recommendation.json").read_text())
        if found["verdict"] != "better":
            outcome.changed.append(f"the verdict is {found['verdict']}: {found['stop_reason']}")
            return
        if "--max-num-seqs 1 " in f"{found['command']} ":
            outcome.changed.append("the baseline is recommended")
        value = found["objective"]["value"]
        expected = EXPECTED.get(self.on, value)
        if abs(value / expected - 1) > WITHIN:
            outcome.changed.append(
                f"the recommended throughput is {value:.0f}, undisturbed {expected:.0f}"
            )

    def _check_tracked(self, outcome: Outcome) -> None:
        """Once MLflow is there again, `autotune resume` sends what it lacks: each launch has one
        run."""
        self.tuner = self.start()
        self.tuner.wait(_PATIENCE_S)
        tracked, numbers = self.tracked(), sorted(row["number"] for row in self.rows())
        if tracked is not None and (missing := set(numbers) - set(tracked)):
            outcome.lost.append(f"MLflow lacks launches {sorted(missing)}")
        if tracked is not None and len(tracked) > len(set(tracked)):
            outcome.doubled.append(f"MLflow has launches twice: {tracked}")

    def tracked(self) -> list[int] | None:
        """The numbers of the launches in the MLflow database; None where it cannot be read."""
        path = self.home / "mlflow.db" if self._server is None else self._server.database
        question = (
            "select number.value from tags as number join tags as name on number.run_uuid = name.run_uuid "
            "join runs on runs.run_uuid = name.run_uuid where number.key = 'number' and name.key = 'study' "
            "and name.value = ? and runs.lifecycle_stage = 'active'"
        )
        with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as database:
            return sorted(int(value) for (value,) in database.execute(question, (self.name,)))
        return None


EXPECTED: dict[str, float] = {}
"""Tokens/s of the undisturbed studies; measured by each campaign."""


def _is_row(line: bytes) -> bool:
    try:
        return "number" in json.loads(line)
    except (ValueError, TypeError):
        return False
