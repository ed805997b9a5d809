#!/usr/bin/env bash
# vLLM 0.32.0 and 0.33.0: `vllm bench serve --backend openai-chat` measures another time to the first token of the same server.
#
# Guess: TTFT of a chat is the time to the first text, in both versions; whatever it is, an upgrade of the client does not change
# what it measures, as the result's keys (mean_ttft_ms, mean_tpot_ms, mean_itl_ms) have stayed.
# Seen: up to 0.32.0 the clock stops at the first chunk with a choice, also at the one that only opens the answer ("role":
# "assistant", empty content); 0.33.0 skips that one. On a server that opens its stream at 0.1 s and sends text from 0.6 s on, every
# 50 ms, the first says 100 ms with a first gap of 500 ms, the second 600 ms and gaps of 50 ms. Where the opening chunk comes
# together with the first text, as from vLLM's own server, TTFT is the same, and 0.32.0 has one gap of 0 ms more.
# Who meets it: whoever compares a result with one from before an upgrade, or a vLLM server with one that opens streams early: the
# result's file does not name the client's version.
#
# Output seen (2026-11-28, CPython 3.11, Linux; the module vllm/benchmarks/lib/endpoint_request_func.py of both wheels, alone):
#   0.32.0 opened early: TTFT 100 ms, 11 gaps, the longest 500 ms
#   0.33.0 opened early: TTFT 600 ms, 10 gaps, the longest 50 ms
#   0.32.0 opened with the text: TTFT 600 ms, 11 gaps, the longest 50 ms
#   0.33.0 opened with the text: TTFT 600 ms, 10 gaps, the longest 50 ms
# (rounded to 50 ms). Needs 700 MB of disk.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check aiohttp==3.14.5 regex tqdm
for version in 0.32.0 0.33.0; do
  "$folder/env/bin/pip" download -q --disable-pip-version-check --no-deps --dest "$folder/$version" "vllm==$version"
done

cat >"$folder/ask.py" <<'PYTHON'
"""Measure one chat by the client of a vLLM wheel, against a server of known times."""

import asyncio
import importlib.util
import json
import sys
import zipfile
from pathlib import Path

import aiohttp
import aiohttp.web

TEXT_S, GAP_S, CHUNKS = 0.6, 0.05, 11


def client(folder: Path):
    """Load the client's module by its file: vLLM itself is not imported."""
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        path = archive.extract("vllm/benchmarks/lib/endpoint_request_func.py", folder)
    spec = importlib.util.spec_from_file_location(f"client_{folder.name}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def event(delta: dict) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"


def answer(opens_s: float):
    async def stream(request):
        loop = asyncio.get_running_loop()
        begun = loop.time()
        response = aiohttp.web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        at_s = [opens_s, *(TEXT_S + i * GAP_S for i in range(CHUNKS))]
        for number, moment in enumerate(at_s):
            await asyncio.sleep(begun + moment - loop.time())
            delta = {"content": " word"} if number else {"role": "assistant", "content": ""}
            await response.write(event(delta))
        usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": CHUNKS}}
        await response.write(b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n")
        return response

    return stream


async def main(folder: Path, how: str, opens_s: float) -> None:
    app = aiohttp.web.Application()
    app.router.add_post("/v1/chat/completions", answer(opens_s))
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/chat/completions"
    module = client(folder)
    asked = module.RequestFuncInput(prompt="a", api_url=url, prompt_len=1, output_len=CHUNKS, model="m")
    async with aiohttp.ClientSession() as session:
        found = await module.async_request_openai_chat_completions(asked, session)
    await runner.cleanup()
    assert found.success, found.error
    first, longest = (50 * round(seconds * 1e3 / 50) for seconds in (found.ttft, max(found.itl)))
    print(f"{folder.name} {how}: TTFT {first} ms, {len(found.itl)} gaps, the longest {longest} ms")


asyncio.run(main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
PYTHON

for how in "opened early,0.1" "opened with the text,0.6"; do
  for version in 0.32.0 0.33.0; do
    "$folder/env/bin/python" "$folder/ask.py" "$folder/$version" "${how%,*}" "${how#*,}" | tee -a "$folder/seen"
  done
done
diff - "$folder/seen" <<'SEEN'
0.32.0 opened early: TTFT 100 ms, 11 gaps, the longest 500 ms
0.33.0 opened early: TTFT 600 ms, 10 gaps, the longest 50 ms
0.32.0 opened with the text: TTFT 600 ms, 11 gaps, the longest 50 ms
0.33.0 opened with the text: TTFT 600 ms, 10 gaps, the longest 50 ms
SEEN
echo "as stated"
