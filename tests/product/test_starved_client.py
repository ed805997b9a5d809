"""A load whose client is starved is not published: it is tried again, then invalid, and the sampler
never sees it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from tests.product.cli import finished_rows, new_home, rows
from tests.product.processes import start

ROOT = Path(__file__).resolve().parents[2]
WORKLOAD = "random:64:200:8"
QUESTION = [
    *("run", "--model", "deepseek-ai/DeepSeek-V3.2", "--hw", "h200", "--on", "emulator"),
    *("--workload", WORKLOAD, "--launches", "3", "--seed", "3", "--study", "s"),
    *(
        "--space",
        str(ROOT / "examples" / "emulated-space.yaml"),
        "--set",
        "cuda_graph_max_batch=512",
    ),
]
RUN_S, PAUSE_S = 0.05, 0.2
"""A worker may run for 50 ms of every 250: how programs that limit another's CPU do it from
outside."""


def load_workers(tuner: int) -> list[int]:
    """The worker processes of a tuner's load."""
    found = []
    for child in Path(f"/proc/{tuner}/task/{tuner}/children").read_text().split():
        with contextlib.suppress(OSError):
            if b"autotune.load.client" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def limited(tuner: int) -> Iterator[threading.Event]:
    """Keeps the load workers of a tuner short of CPU until the event is set."""
    over = threading.Event()

    def limit() -> None:
        while not over.is_set():
            try:
                pids = load_workers(tuner)
            except OSError:
                return  # the tuner has ended
            send(pids, signal.SIGSTOP)
            over.wait(PAUSE_S)
            send(pids, signal.SIGCONT)
            over.wait(RUN_S)

    thread = threading.Thread(target=limit)
    thread.start()
    try:
        yield over
    finally:
        over.set()
        thread.join()


def test_a_starved_client_is_tried_again_then_invalid_and_hidden_from_the_sampler(
    tmp_path: Path,
) -> None:
    home = new_home(tmp_path)
    environment = {**os.environ, "AUTOTUNE_HOME": str(home)}
    with start(*QUESTION, environment=environment, err=subprocess.PIPE) as tuner:
        assert tuner.stderr is not None
        with limited(tuner.pid) as enough:
            for _ in tuner.stderr:  # it tells of every launch
                if finished_rows(home, "s"):
                    enough.set()
    assert tuner.returncode == 0
    starved, again, *others = rows(home, "s")
    assert (starved["role"], starved["state"]) == ("baseline", "invalid")
    assert starved["failure"]["kind"] == "infrastructure"
    assert "did not keep up" in starved["failure"]["message"]
    load = json.loads(
        (
            home / "studies" / "s" / "trials" / "0000" / f"{WORKLOAD.replace(':', '-')}.json"
        ).read_text()
    )
    assert len(load["points"][0]["thrown_away"]) >= 1, "it was not tried again"
    # The configuration is not blamed: it is launched again, and what is left in peace counts.
    assert (again["role"], again["state"]) == ("baseline", "complete")
    assert again["fingerprint"] == starved["fingerprint"]
    assert [row["state"] for row in others] == ["complete"]
    storage = JournalStorage(JournalFileBackend(str(home / "studies" / "s" / "optuna.journal")))
    (study,) = storage.get_all_studies()
    seen = storage.get_all_trials(study._study_id)
    assert [trial.state for trial in seen] == [
        TrialState.FAIL,
        TrialState.COMPLETE,
        TrialState.COMPLETE,
    ]
    assert seen[0].value is None
