"""Reads models' configurations by an engine's own code; runs in the engine's own Python.

    python read_configs.py ENGINE FOLDER < questions > answers

Both are lines of JSON; the first line read is the node, see `gpus.Node`. vLLM builds its model's
class without memory, as one of several tensor-parallel ranks: so the engine itself states a rank's
bytes with the padding and scales of a quantisation, the cache of every layer, and what it refuses.
SGLang is asked for its configuration and its registry.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import importlib.metadata
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import absent
import ask
import gpus

Answer = dict[str, Any]
Read = Callable[[dict[str, Any]], Answer]
_MODELS = (
    "deepseek_v2",
    "qwen3_moe",
    "qwen3_vl_moe",
    "qwen3_5",
    "gpt_oss",
    "mllama4",
    "nemotron_h",
)
"""Modules that import most layers."""
_OTHER_PARTS = re.compile(
    r"visual|vision|audio|image|multi_modal|mm_projector|patch_merger|embed_vision|embed_audio"
)
"""Names of weights that are no part of the decoder."""


def vllm(node: gpus.Node) -> Read:
    """Import vLLM; what is asked of a folder: facts, and a rank's layout for each size."""
    absent.stand_in("vllm", node.amd)
    import vllm_parts

    vllm_parts.answer_for(node)
    import torch

    torch.cuda._lazy_init = lambda: None
    torch.cuda.Stream = torch.cuda.Event = absent.Nothing
    torch.accelerator.current_device_index = lambda: 0
    _import_once()
    return lambda asked: _in_vllm(asked["folder"], asked.get("ranks"), asked.get("cache", "auto"))


def _import_once() -> None:
    """Import here what most models need, instead of in every fork."""
    from vllm.model_executor.layers.quantization import get_quantization_config
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    steps = [partial(importlib.import_module, f"vllm.model_executor.models.{m}") for m in _MODELS]
    steps += [backend.get_class for backend in AttentionBackendEnum]
    for step in (*steps, partial(get_quantization_config, "fp8")):
        with contextlib.suppress(Exception):
            step()


def _in_vllm(folder: str, ranks: int | None, cache: str) -> Answer:
    from vllm.config import ModelConfig

    model = ModelConfig(model=folder, tokenizer=folder, skip_tokenizer_init=True)
    return _facts(model) if ranks is None else _layout(model, ranks, cache)


def _facts(model: Any) -> Answer:
    from vllm.config.speculative import SpeculativeConfig
    from vllm.model_executor.model_loader.utils import get_model_architecture
    from vllm.model_executor.models.registry import ModelRegistry

    known, config = ModelRegistry.get_supported_archs(), model.model_arch_config
    draft = SpeculativeConfig.hf_config_override(copy.deepcopy(model.hf_config))
    drafts = draft.model_type != model.hf_config.model_type
    facts = {
        "architectures": model.architectures,
        "known": any(name in known for name in model.architectures),
        "context": model.max_model_len,
        "heads": config.total_num_attention_heads,
        "kv_heads": config.total_num_kv_heads,
        "head_size": config.head_size,
        "layers": model.get_total_num_hidden_layers(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantization": model.quantization,
        "experts": model.get_num_experts(),
        "per_token": model.get_num_experts_per_tok(),
        "latent": model.use_mla,
        "mtp": getattr(draft, "n_predict", None) if drafts else 0,
    }
    with contextlib.suppress(Exception):
        facts["class"] = get_model_architecture(model)[1]
    return facts


def _layout(model: Any, ranks: int, cache: str) -> Answer:
    """Build the model as the first of some tensor-parallel ranks, on the device without memory."""
    import torch
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        LoadConfig,
        ParallelConfig,
        VllmConfig,
        set_current_vllm_config,
    )
    from vllm.distributed import parallel_state
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import resolve_kv_cache_dtype_string, set_default_torch_dtype
    from vllm.v1.worker.workspace import init_workspace_manager

    model.verify_with_parallel_config(ParallelConfig(tensor_parallel_size=ranks))
    config = VllmConfig(
        model_config=model,
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig(device="cuda"),
        cache_config=CacheConfig(
            cache_dtype=resolve_kv_cache_dtype_string(cache, model),
            sliding_window=_window_of_all(model),
        ),
        load_config=LoadConfig(load_format="dummy"),
    )
    with set_current_vllm_config(config), tempfile.TemporaryDirectory() as work:
        parallel_state.init_distributed_environment(1, 0, f"file://{work}/ranks", 0, "gloo")
        parallel_state.initialize_model_parallel(1, 1)
        # The other ranks are never asked, as nothing is computed.
        parallel_state.get_tp_group().world_size = ranks
        config.parallel_config.tensor_parallel_size = ranks
        init_workspace_manager(torch.device("meta"))
        with set_default_torch_dtype(model.dtype), torch.device("meta"), _on_meta():
            built = initialize_model(config)
        return {**_weights(built), "caches": _caches(config)}


def _window_of_all(model: Any) -> int | None:
    """The window that reaches layers through the cache's configuration: one that all have."""
    kinds = {*(getattr(model.hf_text_config, "layer_types", None) or ["sliding_attention"])}
    window: int | None = model.get_sliding_window()
    return window if kinds == {"sliding_attention"} else None


def _on_meta() -> Any:
    """Give shapes alone where a layer asks for a tensor on a GPU, and no tensor its first values."""
    from torch.overrides import TorchFunctionMode

    class OnMeta(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            if getattr(func, "__module__", "") == "torch.nn.init":
                return kwargs["tensor"] if "tensor" in kwargs else args[0]
            device = kwargs.get("device")
            if type(device) is int or str(device).startswith("cuda"):
                kwargs["device"] = "meta"
            return func(*args, **kwargs)

    return OnMeta()


def _weights(built: Any) -> Answer:
    """Bytes and elements of a rank, of the decoder and beside it, each tensor once."""
    count: Counter[str] = Counter()
    seen = set()
    for name, weight in built.named_parameters():
        if id(weight) in seen:
            continue
        seen.add(id(weight))
        part = "other_" if _OTHER_PARTS.search(name) else ""
        count[f"{part}elements"] += weight.numel()
        count[f"{part}bytes"] += weight.numel() * weight.element_size()
    return {"class": type(built).__name__, **count}


def _caches(config: Any) -> list[Answer]:
    """The specification of each kind of layer's cache, with the number of such layers."""
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.platforms import current_platform

    # Blocks are of the attention backend's size, as a worker asks for them.
    current_platform.update_block_size_for_backend(config)
    counts: Counter[str] = Counter()
    for layer in config.compilation_config.static_forward_context.values():
        if not isinstance(layer, AttentionLayerBase):
            continue
        spec = layer.get_kv_cache_spec(config)
        told: Answer = {"kind": type(spec).__name__}
        if spec is not None:
            told["bytes"] = spec.page_size_bytes
            told |= {
                field.name: getattr(spec, field.name, None) for field in dataclasses.fields(spec)
            }
        counts[json.dumps(told, default=str)] += 1
    return [{**json.loads(told), "layers": count} for told, count in counts.items()]


def sglang(node: gpus.Node) -> Read:
    """Import SGLang; its ModelConfig is asked."""
    absent.stand_in("sglang", node.amd)
    from sglang.srt.configs.model_config import AttentionArch, ModelConfig
    from sglang.srt.models.registry import ModelRegistry

    known = set(ModelRegistry.models)

    def read(asked: dict[str, Any]) -> Answer:
        model = ModelConfig(asked["folder"])
        names = model.hf_config.architectures or []
        latent = model.attention_arch == AttentionArch.MLA
        return {
            "architectures": names,
            "known": any(name in known for name in names),
            "context": model.context_len,
            "heads": model.num_attention_heads,
            "kv_heads": model.get_total_num_kv_heads(),
            "head_size": (
                model.kv_lora_rank + model.qk_rope_head_dim if latent else model.head_dim
            ),
            "layers": model.num_attention_layers,
            "dtype": str(model.dtype).removeprefix("torch."),
            "quantization": model.quantization,
            "latent": latent,
        }

    return read


def main() -> None:
    """Answer every line of standard input, each in a process that begins where this one is."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints is no answer
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    engine = sys.argv[1]
    node = gpus.Node(json.loads(sys.stdin.readline()))
    gpus.answer(node, Path(sys.argv[2]))
    read = {"sglang": sglang, "vllm": vllm}[engine](node)
    print(json.dumps({"version": importlib.metadata.version(engine)}), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(ask.in_a_fork(partial(read, asked), asked["seconds"]), file=out, flush=True)


if __name__ == "__main__":
    main()
