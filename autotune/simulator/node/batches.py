"""What each rank computes in a step: the sums over sequences and prompts that its time depends on, and the CUDA graph.

An engine captures graphs for a list of sizes at start. A batch runs in the next larger one, padded to it; the padding
is computed like any other token. With several attention replicas all ranks run the graph of the fullest one. Lists and
rules by engine and version: ``search_spaces/<engine>/simulator.yaml``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from autotune.arrays import Floats, Ints
from autotune.simulator.node.replica import Chunk, Sequences
from autotune.simulator.node.server import SimulatedServer
from autotune.simulator.node.steptime import RankBatch, Seconds, StepTime


class Graphs:
    """The graphs of a server."""

    def __init__(self, server: SimulatedServer) -> None:
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


class Batches:
    """Sums up the steps of a server."""

    def __init__(self, server: SimulatedServer, sequences: Sequences) -> None:
        self._state, self._graphs, self._time = sequences, Graphs(server), StepTime(server)
        self._ranks = server.data_parallel
        self._queries = 1 + server.speculative_tokens
        indexer = server.architecture.indexer
        self._top_k = float(server.architecture.attended_limit or math.inf)
        self._sparse = indexer is not None
        padding = server.coefficients.sparse_padding
        self._pads_prompts, self._pads_decode = padding != "none", padding == "both" and self._sparse
        # Of a sparse model, prompts up to here run in dense kernels.
        self._dense_below = self._top_k if self._sparse and server.coefficients.dense_prompts else 0.0

    def seconds(self, ids: Ints, chunks: Sequence[Sequence[Chunk]] | None = None) -> Seconds:
        """Duration of a step.

        Args:
            ids: the sequences that decode, shape (n,).
            chunks: prompt pieces per rank.
        """
        # All tokens before the next one, whoever owns them: attention also reads what belongs to the prefix cache.
        context = self._state.read[ids] + self._state.written[ids] - 1.0
        counts = [len(ids)]
        if self._ranks > 1:
            counts = np.bincount(self._state.replica[ids], minlength=self._ranks).tolist()
        contexts = self.sums(ids, context)
        kept = contexts if self._top_k == math.inf else self.sums(ids, np.minimum(context, self._top_k))
        entries = [count * self._top_k for count in counts] if self._pads_decode else kept
        chunks = chunks or [[]] * self._ranks
        summed = {id(pieces): self._prefill_sums(pieces) for pieces in {id(one): one for one in chunks}.values()}
        prompts = [summed[id(pieces)] for pieces in chunks]
        graph = self._graphs.tokens(counts, [sums[0] for sums in prompts])
        padding = [max(0, graph - n * self._queries - sums[0]) for n, sums in zip(counts, prompts, strict=True)]
        ranks = range(self._ranks)
        batches = [RankBatch(counts[i], contexts[i], kept[i], entries[i], *prompts[i], padding[i]) for i in ranks]
        return self._time.seconds(batches, bool(graph))

    def sums(self, ids: Ints, values: Floats) -> list[float]:
        """Sums of the sequences' values per rank."""
        if self._ranks == 1:
            return [float(values.sum())]
        sums: list[float] = np.bincount(self._state.replica[ids], weights=values, minlength=self._ranks).tolist()
        return sums

    def _prefill_sums(self, pieces: Sequence[Chunk]) -> tuple[int, float, float, float, int, int]:
        """Tokens, pairs of dense kernels, pairs scored and computed by sparse ones, prompts that end, and prompts."""
        tokens, dense, scored, attended = 0, 0.0, 0.0, 0.0
        for piece in pieces:
            end = piece.start + piece.tokens
            tokens += piece.tokens
            kept = _kept(end, self._top_k) - _kept(piece.start, self._top_k)
            pairs = (end**2 - piece.start**2) / 2
            if not self._sparse or end <= self._dense_below:
                dense += pairs
                # In layers with a sliding window.
                attended += 0.0 if self._sparse else kept
                continue
            scored += pairs
            attended += piece.tokens * self._top_k if self._pads_prompts else kept
        return tokens, dense, scored, attended, sum(piece.last for piece in pieces), len(pieces)


def _kept(position: float, top_k: float) -> float:
    """Sum of min(i, top_k) for i up to a position: what sparse attention keeps of a causal prompt."""
    if position <= top_k:
        return position**2 / 2
    return float(top_k**2 / 2 + (position - top_k) * top_k)
