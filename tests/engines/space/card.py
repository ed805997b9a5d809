"""A small engine of the tests' own, with everything that a card can hold."""

from __future__ import annotations

from autotune.engines.context import Context
from autotune.engines.library import Library
from autotune.engines.schema import EngineCard

TOY = EngineCard.model_validate(
    {
        "engine": "toy",
        "title": "Toy",
        "program": ["toy", "serve"],
        "versions": ["1.0", "2.0"],
        "on_node": {"tensor_parallel": "{gpus}"},
        "knobs": {
            "tensor_parallel": {
                "help": "",
                "default": 1,
                "search": [1, 2, 4, 8],
                "read": "args.tp",
            },
            "data_parallel": {"help": "", "default": 1, "search": [1, 2, 4, 8], "read": "args.dp"},
            "speculative_tokens": {
                "help": "",
                "default": 0,
                "search": [0, 1, 2],
                "read": "args.spec",
            },
            "speculative_mode": {
                "help": "",
                "default": "plain",
                "search": ["plain", "tree"],
                "active": "speculative_tokens > 0",
                "read": "args.mode",
            },
            "max_running_requests": {
                "help": "",
                "default": [{"value": 1024, "when": "hardware.memory_gb > 100"}, {"value": 256}],
                "search": [None, 48, 256, 1024],
                "read": "args.mrr",
            },
            "kv_cache_dtype": {
                "help": "",
                "default": "auto",
                "search": [
                    {"values": ["auto", "fp8_ds_mla"], "when": "model.sparse_attention"},
                    {"values": ["auto", "fp8"]},
                ],
                "read": "args.kv",
            },
        },
        "effects": [
            {
                "name": "cap",
                "when": "speculative_tokens > 0 and max_running_requests is None",
                "set": {"max_running_requests": 48},
                "reason": "capped",
                "source": "test",
                "versions": "<2",
            },
            {
                "name": "none-is-default",
                "when": "max_running_requests is None",
                "set": {"max_running_requests": "{1024 if hardware.memory_gb > 100 else 256}"},
                "reason": "spelled out",
                "source": "test",
            },
        ],
        "rules": [
            {
                "name": "all-gpus",
                "forbid": "tensor_parallel * data_parallel != gpus",
                "kind": "rule",
                "message": "",
                "reason": "idle GPUs",
                "source": "test",
            },
            {
                "name": "tree-needs-two",
                "forbid": "speculative_mode == 'tree' and speculative_tokens < 2",
                "kind": "bad_argument",
                "message": "tree needs two",
                "reason": "tree",
                "source": "test",
            },
            {
                "name": "old-no-tree",
                "forbid": "speculative_mode == 'tree'",
                "kind": "unsupported",
                "message": "no tree",
                "reason": "old",
                "source": "test",
                "versions": "<2",
            },
        ],
    }
)


def context(version: str = "2.0", hardware: str = "h200") -> Context:
    library = Library()
    node = library.node(hardware)
    return Context(library.model("deepseek-ai/DeepSeek-V3.2"), node, node.gpus, version)
