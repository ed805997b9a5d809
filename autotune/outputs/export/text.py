"""Write the text of an export: its first lines, comments, YAML that every reader takes alike, and JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from autotune import redact
from autotune.outputs.export.winner import Winner
from autotune.outputs.report import words
from autotune.serving.docker_run import image_of
from autotune.space.entry import in_range
from autotune.study.recommendation import Recommendation, Verdict
from autotune.trial import Evidence

_WHY = {
    Evidence.EMULATED: "not measured on this hardware",
    Evidence.SIMULATED: "not measured on this hardware",
    Evidence.REPLAYED: "read from recorded launches",
}


def heading(winner: Winner) -> list[str]:
    """Plain lines, without comment signs."""
    recommendation, choice = winner.recommendation, winner.choice
    why = _WHY.get(recommendation.origin)
    worth = f"{recommendation.label}, {why}" if why else recommendation.label
    objective = choice.objective
    return [
        f"{choice.engine} {choice.engine_version} for {recommendation.model} "
        f"on {recommendation.gpus} x {recommendation.hardware}",
        f"recommended by autotune, study {recommendation.study}, configuration {choice.fingerprint}",
        *([f"{winner.replicas} servers of {winner.gpus} GPUs each share the load"] if winner.replicas > 1 else []),
        f"evidence: {worth}",
        f"{objective.metric} on {objective.workload}: {objective.value:.2f}",
        f"gain over the baseline: {gain(recommendation)}",
        *words.price(recommendation),
        *(f"{other.label}: {redact.text(other.command)}" for other in recommendation.alternatives),
    ]


def image_notes(winner: Winner) -> list[str]:
    """Warn where autotune names a container's image and does not know that there is one of that version."""
    if winner.image is not None or winner.choice.container:
        return []
    entry = image_of(winner.engine.card, winner.spec.hardware, winner.choice.engine_version)
    if entry is None or in_range(winner.choice.engine_version, entry.seen):
        return []
    return [f"image: the tag follows the names of earlier versions, check that it exists ({entry.source})"]


def gain(recommendation: Recommendation) -> str:
    """The gain with its interval and verdict, in one phrase."""
    if recommendation.verdict is Verdict.UNOPPOSED or recommendation.gain_percent is None:
        return "unknown, the baseline did not run"
    chosen, baseline = recommendation.recommended, recommendation.baseline
    if chosen and baseline and chosen.fingerprint == baseline.fingerprint:
        return "none, this is the baseline itself"
    text = f"{recommendation.gain_percent:+.1f} %"
    if recommendation.gain_ci95 is not None:
        low, high = recommendation.gain_ci95
        node = words.on_a_node(recommendation)
        text += f" (95 % interval {low:+.1f} to {high:+.1f} %{f'; {node}' if node else ''})"
    if recommendation.verdict is Verdict.INDISTINGUISHABLE:
        text += ", not distinguishable from none"
    elif recommendation.holds_on_a_node is not None:
        text += f", {recommendation.qualified_verdict}"
    return text


def comment(texts: list[str]) -> str:
    """The lines as comments of shell or YAML; nothing inside a text can end the comment or is refused in one."""
    return "".join(f"# {''.join(sign if sign.isprintable() else ' ' for sign in text)}\n" for text in texts)


_PLAIN = re.compile(r"(?:--?[A-Za-z]|[A-Za-z/])[A-Za-z0-9_./:-]+")
"""Text that no reader takes for anything else: ``1e3`` is text to PyYAML and a number to Kubernetes and Compose."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if _PLAIN.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dump_yaml(*documents: Any) -> str:
    """One YAML document each, in the order of its keys, lines not folded; readers of YAML 1.1 and 1.2 agree on it."""
    # No allow_unicode: PyYAML would write line breaks such as U+0085 that it reads back as a space.
    return "---\n".join(yaml.dump(d, Dumper=_Dumper, sort_keys=False, width=2**20) for d in documents)


def yaml_file(winner: Winner, about: list[str], *documents: Any) -> str:
    """YAML documents of a server in a container; the first lines say what they are and how they are used."""
    return comment([*heading(winner), *image_notes(winner), *about]) + dump_yaml(*documents)


def render_json(winner: Winner) -> str:
    """``recommendation.json`` for other programs, without secrets."""
    recommendation = winner.recommendation
    choices = [choice for choice in (winner.choice, recommendation.baseline) if choice is not None]
    secrets = set().union(*(redact.secrets_in(choice.argv, choice.env) for choice in choices))
    return json.dumps(redact.document(recommendation.to_json(), secrets), indent=2) + "\n"
