"""From the typed command to the launched one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.errors import BadInput
from autotune.engines import engine
from autotune.engines.library import Library
from autotune.engines.serving import Serving
from autotune.servers import StartupTimeouts
from autotune.servers.command import (
    absolute_paths,
    find_program,
    of_version,
    prepare_folder,
    with_serving,
)

WORDS = st.lists(
    st.sampled_from(
        ["serve", "M", "--host", "0.0.0.0", "--port", "80", "--port=90", "--host=h", "--x"]
    )
)


@given(WORDS)
def test_the_address_stands_once_and_last(words: list[str]) -> None:
    argv = with_serving(words, Serving(), "127.0.0.1", 21000)
    assert argv[-4:] == ("--host", "127.0.0.1", "--port", "21000")
    assert not any(word.partition("=")[0] in ("--host", "--port") for word in argv[:-4])


def test_the_rest_of_a_command_is_kept() -> None:
    argv = [
        "vllm",
        "serve",
        "M",
        "--host",
        "0.0.0.0",
        "--max-num-seqs",
        "8",
        "--port=1",
        "--portal",
        "x",
    ]
    expected = (
        "vllm",
        "serve",
        "M",
        "--max-num-seqs",
        "8",
        "--portal",
        "x",
        "--host",
        "127.0.0.1",
        "--port",
        "2",
    )
    assert with_serving(argv, Serving(), "127.0.0.1", 2) == expected


def test_what_launched_servers_need_is_added_once() -> None:
    serving = Serving(arguments=["--enable-metrics"])
    expected = ("M", "--enable-metrics", "--host", "127.0.0.1", "--port", "2")
    assert with_serving(["M"], serving, "127.0.0.1", 2) == expected
    assert with_serving(["M", "--enable-metrics"], serving, "127.0.0.1", 2) == expected


def test_an_engine_s_other_ports_are_given_where_its_version_has_the_option() -> None:
    sglang = Library().engine("sglang")
    words = ["--nccl-port", "1", "--tp", "8"]
    known = of_version(sglang, "0.5.23", {"--nccl-port", "--tp"}).serving
    assert known.port_flags == {"--nccl-port": 240}
    assert known.derived_ports == [*range(233, 240)], (
        "ZMQ_TCP_PORT_DELTA of 0.5.23, and the six behind it"
    )
    argv = with_serving(words, known, "127.0.0.1", 21000)
    assert argv == (
        "--tp",
        "8",
        "--enable-metrics",
        "--nccl-port",
        "21240",
        "--host",
        "127.0.0.1",
        "--port",
        "21000",
    )
    old = of_version(sglang, "0.5.23", {"--tp"}).serving
    assert "--nccl-port" not in with_serving(["--tp", "8"], old, "127.0.0.1", 21000)


def test_limits_inside_an_engine_are_above_ours_unless_the_user_sets_them() -> None:
    library, ours = Library(), StartupTimeouts()
    for name, version, limits in (
        (
            "sglang",
            "0.5.23",
            {"--watchdog-timeout": ours.silence_s, "--dist-timeout": ours.total_s},
        ),
        ("sglang", "0.4.3.post2", {"--watchdog-timeout": ours.silence_s}),
    ):
        kind = engine(name, library)
        serving = of_version(kind.card, version, kind.table(version).flags).serving
        raised = dict(word.split("=") for word in serving.arguments if "=" in word)
        assert raised.keys() == limits.keys()
        assert all(float(raised[flag]) >= least for flag, least in limits.items())
        for typed in (["--watchdog-timeout", "5"], ["--watchdog-t=5"]):
            argv = with_serving(typed, serving, "127.0.0.1", 1)
            assert argv[: len(typed)] == tuple(typed)
            assert not any(word.startswith("--watchdog-timeout=") for word in argv)
    vllm, name = library.engine("vllm"), "VLLM_ENGINE_READY_TIMEOUT_S"
    assert name not in of_version(vllm, "0.11.0", ()).serving.environment
    assert float(of_version(vllm, "0.32.0", ()).serving.environment[name]) >= ours.total_s


def test_relative_paths_are_anchored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's working folder is another one."""
    (tmp_path / "models" / "m").mkdir(parents=True)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").touch()
    (tmp_path / "serve").mkdir()
    monkeypatch.chdir(tmp_path)
    words = [
        "serve",
        "models/m",
        "tiny",
        "org/model",
        "--template=models/m",
        "engine.yaml",
        '{"a": "b/c"}',
    ]
    expected = (
        *(
            "serve",
            f"{tmp_path}/models/m",
            f"{tmp_path}/tiny",
            "org/model",
            f"--template={tmp_path}/models/m",
        ),
        *("engine.yaml", '{"a": "b/c"}'),
    )
    assert absolute_paths(words, {"engine.yaml": ""}) == expected


def test_only_its_user_may_read_a_servers_log(tmp_path: Path) -> None:
    """An engine prints prompts."""
    assert prepare_folder(tmp_path / "trial", {}).stat().st_mode & 0o777 == 0o600


def test_programs_are_found_on_the_path_of_the_command(tmp_path: Path) -> None:
    program = tmp_path / "engine"
    program.write_text("#!/bin/sh\n")
    with pytest.raises(BadInput, match="is not on the PATH"):
        find_program("engine", {"PATH": str(tmp_path)}, "Engine")
    with pytest.raises(BadInput, match="is not an executable file"):
        find_program(str(program), {}, "Engine")
    program.chmod(0o755)
    assert find_program("engine", {"PATH": str(tmp_path)}, "Engine") == str(program)
    with pytest.raises(BadInput, match="does not exist"):
        find_program(str(tmp_path / "none"), {}, "Engine")


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "a/../../outside"])
def test_files_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="outside the trial's folder"):
        prepare_folder(tmp_path / "trial", {name: ""})
