"""Leases are exclusive between processes, and end with the last process that holds them."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import closing

import pytest

from autotune.base.errors import BadInput
from autotune.servers.ports import is_free, lease_port

TUNER = """
import sys
from autotune.servers.ports import lease_port
lease = lease_port(range(31000, 31040))
print(lease.port, flush=True)
sys.stdin.read()
"""


def test_twenty_processes_never_share_a_port() -> None:
    tuners = [
        subprocess.Popen(
            [sys.executable, "-c", TUNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(20)
    ]
    ports = []
    for tuner in tuners:
        assert tuner.stdout is not None
        ports.append(int(tuner.stdout.readline()))
    for tuner in tuners:
        tuner.communicate()
    assert len(set(ports)) == 20
    assert all(is_free(port) for port in ports)


def test_a_port_in_use_is_passed_over() -> None:
    with closing(lease_port()) as free:
        neighbour = free.port
    with socket.create_server(("127.0.0.1", neighbour)):
        assert not is_free(neighbour)
        with pytest.raises(BadInput, match="none of 1 ports"):
            lease_port([neighbour])


def test_a_lease_comes_back() -> None:
    with closing(lease_port()) as first, pytest.raises(BadInput):
        lease_port([first.port])
    with closing(lease_port([first.port])) as second:
        assert second.port == first.port


def test_ports_at_distances_are_leased_with_it_or_not_at_all() -> None:
    with closing(lease_port()) as free:
        port = free.port
    with closing(lease_port([port], besides=[3, 5])):
        for taken in (port, port + 3, port + 5):
            with pytest.raises(BadInput):
                lease_port([taken])
        lease_port([port + 4]).close()
        # Whose other port is taken gets neither, and holds nothing.
        with pytest.raises(BadInput):
            lease_port([port + 2], besides=[1])
        lease_port([port + 2]).close()
    with socket.create_server(("127.0.0.1", port + 3)), pytest.raises(BadInput):
        lease_port([port], besides=[3, 5])
    lease_port([port], besides=[3, 5]).close()
