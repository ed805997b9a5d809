"""vLLM's part of `ask`: ``vllm serve`` up to the engine's processes, and what a worker's attention
layers choose.

Compiled operators are named in a few modules when these are imported; such names are given out
here, and never called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gpus

Answer = dict[str, Any]


def prepare(node: gpus.Node) -> Callable[[list[str]], Answer]:
    """Import what ``vllm serve`` imports; gives a function from arguments to what a server would
    report."""
    answer_for(node)
    from vllm import AsyncEngineArgs
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.entrypoints.common.startup import log_non_default_args
    from vllm.entrypoints.serve.dev.server_info.api_router import (
        PydanticVllmConfig,
        _get_vllm_env_vars,
    )
    from vllm.logger import _print_info_once
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils import deep_gemm
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.attention import selector

    command = ServeSubcommand()

    def ask(argv: list[str]) -> Answer:
        # What the command line before it chose and logged, in the process that this one was forked
        # from.
        selector._cached_get_attn_backend.cache_clear()
        deep_gemm.is_deep_gemm_supported.cache_clear()
        _print_info_once.cache_clear()
        kept = _Kept()
        logging.getLogger("vllm").addHandler(kept)
        parser = FlexibleArgumentParser()
        args = command.subparser_init(parser.add_subparsers()).parse_args(argv)
        args.model = args.model_tag
        command.validate(args)
        log_non_default_args(args)
        config = AsyncEngineArgs.from_cli_args(args).create_engine_config(
            UsageContext.OPENAI_API_SERVER
        )
        kernels = _in_a_worker(config)
        told = PydanticVllmConfig.dump_python(config, mode="json", fallback=str)
        answer = {"vllm_config": told, "vllm_env": _get_vllm_env_vars()}
        # Named or chosen, a kernel makes the same server.
        made = {
            **told,
            "api_server_count": args.api_server_count,
            "attention_config": {**told["attention_config"], "backend": kernels["attention"]},
            "kernel_config": {**told["kernel_config"], "moe_backend": kernels["experts"]},
        }
        return {
            "documents": {"/server_info?config_format=json": answer},
            "made": made,
            "log": "\n".join(kept.lines),
        }

    return ask


def answer_for(node: gpus.Node) -> None:
    """Answer in vLLM's own modules, before the others are imported."""
    _name_operators()
    gpus.triton_driver(node)
    if not node.amd:
        import vllm.third_party.pynvml as bindings

        gpus.nvml(node, bindings)
    import vllm.model_executor.models.registry as registry

    # It inspects a model's class in a new process, which would know nothing of our answers.
    registry._run_in_subprocess = lambda function: function()


class _Kept(logging.Handler):
    """Keeps the lines of the log that the product reads back."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "backend" in text or "non-default args" in text:
            self.lines.append(text)


def _in_a_worker(config: Any) -> dict[str, str]:
    """Choose the kernels of the layers, the cache's type and its blocks as a worker does; gives the
    kernels' names.

    Source: model_executor/layers/attention/ and v1/executor/multiproc_executor.py (0.33).
    """
    from vllm.config import set_current_vllm_config
    from vllm.platforms import current_platform
    from vllm.v1.attention.selector import get_attn_backend

    model, text = config.model_config, config.model_config.hf_text_config
    heads = model.get_num_attention_heads(config.parallel_config)
    latent = {"use_mla": True, "use_sparse": hasattr(text, "index_topk")} if model.use_mla else {}
    sinks = {"has_sink": True} if text.model_type == "gpt_oss" else {}
    window = {"has_sliding_window": True} if getattr(text, "sliding_window", None) else {}
    with set_current_vllm_config(config):
        backend = get_attn_backend(
            model.get_head_size(),
            model.dtype,
            config.cache_config.cache_dtype,
            num_heads=heads,
            **latent,
            **sinks,
            **window,
        )
        if model.use_mla:
            from vllm.model_executor.layers.attention.mla_attention import (
                _canonicalize_sparse_mla_kv_cache_dtype,
            )

            asked = config.cache_config.cache_dtype
            config.cache_config.cache_dtype = _canonicalize_sparse_mla_kv_cache_dtype(
                backend, asked
            )
        if not config.cache_config.user_specified_block_size:
            usual = type(config.cache_config).DEFAULT_BLOCK_SIZE
            preferred = current_platform._preferred_block_size_for_backends(
                [backend], usual, config
            )
            config.cache_config.block_size = preferred
        return {"attention": backend.get_name(), "experts": _experts(config)}


def _experts(config: Any) -> str:
    """The kernel that a layer of experts takes, as the method of its quantisation chooses it.

    Source: model_executor/layers/fused_moe/layer.py and config.py (0.33).
    """
    import torch
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.config import (
        FusedMoEConfig,
        FusedMoEParallelConfig,
        get_routing_method_type,
    )
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
        UnquantizedFusedMoEMethod,
    )

    model, text, parts = (
        config.model_config,
        config.model_config.hf_text_config,
        config.parallel_config,
    )
    count = model.get_num_experts()
    if not count:
        return ""
    gpus, spread = (
        parts.tensor_parallel_size * parts.data_parallel_size,
        parts.enable_expert_parallel,
    )
    ranks = gpus if spread and gpus > 1 else 1
    layout = FusedMoEParallelConfig(
        tp_size=gpus // ranks,
        pcp_size=1,
        dp_size=parts.data_parallel_size,
        ep_size=ranks,
        tp_rank=0,
        pcp_rank=0,
        dp_rank=0,
        ep_rank=0,
        sp_size=parts.tensor_parallel_size if parts.use_sequence_parallel_moe else 1,
        use_ep=ranks > 1,
        all2all_backend=parts.all2all_backend,
        enable_eplb=parts.enable_eplb,
    )
    oss = text.model_type == "gpt_oss"
    groups = getattr(text, "n_group", None)
    bias = groups is not None or getattr(text, "use_routing_bias", False)
    scoring = getattr(text, "scoring_func", "sigmoid" if bias else "softmax")
    each = text.num_experts_per_tok
    moe = FusedMoEConfig(
        num_experts=count,
        experts_per_token=each,
        hidden_dim=text.hidden_size,
        intermediate_size=getattr(text, "moe_intermediate_size", None) or text.intermediate_size,
        num_local_experts=count // ranks,
        num_logical_experts=count,
        activation=MoEActivation("swigluoai" if oss else "silu"),
        device="cuda",
        routing_method=get_routing_method_type(scoring, each, True, groups, bias),
        moe_parallel_config=layout,
        in_dtype=model.dtype,
        moe_backend=config.kernel_config.moe_backend,
        has_bias=oss,
        max_capture_size=config.compilation_config.max_cudagraph_capture_size or 0,
    )
    layer = RoutedExperts.__new__(RoutedExperts)
    torch.nn.Module.__init__(layer)
    layer.moe_config = moe
    names = ("ckpt_gate_proj_name", "ckpt_up_proj_name", "ckpt_down_proj_name")
    for name, part in zip(names, ("gate_proj", "up_proj", "down_proj"), strict=True):
        setattr(layer, name, part)
    quantised = config.quant_config
    if quantised is None:
        method = UnquantizedFusedMoEMethod(moe)
    else:
        method = quantised.get_quant_method(layer, "model.layers.5.mlp.experts")
    return method.experts_cls.__name__ if method.experts_cls is not None else "none"


def _name_operators() -> None:
    """Let the names of compiled operators be looked up, and their shape functions be declared."""
    import torch
    import torch._inductor.utils

    spaces = (
        "_C",
        "_moe_C",
        "_C_cache_ops",
        "_C_custom_ar",
        "_vllm_fa2_C",
        "_vllm_fa3_C",
        "_flashmla_C",
        "_flashkda_C",
        "_deepselect_C",
        "_qutlass_C",
    )
    ours = {*spaces, "_flashmla_extension_C", "_rocm_C"}
    look_up = torch._ops._OpNamespace.__getattr__

    def named(self: Any, name: str) -> Any:
        try:
            return look_up(self, name)
        except AttributeError:
            if name.startswith("__") or self.name not in ours:
                raise
            return _Operator()

    torch._ops._OpNamespace.__getattr__ = named
    declare = torch.library.register_fake

    def declared(operator: Any, function: Any = None, /, **options: Any) -> Any:
        def attempt(body: Any) -> Any:
            try:
                return declare(operator, body, **options)
            except RuntimeError:
                return body  # the operator is compiled code

        return attempt if function is None else attempt(function)

    torch.library.register_fake = declared


class _Operator:
    """A compiled operator's name; of kernels that a GPU of the node has, as the wheel has them
    all."""

    def __init__(self) -> None:
        self.default = self

    def __call__(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self
