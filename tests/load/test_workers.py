"""Several worker processes send one load, and leave with the one that started them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.errors import ClientFailed
from autotune.load import LoadOptions, measure
from autotune.load.client.messages import Progress, RequestTimeouts, WorkerTask
from autotune.load.client.stream import tally
from autotune.load.client.target import Target
from autotune.load.measuring import Workers, workers_for
from autotune.load.prompts import PromptKey, Prompts
from autotune.load.workloads import load_workload
from tests.load.server import STREAM_HEAD, Call, Server, event, good
from tests.processes import alive, until


def task_of(url: str, workload: str, concurrency: int = 0) -> WorkerTask:
    load = load_workload(workload)
    if concurrency:
        load = load.with_concurrency(concurrency)
    return WorkerTask(
        Target.parse(url),
        Prompts("m"),
        load.draw(0, 7),
        PromptKey(workload, 0, 7),
        RequestTimeouts(),
    )


async def silent(call: Call) -> None:
    """Begins an answer and never ends it."""
    await call.write(STREAM_HEAD)
    await call.stream(event())
    await asyncio.Event().wait()


@given(st.integers(1, 5000), st.floats(0, 1e5), st.integers(1, 256))
def test_workers_are_as_many_as_needed_and_leave_processors_to_the_server(streams, rate, cores):
    workers = workers_for(streams, rate, cores)
    assert 1 <= workers <= max(cores // 2, 1)
    assert workers <= streams
    assert workers_for(streams, rate * 2, cores) >= workers


@pytest.mark.parametrize("concurrency", [0, 5])
def test_several_workers_send_what_one_would(concurrency):
    asked, most = [], []
    for count in (1, 3):
        with Server() as server, Workers() as workers:
            log, clients = workers.send(task_of(server.url, "random:6:4:23", concurrency), count)
        assert tally(log.outcomes) == {"ok": 23}
        assert len(clients) == count
        assert log.records.output_tokens.sum() == 23 * 4
        # Request i is number i of the load again, with its own gaps.
        assert log.records.sent_s.argsort()[0] < 3
        assert log.records.itl_ms.shape == (23 * 3,)
        assert (log.records.token_s.reshape(23, 4)[:, 0] == log.records.first_token_s).all()
        assert (log.records.token_s.reshape(23, 4)[:, -1] <= log.records.finished_s).all()
        asked.append(sorted(json.dumps(call.body) for call in server.posts))
        most.append(server.most_at_once)
    assert asked[0] == asked[1]
    assert not concurrency or max(most) <= concurrency


def test_workers_send_together_and_serve_the_next_load_too():
    came: list[Call] = []
    everyone = asyncio.Event()

    async def when_all_are_there(call: Call) -> None:
        came.append(call)
        if len(came) == 8:
            everyone.set()
        await everyone.wait()
        await good(call)

    with Server(when_all_are_there) as server, Workers() as workers:
        for _ in range(2):
            log, clients = workers.send(task_of(server.url, "random:3:2:8"), 2)
            assert tally(log.outcomes) == {"ok": 8}
            assert len(clients) == 2
        assert len(workers.pids) == 2


def test_progress_is_told_while_a_load_runs():
    class EnoughError(Exception):
        pass

    seen: list[Progress] = []

    def until_every_first_token(progress: Progress) -> None:
        seen.append(progress)
        if progress.chunks == 6:
            raise EnoughError

    with Server(silent) as server, Workers() as workers:
        with pytest.raises(EnoughError):
            workers.send(task_of(server.url, "random:3:2:6", 6), 2, until_every_first_token)
        assert seen[-1] == Progress(sent=6, finished=0, failed=0, total=6, chunks=6)
        assert all(progress.total == 6 for progress in seen)
        assert workers.pids == []


def test_a_worker_that_is_killed_is_told_by_its_code():
    with Server(silent) as server, Workers() as workers:

        def kill_one(progress: Progress) -> None:
            if progress.chunks == 4:
                os.kill(workers.pids[1], signal.SIGKILL)

        with pytest.raises(ClientFailed, match="code -9"):
            workers.send(task_of(server.url, "random:3:2:4", 4), 2, kill_one)
        assert workers.pids == []


class Faulty(Prompts):
    """Cannot make a prompt."""

    def bodies(self, *_):
        return [1 // 0]


def test_a_fault_of_the_client_is_named_and_not_laid_to_its_speed(capfd):
    with Server(good) as server, Workers() as workers:
        task = task_of(server.url, "random:3:2:4")._replace(prompts=Faulty("m"))
        with pytest.raises(
            ClientFailed, match="the load client failed: ZeroDivisionError"
        ) as raised:
            workers.send(task, 1)
        assert workers.pids == []
    assert raised.value.exit_code == 4
    assert "keep up" not in str(raised.value)
    assert "Traceback" in capfd.readouterr().err


def test_a_closed_port_is_an_outcome_and_an_unknown_host_an_error():
    with Server() as server:
        gone = server.url
    with Workers() as workers:
        log, _ = workers.send(task_of(gone, "random:3:2:4"), 2)
    assert tally(log.outcomes) == {"connect_error": 4}


def test_workers_die_with_the_process_that_started_them(tmp_path):
    script = tmp_path / "load.py"
    script.write_text(
        "import sys\n"
        "from tests.load.test_workers import task_of\n"
        "from autotune.load.measuring import Workers\n"
        "with Workers() as workers:\n"
        "    def tell(progress):\n"
        "        if progress.chunks == 4: print(*workers.pids, flush=True)\n"
        "    workers.send(task_of(sys.argv[1], 'random:3:2:4', 4), 2, tell)\n"
    )
    root = Path(__file__).parents[2]
    with Server(silent) as server:
        command = [sys.executable, str(script), server.url]
        env = {**os.environ, "PYTHONPATH": str(root)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as parent:
            assert parent.stdout is not None
            pids = [int(pid) for pid in parent.stdout.readline().split()]
            assert len(pids) == 2
            assert all(alive(pid) for pid in pids)
            parent.kill()
            parent.wait()
        assert until(lambda: not any(alive(pid) for pid in pids)), (
            "a worker outlived the process that started it"
        )


def test_a_forced_number_of_workers_is_used():
    with Server(good) as server:
        measured = measure(
            server.url, "m", load_workload("random:3:2:9"), 0, LoadOptions(workers=3, warm_up=False)
        )
    assert len(measured.points[0].workers) == 3
    assert measured.metrics["completed"] == 9


def test_a_worker_that_is_busy_preparing_dies_with_its_parent_too(tmp_path):
    script = tmp_path / "load.py"
    script.write_text(
        "import sys, threading\n"
        "from tests.load.test_workers import task_of\n"
        "from autotune.load.measuring import Workers\n"
        "with Workers() as workers:\n"
        "    share = task_of('http://127.0.0.1:9', 'random:4000:4:50000', 1)\n"
        "    sender = threading.Thread(target=workers.send, args=(share, 1), daemon=True)\n"
        "    sender.start()\n"
        "    while not workers.pids: pass\n"
        "    print(*workers.pids, flush=True)\n"
        "    sender.join()\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=env
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        # It makes 50,000 bodies, which takes it many seconds.
        while (
            Path(f"/proc/{pid}/cmdline").read_bytes().find(b"autotune.load.client") < 0
            or cpu_s(pid) < 1.0
        ):
            time.sleep(0.02)
        parent.kill()
        parent.wait()
    assert until(lambda: not alive(pid)), "a worker outlived the process that started it"


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_modules_of_the_current_folder_are_not_taken_for_ours(tmp_path, monkeypatch):
    (tmp_path / "queue.py").write_text("raise SystemExit('somebody else')")
    (tmp_path / "autotune").mkdir()
    (tmp_path / "autotune" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    with Server() as server, Workers() as workers:
        log, _ = workers.send(task_of(server.url, "random:3:2:4"), 1)
    assert tally(log.outcomes) == {"ok": 4}
