#!/usr/bin/env bash
# SGLang 0.5.23: `sglang.bench_serving --backend sglang-oai` (and -chat, vllm …) reports the tokens that it asked for, not those that came.
#
# Guess: the client asks for usage in the stream, as vLLM's does, or counts the tokens of the text; a server that ends its
# answers early has a lower throughput.
# Seen: the body of a request has no "stream_options" (that of a conversation has), so an OpenAI-compatible server sends no usage, and the number of output tokens stays that of
# max_tokens. A server that answers 11 tokens for 256 asked is credited with 256: output throughput is 23 times too high, TPOT
# 25 times too low (2 ms for 50). Its own backend (--backend sglang) reads the count of the server and is right. The result has the
# text's tokens beside it ("total_output_tokens_retokenized"), and no throughput of them.
# Who meets it: whoever measures a server that does not honour "ignore_eos" (TensorRT-LLM, llama.cpp, a hosted API), or runs with
# --disable-ignore-eos; compare the two totals of the file.
#
# Output seen (2026-11-28, CPython 3.11, Linux; the module sglang/benchmark/serving.py of the wheel, with stand-ins for the packages
# that these functions do not use):
#   sglang-oai: asked 256, came 11, counted 256, TPOT 2 ms; stream_options sent: None
#   sglang-oai-chat: asked 256, came 11, counted 256, TPOT 2 ms; stream_options sent: None
#   sglang: asked 256, came 11, counted 11, TPOT 50 ms; stream_options sent: None
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check aiohttp==3.14.5 msgspec numpy orjson requests tqdm
"$folder/env/bin/pip" install -q --disable-pip-version-check --no-deps --target "$folder/sglang" sglang==0.5.23

cat >"$folder/ask.py" <<'PYTHON'
"""Send one request by SGLang's client to a server that answers eleven tokens, and usage where it is asked for."""

import argparse
import asyncio
import importlib
import json
import sys
from types import ModuleType

import aiohttp
import aiohttp.web

ASKED, CAME, GAP_S = 256, 11, 0.05
seen = {}


class StandIn(ModuleType):
    """A module, or a name of one, that these functions do not use."""

    def __getattr__(self, name: str) -> "StandIn":
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(name)

    def __call__(self) -> None:
        raise NotImplementedError


def client():
    """Import the module without SGLang's package and without what loads datasets and tokenizers."""
    package = sys.modules["sglang"] = ModuleType("sglang")
    package.__path__ = [f"{sys.argv[1]}/sglang"]
    for name in (
        "transformers",
        "sglang.benchmark.datasets",
        "sglang.benchmark.datasets.mooncake",
        "sglang.srt",
        "sglang.srt.disaggregation",
        "sglang.srt.disaggregation.utils",
        "sglang.srt.utils",
        "sglang.srt.utils.network",
    ):
        sys.modules[name] = StandIn(name)
    module = importlib.import_module("sglang.benchmark.serving")
    module.args = argparse.Namespace(
        disable_stream=False, disable_ignore_eos=False, return_logprob=False, return_routed_experts=False,
        top_logprobs_num=0, logprob_start_len=-1, token_ids_logprob=None, temperature=0.0, top_p=1.0, header=None,
    )
    return module


def event(number: int, chat: bool, native: bool) -> dict:
    if native:
        return {"text": " word" * number, "meta_info": {"completion_tokens": number, "prompt_tokens": 1}}
    choice = {"delta": {"content": " word"}} if chat else {"text": " word"}
    return {"choices": [{"index": 0, **choice}]}


async def answer(request):
    asked = seen["body"] = await request.json()
    chat, native = "chat" in request.path, request.path == "/generate"
    response = aiohttp.web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for number in range(1, CAME + 1):
        await asyncio.sleep(GAP_S)
        await response.write(b"data: " + json.dumps(event(number, chat, native)).encode() + b"\n\n")
    if (asked.get("stream_options") or {}).get("include_usage"):
        usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": CAME}}
        await response.write(b"data: " + json.dumps(usage).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


async def main() -> None:
    app = aiohttp.web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
    module = client()
    for name, path, send in (
        ("sglang-oai", "/v1/completions", module.async_request_openai_completions),
        ("sglang-oai-chat", "/v1/chat/completions", module.async_request_openai_chat_completions),
        ("sglang", "/generate", module.async_request_sglang_generate),
    ):
        url = f"http://127.0.0.1:{runner.addresses[0][1]}{path}"
        asked = module.RequestFuncInput(
            prompt="a", api_url=url, prompt_len=1, output_len=ASKED, model="m", lora_name="", image_data=None,
            extra_request_body={},
        )
        found = await send(asked)
        assert found.success, found.error
        tpot_ms = 1e3 * (found.latency - found.ttft) / (found.output_len - 1)
        came = len(found.generated_text.split())
        print(
            f"{name}: asked {ASKED}, came {came}, counted {found.output_len}, TPOT {tpot_ms:.0f} ms; "
            f"stream_options sent: {seen['body'].get('stream_options')}"
        )
    await runner.cleanup()


asyncio.run(main())
PYTHON

"$folder/env/bin/python" "$folder/ask.py" "$folder/sglang" | tee "$folder/seen"
# A busy machine stretches the gaps: the time itself is not compared.
diff - <(sed -E 's/TPOT [0-9]+ ms; //' "$folder/seen") <<'SEEN'
sglang-oai: asked 256, came 11, counted 256, stream_options sent: None
sglang-oai-chat: asked 256, came 11, counted 256, stream_options sent: None
sglang: asked 256, came 11, counted 11, stream_options sent: None
SEEN
echo "as stated"
