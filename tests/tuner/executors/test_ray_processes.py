"""What Ray does to the processes that run trials, and what it must not do to their servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.tuner.executors.nodes import TOKEN

SCRIPT = Path(__file__).with_name("ray_process.py")


def test_servers_run_as_elsewhere_and_their_watchdog_outlives_the_process_that_ran_the_trial(
    tmp_path: Path,
) -> None:
    """By a Ray of this machine alone, whose one trial is broken off."""
    saw = tmp_path / "saw"
    environment = {
        name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", *TOKEN)
    }
    environment["HOME"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "tests.tuner.executors.ray_process", str(saw)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=SCRIPT.parents[3],
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["niceness"] == os.nice(0), "servers yield to nobody"
    assert found["threads_of_ray"] == "1", "or the next line shows nothing"
    assert found["threads"] is None, "a server has the machine's own threads"
    assert found["oom_of_ray"] == 1000, "or the next line shows nothing"
    assert found["oom"] == int(Path("/proc/self/oom_score_adj").read_text()), (
        "servers are not the first to be ended"
    )
    assert found["oom_after"] == 1000, "Ray's own order of processes stays"
    assert not (tmp_path / ".ray" / "auth_token").exists(), (
        "a token that stays changes later clusters"
    )
    # Without time to wait too: a result that lies there when its process is lost is not made again.
    assert found["taken"] == [[["1", "2"], []]] * 2, "all that was put is taken once"
    limit_s = time.monotonic() + 30
    while not saw.exists() and time.monotonic() < limit_s:
        time.sleep(0.05)
    assert saw.read_text() == "the tuner is gone", (
        "the watchdog has seen it, and ends what it watches"
    )
