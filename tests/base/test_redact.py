"""Secrets are masked wherever they show, and nothing else is."""

from __future__ import annotations

import json
import shlex
from urllib.parse import quote

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from autotune.base import redact
from autotune.base.redact import MASK

TOKEN = "hf_AbCdEf0123456789AbCdEf0123456789"
SECRET_NAMES = [
    "HF_TOKEN",
    "OPENAI_API_KEY",
    "--api-key",
    "--hf-token",
    "AWS_SECRET_ACCESS_KEY",
    "DB_PASSWORD",
    "--token",
]
HARMLESS_NAMES = [
    *(
        "--max-num-batched-tokens",
        "--tokenizer",
        "eos_token",
        "sort_key",
        "--ssl-keyfile",
        "NUM_TOKENS",
        "key",
        "",
    ),
    *("--kv-cache-dtype", "MTP_TOKEN", "--tokenizer-mode"),
]
VALUES = st.from_regex(r"[A-Za-z0-9_+/.]{6,30}", fullmatch=True).filter(
    lambda value: value not in MASK
)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_names_of_secrets(name: str) -> None:
    assert redact.is_secret_name(name)


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_names_of_other_things(name: str) -> None:
    assert not redact.is_secret_name(name)


def test_arguments_keep_their_number_and_place() -> None:
    argv = [
        "vllm",
        "serve",
        "m",
        "--api-key",
        "a",
        "b",
        "--x",
        f"pre{TOKEN}",
        "--hf-token=abc",
        "--port",
        "8000",
        TOKEN,
    ]
    shown = [
        "vllm",
        "serve",
        "m",
        "--api-key",
        MASK,
        MASK,
        "--x",
        f"pre{TOKEN}",
        f"--hf-token={MASK}",
        "--port",
        "8000",
    ]
    assert redact.argv(argv) == [*shown, MASK]
    assert redact.secrets_in(argv, {"HF_TOKEN": "xyz", "A": "b"}) == {"a", "b", "abc", "xyz"}


def test_environment() -> None:
    variables = {
        "HF_TOKEN": "x",
        "A": f"{TOKEN} and more",
        "MAX_TOKENS": "7",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    assert redact.env(variables) == {**variables, "HF_TOKEN": MASK, "A": f"{MASK} and more"}


@given(VALUES)
def test_a_secret_is_found_in_every_way_of_writing_it_down(value: str) -> None:
    command = ["vllm", "serve", "--api-key", value]
    for text in (
        shlex.join(command),
        json.dumps({"argv": command}),
        json.dumps({"argv": command}, indent=2),
        yaml.safe_dump({"argv": command}),
        json.dumps({"env": {"HF_TOKEN": value}}),
        yaml.safe_dump({"env": {"HF_TOKEN": value}}),
        f"export HF_TOKEN='{value}'",
        f"Authorization: Bearer {value}abcdef",
        f"https://user:{quote(value, safe='')}@host.example/x",
    ):
        masked = redact.text(text)
        assert value not in masked.replace(MASK, "")
        assert MASK in masked
        assert redact.text(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 30.00 GiB",
        "--max-num-batched-tokens 8192 --tokenizer-mode deepseek_v32 --kv-cache-dtype fp8",
        '{"speculative": {"num_speculative_tokens": 1}, "total_output_tokens": 200800}',
        "JSONDecodeError: unexpected token: }",
        "eos_token=</s> bos_token: <s>",
        "mean_ttft_ms: 5 at http://127.0.0.1:8000/v1",
        "risk-assessment task-scheduling-policy hf_overrides={} hf_config",
    ],
)
def test_other_text_is_left_alone(text: str) -> None:
    assert redact.text(text) == text


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("invalid key: HF_TOKEN=abc def", f"invalid key: HF_TOKEN={MASK} def"),
        ("--sort-key --api-key hunter2", f"--sort-key --api-key {MASK}"),
        ("--sort-key\n- --api-key\n- hunter2", f"--sort-key\n- --api-key\n- {MASK}"),
        ("eos_token: api_key=hunter2", f"eos_token: api_key={MASK}"),
        ("args...--api-key hunter2", f"args...--api-key {MASK}"),
        ("API__KEY = 'hunter2' x", f"API__KEY = '{MASK}' x"),
        ("--api-key= --port 8000", "--api-key= --port 8000"),
        ('api_key="${API_KEY}" token=${A}', 'api_key="${API_KEY}" token=${A}'),
    ],
)
def test_a_name_that_is_no_secret_hides_none_behind_it(text: str, masked: str) -> None:
    assert redact.text(text) == masked


@given(
    st.lists(
        st.sampled_from(
            [
                "eos",
                "per",
                "api",
                "hf",
                "secret",
                "SIGNING",
                "cache",
                "né",
                "x1",
                "a" * 300,
                "a.b-" * 300,
            ]
        ),
        max_size=4,
    ),
    st.sampled_from(
        [
            "token",
            "TOKEN",
            "key",
            "Keys",
            "password",
            "apikey",
            "secrets",
            "credential",
            "tokens",
            "keyfile",
        ]
    ),
    st.sampled_from("_.-"),
)
def test_text_and_names_keep_one_rule_behind_prefixes_of_any_length(
    before: list[str], last: str, joint: str
) -> None:
    name = joint.join(["x", *before, last])
    for separator in ("=", ": ", " = '", '": "'):
        masked = redact.text(f"{name}{separator}hunter2") == f"{name}{separator}{MASK}"
        assert masked == redact.is_secret_name(name), separator
    for separator in (" ", "=", '", "', "\n- "):
        option = f"--{name}{separator}"
        assert (redact.text(f"{option}hunter2") == f"{option}{MASK}") == redact.is_secret_name(
            name
        ), separator


@pytest.mark.parametrize("begin", ["", "--"])
@pytest.mark.parametrize(
    "unit",
    [
        "a.",
        "api.",
        "ac-",
        "a.--",
        ".--",
        "_",
        " ",
        "a",
        "@",
        "://a:",
        "token",
        "token_",
        "key=",
        "bearer ",
        "hf_a",
        "${a",
    ],
)
def test_a_megabyte_of_any_text_is_looked_through(begin: str, unit: str) -> None:
    # Time that grows with the square of the length is minutes to hours here.
    text = begin + unit * (1_000_000 // len(unit))
    assert redact.text(f"{text} end --api-key hunter2").endswith(f"end --api-key {MASK}")


@pytest.mark.parametrize(
    "secret",
    [TOKEN, "sk-proj-0123456789abcdef", "ghp_0123456789abcdef0123", "nvapi-0123456789abcdef0"],
)
def test_tokens_are_known_by_their_shape(secret: str) -> None:
    assert redact.text(f"using {secret}.") == f"using {MASK}."


def test_known_secrets_are_masked_anywhere_but_too_short_ones() -> None:
    assert (
        redact.text("swordfish and swordfish2 a", {"swordfish", "swordfish2", "a"})
        == f"{MASK} and {MASK} a"
    )
