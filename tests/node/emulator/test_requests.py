"""Whatever is posted is answered: with completions, or with a refusal that says what was wrong."""

import json
import socket
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autotune.node.emulator.completions import words
from autotune.node.emulator.http import (
    CompletionRequest,
    Limits,
    RequestRefused,
    read_request,
    text_tokens,
)
from autotune.node.emulator.launch import emulation_card
from tests.node.emulator.servers import COMMANDS, serving

LIMITS = Limits(emulation_card("vllm").api, ("m",), context=500, pool=400)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
KEYS = (
    "prompt",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "n",
    "stream",
    "stream_options",
)
BODIES = st.fixed_dictionaries({}, optional=dict.fromkeys((*KEYS, "ignore_eos"), ANY))
CHATS = st.fixed_dictionaries(
    {"messages": st.lists(st.fixed_dictionaries({"role": ANY, "content": ANY}), min_size=1)}
)


def read(body: bytes, chat: bool) -> CompletionRequest | RequestRefused:
    try:
        return read_request(body, chat=chat, limits=LIMITS)
    except RequestRefused as refused:
        return refused


@given(
    st.one_of(
        BODIES,
        CHATS,
        st.fixed_dictionaries({"prompt": st.text(), "max_tokens": st.integers(0, 600)}),
    )
)
@settings(max_examples=100, deadline=None)
def test_a_body_is_read_or_refused(document):
    body = json.dumps(document).encode()
    for chat in (False, True):
        asked = read(body, chat)
        if isinstance(asked, RequestRefused):
            assert asked.status == 400
            assert asked.message
        else:
            assert len(asked.prompts) == len(asked.output_tokens) == len(asked.finish_reasons) >= 1
            for prompt, output in zip(asked.prompts, asked.output_tokens, strict=True):
                assert 1 <= output <= LIMITS.pool - len(prompt)


@given(st.binary())
@example(b"[" * 100_000)
@example(b'{"prompt": "\xff"}')
def test_bytes_are_refused(body):
    refused = read(body, chat=False)
    assert isinstance(refused, RequestRefused)
    assert refused.status == 400


def test_a_prompt_longer_than_a_step_is_refused_and_token_ids_need_no_tokenizer():
    limits = replace(LIMITS, dialect=emulation_card("tensorrt_llm").api, step=100)
    fits, beyond = (json.dumps({"prompt": [1] * n, "max_tokens": 5}).encode() for n in (100, 101))
    assert not read_request(fits, chat=False, limits=limits).were_text
    assert read_request(b'{"prompt": ["a text"]}', chat=False, limits=limits).were_text
    with pytest.raises(RequestRefused, match=r"prompt length \(101\).*\(100\)"):
        read_request(beyond, chat=False, limits=limits)


def test_words_of_an_answer_are_one_token_each():
    for count in (1, 5, 100):
        assert len(text_tokens(words(0, count))) == count


def test_a_broken_request_ends_its_own_connection_only():
    with serving(*COMMANDS["vllm"]) as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        for broken in (
            b"GARBAGE\r\n\r\n",
            b"GET http://[ HTTP/1.1\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\nContent-",
        ):
            with socket.create_connection((host, int(port))) as client:
                client.sendall(broken)
                client.shutdown(socket.SHUT_WR)
                while client.recv(4096):
                    pass
        upgrade = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
        with socket.create_connection((host, int(port))) as client:
            client.sendall(upgrade)
            assert client.recv(4096).startswith(b"HTTP/1.1 200 OK")
        two = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 2
        with socket.create_connection((host, int(port))) as client:
            client.sendall(two)
            said = b""
            while said.count(b"200 OK") < 2:
                part = client.recv(4096)
                assert part, said
                said += part
        assert server.complete("a")["usage"]["completion_tokens"] == 4
