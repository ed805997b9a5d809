"""Writes docs/configurations.md from comparisons."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.real_engines.config_compare import LENGTH, Comparison, Difference, shown
from tests.real_engines.config_sets import SETS
from tests.real_engines.page import TITLES

_HEAD = f"""# Configurations as the engines read them

Written by `tests/real_engines/configs.py`; do not edit. Each `config.json` is read by the released engine's own code and
by the product, on eight H200 that stubs answer for. vLLM builds its model's class without memory, as one of 1, 2, 4 or 8
tensor-parallel ranks: it states a rank's bytes of weights with padding and scales, the cache of every layer, and what it
refuses. SGLang is asked for its configuration and its registry. Nothing is computed and no weight is read.

- *Published*: as on the Hub. *Sizes*: published sizes, plain and quantised, written down in
  `tests/real_engines/published_sizes.yaml`. *Defaults*: every class of transformers as it saves itself, mostly no model
  that anybody serves; ranks 1 and 8.
- *Weights* and *caches* agree within 2 %, on one rank. *Cache of a token*: in the layers that keep every token. *Cache
  of a sequence*: {LENGTH:,} tokens, of which a layer with a window keeps its window, and the states.
- *Called likely*: the engine refuses what the product would start. *Ruled out*: the product refuses what it starts.
"""
_AGAIN = """## Run it again

For a new version, change it in `tests/real_engines/environment.py`, or name it beside the usual one. The environment
is that of [conformance](conformance.md#run-it-again); in it,
`python -m tests.real_engines.configs engines answers --page docs/configurations.md` asks.

An engine's answers are kept in `answers`, and asked for once; the product is asked each time. `--engine vllm==0.32.0`
asks another version, unpacked by `environment --version vllm==0.32.0`. `--product CHECKOUT --name before` keeps an older
product's answers, and `--before before` shows its counts beside today's.
"""
_SHOWN = 25
"""Differences of one kind that are listed."""


def page(now: Sequence[Comparison], before: Sequence[Comparison] = ()) -> str:
    """The page: counts by set and by kind, and what differs."""
    old = {(one.engine, one.version): one for one in before}
    lines = [_HEAD]
    for one in now:
        title = f"{TITLES[one.engine]} {one.version}"
        earlier = old.get((one.engine, one.version))
        lines += [f"## {title}\n", *_by_set(one, earlier), "", *_by_kind(one, earlier), ""]
        lines += [*_differences(one), ""]
    return "\n".join([*lines, _AGAIN]).rstrip() + "\n"


def _table(columns: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]


def _by_set(one: Comparison, before: Comparison | None) -> Iterator[str]:
    readers = [
        "both read",
        "of these only measured",
        "product alone",
        f"{one.engine} alone",
        "neither",
    ]
    columns = ["set", *readers, "unanswered", "fields compared", "differ"]
    yield from _table([*columns, *(["compared before", "differed"] if before else [])])
    for group in (*SETS, ""):
        cells = [group or "all"]
        cells += [
            str(sum(n for (g, w), n in one.read.items() if w == who and group in ("", g)))
            for who in readers
        ]
        cells.append(str(sum(n for (g, _), n in one.unasked.items() if group in ("", g))))
        for told in (one, before):
            if told is not None:
                cells += [f"{count:,}" for count in told.counts(group, "")]
        yield f"| {' | '.join(cells)} |"


def _by_kind(one: Comparison, before: Comparison | None) -> Iterator[str]:
    yield from _table(["field", *_of_sets(""), *(_of_sets(" before") if before else [])])
    kinds = list(dict.fromkeys([*one.kinds(), *(before.kinds() if before else [])]))
    for kind in kinds:
        cells = [kind]
        for told in (one, before):
            if told is not None:
                cells += [_share(told, group, kind) for group in SETS]
        yield f"| {' | '.join(cells)} |"


def _of_sets(suffix: str) -> list[str]:
    return [f"{group}{suffix}" for group in SETS]


def _share(told: Comparison, group: str, kind: str) -> str:
    """Fields that differ, of those compared."""
    compared, differ = told.counts(group, kind)
    return f"{differ} of {compared:,}" if compared else ""


def _differences(one: Comparison) -> Iterator[str]:
    """What differs in models that somebody serves, kind by kind."""
    groups: dict[str, list[Difference]] = defaultdict(list)
    for difference in one.differ:
        if difference.group != "defaults":
            groups[difference.kind].append(difference)
    for kind, found in groups.items():
        yield f"**{kind}**: the product | the engine\n"
        for each in found[:_SHOWN]:
            yield f"- {each.name}: {shown(each.ours)} | {shown(each.theirs)}"
        if len(found) > _SHOWN:
            yield f"- and {len(found) - _SHOWN} more"
        yield ""
