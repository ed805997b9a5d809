"""Compares an engine's verdicts with what our card says of the same configurations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from autotune.engines.command import Configuration
from autotune.engines.context import Context
from autotune.engines.engine import Engine
from autotune.engines.entry import in_range
from autotune.engines.expression import evaluate
from autotune.engines.failure import FailureKind
from autotune.engines.report_back import compare, parse_reported
from autotune.tuner.backends.read_back import read_source
from autotune.tuner.prepare.predicted_memory import HOPELESS, MemoryPlans, own_share
from tests.real_engines.cases import Case

VOLATILE = {"random_seed", "instance_id", "nccl_port", "port", "gpu_id"}
"""What differs between two starts of one command."""
LEFT = (None, "auto")
"""Values that leave the choice to the engine: its choice is no difference."""
ROUNDING = 0.001
"""SGLang rounds its share of the memory to three digits."""
EXPLAINED = Path(__file__).with_name("explained.yaml")


class Explanation(BaseModel):
    """A difference that is known and is no mistake of the card's, with the reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: str
    kind: Literal["rule", "difference", "twin"]
    name: str
    when: str = "True"
    versions: str = "*"
    reason: str
    source: str


def explanations(path: Path = EXPLAINED) -> list[Explanation]:
    """Read the data file of what is explained."""
    return [Explanation.model_validate(row) for row in yaml.safe_load(path.read_text())]


@dataclass(frozen=True, slots=True)
class Finding:
    """One disagreement.

    Attributes:
        about: the knob, rule or knobs that it is about.
        told: the engine's words, or what it made of the knob.
        explained: why it is no mistake; empty where nothing explains it.
    """

    kind: str
    about: str
    told: str
    command: str
    explained: str = ""


@dataclass(slots=True)
class Judge:
    """One engine on one node with one model."""

    engine: Engine
    context: Context
    plans: MemoryPlans
    known: Sequence[Explanation]
    seen: dict[str, Configuration] = field(default_factory=dict)

    def judge(self, case: Case, verdict: Mapping[str, Any], command: str) -> Iterator[Finding]:
        """Say in what an engine's verdict on a case is not what our card says."""
        if "refused" in verdict:
            if case.rule is None:
                yield Finding(
                    "refused", verdict["refused"][-1], " ".join(verdict["refused"]), command
                )
            return
        if case.rule is not None and case.rule.kind is FailureKind.OUT_OF_MEMORY:
            # No argument is refused for it: the share that the engine resolves says whether the
            # rule is right.
            found = self._memory(case.configuration, verdict["reported"], command)
            if not any(one.kind != "difference" for one in found):
                yield self._finding(
                    "rule", case.rule.name, "leaves room", command, case.configuration
                )
            return
        if case.rule is not None:
            yield self._finding("rule", case.rule.name, "accepted", command, case.configuration)
            return
        yield from self._differences(case.configuration, verdict["reported"], command)
        yield from self._memory(case.configuration, verdict["reported"], command)
        yield from self._twins(case.configuration, verdict["reported"], command)

    def _finding(
        self, kind: str, about: str, told: str, command: str, of: Configuration
    ) -> Finding:
        scope = self.context.scope(of.knobs)
        held = (
            one.reason
            for one in self.known
            if (one.engine, one.kind, one.name) == (self.engine.name, kind, about)
            and in_range(self.context.version, one.versions)
            and evaluate(one.when, scope)
        )
        return Finding(kind, about, told, command, next(held, ""))

    def _sources(self, reported: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """What a server would tell, read as the product reads it."""
        sources: dict[str, Mapping[str, Any]] = {}
        for one in self.engine.card.resolved:
            if one.name in sources or not in_range(self.context.version, one.versions):
                continue
            path = one.path
            content = reported["documents"].get(path) if path else reported["log"]
            answer = read_source(one, content)
            if answer is not None and answer.settings:
                sources[one.name] = answer.settings
        return sources

    def _differences(
        self, asked: Configuration, reported: Mapping[str, Any], command: str
    ) -> Iterator[Finding]:
        _, ran = parse_reported(self.engine, asked, self.context, self._sources(reported))
        written = self.engine.command(asked, self.context)
        for name, (wanted, got) in compare(
            self.engine, asked, self.context, written, ran
        ).differs.items():
            if wanted not in LEFT:
                yield self._finding("difference", name, f"{wanted} -> {got}", command, asked)

    def _memory(
        self, asked: Configuration, reported: Mapping[str, Any], command: str
    ) -> Iterator[Finding]:
        """A share of the memory that the card computes otherwise, or that holds no weights lighter
        by `HOPELESS`."""
        plan = self.plans.plan_of(asked, self.context.version)
        share, own = (
            static_share(self.engine.name, reported),
            own_share(self.engine.card, self.context, asked),
        )
        if share is not None and own is not None and abs(share - own) > ROUNDING:
            yield self._finding(
                "difference", "memory_fraction", f"{own:.3f} -> {share:.3f}", command, asked
            )
        if plan is None or share is None:
            return
        left = share * plan.total - plan.weights
        text = (
            f"{share:.3f} of {plan.total / 2**30:.0f} GiB, weights {plan.weights / 2**30:.0f} GiB"
        )
        if left <= 0:
            sure = left < -HOPELESS * plan.weights
            yield Finding(
                "no memory" if sure else "little memory", "memory_fraction", text, command
            )

    def _twins(
        self, asked: Configuration, reported: Mapping[str, Any], command: str
    ) -> Iterator[Finding]:
        """Another fingerprint of which the engine makes the same; its environment is part of what
        it runs."""
        written = self.engine.command(asked, self.context)
        made = [
            _steady(reported.get("made", reported["documents"])),
            dict(written.env),
            written.replicas,
        ]
        other = self.seen.setdefault(json.dumps(made, sort_keys=True), asked)
        if other.fingerprint != asked.fingerprint:
            knobs = [name for name, value in asked.knobs.items() if other.knobs[name] != value]
            told = ", ".join(
                f"{name} {other.knobs[name]} and {asked.knobs[name]}" for name in knobs
            )
            yield self._finding("twin", " ".join(knobs), told, command, asked)


def static_share(engine: str, reported: Mapping[str, Any]) -> float | None:
    """The share of the GPU's memory that weights and KV cache may take, as resolved; None where it
    is not told."""
    documents = reported["documents"]
    if engine == "sglang":
        return float(documents["/server_info"]["mem_fraction_static"])
    told = documents["/server_info?config_format=json"]["vllm_config"]
    return float(told["cache_config"]["gpu_memory_utilization"])


def _steady(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: _steady(value) for name, value in document.items() if name not in VOLATILE}
    return [_steady(one) for one in document] if isinstance(document, list) else document
