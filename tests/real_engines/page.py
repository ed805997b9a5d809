"""Writes docs/conformance.md from the outcomes of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.real_engines.judge import Finding, explanations

TITLES = {"sglang": "SGLang", "vllm": "vLLM"}
_HEAD = """# Conformance with the engines' own code

Written by `tests/real_engines/conformance.py`; do not edit. Candidates and rules of `search_spaces/` are put through
the released engines' own parser, resolution and checks. There is no GPU: stubs answer the engines' calls to torch,
NVML, amdsmi and the drivers' tools for each node, and compiled code is absent. No argument, configuration or rule code
is replaced. Kernels, real memory and speed are not checked.
"""
_MEANING = """A combination is a candidate, or is forbidden by a rule. Candidates are those of a study on the real node.

- *Refused*: a candidate that the engine does not accept.
- *Differences*: a server would report another value of a knob than the candidate's fingerprint has, unexplained.
- *No KV memory*: the share of memory that the engine resolves is below the weights even if these were 8 % lighter than
  planned. Two estimates of DeepSeek-V3.2's weights differ by that.
- *Twins*: two fingerprints that the engine resolves to the same arguments.
- *Contradicted*: the engine accepts what a rule forbids, unexplained.
- *Explained*: disagreements that are not our error, listed below.
- *Little memory*: the share is below the planned weights, by less than 8 %. These are launched; some may not start.

TensorRT-LLM is not checked: its package on PyPI is a downloader, and the engine is on NVIDIA's index. Its
card follows its sources and documentation.
"""
_AGAIN = """## Run it again

For a new version, change it in `tests/real_engines/environment.py`, then:

<!-- needs: an engine -->
```bash
.venv/bin/python -m tests.real_engines.environment engines --index https://download.pytorch.org/whl/cpu
.venv/bin/python -m tests.real_engines.conformance engines --page docs/conformance.md
```

The first makes the environment once (1.5 GB). `--model`, `--node` and `--engine` narrow the run, `--drawn` is the
number of random candidates, `--all` asks about every candidate, and `--rows` keeps every finding. `--workload` names
the load whose candidates are asked about (sharegpt): vLLM's decode context parallelism is searched on
`random:8000:4000:1000`, its finer graphs on `random:64:64:12`. `--near` is the number of random configurations with
two changes of what is tried beside the best; `--knob NAME` asks about one knob's values alone. Exit code 1: something
is unexplained. What is explained stands in `tests/real_engines/explained.yaml`, each with reason and source.
"""


@dataclass(slots=True)
class Outcome:
    """What came of one engine with one model on one node.

    Attributes:
        asked: combinations by why they were taken.
    """

    engine: str
    version: str
    model: str
    node: str
    candidates: int
    asked: dict[str, int]
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    skipped: str = ""


def page(outcomes: Sequence[Outcome]) -> str:
    """The page: totals, a row for each engine and node, a row for each model, and what is
    explained."""
    ran = [one for one in outcomes if not one.skipped]
    versions = ", ".join(
        f"{TITLES[name]} {version}"
        for name, version in sorted({(o.engine, o.version) for o in ran})
    )
    count = sum(sum(one.asked.values()) for one in ran)
    minutes = sum(one.seconds for one in ran) / 60
    parts = {
        name: sum(one.asked.get(name, 0) for one in ran)
        for name in ("pairs", "rules", "random", "beside")
    }
    lines = [
        _HEAD,
        f"{versions}: {count:,} combinations in {minutes:.0f} minutes, summed over engines that ran side by side.",
        f"{parts['pairs']:,} cover every pair of knob values, {parts['rules']:,} are on the forbidden side of a rule,",
        f"{parts['random']:,} are other candidates, drawn with a fixed seed; {parts['beside']:,} are of what is tried beside the",
        "best alone: every such value beside three candidates, and random ones with a further change.\n",
        *_by_node(ran),
        "",
        _MEANING,
        "## By model\n",
        *_by_model(outcomes),
        "",
        "## What is explained\n",
        *_explained(ran),
        "",
        *_open(ran),
        _AGAIN,
    ]
    return "\n".join(lines).rstrip() + "\n"


def _count(found: Sequence[Finding], kind: str, explained: bool = False) -> int:
    return sum(one.kind == kind and bool(one.explained) == explained for one in found)


def _row(label: Sequence[str], outcomes: Sequence[Outcome]) -> str:
    found = [finding for one in outcomes for finding in one.findings]
    asked = sum(sum(one.asked.values()) for one in outcomes)
    rules = sum(one.asked["rules"] for one in outcomes)
    cells = [
        *label,
        f"{asked:,}",
        f"{rules:,}",
        *(
            str(_count(found, kind))
            for kind in ("refused", "difference", "no memory", "twin", "rule")
        ),
        str(sum(bool(one.explained) for one in found)),
        str(_count(found, "little memory")),
        f"{sum(one.seconds for one in outcomes) / 60:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


_COLUMNS = (
    "combinations | forbidden | refused | differences | no KV memory | twins | contradicted | explained | little memory"
    " | minutes"
)


def _table(first: str) -> list[str]:
    head = f"| {first} | {_COLUMNS} |"
    return [head, "|" + "---|" * (head.count("|") - 1)]


def _by_node(ran: Sequence[Outcome]) -> Iterator[str]:
    groups = defaultdict(list)
    for one in ran:
        groups[TITLES[one.engine], one.node].append(one)
    yield from _table("engine | node")
    for label, outcomes in groups.items():
        yield _row(label, outcomes)
    yield _row(("both", "all"), ran)


def _by_model(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield from _table("model | engine | node")
    for one in sorted(outcomes, key=lambda o: (o.model, o.engine, o.node)):
        if not one.skipped:
            yield _row((one.model, TITLES[one.engine], one.node), [one])
    reasons = defaultdict(list)
    for one in outcomes:
        if one.skipped:
            reasons[one.skipped].append(f"{TITLES[one.engine]}, {one.model} on {one.node}")
    if reasons:
        yield "\nNot searched, and so not asked:\n"
        yield from (f"- {'; '.join(where)}: {reason}" for reason, where in reasons.items())


def _explained(ran: Sequence[Outcome]) -> Iterator[str]:
    known = {(one.engine, one.kind, one.name, one.reason): one for one in explanations()}
    counts: dict[tuple[str, str, str, str], int] = defaultdict(int)
    for outcome in ran:
        for one in outcome.findings:
            if one.explained:
                counts[outcome.engine, one.kind, one.about, one.explained] += 1
    if not counts:
        yield "Nothing."
        return
    yield "| engine | what | name | times | why | source |"
    yield "|---|---|---|---|---|---|"
    for key, count in sorted(counts.items()):
        source = known[key].source if key in known else ""
        yield f"| {TITLES[key[0]]} | {key[1]} | `{key[2]}` | {count} | {key[3]} | {source} |"


def _open(ran: Sequence[Outcome]) -> Iterator[str]:
    """What is left, one example of each."""
    seen: dict[tuple[str, str, str], Finding] = {}
    for outcome in ran:
        for one in outcome.findings:
            if not one.explained and one.kind != "little memory":
                seen.setdefault((outcome.engine, one.kind, one.about), one)
    if seen:
        yield "## What is not explained\n"
        for (engine, kind, about), one in sorted(seen.items()):
            told = " ".join(one.told.split())[:200]
            yield f"- {TITLES[engine]}, {kind}, `{about}`: {told}"
        yield ""
