"""What a person is told before anything runs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from autotune.base.errors import CannotGoOn
from tests.product.cli import Finished, autotune

QUESTION = (
    "--model",
    "openai/gpt-oss-120b",
    "--hw",
    "h200",
    "--on",
    "simulator",
    "--launches",
    "4",
    "--study",
    "s",
)


def asked(home: Path, executor: str) -> Finished:
    done = autotune("run", *QUESTION, "--executor", executor, home=home)
    assert done.code == 2
    assert "Traceback" not in done.err
    assert not (home / "studies").exists(), "nothing is made for a study that cannot begin"
    return done


@pytest.mark.parametrize(
    ("executor", "said"),
    [
        ("slurm", "unknown executor 'slurm'. Known: local, local:N, ray, ray:ADDRESS."),
        ("ray:", "HOST:PORT"),
        ("ray:head:99999", "HOST:PORT"),
        ("ray:ray://head:10001", "HOST:PORT"),
    ],
)
def test_a_name_that_is_none(tmp_path: Path, executor: str, said: str) -> None:
    assert said in asked(tmp_path / "home", executor).err


def test_one_server_is_not_loaded_from_several_nodes(tmp_path: Path) -> None:
    question = (*QUESTION[:4], "--on", "external:http://127.0.0.1:9", "--executor", "ray")
    done = autotune("run", *question, home=tmp_path / "home")
    assert done.code == 2
    assert "--executor ray" in done.err
    assert "remove the option" in done.err


@pytest.mark.e2e
def test_an_address_where_nothing_answers(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        found = asked(tmp_path / "home", f"ray:127.0.0.1:{port}")
    assert f"no Ray cluster answers at 127.0.0.1:{port}" in found.err
    assert "ray start --head" in found.err


def test_an_address_where_something_else_answers(tmp_path: Path) -> None:
    """Left to Ray, this is asked for a quarter of an hour."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = asked(tmp_path / "home", f"ray:127.0.0.1:{server.server_port}")
        server.shutdown()
    assert (
        f"no Ray cluster answers at 127.0.0.1:{server.server_port} (another service listens there)"
        in found.err
    )


def test_what_ray_repeats_while_it_is_refused_is_kept_from_stderr(
    capfd: pytest.CaptureFixture[str],
) -> None:
    from autotune.tuner.executors.ray.cluster import _quiet

    with _quiet():
        os.write(2, b"gcs_client.cc: Unauthenticated")
    os.write(2, b"autotune: said")
    assert capfd.readouterr().err == "autotune: said"


def test_a_head_that_is_gone_stops_the_study_before_ray_ends_the_tuner() -> None:
    from autotune.tuner.executors.ray.cluster import wait_for_head

    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        wait_for_head(address, 0.0)
    with pytest.raises(CannotGoOn, match=f"no longer answers .its head at {address} is gone"):
        wait_for_head(address, 0.0)


def test_ray_is_not_installed(tmp_path: Path) -> None:
    """A Python in which ``import ray`` fails as it does without the package."""
    without = "import sys; sys.modules['ray'] = None; from autotune.cli.main import main; main()"
    arguments = ["run", *QUESTION, "--executor", "ray", "--home", str(tmp_path / "home")]
    done = subprocess.run(
        [sys.executable, "-c", without, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("autotune: --executor ray needs Ray Tune")
    assert "pip install '.[ray]' in a clone" in done.stderr
    assert not (tmp_path / "home" / "studies").exists()
