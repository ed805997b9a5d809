"""Any Hugging Face id: by the local cache, else by the Hub, a stand-in on loopback here."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from autotune.base.errors import BadInput
from autotune.engines.context import Context, unsuited
from autotune.engines.library import Library
from autotune.tuner.prepare.names import WITHIN_S, find_model
from tests.product.cli import autotune

ID = "somebody/Small-8B"
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


class Hub(ThreadingHTTPServer):
    """Answers for one model, and keeps what it was asked for."""

    def __init__(
        self, answer: bytes = json.dumps(CONFIG).encode(), delay_s: float = 0.0, index: bytes = b""
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.delay_s, self.asked = delay_s, list[tuple[str, str | None]]()
        root = f"/{ID}/resolve/main"
        self.files = {f"{root}/config.json": answer}
        if index:
            self.files[f"{root}/model.safetensors.index.json"] = index

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Authorization"]))
        time.sleep(self.server.delay_s)
        answer = self.server.files.get(self.path)
        self.send_response(404 if answer is None else 200)
        self.end_headers()
        self.wfile.write(b"Entry not found" if answer is None else answer)

    def log_message(self, *words: object) -> None:
        pass


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment with empty caches, and a Hub that may be asked."""
    for name in ("HF_HUB_OFFLINE", "HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return monkeypatch


def cached(hub: Path, model_id: str = ID) -> Path:
    """Lay a model into a cache as huggingface_hub does."""
    folder = hub / f"models--{model_id.replace('/', '--')}"
    snapshot = folder / "snapshots" / "abc123"
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc123")
    (snapshot / "config.json").write_text(json.dumps(CONFIG))
    return hub


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"])
def test_a_model_in_the_local_cache_is_described_without_the_hub(
    alone: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    below = {"HF_HUB_CACHE": ".", "HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}[variable]
    cached(tmp_path / "there" / below)
    alone.setenv(variable, str(tmp_path / "there"))
    alone.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    card = find_model(ID, None, Library())
    assert (card.id, card.architecture.layers, card.architecture.context_limit) == (ID, 36, 40960)
    assert find_model("/weights/here", ID, Library()).id == ID


def test_a_model_of_the_hub_is_asked_for_once(alone: pytest.MonkeyPatch) -> None:
    with serving(Hub()) as hub:
        alone.setenv("HF_ENDPOINT", f"{hub.url}/")
        alone.setenv("HF_TOKEN", "hf_secret")
        card = find_model(ID, None, Library())
        again = find_model(ID, None, Library())
    assert card == again
    assert (card.id, card.family, card.architecture.hidden_size) == (ID, "qwen3", 4096)
    paths = [path for path, _ in hub.asked]
    assert paths == [f"/{ID}/resolve/main/hf_quant_config.json", f"/{ID}/resolve/main/config.json"]
    assert {token for _, token in hub.asked} == {"Bearer hf_secret"}


def test_the_weights_of_a_model_that_is_not_predicted_are_those_of_its_index(
    alone: pytest.MonkeyPatch,
) -> None:
    """A Hub without an index leaves them unknown."""
    config = json.dumps({**CONFIG, "block_configs": [{}] * 36}).encode()
    index = json.dumps({"metadata": {"total_size": 99_000_000_000}, "weight_map": {}}).encode()
    for given in (b"", index):
        with serving(Hub(config, index=given)) as hub:
            alone.setenv("HF_ENDPOINT", hub.url)
            card = find_model(ID, None, Library())
        assert "layers of different sizes" in card.unpredicted
        assert card.architecture.checkpoint_gb == (99 if given else 0)


def test_a_known_model_is_never_asked_for(alone: pytest.MonkeyPatch) -> None:
    with serving(Hub()) as hub:
        alone.setenv("HF_ENDPOINT", hub.url)
        assert find_model("deepseek-ai/DeepSeek-V3.2", None, Library()).family == "deepseek_v32"
        assert (
            find_model("/workspace/DeepSeek-v3.2", None, Library()).id
            == "deepseek-ai/DeepSeek-V3.2"
        )
        for path in ("./nowhere", "nowhere", "/a/b"):
            with pytest.raises(BadInput):
                find_model(path, None, Library())
    assert hub.asked == []


@pytest.mark.parametrize(
    ("answer", "model_id", "why"),
    [
        (b"<html>log in</html>", ID, "does not answer with JSON"),
        (b"", "somebody/Small-9B", "answers 404 for it; set HF_TOKEN for a gated model"),
    ],
)
def test_what_the_hub_does_not_describe_is_answered_with_what_to_provide(
    alone: pytest.MonkeyPatch, answer: bytes, model_id: str, why: str
) -> None:
    with serving(Hub(answer)) as hub:
        alone.setenv("HF_ENDPOINT", hub.url)
        with pytest.raises(BadInput) as told:
            find_model(model_id, None, Library())
    message = str(told.value)
    assert message.startswith(
        f"unknown model {model_id!r} ({hub.url} {why}): give a folder that holds its config"
    )
    assert "known ids" not in message, "none is written nearly so"
    assert ". " not in message, "one sentence"


def test_without_a_network_it_says_so(alone: pytest.MonkeyPatch) -> None:
    alone.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(
        BadInput, match=r"http://127\.0\.0\.1:1 cannot be reached.*deepseek-ai/DeepSeek-V3\.2"
    ):
        find_model("deepseek-ai/deepseek-v9.2", None, Library())
    alone.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BadInput, match="not in the local cache, and HF_HUB_OFFLINE is set"):
        find_model(ID, None, Library())


@pytest.mark.parametrize(
    ("wanted", "near"),
    [
        ("mistralai/Mistral-7B-Instruct-v0.3", ["mistralai/Mixtral-8x22B-Instruct-v0.1"]),
        ("tiiuae/falcon-7b-instruct", []),
        ("google/gemma-2-9b", []),
        (
            "meta-llama/Llama-3.2-3B-Instruct",
            [f"meta-llama/Llama-{n}-Instruct" for n in ("3.1-8B", "3.1-70B", "3.3-70B")],
        ),
        ("qwen/qwen3-8", ["Qwen/Qwen3-8B", "Qwen/Qwen3-32B", "Qwen/Qwen3-14B"]),
    ],
)
def test_only_ids_that_are_written_nearly_so_are_suggested(
    alone: pytest.MonkeyPatch, wanted: str, near: list[str]
) -> None:
    alone.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BadInput) as told:
        find_model(wanted, None, Library())
    assert {known for known in Library().models if known in str(told.value)} == set(near)


@pytest.mark.e2e
def test_a_hub_that_does_not_answer_is_waited_for_ten_seconds(alone: pytest.MonkeyPatch) -> None:
    with serving(Hub(delay_s=WITHIN_S / 2 + 1)) as hub:
        alone.setenv("HF_ENDPOINT", hub.url)
        began = time.monotonic()
        with pytest.raises(BadInput, match="did not answer within 10 s"):
            find_model(ID, None, Library())
        assert time.monotonic() - began < WITHIN_S + 2


def test_a_study_and_a_prediction_of_a_model_of_the_hub(tmp_path: Path) -> None:
    with serving(Hub()) as hub:
        there = {
            "HF_HUB_OFFLINE": "0",
            "HF_ENDPOINT": hub.url,
            "XDG_CACHE_HOME": str(tmp_path),
            "NO_PROXY": "127.0.0.1",
        }
        command = ["--hw", "h200", "--json", "--", "vllm", "serve", ID]
        simulated = autotune("simulate", *command, home=tmp_path / "home", **there)
        assert simulated.code == 0, simulated.err
        asked = [
            "--model",
            ID,
            "--hw",
            "h200",
            "--gpus",
            "1",
            "--engine",
            "vllm",
            "--dry-run",
            "--json",
        ]
        tried = autotune(
            "run", *asked, "--baseline", f"vllm serve {ID}", home=tmp_path / "home", **there
        )
        assert tried.code == 0, tried.err
        assert len(hub.asked) == 2, "the second command finds what the first one kept"
    assert tried.json["baseline"] == f"vllm serve {ID}"


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3.5-27B",
        "Qwen/Qwen3.5-122B-A10B",
        "Qwen/Qwen3.5-397B-A17B",
        "Qwen/Qwen3.6-35B-A3B",
        "Qwen/Qwen3-30B-A3B",
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "Qwen/Qwen3-Coder-480B-A35B-Instruct",
        "Qwen/Qwen3-VL-235B-A22B-Instruct",
        "moonshotai/Kimi-K2.5",
        "moonshotai/Kimi-K2-Thinking",
        "zai-org/GLM-5-FP8",
        "MiniMaxAI/MiniMax-M3",
        "meta-llama/Llama-3.1-8B-Instruct",
        "meta-llama/Meta-Llama-3.1-8B-Instruct",
        "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
        "google/gemma-3-27b-it",
        "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
        "mistralai/Mistral-Large-3-675B-Instruct-2512",
        "microsoft/phi-4",
        "nvidia/DeepSeek-R1-0528-FP4",
    ],
)
def test_what_people_serve_is_known_without_a_hub(name: str) -> None:
    """A cut-off node has no file of them; the tests' hub is off as a whole (`conftest.py`)."""
    library = Library()
    model = find_model(name, None, library)
    for engine in (library.engine("vllm"), library.engine("sglang")):
        context = Context(model, library.node("h200"), 8, engine.newest)
        assert unsuited(engine, context) is None


def test_a_command_by_an_id_alone_has_the_model_s_parsers(tmp_path: Path) -> None:
    run = ["run", "--model", "Qwen/Qwen3-Coder-480B-A35B-Instruct", "--hw", "h200"]
    done = autotune(*run, "--engine", "vllm", "--dry-run", home=tmp_path / "home")
    assert (done.code, "--tool-call-parser qwen3_coder" in done.out) == (0, True)
