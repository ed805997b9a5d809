"""examples/cluster/slurm.sbatch: its options, and what it does where srun, ray and autotune are
stand-ins."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.documents.cluster_files import EXAMPLES, asked, calls, checked, on_path, stand_in
from tests.documents.sbatch_options import SBATCH_OPTIONS
from tests.processes import alive, until

SCRIPT = EXAMPLES / "slurm.sbatch"
STUDY = "deepseek-v3.2-h200"


def directives() -> dict[str, str]:
    lines = [line for line in SCRIPT.read_text().splitlines() if line.startswith("#SBATCH")]
    found = [re.fullmatch(r"#SBATCH --([a-z-]+)(?:=(\S+))?", line) for line in lines]
    assert all(found), lines
    return {match[1]: match[2] or "" for match in found if match}


def test_every_directive_is_an_option_of_sbatch_and_stands_before_the_first_command() -> None:
    text = SCRIPT.read_text()
    assert set(directives()) <= SBATCH_OPTIONS
    # sbatch reads none after the first line that is neither empty nor a comment.
    before = text[: text.index("\nset -euo")].splitlines()
    assert all(line.startswith("#") for line in before)
    assert "#SBATCH" not in text[text.index("\nset -euo") :]


def cluster(folder: Path, autotune: str) -> subprocess.Popen[str]:
    """The script at work between stand-ins; ``autotune`` is what that one does."""
    checked(SCRIPT.read_text())
    folder.mkdir(exist_ok=True)
    stand_in(folder, "scontrol", "[ $1 = show ] && printf 'node-a\\nnode-b\\n' || true")
    # Options have their values behind a "="; the first word without dashes is the program.
    stand_in(folder, "srun", 'while [[ $1 == --* ]]; do shift; done; exec "$@"')
    stand_in(folder, "getent", 'echo "10.1.2.3 STREAM $2"')
    nodes = f"grep '^ray start' {folder}/calls | sed 's/.*/ 1 node_0/'"
    start = f"echo $$ $RAY_AUTH_MODE ${{#RAY_AUTH_TOKEN}} >> {folder}/started; exec /bin/sleep 60"
    stand_in(folder, "ray", f"if [ $1 = start ]; then {start}; fi; {nodes}")
    stand_in(folder, "sleep", "exec /bin/sleep 0.02")
    stand_in(folder, "autotune", f"echo $RAY_ADDRESS > {folder}/address; {autotune}")
    slurm = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "node-[a-b]", "SLURM_CPUS_PER_TASK": "64"}
    slurm["SLURM_GPUS_ON_NODE"] = directives()["gpus-per-node"]
    environment = on_path(folder, AUTOTUNE_HOME=str(folder / "home"), **slurm)
    return subprocess.Popen(
        ["bash", str(SCRIPT)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def gone(folder: Path) -> bool:
    """Whether both Ray processes have ended; each had the job's token."""
    started = [line.split() for line in (folder / "started").read_text().splitlines()]
    assert [words[1:] for words in started] == [["token", "64"], ["token", "64"]]
    return until(lambda: not any(alive(int(pid)) for pid, *_ in started))


def test_a_new_study_runs_on_a_head_and_a_worker_which_end_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    with cluster(folder, "exit 3") as script:
        _, errors = script.communicate(timeout=60)
    assert script.returncode == 3, errors
    head, worker = [words for words in calls(folder, "srun") if "ray" in words]
    assert "--nodelist=node-a" in head
    assert {"--exclude=node-a", "--nodes=1"} <= set(worker)
    assert [words[1] for words in calls(folder, "ray") if words[0] == "start"] == [
        "--head",
        "--block",
    ]
    assert worker[worker.index("--address") + 1] == "10.1.2.3:6379"
    assert (folder / "address").read_text().strip() == "10.1.2.3:6379"
    assert gone(folder)

    (run,) = calls(folder, "autotune")
    spec = asked(run)
    # Kept in the study, an address would send a later job to a head node that is no more.
    assert (spec.executor, spec.study) == ("ray", STUDY)
    assert str(spec.gpus) == directives()["gpus-per-node"] == head[head.index("--num-gpus") + 1]
    for words in (head, worker):
        assert " ".join(words[words.index("--resources") + 1 :]).startswith(
            f'{{"{spec.hardware.name}": 1}}'
        )
    # One that is started with fewer than four launches per node would leave one idle.
    assert spec.launches >= 4 * int(directives()["nodes"])


def test_a_study_that_is_there_is_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    study = folder / "home" / "studies" / STUDY
    study.mkdir(parents=True)
    (study / "study.yaml").touch()
    with cluster(folder, "exit 0") as script:
        script.communicate(timeout=60)
    assert script.returncode == 0
    assert calls(folder, "autotune") == [["resume", STUDY]]
    assert calls(folder, "scontrol") == [["show", "hostnames", "node-[a-b]"]]


@pytest.mark.parametrize("code", [130, 0])
def test_before_the_time_is_over_the_study_is_stopped_and_the_job_queued_again(
    tmp_path: Path, code: int
) -> None:
    assert directives()["signal"].startswith("B:USR1@")
    folder = tmp_path / "bin"
    with cluster(
        folder, f"trap 'kill $!; exit {code}' TERM; /bin/sleep 60 & echo ready; wait"
    ) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "ready\n"
        script.send_signal(signal.SIGUSR1)
        script.communicate(timeout=60)
    assert script.returncode == code
    assert gone(folder)
    # One that was just done needs no other job.
    assert (["requeue", "42"] in calls(folder, "scontrol")) == (code == 130)
