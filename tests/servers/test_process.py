"""Real processes that misbehave: each case ends in the right kind, with nothing alive and the port
free."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import tempfile
import urllib.request
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from autotune.base.errors import BadInput
from autotune.engines.command import Command
from autotune.engines.failure import FailureKind
from autotune.servers import ShutdownTimeouts, StartupTimeouts
from autotune.servers.ports import NoFreePort, is_free, lease_port
from autotune.servers.process import ProcessLauncher
from autotune.servers.server import Server
from autotune.servers.watchdog import END_BYTES
from tests.processes import until
from tests.servers.settings import CARD, GRACE, PATIENT, STAND_IN, alive_with, launch, stand_in

SHORT = StartupTimeouts(total_s=30.0, silence_s=1.0)


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    """Every process that a test starts carries it, whatever becomes of it."""
    name = uuid4().hex
    monkeypatch.setenv("LAUNCH_TEST", name)
    return name


def port_of(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


def assert_gone(server: Server, token: str) -> None:
    assert server.stop().problem() == ""
    assert alive_with(token) == []
    assert is_free(port_of(server))


def test_a_good_server_serves_and_ends(tmp_path: Path, token: str) -> None:
    with launch(tmp_path / "trial") as server:
        assert server.wait_ready(PATIENT) is None
        assert server.model == "tiny"
        assert server.failure() is None
        assert alive_with(token) != []
        assert server.pids
        with urllib.request.urlopen(f"{server.url}/health") as answer:
            assert answer.status == 200
    report = server.stop()
    assert report.signals == ("SIGTERM",)
    assert report.problem() == ""
    assert server.failure() is None
    assert "loading shard 1" in (tmp_path / "trial" / "server.log").read_text()
    assert_gone(server, token)


ENDINGS = [
    (
        ["--never-ready"],
        StartupTimeouts(total_s=1.5, silence_s=30.0),
        FailureKind.TIMEOUT,
        "loading shard",
    ),
    (["--silent"], SHORT, FailureKind.TIMEOUT, "Its log is empty"),
    (["--hold-token"], SHORT, FailureKind.TIMEOUT, "nothing for 1 s"),
    (["--refuse-token"], PATIENT, FailureKind.LOAD_ERRORS, "no tokens here"),
    (["--break-token"], PATIENT, FailureKind.LOAD_ERRORS, "HTTP 500"),
    # The access log grows by our own looks at it, which is no progress.
    (["--unhealthy"], SHORT, FailureKind.TIMEOUT, "nothing for 1 s"),
    (["--daemonise"], PATIENT, FailureKind.CRASHED, "exit code 0"),
    (
        ["--max-num-sekvs", "4"],
        PATIENT,
        FailureKind.BAD_ARGUMENT,
        "It does not know --max-num-sekvs 4.",
    ),
    (
        ["--say", "OSError: [Errno 98] Address already in use", "--die-with", "1"],
        PATIENT,
        FailureKind.PORT,
        "98",
    ),
    (
        [
            "--say",
            "torch.OutOfMemoryError: CUDA out of memory\nsee root cause above",
            "--die-with",
            "1",
        ],
        PATIENT,
        FailureKind.OUT_OF_MEMORY,
        "Use more GPUs.",
    ),
    (
        ["--say", "ValueError: odd\nleaked shared_memory", "--die-with", "3"],
        PATIENT,
        FailureKind.CRASHED,
        "odd",
    ),
    # A worker's end is in the log, but the first process hangs on.
    (
        ["--say", "OutOfMemoryError: CUDA out of memory", "--silent"],
        SHORT,
        FailureKind.OUT_OF_MEMORY,
        "nothing for",
    ),
]


@pytest.mark.parametrize(
    ("options", "timeouts", "kind", "said"), ENDINGS, ids=lambda value: str(value)[:40]
)
def test_a_bad_start_has_its_kind(
    tmp_path: Path,
    token: str,
    options: list[str],
    timeouts: StartupTimeouts,
    kind: FailureKind,
    said: str,
) -> None:
    with launch(tmp_path, *options) as server:
        failure = server.wait_ready(timeouts)
    assert failure is not None
    assert failure.kind is kind
    assert said in failure.message
    assert_gone(server, token)


def test_binding_late_is_no_failure_while_the_log_grows(tmp_path: Path, token: str) -> None:
    """Loading takes longer than the allowed silence, but every shard is a line."""
    with launch(tmp_path, "--shards", "60") as server:
        assert server.wait_ready(StartupTimeouts(total_s=60.0, silence_s=0.8)) is None
    assert_gone(server, token)


def test_sigterm_ignored_needs_sigkill(tmp_path: Path, token: str) -> None:
    with launch(
        tmp_path, "--ignore-term", timeouts=ShutdownTimeouts(terminate_s=0.3, kill_s=10.0)
    ) as server:
        assert server.wait_ready(PATIENT) is None
    assert server.stop().signals == ("SIGTERM", "SIGKILL")
    assert_gone(server, token)


@pytest.mark.parametrize("ignoring", [[], ["--ignore-term"]])
def test_a_grandchild_that_forked_away_with_the_port_is_ended(
    tmp_path: Path, token: str, ignoring: list[str]
) -> None:
    with launch(
        tmp_path, "--fork-away", *ignoring, timeouts=ShutdownTimeouts(terminate_s=0.3, kill_s=10.0)
    ) as server:
        assert server.wait_ready(PATIENT) is None
        assert len(server.pids) == 2
    assert_gone(server, token)


def test_a_grandchild_without_marker_group_and_parent_is_ended(tmp_path: Path, token: str) -> None:
    with launch(tmp_path, "--forget-environment", token) as server:
        assert server.wait_ready(PATIENT) is None
        strays = [
            pid
            for pid in alive_with(token)
            if "time.sleep(600)" in Path(f"/proc/{pid}/cmdline").read_text()
        ]
        assert len(strays) == 1
    assert_gone(server, token)


def test_a_server_that_dies_later_says_so(tmp_path: Path, token: str) -> None:
    with launch(tmp_path, "--die-after-token-s", "0.5") as server:
        assert server.wait_ready(PATIENT) is None
        failure = server.failure(within_s=20.0)
    assert failure is not None
    assert failure.kind is FailureKind.CRASHED
    assert "exit code 7" in failure.message
    assert server.stop().signals == ()
    assert_gone(server, token)


def test_an_outside_kill_names_the_signal(tmp_path: Path, token: str) -> None:
    with launch(tmp_path) as server:
        assert server.wait_ready(PATIENT) is None
        os.kill(server.pids[0], signal.SIGKILL)
        failure = server.failure(within_s=20.0)
    assert failure is not None
    assert "SIGKILL" in failure.message
    assert_gone(server, token)


def test_a_long_log_is_explained(tmp_path: Path, token: str) -> None:
    options = [
        "--say",
        "OutOfMemoryError: CUDA out of memory",
        "--flood-mib",
        "100",
        "--die-with",
        "1",
    ]
    with launch(tmp_path, *options) as server:
        failure = server.wait_ready(PATIENT)
    assert failure is not None
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert_gone(server, token)
    with (tmp_path / "server.log").open("rb") as log:
        assert log.readline() == b"OutOfMemoryError: CUDA out of memory\n"
        (left_out,) = (line for line in log if line.startswith(b"[autotune: "))
        assert log.tell() < 2 * END_BYTES + 200
    assert int(left_out.split()[1].replace(b",", b"")) > 100 * 10**6 - 2 * END_BYTES


def test_a_second_launch_appends_and_reads_only_its_own_log(tmp_path: Path, token: str) -> None:
    with launch(
        tmp_path, "--say", "OutOfMemoryError: CUDA out of memory", "--die-with", "1"
    ) as first:
        assert first.wait_ready(PATIENT) is not None
    with launch(tmp_path, "--say", "ValueError: other", "--die-with", "1") as second:
        failure = second.wait_ready(PATIENT)
    assert failure is not None
    assert failure.kind is FailureKind.CRASHED
    assert "out of memory" in (tmp_path / "server.log").read_text()
    assert_gone(second, token)


def test_a_port_that_stays_taken_is_reported(tmp_path: Path, token: str) -> None:
    with launch(tmp_path, "--never-ready") as server, socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", port_of(server)))
        stranger.listen()
        report = server.stop()
    assert not report.port_free
    assert report.problem() == "The server is gone, but another process holds its port."
    assert alive_with(token) == []


def test_a_serving_stranger_is_kind_port(tmp_path: Path, token: str) -> None:
    """The port is taken between lease and bind: the stranger's answers are not taken for the
    server's."""
    with launch(tmp_path / "ours", "--never-ready") as server:
        stranger = os.posix_spawn(
            sys.executable,
            [
                sys.executable,
                str(STAND_IN),
                "--host",
                "127.0.0.1",
                "--port",
                str(port_of(server)),
                "--shards",
                "0",
            ],
            dict(os.environ),
        )
        try:
            failure = server.wait_ready(PATIENT)
        finally:
            os.kill(stranger, signal.SIGKILL)
            os.waitpid(stranger, 0)
    assert failure is not None
    assert failure.kind is FailureKind.PORT
    assert_gone(server, token)


def test_the_watchdog_killed_is_noticed_and_nothing_stays(tmp_path: Path, token: str) -> None:
    secret = f"planted-{token}"
    command = stand_in("--fork-away", "--ignore-term", "--say", f"was given {secret}")
    launcher = ProcessLauncher(
        ShutdownTimeouts(terminate_s=0.3, kill_s=10.0), environment={"MY_TOKEN": secret}
    )
    with launcher.launch(command, tmp_path, CARD) as server:
        assert server.secrets >= {secret}
        assert server.wait_ready(PATIENT) is None
        watchdogs = [
            pid
            for pid in alive_with(token)
            if b"watchdog" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert len(watchdogs) == 1
        os.kill(watchdogs[0], signal.SIGKILL)
        failure = server.failure(within_s=20.0)
    assert failure is not None
    assert failure.kind is FailureKind.INFRASTRUCTURE
    assert_gone(server, token)
    said = (tmp_path / "server.log").read_text()
    assert "was given REDACTED" in said
    assert secret not in said


def test_the_environment_has_its_three_sources(tmp_path: Path, token: str) -> None:
    command = Command(stand_in().argv, {"MINE": "1"})
    with ProcessLauncher(GRACE).launch(command, tmp_path, CARD) as server:
        environment = Path(f"/proc/{server.pids[0]}/environ").read_bytes().split(b"\0")
    assert {b"MINE=1", b"STAND_IN=yes", f"LAUNCH_TEST={token}".encode()} <= set(environment)


def test_a_server_may_open_as_many_files_as_the_hard_limit_lets_it(
    tmp_path: Path, token: str
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        with launch(tmp_path) as server:
            given = resource.prlimit(server.pids[0], resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert given == (65535 if hard == resource.RLIM_INFINITY else min(hard, 65535), hard)
    assert_gone(server, token)


def test_ports_at_a_card_s_distances_are_leased_with_the_server_s(tmp_path: Path) -> None:
    serving = CARD.serving.model_copy(
        update={"derived_ports": [3], "port_flags": {"--other-port": 5}}
    )
    card = CARD.model_copy(update={"serving": serving})
    with ProcessLauncher(GRACE).launch(stand_in("--never-ready"), tmp_path, card) as server:
        for distance in (0, 3, 5):
            with pytest.raises(NoFreePort):
                lease_port([port_of(server) + distance])


def test_files_lie_beside_the_server(tmp_path: Path, token: str) -> None:
    command = Command(stand_in().argv, files={"engine.yaml": "a: 1\n"})
    with ProcessLauncher(GRACE).launch(command, tmp_path / "trials" / "0001", CARD) as server:
        assert os.readlink(f"/proc/{server.pids[0]}/cwd") == str(tmp_path / "trials" / "0001")
    assert (tmp_path / "trials" / "0001" / "engine.yaml").read_text() == "a: 1\n"
    assert_gone(server, token)


def test_a_missing_program_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match="'vlm', is not on the PATH; install Stand-in, or name its program"
    ):
        ProcessLauncher().launch(Command(("vlm", "serve")), tmp_path, CARD)


def test_a_program_that_cannot_run_is_bad_input_and_leaves_nothing(
    tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a short name: engines put sockets there.
    temporary = Path(tempfile.mkdtemp(prefix="t"))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    broken = tmp_path / "engine"
    broken.write_bytes(b"\x7fELF nonsense")
    broken.chmod(0o755)
    with pytest.raises(BadInput, match="cannot start: Exec format error"):
        ProcessLauncher().launch(Command((str(broken),)), tmp_path, CARD)
    assert until(lambda: alive_with(token) == [])
    temporary.rmdir()  # which wants it to be empty


def test_a_folder_that_cannot_be_made_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "trial").write_text("a file")
    with pytest.raises(BadInput, match="is not writable"):
        launch(tmp_path / "trial")


def test_a_server_gets_what_its_study_recorded_and_nothing_else_of_that_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NCCL_ALGO", "VLLM_PORT", "CUDA_HOME", "MY_OWN"):
        monkeypatch.setenv(name, "shell")

    def given(launcher: ProcessLauncher) -> dict[str, str]:
        command = replace(stand_in(), env={"NCCL_DEBUG": "study"})
        with launcher.launch(command, tmp_path, CARD) as server:
            block = Path(f"/proc/{server.pids[0]}/environ").read_bytes().decode()
        settings = dict(item.partition("=")[::2] for item in block.split("\0"))
        names = ("NCCL_ALGO", "NCCL_DEBUG", "VLLM_PORT", "CUDA_HOME", "MY_OWN")
        return {name: settings[name] for name in names if name in settings}

    ours = {"NCCL_DEBUG": "study", "CUDA_HOME": "shell", "MY_OWN": "shell"}
    assert given(ProcessLauncher(GRACE, all_inherited=False)) == ours
    assert given(ProcessLauncher(GRACE)) == {**ours, "NCCL_ALGO": "shell"}
