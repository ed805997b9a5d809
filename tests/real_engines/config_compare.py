"""Compares the product's reading of configurations with an engine's, field by field."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Rows = Mapping[tuple[str, str], Row]
LENGTH = 8192
"""Tokens of the sequence whose cache is compared; as in `read_by_product`."""
_FACTS = {
    "vllm": (
        *("context", "heads", "kv_heads", "head_size", "latent", "layers", "experts", "per_token"),
        *("quantised", "mtp", "sixteen_bits"),
    ),
    "sglang": (
        *("context", "heads", "kv_heads", "head_size", "latent", "layers", "quantised"),
        "sixteen_bits",
    ),
}
_OF_STAND_INS = re.compile(
    r"'Nothing'|_Kind|_Operator|_OpNamespace|meta tensor|has no attribute|"
    r"No module named|died with status|not recognize this architecture|trust_remote_code"
)
"""Words of refusals that come of what is absent here: compiled code, a file's code on the Hub, a
key that no published file lacks."""
_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "uint8": 1, "float8_e4m3fn": 1}


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that the product reads otherwise."""

    group: str
    name: str
    kind: str
    ours: Any
    theirs: Any


@dataclass(slots=True)
class Comparison:
    """The product against one version of an engine.

    Attributes:
        read: files of a set by who reads them.
        agree: fields by set and kind.
        unasked: files or layouts without an answer, by set and reason.
    """

    engine: str
    version: str
    read: Counter[tuple[str, str]] = field(default_factory=Counter)
    agree: Counter[tuple[str, str]] = field(default_factory=Counter)
    differ: list[Difference] = field(default_factory=list)
    unasked: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(
        self, row: Row, kind: str, ours: Any, theirs: Any, *, within: float | None = None
    ) -> None:
        """Count one field; numbers agree within a share of the engine's."""
        if within is None:
            same = ours == theirs
        else:
            same = abs(ours - theirs) <= max(within * abs(theirs), 1)
        if same:
            self.agree[row["set"], kind] += 1
        else:
            self.differ.append(Difference(row["set"], row["name"], kind, ours, theirs))

    def kinds(self) -> list[str]:
        """Every kind that was compared, most differences first."""
        counts = Counter(one.kind for one in self.differ)
        return sorted({kind for _, kind in self.agree} | set(counts), key=lambda k: (-counts[k], k))

    def counts(self, group: str, kind: str) -> tuple[int, int]:
        """Fields compared, and differing; ``""`` stands for all."""
        agree = sum(n for (g, k), n in self.agree.items() if group in ("", g) and kind in ("", k))
        differ = sum(group in ("", d.group) and kind in ("", d.kind) for d in self.differ)
        return agree + differ, differ

    def lines(self) -> Iterator[str]:
        """The counts, and every difference."""
        compared, differ = self.counts("", "")
        yield f"{self.engine} {self.version}: {compared:,} fields compared, {differ} differ"
        yield from (f"    {group}: {what}: {n}" for (group, what), n in sorted(self.read.items()))
        yield from (
            f"    {group}: {what}: {n}" for (group, what), n in sorted(self.unasked.items())
        )
        for kind in self.kinds():
            compared, differ = self.counts("", kind)
            yield f"  {kind}: {compared} compared, {differ} differ"
            for one in self.differ:
                if one.kind == kind:
                    told = f"{shown(one.ours)} | {shown(one.theirs)}"
                    yield f"    {one.group}/{one.name}: {told}"


def shown(value: Any) -> str:
    """A value in a line of its own."""
    if isinstance(value, float) and value > 1e6:
        return f"{value / 1e9:.3f}e9"
    return " ".join(str(value).split())[:160]


def read_rows(path: Path) -> dict[tuple[str, str], Row]:
    """The rows of a file by set and model."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {(row["set"], row["name"]): row for row in rows}


def compare(engine: str, version: str, ours: Rows, theirs: Rows) -> Comparison:
    """Compare all models that both were asked about."""
    found = Comparison(engine, version)
    for key, row in theirs.items():
        if key in ours:
            _compare_model(found, ours[key], row)
    return found


def _compare_model(found: Comparison, ours: Row, theirs: Row) -> None:
    group, facts = theirs["set"], theirs["facts"]
    if _unanswered(facts):
        found.unasked[group, "file without an answer"] += 1
        return
    we, they = "refused" not in ours["facts"], "refused" not in facts
    reads = {
        (True, True): "both read",
        (True, False): "product alone",
        (False, True): f"{found.engine} alone",
        (False, False): "neither",
    }
    found.read[group, reads[we, they]] += 1
    if not (we and they):
        return
    if ours["facts"].get("unpredicted"):
        found.read[group, "of these only measured"] += 1
        for ranks, layout in theirs["ranks"].items():
            _compare_start(found, theirs, ours, ranks, layout)
        return
    stated = _as_ours(facts)
    for kind in _FACTS[found.engine]:
        if kind == "kv_heads" and facts["latent"]:
            continue
        if stated.get(kind) is not None:
            found.add(theirs, kind, ours["facts"][kind], stated[kind])
    for ranks, layout in theirs["ranks"].items():
        _compare_layout(found, theirs, ours, ranks, layout)
    caches = theirs.get("fp8", {}).get("caches")
    if caches and "token" in ours.get("fp8", {}):
        found.add(
            theirs,
            "fp8 cache",
            ours["fp8"]["token"],
            per_token(_cut(caches, facts["context"])),
            within=0.02,
        )


def _as_ours(facts: Row) -> Row:
    """An engine's facts in the product's terms."""
    experts = facts.get("experts")
    return {
        **facts,
        "quantised": bool(facts["quantization"]),
        "sixteen_bits": facts["dtype"] != "float32",
        "per_token": facts.get("per_token") if experts else 0,
    }


def _unanswered(answer: Row) -> bool:
    return "slow" in answer or bool(_OF_STAND_INS.search(str(answer.get("refused", ""))))


def _compare_start(
    found: Comparison, row: Row, ours: Row, ranks: str, layout: Row
) -> tuple[Row, Row] | None:
    """Compare whether a layout starts; the product's and the engine's where both start it."""
    if _unanswered(layout):
        why = "out of time" if "slow" in layout else "absent code"
        found.unasked[row["set"], f"layout without an answer: {why}"] += 1
        return None
    mine = ours["ranks"][ranks]
    if "refused" in mine:
        found.add(row, "starts, and ruled out", f"TP {ranks}: {mine['refused'][0]}", "starts")
        return None
    refused = layout.get("refused")
    if refused and "does_not_start" not in mine:
        found.add(row, "refused, and called likely", f"TP {ranks}", refused[0])
    elif not refused and "does_not_start" in mine:
        found.add(row, "starts, and ruled out", f"TP {ranks}: {mine['does_not_start']}", "starts")
    else:
        found.agree[row["set"], "starts"] += 1
    return None if refused else (mine, layout)


def _compare_layout(found: Comparison, row: Row, ours: Row, ranks: str, layout: Row) -> None:
    both = _compare_start(found, row, ours, ranks, layout)
    if both is None:
        return
    mine, layout = both
    caches = _cut(layout["caches"], row["facts"]["context"])
    found.add(row, "weights", mine["bytes"], layout["bytes"], within=0.02)
    found.add(row, "cache of a token", mine["token"], per_token(caches), within=0.02)
    held = per_sequence(caches) + state_bytes(caches)
    found.add(row, "cache of a sequence", mine["sequence"] + mine["state"], held, within=0.02)
    if ranks == "1":
        facts = ours["facts"]
        found.add(row, "state layers", facts["state_layers"], _layers(caches, "Mamba"))
        if not any(one["kind"] == "SlidingWindowMLASpec" for one in caches):
            found.add(row, "sliding layers", facts["sliding_layers"], _sliding_layers(caches))
        if not row["facts"]["quantization"]:
            found.add(row, "parameters", facts["elements"], layout["elements"], within=0.01)


def _attention(caches: Sequence[Row]) -> Iterator[Row]:
    return (one for one in caches if one["kind"] != "NoneType" and "Mamba" not in one["kind"])


def per_token(caches: Sequence[Row]) -> float:
    """Bytes of a token in the layers that keep every token."""
    kept = (one for one in _attention(caches) if not _window(one))
    return float(sum(one["layers"] * one["bytes"] / one["block_size"] for one in kept))


def _window(cache: Row) -> int:
    """Tokens that a layer keeps; 0: every one."""
    return cache.get("sliding_window") or cache.get("attention_chunk_size") or 0


def _cut(caches: Sequence[Row], context: int) -> list[Row]:
    """Caches of which a window as long as the context is none."""
    whole = {"sliding_window": None, "attention_chunk_size": None}
    return [one | whole if _window(one) >= context else one for one in caches]


def per_sequence(caches: Sequence[Row]) -> float:
    """Bytes of a sequence, of which a layer with a window keeps that many tokens."""
    total = 0.0
    for one in _attention(caches):
        kept = min(_window(one) or LENGTH, LENGTH)
        total += one["layers"] * one["bytes"] / one["block_size"] * kept
    return total


def state_bytes(caches: Sequence[Row]) -> float:
    """Bytes of a sequence's states in all layers that keep one."""
    total = 0
    for one in caches:
        for shape, kind in zip(one.get("shapes", ()), one.get("dtypes", ()), strict=True):
            elements = 1
            for size in shape:
                elements *= size
            total += one["layers"] * elements * _BYTES[kind.removeprefix("torch.")]
    return float(total)


def _layers(caches: Sequence[Row], kind: str) -> int:
    return sum(one["layers"] for one in caches if kind in one["kind"])


def _sliding_layers(caches: Sequence[Row]) -> int:
    return sum(one["layers"] for one in caches if _window(one))
