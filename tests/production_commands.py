"""Twelve commands as people run them in production, four an engine, with what each engine makes of
their options."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

TEMPLATE, TRT_FILE = "t.jinja", "extra.yaml"


@dataclass(frozen=True)
class Production:
    """A command in production.

    Attributes:
        carried: by engine, what stands in each of its candidates' commands.
        excluded: by engine, the options without a counterpart.
        held: what is a knob's that is not searched: candidates of the same engine have it, too.
    """

    name: str
    model: str
    hardware: str
    gpus: int
    command: str
    carried: dict[str, str]
    excluded: dict[str, str] = field(default_factory=dict)
    held: tuple[str, ...] = ()


COMMANDS = [
    Production(
        "vllm-lora-tools",
        "Qwen/Qwen3-32B",
        "h100",
        2,
        "vllm serve Qwen/Qwen3-32B --served-model-name chat -tp 2 --max-num-seqs 64 --port 9000 --enable-lora "
        f"--max-loras 4 --chat-template ./{TEMPLATE} --enable-auto-tool-choice --tool-call-parser hermes",
        {
            "vllm": f"--served-model-name chat --port 9000 --enable-lora --max-loras 4 --chat-template ./{TEMPLATE} "
            "--enable-auto-tool-choice --tool-call-parser hermes",
            "sglang": "--served-model-name chat --port 9000 --enable-lora --max-loras-per-batch 4 "
            f"--chat-template ./{TEMPLATE} --tool-call-parser hermes --lora-target-modules all --max-lora-rank 16",
        },
        {"tensorrt_llm": "--served-model-name, --enable-lora, --max-loras"},
    ),
    Production(
        "vllm-r1-key-mtp",
        "deepseek-ai/DeepSeek-R1",
        "h200",
        8,
        "VLLM_LOGGING_LEVEL=WARNING vllm serve deepseek-ai/DeepSeek-R1 -tp 8 --trust-remote-code --reasoning-parser "
        "deepseek_r1 --kv-cache-dtype fp8 --no-enable-prefix-caching --api-key '${MY_KEY}' --disable-log-stats "
        '--compilation-config \'{"cudagraph_mode": "FULL_DECODE_ONLY", "max_cudagraph_capture_size": 256}\' '
        '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 1}\'',
        {
            "vllm": "--trust-remote-code --reasoning-parser deepseek_r1 --api-key ${MY_KEY} --disable-log-stats "
            "--compilation-config.cudagraph_mode FULL_DECODE_ONLY",
            "sglang": "--trust-remote-code --reasoning-parser deepseek-r1 --api-key ${MY_KEY}",
        },
        {"tensorrt_llm": "--api-key"},
        ("--no-enable-prefix-caching",),
    ),
    Production(
        "vllm-fp8-offload",
        "meta-llama/Llama-3.3-70B-Instruct",
        "h100",
        4,
        "HF_TOKEN='${HF_TOKEN}' NCCL_DEBUG=WARN vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 4 --quantization fp8 "
        "--max-model-len 32768 --cpu-offload-gb 10 --generation-config vllm --seed 7 --download-dir /models",
        {
            "vllm": "--quantization fp8 --cpu-offload-gb 10 --generation-config vllm --seed 7 --download-dir /models",
            "sglang": "--quantization fp8 --cpu-offload-gb 10 --sampling-defaults openai --random-seed 7 "
            "--download-dir /models",
        },
        {
            "tensorrt_llm": "--quantization, --cpu-offload-gb, --generation-config, --seed, --download-dir"
        },
        ("--max-model-len 32768",),
    ),
    Production(
        "vllm-gpt-oss-public",
        "openai/gpt-oss-120b",
        "h100",
        4,
        "vllm serve openai/gpt-oss-120b -tp 4 --async-scheduling --tool-call-parser openai --enable-auto-tool-choice "
        "--host 0.0.0.0 --port 8080 --root-path /chat --max-logprobs 40 --allowed-origins '[\"https://a.example\"]'",
        {
            "vllm": "--tool-call-parser openai --enable-auto-tool-choice --host 0.0.0.0 --port 8080 --root-path /chat "
            '--max-logprobs 40 --allowed-origins ["https://a.example"]',
        },
        {
            "sglang": "--allowed-origins",
            "tensorrt_llm": "--tool-call-parser, --root-path, --max-logprobs, --allowed-origins",
        },
    ),
    Production(
        "sglang-ep-tools",
        "Qwen/Qwen3-235B-A22B-Instruct-2507",
        "h200",
        8,
        "python3 -m sglang.launch_server --model-path Qwen/Qwen3-235B-A22B-Instruct-2507 --tp 8 --ep 8 "
        "--tool-call-parser qwen25 --reasoning-parser qwen3 --host 0.0.0.0 --port 30000 "
        "--enable-metrics --log-level warning",
        {
            "sglang": "--tool-call-parser qwen25 --reasoning-parser qwen3 --host 0.0.0.0 --port 30000 "
            "--enable-metrics --log-level warning",
            "vllm": "--enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3 --host 0.0.0.0 "
            "--port 30000",
            "tensorrt_llm": "--tool_parser qwen3 --reasoning_parser qwen3 --host 0.0.0.0 --port 30000",
        },
    ),
    Production(
        "sglang-v32-key",
        "deepseek-ai/DeepSeek-V3.2",
        "h200",
        8,
        "SGLANG_ENABLE_JIT_DEEPGEMM=1 python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3.2 --tp 8 "
        f"--dp 8 --enable-dp-attention --trust-remote-code --reasoning-parser deepseek-v3 --chat-template ./{TEMPLATE} "
        "--api-key '${MY_KEY}' --speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4",
        {
            "sglang": f"--trust-remote-code --reasoning-parser deepseek-v3 --chat-template ./{TEMPLATE} "
            "--api-key ${MY_KEY}",
            "vllm": f"--trust-remote-code --reasoning-parser deepseek_v3 --chat-template ./{TEMPLATE} "
            "--api-key ${MY_KEY}",
        },
        {"tensorrt_llm": "--reasoning-parser, --api-key"},
    ),
    Production(
        "sglang-adapters",
        "Qwen/Qwen3-8B",
        "h100",
        1,
        "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --enable-lora --lora-paths sql=/adapters/sql "
        "chat=/adapters/chat --max-loras-per-batch 2 --max-lora-rank 64 --mem-fraction-static 0.8 "
        "--tool-call-parser qwen25 --disable-radix-cache",
        {
            "sglang": "--enable-lora --lora-paths sql=/adapters/sql chat=/adapters/chat --max-loras-per-batch 2 "
            "--max-lora-rank 64 --tool-call-parser qwen25",
            "vllm": "--enable-lora --lora-modules sql=/adapters/sql chat=/adapters/chat --max-loras 2 "
            "--max-lora-rank 64 --enable-auto-tool-choice --tool-call-parser hermes",
        },
        {"tensorrt_llm": "--enable-lora, --lora-paths, --max-loras-per-batch, --max-lora-rank"},
        ("--disable-radix-cache",),
    ),
    Production(
        "sglang-eagle3",
        "Qwen/Qwen3-8B",
        "h100",
        1,
        "python -m sglang.launch_server --model Qwen/Qwen3-8B --quantization fp8 --context-length 32768 "
        "--speculative-algorithm EAGLE3 --speculative-draft-model-path Tengyunw/qwen3_8b_eagle3 "
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --random-seed 3 "
        "--grammar-backend xgrammar --served-model-name tutor",
        {
            "sglang": "--quantization fp8 --random-seed 3 --grammar-backend xgrammar --served-model-name tutor",
            "vllm": "--quantization fp8 --seed 3 --served-model-name tutor",
        },
        {"tensorrt_llm": "--quantization, --random-seed, --served-model-name"},
        ("--speculative-draft-model-path Tengyunw/qwen3_8b_eagle3", "--context-length 32768"),
    ),
    Production(
        "trtllm-r1",
        "deepseek-ai/DeepSeek-R1",
        "h200",
        8,
        "trtllm-serve deepseek-ai/DeepSeek-R1 --tp_size 8 --ep_size 8 --max_batch_size 384 --max_num_tokens 1536 "
        "--kv_cache_free_gpu_memory_fraction 0.8 --trust_remote_code --reasoning_parser deepseek-r1 --host 0.0.0.0 "
        "--port 8000 --backend pytorch",
        {
            "tensorrt_llm": "--trust_remote_code --reasoning_parser deepseek-r1 --host 0.0.0.0 --port 8000 "
            "--backend pytorch",
            "vllm": "--trust-remote-code --reasoning-parser deepseek_r1 --host 0.0.0.0 --port 8000",
            "sglang": "--trust-remote-code --reasoning-parser deepseek-r1 --host 0.0.0.0 --port 8000",
        },
    ),
    Production(
        "trtllm-tools-template",
        "Qwen/Qwen3-32B",
        "h100",
        2,
        f"trtllm-serve Qwen/Qwen3-32B --tp_size 2 --tool_parser qwen3 --chat_template ./{TEMPLATE} --log_level warning "
        "--port 9001",
        {
            "tensorrt_llm": f"--tool_parser qwen3 --chat_template ./{TEMPLATE} --log_level warning --port 9001",
            "vllm": f"--enable-auto-tool-choice --tool-call-parser hermes --chat-template ./{TEMPLATE} --port 9001",
            "sglang": f"--tool-call-parser hermes --chat-template ./{TEMPLATE} --port 9001",
        },
    ),
    Production(
        "trtllm-file",
        "openai/gpt-oss-120b",
        "h100",
        4,
        f"TRTLLM_ENABLE_PDL=1 trtllm-serve openai/gpt-oss-120b --tp_size 4 --config ./{TRT_FILE} "
        "--num_postprocess_workers 4",
        {"tensorrt_llm": "--num_postprocess_workers 4", "vllm": "", "sglang": ""},
    ),
    Production(
        "trtllm-traces",
        "meta-llama/Llama-3.3-70B-Instruct",
        "h200",
        4,
        "trtllm-serve meta-llama/Llama-3.3-70B-Instruct --tp_size 4 --tokenizer /models/tok --otlp_traces_endpoint "
        "http://127.0.0.1:4317 --max_seq_len 32768",
        {
            "tensorrt_llm": "--tokenizer /models/tok --otlp_traces_endpoint http://127.0.0.1:4317",
            "vllm": "--tokenizer /models/tok --otlp-traces-endpoint http://127.0.0.1:4317",
            "sglang": "--tokenizer-path /models/tok --enable-trace --otlp-traces-endpoint http://127.0.0.1:4317",
        },
        held=("--max_seq_len 32768",),
    ),
]


def with_files(folder: Path) -> None:
    """Write the files that the commands name into a folder, from which they are started."""
    (folder / TEMPLATE).write_text("{{ messages }}")
    (folder / TRT_FILE).write_text(
        "cuda_graph_config: {enable_padding: true, max_batch_size: 720}\nstream_interval: 10\n"
        "kv_cache_config: {dtype: fp8, enable_partial_reuse: false}\n"
    )
