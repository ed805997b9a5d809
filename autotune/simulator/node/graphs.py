"""CUDA graphs: which steps one of them holds, and to how many tokens it pads them.

An engine captures graphs for a list of sizes at start. A batch runs in the next larger one, padded to it; the padding
is computed like any other token. With several attention replicas all ranks run the graph of the fullest one. Lists and
rules by engine and version: ``search_spaces/<engine>/simulator.yaml``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from autotune.simulator.node.server import Server


class Graphs:
    """The graphs of a server."""

    def __init__(self, server: Server) -> None:
        c = server.coefficients
        self._queries = 1 + server.speculative_tokens
        self._per = 1 if c.cuda_graph_counts == "tokens" else self._queries
        self._padding, self._prompts = c.cuda_graph_padding, c.cuda_graph_prompts
        most = server.graph_batch
        sizes = {size for first, last, step in c.cuda_graph_steps for size in range(first, min(last, most) + 1, step)}
        self._sizes = sorted(sizes | {most}) if most else []

    def tokens(self, sequences: Sequence[int], prompt_tokens: Sequence[int]) -> int:
        """Tokens that every rank computes in the graph that holds a step; 0 when none does.

        Args:
            sequences: that decode, per rank.
            prompt_tokens: of the step, per rank.
        """
        if any(prompt_tokens) and not self._prompts:
            return 0
        # Where ranks must be equal, one with nothing to do gets a dummy sequence (TensorRT-LLM: py_executor.py).
        least = 0 if self._padding else 1
        tokens = [max(n, least) * self._queries + p for n, p in zip(sequences, prompt_tokens, strict=True)]
        need = -(-max(tokens) // self._per)
        found = bisect_left(self._sizes, need)
        if found == len(self._sizes):
            return 0
        if not self._padding and (self._sizes[found] != need or min(tokens) != max(tokens)):
            return 0
        # A batch of equal sequences takes the next size that is a whole number of them; a few tokens more at most.
        return self._sizes[found] * self._per
