"""A real vLLM that cannot start: each cause has its kind and the line that tells it, and nothing
stays behind."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from autotune.engines.failure import FailureKind
from tests.real_engines.server import PATIENT, STARTED, launch
from tests.servers.settings import alive_with

pytestmark = pytest.mark.real_engines

CASES = [
    (("--max-num-sekvs", "4"), FailureKind.BAD_ARGUMENT, "--max-num-sekvs 4"),
    (("--dtype", "bf17"), FailureKind.BAD_ARGUMENT, "invalid choice: 'bf17'"),
    (("--max-model-len", "100000"), FailureKind.BAD_ARGUMENT, "--max-model-len <= 8192"),
    (("--block-size", "16"), FailureKind.UNSUPPORTED, "No common block size for 16"),
]


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Every process that the test starts carries it."""
    monkeypatch.setenv("LAUNCH_TEST", tmp_path.name)
    return tmp_path.name


@pytest.mark.parametrize(("options", "kind", "said"), CASES, ids=lambda value: str(value)[:30])
def test_a_bad_start_has_its_kind(
    model: Path, tmp_path: Path, token: str, options: tuple[str, ...], kind: FailureKind, said: str
) -> None:
    with launch(model, tmp_path / "trial", *options) as server:
        failure = server.wait_ready(PATIENT)
    assert failure is not None
    print(f"\n{' '.join(options)}: {failure.kind}: {failure.message}\n  {failure.log_excerpt}")
    assert (failure.kind, said in failure.message) == (kind, True), failure
    assert server.stop().problem() == ""
    assert alive_with(token) == []


def test_a_taken_port_is_told(model: Path, tmp_path: Path, token: str) -> None:
    """Taken between the lease and the moment at which vLLM binds it, seconds later."""
    with socket.socket() as other, launch(model, tmp_path / "trial") as server:
        url = urlsplit(server.url)
        other.bind((url.hostname, url.port))
        other.listen()
        failure = server.wait_ready(PATIENT)
    assert failure is not None
    print(f"\ntaken port: {failure.kind}: {failure.message}\n  {failure.log_excerpt}")
    assert failure.kind is FailureKind.PORT, failure
    assert server.stop().survivors == ()
    assert alive_with(token) == []


def test_a_missing_model_is_told(tmp_path: Path, token: str) -> None:
    with launch(tmp_path / "nothing", tmp_path / "trial", flags=STARTED) as server:
        failure = server.wait_ready(PATIENT)
    assert failure is not None
    print(f"\nno model: {failure.kind}: {failure.message}\n  {failure.log_excerpt}")
    assert failure.kind is FailureKind.INFRASTRUCTURE, failure
    assert failure.lasting
    assert alive_with(token) == []
