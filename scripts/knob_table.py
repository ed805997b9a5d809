"""Write the table of searched knobs into docs/knobs.md.

    python scripts/knob_table.py

Each knob is asked of the newest engines for the models, nodes and loads below; a value counts
that stays as it is set and breaks no rule of the engine. A minute or two on two idle cores;
`tests/documents/test_knob_table.py` fails where the page is another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import get_args

from autotune.engines import Configuration, Context, EngineSpace, Scalar, engine, names
from autotune.engines.context import broken_rules, search_values, unsuited
from autotune.engines.enumeration import Enumeration
from autotune.engines.expression import evaluate
from autotune.engines.library import Library
from autotune.engines.schema import GiveUpKind, Knob
from autotune.node.unread import with_unread

PAGE = Path(__file__).resolve().parents[1] / "docs" / "knobs.md"
MODELS = {
    "deepseek-ai/DeepSeek-V3.2": "V3.2",
    "deepseek-ai/DeepSeek-R1-0528": "R1",
    "openai/gpt-oss-120b": "gpt-oss",
    "Qwen/Qwen3-32B": "Qwen3",
    "MiniMaxAI/MiniMax-M2.5": "M2.5",
    "Qwen/Qwen3.5-397B-A17B-FP8": "Qwen3.5",
    "google/gemma-4-31B-it": "Gemma 4",
    "nvidia/DeepSeek-R1-0528-FP4": "R1 FP4",
}
NODES = {
    "h200": "H200",
    "b200": "B200",
    "b300": "B300",
    "rtx-pro-6000-blackwell-server": "RTX PRO 6000",
    "l40s": "L40S",
    "mi355x": "MI355X",
}
GPUS = 8
LOADS = {
    "many": {"longest_request": 4096, "concurrency": 1000, "tokens_in_flight": 600_000},
    "few": {"longest_request": 4096, "concurrency": 16, "tokens_in_flight": 20_000},
    "long": {
        "longest_request": 30_000,
        "concurrency": 256,
        "tokens_in_flight": 7_000_000,
        "prefix_tokens": math.inf,
    },
}
"""Loads, each with every trade-off allowed: see the page's head."""
LAYOUT = ("replicas", "tensor_parallel", "data_parallel", "expert_parallel")
INNER = ("kv_cache_dtype", "attention_backend", "speculative_tokens", "enable_chunked_prefill")
LIBRARY = Library()

HEAD = f"""# Which knobs are searched

Written by `scripts/knob_table.py`; do not edit. It asks the newest version of each engine about {len(MODELS)} models, on
nodes of eight GPUs that hold their weights: {", ".join(MODELS)}; on {", ".join(NODES.values())}.

- *Searched*: its values multiply the candidates. *Beside*: they are tried beside the best launched configurations only.
- *Loads*: `many`, 1000 requests at a time; `few`, 16; `long`, 256 long prompts that begin alike, beyond the GPUs' cache.
  All trade-offs are allowed.
- *Expected effect*: `computed` by the simulator, from its figures; `published`, where somebody measured the value over the
  knob's default (the second table has the figures); `none` elsewhere.
- *Without evidence*, before any launch of the study. `predicted`: the computed effect orders the candidates.
  `half`: where trials are measured, [half of the published effect](priors.md#published-effects) is expected, with a width
  from nothing to all of it. `equal`: the value is expected to be as fast as the default, and its turn comes by what the
  launches leave open. On simulated trials a knob without a computed effect keeps its default. A value that is tried
  beside the best waits for a leader.

The published effects are for any model and GPU; of a knob's list the first that holds counts, and none of a knob that the
simulator reads.

"""


@dataclass
class Row:
    """What is known of one knob of one engine."""

    kind: str
    knob: Knob
    values: dict[Scalar, None] = field(default_factory=dict)
    where: set[tuple[str, str]] = field(default_factory=set)
    loads: set[str] = field(default_factory=set)
    witness: tuple[Context, Configuration] | None = None
    read: set[tuple[str, str]] = field(default_factory=set)
    """Pairs for which the simulator reads the knob."""


def page() -> str:
    """Return the whole page, as it should be."""
    lines = [HEAD.rstrip(), ""]
    for name in names():
        kind = engine(name, LIBRARY)
        lines += [
            f"## {kind.card.title} {kind.card.newest}",
            "",
            *_table(name),
            "",
            *_effects(name),
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def _table(name: str) -> Iterator[str]:
    rows, asked = rows_of(name)
    yield "| knob | values | how | since | loads | models and GPUs | expected effect | without evidence |"
    yield "|---|---|---|---|---|---|---|---|"
    for knob, row in rows.items():
        values = ", ".join("null" if one is None else str(one) for one in row.values)
        cells = [
            knob.strip(),
            values,
            row.kind,
            _since(name, knob, row),
            "all"
            if row.loads == {*LOADS}
            else ", ".join(load for load in LOADS if load in row.loads),
            _where(row.where, asked),
            *_effect(row),
        ]
        yield f"| {' | '.join(cells)} |"


def rows_of(name: str) -> tuple[dict[str, Row], set[tuple[str, str]]]:
    """Return the rows of an engine's knobs with several values, and the models and nodes that it
    was asked about."""
    card = engine(name, LIBRARY).card
    found = {
        (n, kind): Row(kind, k) for n, k in card.knobs.items() for kind in ("searched", "beside")
    }
    asked: set[tuple[str, str]] = set()
    for model, node, (load, facts) in product(MODELS, NODES, LOADS.items()):
        context = Context(
            LIBRARY.model(model),
            LIBRARY.node(node),
            GPUS,
            card.newest,
            allowed=get_args(GiveUpKind),
            **facts,
        ).as_read(card)
        if unsuited(card, context) or not _holds(context):
            continue
        space = EngineSpace(engine(name, LIBRARY), context, Enumeration(), {})
        if bases := list(_bases(space)):
            asked.add((model, node))
            _ask(space, bases, (model, node), load, found)
    by_knob = {}
    for (knob, _), row in found.items():
        if row.where:
            by_knob[knob if knob not in by_knob else f"{knob} "] = row
    return by_knob, asked


def _holds(context: Context) -> bool:
    memory = context.gpus * context.hardware.memory_gb
    return context.model.weights_gb < 0.85 * memory


def _ask(
    space: EngineSpace,
    bases: Sequence[Configuration],
    pair: tuple[str, str],
    load: str,
    found: Mapping[tuple[str, str], Row],
) -> None:
    """Add the values that are tried beside or in these configurations to the rows."""
    version = space.context.version
    unread = with_unread(space, bases[:: len(bases) // 8 + 1]).unread
    # Of a model or an engine without figures nothing is known to be read.
    read = space.card.knobs.keys() - unread if unread else set[str]()
    for base in bases:
        scope = space.context.scope(base.knobs)
        beside = space.beside_values(base)
        for name, knob in space.card.knobs.items():
            if not knob.exists_in(version) or not evaluate(knob.active, scope):
                continue
            own = search_values(knob, scope, version)
            more = [v for v in beside.get(name, ()) if v not in own]
            for kind, values in (("searched", own), ("beside", more)):
                row = found[name, kind]
                others = [v for v in values if v != base.knobs[name]]
                if not others or (
                    pair in row.where and load in row.loads and {*values} <= {*row.values}
                ):
                    continue
                valid = [v for v in others if _valid(space, base, name, v)]
                if valid:
                    row.values |= dict.fromkeys([*(own if kind == "searched" else []), *valid])
                    row.where.add(pair)
                    row.loads.add(load)
                    row.witness = row.witness or (space.context, base)
                    row.read |= {pair} if name in read else set()


def _bases(space: EngineSpace) -> Iterator[Configuration]:
    """Yield valid layouts with each type of the KV cache, with and without drafts."""
    knobs = [name for name in LAYOUT if name in space.card.knobs]
    seen = set()
    for sizes in product((1, 2, 4, 8), repeat=len(knobs)):
        for inner in _inner(space, dict(zip(knobs, sizes, strict=True))):
            one = space.effective({**dict(zip(knobs, sizes, strict=True)), **inner})
            if one not in seen and not broken_rules(space.card, one, space.context):
                seen.add(one)
                yield one


def _inner(space: EngineSpace, layout: Mapping[str, int]) -> Iterator[Mapping[str, Scalar]]:
    if math.prod(layout[n] for n in layout if n != "expert_parallel") != space.context.gpus:
        return
    scope = space.context.scope(space.effective({**layout}).knobs)
    choices = []
    for name in (n for n in INNER if n in space.card.knobs):
        values = search_values(space.card.knobs[name], scope, space.context.version)
        most = 2 if name == "speculative_tokens" else len(values)
        choices.append([(name, value) for value in values[:most]])
    for pairs in product(*choices):
        yield dict(pairs)


def _valid(space: EngineSpace, base: Configuration, name: str, value: Scalar) -> bool:
    if name in LAYOUT:
        return True  # Another layout needs others to change with it.
    one = space.effective({**base.knobs, name: value})
    return one.knobs[name] == value and not broken_rules(space.card, one, space.context)


def _since(name: str, knob: str, row: Row) -> str:
    """Return the first known version from which on the witness has several values."""
    card = engine(name, LIBRARY).card
    assert row.witness is not None
    context, base = row.witness
    first = card.newest
    for version in reversed(card.releases):
        there = EngineSpace(
            engine(name, LIBRARY), replace(context, version=version), Enumeration(), {}
        )
        scope = there.context.scope(base.knobs)
        values = search_values(row.knob, scope, version)
        if row.kind == "beside":
            values = there.beside_values(base).get(knob.strip(), ())
        if len(values) < 2 or not row.knob.exists_in(version):
            return first
        first = version
    return "all"


def _where(pairs: set[tuple[str, str]], asked: set[tuple[str, str]]) -> str:
    """Describe pairs of model and node, by the models of each node."""
    if pairs == asked:
        return "all"
    by_models: dict[tuple[str, ...], list[str]] = {}
    for node in NODES:
        models = tuple(m for m in MODELS if (m, node) in pairs)
        every = tuple(m for m in MODELS if (m, node) in asked)
        if models:
            by_models.setdefault(models if models != every else (), []).append(NODES[node])
    parts = [
        f"{', '.join(MODELS[m] for m in models) or 'all'} on {', '.join(nodes)}"
        for models, nodes in by_models.items()
    ]
    return "; ".join(parts)


def _effect(row: Row) -> tuple[str, str]:
    """Return the source of a knob's expected effect, and what is expected of it before a launch."""
    kinds = [("computed", "predicted")] if row.read else []
    if row.where - row.read:
        ratios = sorted(effect.ratio for effect in row.knob.published)
        ends = " to ".join(f"×{one:g}" for one in dict.fromkeys((*ratios[:1], *ratios[-1:])))
        kinds.append((f"published, {ends}", "half") if ratios else ("none", "equal"))
    effects, expected = zip(*kinds, strict=True)
    return " or ".join(effects), " or ".join(expected)


def _effects(name: str) -> Iterator[str]:
    """Yield the published effects of an engine's knobs."""
    yield "| knob | effect | where it is expected | measured | source |"
    yield "|---|---|---|---|---|"
    for knob, about in engine(name, LIBRARY).card.knobs.items():
        for one in about.published:
            versions = "" if one.versions == "*" else f"{one.versions}: "
            yield f"| {knob} | ×{one.ratio:g} | {versions}`{one.when}` | {one.load} | {one.source} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
