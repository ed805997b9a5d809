"""A server that somebody else runs is asked, and left alone."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from autotune.base.errors import BadInput, UnknownName
from autotune.engines.failure import FailureKind
from autotune.servers import StartupTimeouts
from autotune.servers.ports import lease_port
from autotune.servers.server import connect
from tests.servers.settings import PATIENT, launch


def test_it_is_used_and_not_stopped(tmp_path: Path) -> None:
    with launch(tmp_path) as running:
        assert running.wait_ready(PATIENT) is None
        with connect(f"{running.url}/v1/", ["tiny-too"]) as server:
            assert server.wait_ready(StartupTimeouts(30.0, 30.0)) is None
            assert (server.url, server.model, server.pids, server.log) == (
                running.url,
                "tiny-too",
                (),
                None,
            )
        assert server.stop().signals == ()
        assert server.secrets == frozenset()
        assert connect(running.url, ["tiny"], api_key="my-own").secrets == {"my-own"}
        assert running.failure() is None
        assert server.failure() is None
        with pytest.raises(UnknownName, match=r"did you mean 'tiny'\? Known: tiny, tiny-too"):
            connect(running.url, ["tinny"])
        running.stop()
        failure = server.failure()
    assert failure is not None
    assert failure.kind is FailureKind.INFRASTRUCTURE


def test_a_url_that_does_not_answer() -> None:
    with (
        closing(lease_port()) as lease,
        pytest.raises(BadInput, match=r"nothing answers at .*Connection refused"),
    ):
        connect(f"http://127.0.0.1:{lease.port}", ["tiny"])
