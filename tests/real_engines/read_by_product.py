"""Reads models' configurations by the product, as `read_configs` reads them by an engine; of
autotune it imports what stands first on the path.

    python read_by_product.py ENGINE VERSION < questions > answers
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.base.errors import BadInput
from autotune.engines import Command, Context, FailureKind, Library, ModelCard, recognise
from autotune.engines.cards import (
    kv_bytes_per_token,
    state_bytes,
    total_parameters,
    weight_bytes_per_gpu,
)
from autotune.engines.config_json import model_from_file
from autotune.engines.context import broken_rules, normalised, unsuited
from autotune.load.workloads import load_workload
from autotune.node.resolve_command import ResolvedCommand, resolve_command
from autotune.node.server import SimulatedServer

Answer = dict[str, Any]
NODE = "h200"
LENGTH = 8192
"""Tokens of the sequence whose cache is compared."""
_ENDLESS = 10**15
"""Tokens of a sequence of which no window keeps a share."""
_COMMANDS = {
    "vllm": "vllm serve {folder} --tensor-parallel-size {ranks}",
    "sglang": "python -m sglang.launch_server --model-path {folder} --tp {ranks}",
}


@dataclass(frozen=True, slots=True)
class Product:
    """What the product makes of a folder in one version of an engine."""

    engine: str
    version: str
    library: Library

    def read(self, asked: Answer) -> Answer:
        """Facts of a model, or a rank's layout; a refusal as an engine's is told."""
        folder = Path(asked["folder"])
        try:
            model = model_from_file(folder / "config.json")
            if "ranks" in asked:
                return self._layout(model, asked["ranks"], asked.get("cache", "auto"))
            return self._facts(self._as_read(model))
        except BadInput as error:
            return {"refused": [str(error).replace(str(folder), "")]}

    def _facts(self, model: ModelCard) -> Answer:
        a = model.architecture
        latent = any(one.latent for one in a.attention_groups)
        widths = [one.head_dim for one in a.attention_groups]
        stored = [a.weight_bytes, a.attention_weight_bytes or 2.0, a.dense_weight_bytes or 2.0]
        return {
            "architectures": model.architectures,
            "unpredicted": model.unpredicted,
            "context": self._context(model),
            "heads": a.heads,
            "kv_heads": a.kv_heads,
            "head_size": a.kv_lora_rank + a.qk_rope_head_dim or max(widths, default=a.head_dim),
            "layers": a.layers,
            "sixteen_bits": min(stored) <= 2,
            "quantised": min(stored) < 2,
            "experts": a.experts,
            "per_token": a.experts_per_token if a.experts else 0,
            "latent": latent,
            "mtp": a.mtp_layers,
            "sliding_layers": sum(one.layers for one in a.attention_groups if one.window),
            "state_layers": sum(one.layers for one in a.groups if one.recurrent),
            "elements": total_parameters(a),
        }

    def _as_read(self, model: ModelCard) -> ModelCard:
        """The model as this version of the engine reads it."""
        _, context = self._asked(model, 1)
        return context.as_read(self.library.engine(self.engine)).model

    def _context(self, model: ModelCard) -> int:
        """The longest request that a server takes unless told otherwise."""
        if model.unpredicted:
            return model.architecture.context_limit
        return SimulatedServer(self._resolved(model, 1).setup).context_length

    def _layout(self, model: ModelCard, ranks: int, cache: str) -> Answer:
        reason = self._refusal(model, ranks)
        answer: Answer = {"does_not_start": reason} if reason else {}
        if model.unpredicted:
            return answer
        server = SimulatedServer(self._resolved(model, ranks, cache).setup)
        a, kept = server.architecture, (server.kv_type, ranks)
        aligned = server.coefficients.latent_cache_alignment
        return {
            **answer,
            "bytes": weight_bytes_per_gpu(a, ranks, ranks, 1, False),
            "token": kv_bytes_per_token(a, *kept, _ENDLESS, aligned),
            "sequence": kv_bytes_per_token(a, *kept, LENGTH, aligned) * LENGTH,
            "state": state_bytes(a, ranks, server.coefficients.state_element_bytes),
        }

    def _refusal(self, model: ModelCard, ranks: int) -> str:
        """Why a server would not start, other than for memory; empty where it would."""
        if not model.unpredicted:
            resolved = self._resolved(model, ranks)
            failure = resolved.simulate(load_workload("random:64:64:8"), 0).failure
            other = failure is not None and failure.kind is not FailureKind.OUT_OF_MEMORY
            return failure.message if failure and other else ""
        command, context = self._asked(model, ranks)
        kind = recognise(command.argv, self.library)
        typed = kind.knobs(kind.parse(command, self.version), context)
        one, _ = normalised(kind.card, typed, context)
        broken = broken_rules(kind.card, one, context)
        return next(
            (rule.reason for rule in broken if rule.kind is not FailureKind.RULE),
            unsuited(kind.card, context) or "",
        )

    def _asked(self, model: ModelCard, ranks: int, cache: str = "auto") -> tuple[Command, Context]:
        words = _COMMANDS[self.engine].format(folder=model.id, ranks=ranks).split()
        words += [] if cache == "auto" else ["--kv-cache-dtype", cache]
        return Command(tuple(words)), Context(model, self.library.node(NODE), 8, self.version)

    def _resolved(self, model: ModelCard, ranks: int, cache: str = "auto") -> ResolvedCommand:
        command, context = self._asked(model, ranks, cache)
        return resolve_command(command, self.library, context, self.version)


def main() -> None:
    """Answer every line of standard input."""
    sys.stdin.readline()  # the node
    product = Product(sys.argv[1], sys.argv[2], Library())
    print(json.dumps({"version": sys.argv[2]}), flush=True)
    for line in sys.stdin:
        try:
            answer = product.read(json.loads(line))
        except Exception as error:
            answer = {"refused": [f"CRASH {type(error).__name__}: {error}"]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
