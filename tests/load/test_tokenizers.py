"""Who counts tokens: a file, the server's /tokenize in each engine's form, or an approximation that
says so."""

import gc
import json
from pathlib import Path
from typing import Any

import pytest

from autotune.base.errors import BadInput
from autotune.load.client.target import Target
from autotune.load.prompts import PromptKey, Prompts
from autotune.load.server_client import ServerTokenizer, tokenizer_for
from autotune.load.tokenizers import Approximate, FileTokenizer
from autotune.load.workloads import load_workload
from tests.load.server import Call, Handler, Server
from tests.load.tokenizer_files import byte_level, byte_pairs, whole_words


def vllm(tokenizer: FileTokenizer) -> Handler:
    """vLLM and SGLang: the text is ``prompt``; special tokens are added unless they are
    declined."""

    async def answer(call: Call) -> None:
        if call.path != "/tokenize" or "prompt" not in call.body or call.body["model"] != "m":
            await call.answer(404, {"error": {"message": "not found"}})
            return
        ids = tokenizer.model.encode(call.body["prompt"], add_special_tokens=False).ids
        ids = [1, *ids] if call.body.get("add_special_tokens", True) else ids
        await call.answer(200, {"count": len(ids), "max_model_len": 4096, "tokens": ids})

    return answer


def llama_server(tokenizer: FileTokenizer) -> Handler:
    """llama-server: the text is ``content``; without it there are no tokens, but no error
    either."""

    async def answer(call: Call) -> None:
        if call.method == "GET":
            await call.answer(200, {"data": [{"id": "tiny.gguf", "meta": {"n_vocab": 1234}}]})
            return
        ids = tokenizer.model.encode(call.body.get("content", ""), add_special_tokens=False).ids
        await call.answer(200, {"tokens": ids})

    return answer


@pytest.fixture(scope="module")
def file_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FileTokenizer:
    return FileTokenizer.load(byte_pairs(tmp_path_factory.mktemp("tokenizer")))


@pytest.mark.parametrize(("engine", "vocabulary"), [(vllm, None), (llama_server, 1234)])
def test_a_server_s_own_tokenizer_counts_as_the_file_does(
    file_tokenizer: FileTokenizer, engine: Any, vocabulary: int | None
):
    with Server(engine(file_tokenizer)) as server:
        tokenizer = tokenizer_for(None, Target.parse(server.url), "m")
        assert tokenizer.describe() == "the server's /tokenize"
        assert (tokenizer.exact, tokenizer.vocabulary) == (True, vocabulary)
        for text in ("", "a", "lengths of prompts", "ünï çødé 😀", "x" * 5000):
            assert tokenizer.count(text) == file_tokenizer.count(text)
        del tokenizer
        gc.collect()  # its connection is closed with it


def test_prompts_by_a_server_s_tokenizer_have_the_length_asked_for(file_tokenizer: FileTokenizer):
    requests = load_workload("random:50:1:10").draw(0, 0)
    with Server(vllm(file_tokenizer)) as server:
        tokenizer = tokenizer_for(None, Target.parse(server.url), "m")
        bodies = Prompts("m", "/v1/chat/completions", tokenizer=tokenizer).bodies(
            requests, PromptKey("w", 0, 0)
        )
        del tokenizer
    texts = [json.loads(body)["messages"][0]["content"] for body in bodies]
    assert [file_tokenizer.count(text) for text in texts] == [50] * 10


def test_an_api_key_is_sent_and_not_told(file_tokenizer: FileTokenizer):
    async def guarded(call: Call) -> None:
        if call.headers.get("authorization") != "Bearer secret" or len(server.posts) > 2:
            await call.answer(401, {"error": "secret is no key"})
        else:
            await vllm(file_tokenizer)(call)

    with Server(guarded) as server:
        tokenizer = ServerTokenizer.find(Target.parse(server.url, "secret"), "m")
        assert tokenizer is not None
        assert tokenizer.count("a") == 1
        with pytest.raises(
            BadInput, match=r"no longer counts tokens \(HTTP 401.*--tokenizer"
        ) as caught:
            tokenizer.count("b")
        assert "secret" not in str(caught.value)
        assert isinstance(tokenizer_for(None, Target.parse(server.url), "m"), Approximate)
        del tokenizer


@pytest.mark.parametrize("answer", [{"detail": "Not Found"}, {"tokens": None}, [1, 2], "?"])
def test_a_server_that_cannot_count_leaves_a_stated_approximation(answer: Any):
    async def useless(call: Call) -> None:
        await call.answer(200 if call.method == "POST" else 404, answer)

    with Server(useless) as server:
        target = Target.parse(server.url)
        tokenizer = tokenizer_for(None, target, "m")
    assert tokenizer.describe() == "approximated at 4 characters per token"
    assert not tokenizer.exact
    assert tokenizer.count("abcde") == 2
    assert isinstance(tokenizer_for(None, target, "m"), Approximate)  # nobody listens any more


def test_a_server_that_goes_away_is_bad_input(file_tokenizer: FileTokenizer):
    with Server(vllm(file_tokenizer)) as server:
        tokenizer = ServerTokenizer.find(Target.parse(server.url), "m")
    assert tokenizer is not None
    with pytest.raises(BadInput, match="no longer counts tokens"):
        tokenizer.count("a")


def test_a_file_goes_before_the_server(tmp_path: Path):
    with Server() as server:
        tokenizer = tokenizer_for(byte_pairs(tmp_path), Target.parse(server.url), "m")
        assert server.calls == []
    assert tokenizer.describe() == f"tokenizer {tmp_path}/tokenizer.json"
    assert tokenizer_for(tmp_path, Target.parse(server.url), "m").describe() == tokenizer.describe()


def test_words_are_one_token_each_after_a_blank(tmp_path: Path):
    for make, fewest in ((byte_pairs, 64), (whole_words, 4000)):
        tokenizer = FileTokenizer.load(make(tmp_path))
        assert len(tokenizer.words) >= fewest
        assert tokenizer.count(" ".join(["x", *tokenizer.words])) == tokenizer.count("x") + len(
            tokenizer.words
        )
    assert FileTokenizer.load(byte_level(tmp_path)).words == ()


def test_a_tokenizer_that_is_none_is_bad_input(tmp_path: Path):
    for content in ("{}", "not JSON"):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(BadInput, match="--tokenizer"):
            FileTokenizer.load(tmp_path)
    with pytest.raises(BadInput, match="does not exist"):
        FileTokenizer.load(tmp_path / "absent")
