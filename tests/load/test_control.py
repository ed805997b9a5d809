"""What is said to a server besides the load, and its address."""

import socket

import pytest

from autotune.base.errors import BadInput, UnknownName
from autotune.load.client.target import Target
from autotune.load.server_client import ServerClient
from tests.load.server import Call, Server


async def engine(call: Call) -> None:
    if call.path == "/metrics":
        await call.answer(200, "# HELP")
    elif call.path in ("/health", "/reset_prefix_cache"):
        await call.answer(200, {})
    elif call.path == "/v1/models":
        await call.answer(200, {"data": [{"id": "m"}, {"id": "lora"}]})
    elif call.path == "/v1/completions" and call.body["model"] == "m":
        await call.answer(200, {"choices": [{"text": "a"}]})
    else:
        await call.answer(404, {"error": {"message": "The model `n` does not exist."}})


def test_an_engine_is_asked_everything():
    with Server(engine) as server, ServerClient(Target.parse(server.url)) as client:
        assert client.metrics_text() == '"# HELP"'
        assert client.reset_cache("/reset_prefix_cache")
        assert not client.reset_cache("/flush_cache")
        assert client.get_json("/get_server_info") is None
        client.model("m")
        client.model("lora")
        with pytest.raises(UnknownName, match="did you mean 'lora'"):
            client.model("lorra")


@pytest.mark.parametrize(
    ("rows", "served"),
    [
        ([{"id": "chat"}], ("chat", "chat")),
        (
            [{"id": "chat", "root": "/models/q"}, {"id": "fast", "root": "/models/q"}],
            ("chat", "/models/q"),
        ),
        (
            [{"id": "chat", "root": "org/q", "parent": None}, {"id": "sql", "parent": "chat"}],
            ("chat", "org/q"),
        ),
        ([{"id": "other"}, {"id": "Org/Q", "root": "org/q"}], ("Org/Q", "org/q")),
        ([{"id": "chat"}, {"id": "other"}], None),
    ],
)
def test_a_model_under_another_name(
    rows: list[dict[str, str | None]], served: tuple[str, str] | None
):
    """The only model of a server is meant; its adapters and its other names are no models of their
    own."""

    async def listing(call: Call) -> None:
        await call.answer(200, {"data": rows})

    with Server(listing) as server, ServerClient(Target.parse(server.url)) as client:
        if served is not None:
            assert client.served_as(["mine", "Org/Q"]) == served
            return
        with pytest.raises(UnknownName, match=r"Known: chat, other.*--model NAME --model-id mine"):
            client.served_as(["mine"])


def test_a_server_without_models():
    async def empty(call: Call) -> None:
        await call.answer(200, {"data": []})

    with (
        Server(empty) as server,
        ServerClient(Target.parse(server.url)) as client,
        pytest.raises(BadInput, match="lists no models"),
    ):
        client.served_as(["mine"])


def test_a_server_without_a_list_of_models_is_taken_as_it_is():
    async def bare(call: Call) -> None:
        await call.answer(404, "no")

    with Server(bare) as server, ServerClient(Target.parse(server.url)) as client:
        client.model("anything")


def test_where_nothing_listens():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        target = Target.parse(f"http://127.0.0.1:{taken.getsockname()[1]}")
        with ServerClient(target) as client:
            assert client.metrics_text() is None
            assert not client.reset_cache("/reset")
            with pytest.raises(BadInput, match="nothing answers"):
                client.model("m")


@pytest.mark.parametrize(
    ("url", "base", "host"),
    [
        ("http://h:8000", "http://h:8000", "h:8000"),
        ("http://h:8000/v1/", "http://h:8000", "h:8000"),
        ("https://h/serve/v1", "https://h:443/serve", "h:443"),
        ("http://[::1]:5", "http://[::1]:5", "[::1]:5"),
    ],
)
def test_an_address_in_its_forms(url: str, base: str, host: str):
    target = Target.parse(url)
    assert target.url == base
    request = target.request("/v1/completions", b"{}").decode()
    assert request.startswith(f"POST {target.prefix}/v1/completions HTTP/1.1\r\nHost: {host}\r\n")
    assert request.endswith("Content-Length: 2\r\n\r\n{}")


@pytest.mark.parametrize(
    "url", ["", "ftp://h", "http://", "http://h:port", "http://u:p@h", "http://h?x=1"]
)
def test_a_malformed_address_is_bad_input(url: str):
    with pytest.raises(BadInput, match=r"http://HOST:PORT|user name or password"):
        Target.parse(url)


def test_an_unknown_host_is_bad_input():
    with pytest.raises(BadInput, match="not known"):
        assert Target.parse("http://no-such-host.invalid").addresses


def test_a_key_that_would_break_the_request_is_bad_input():
    with pytest.raises(BadInput, match="API key"):
        Target.parse("http://h", "a\r\nX-Evil: 1")


def test_the_key_is_not_in_the_representation():
    assert "hidden" not in repr(Target.parse("http://h", "hidden"))
