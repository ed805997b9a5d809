"""Secrets are kept by the name of their source, and masked wherever a server repeats one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.errors import BadInput
from autotune.engines.command import Command
from autotune.engines.library import Library
from autotune.servers.command import (
    api_key_of,
    inherited_secrets,
    read_secret,
    refuse_secrets,
    resolve_references,
)
from autotune.servers.watchdog import mask_file

VLLM = Library().engine("vllm").serving


def test_references_are_filled_in_for_the_launch_only() -> None:
    asked = Command(
        ("vllm", "serve", "m", "--api-key", "${K}", "--x=${T}"), {"HF_TOKEN": "${T}", "A": "1"}
    )
    given_, secrets = resolve_references(asked, {"K": "one=1", "T": "two"})
    assert given_.argv == ("vllm", "serve", "m", "--api-key", "one=1", "--x=two")
    assert given_.env == {"HF_TOKEN": "two", "A": "1"}
    assert secrets == {"one=1", "two"}
    assert inherited_secrets({"MY_TOKEN": "inherited-one", "OTHER_API_KEY": "EMPTY"}) == {
        "inherited-one"
    }
    assert asked.shell() == 'HF_TOKEN="${T}" A=1 vllm serve m --api-key "${K}" --x="${T}"'
    with pytest.raises(BadInput, match=r"refers to \$\{T\}"):
        resolve_references(asked, {"K": "one"})


@pytest.mark.parametrize(
    ("argv", "environment", "key"),
    [
        (["vllm", "--api-key", "a", "b"], {}, "a"),
        (["vllm", "--api-key=a"], {"VLLM_API_KEY": "b"}, "a"),
        (["vllm"], {"VLLM_API_KEY": "b"}, "b"),
        (["emulate", "--", "VLLM_API_KEY=b", "vllm"], {}, "b"),
        (["vllm"], {}, None),
    ],
)
def test_the_key_that_a_launched_server_wants(
    argv: list[str], environment: dict[str, str], key: str | None
) -> None:
    assert api_key_of(argv, environment, VLLM) == key


@pytest.mark.parametrize(
    ("argv", "env", "named"),
    [
        (["--api-key", "my-own"], {}, "--api-key"),
        (["--api-key=my-own"], {}, "--api-key"),
        (["--x", "hf_abcdefgh0123456789"], {}, "--x"),
        ([], {"HF_TOKEN": "my-own"}, "HF_TOKEN"),
        (["--api-key", "$KEY"], {}, "--api-key"),
    ],
)
def test_a_literal_secret_is_refused_and_not_repeated(
    argv: list[str], env: dict[str, str], named: str
) -> None:
    with pytest.raises(BadInput, match=rf"--baseline: it holds a secret \({named}\)") as refused:
        refuse_secrets(argv, env, "--baseline")
    assert "my-own" not in str(refused.value)
    assert "hf_" not in str(refused.value)


def test_references_and_plain_words_are_not_refused() -> None:
    refuse_secrets(
        ["--api-key", "${KEY}", "--max-num-batched-tokens", "8192"],
        {"HF_TOKEN": "${T}", "A": "1"},
        "x",
    )


def test_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text("from-file\n")
    monkeypatch.setenv("MY_KEY", "from-environment")
    monkeypatch.chdir(tmp_path)
    assert read_secret("MY_KEY", None, "--api-key") == "from-environment"
    assert read_secret(None, "key", "--api-key") == "from-file"


@given(
    before=st.binary(max_size=40),
    secret=st.text("abcXYZ0123-_", min_size=4, max_size=12),
    after=st.binary(max_size=40),
    far=st.booleans(),
)
def test_masking_moves_nothing(
    tmp_path_factory: pytest.TempPathFactory, before: bytes, secret: str, after: bytes, far: bool
) -> None:
    """Also where a secret lies across two of the blocks in which the file is read."""
    start = b"." * (2**20 - len(before) - 3 if far else 0) + before
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(start + secret.encode() + after)
    mask_file(path, [secret])
    masked = path.read_bytes()
    assert len(masked) == len(start) + len(secret) + len(after)
    assert secret.encode() not in masked
    assert masked[: max(0, len(start) - len(secret))] == start[: max(0, len(start) - len(secret))]


def test_what_was_there_before_is_left(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("secret secret abc")
    mask_file(path, ["secret", "abc"], offset=7)
    assert path.read_text() == "secret REDACT abc"
    mask_file(tmp_path / "gone", ["secret"])
