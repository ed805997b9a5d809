"""``recommendation.json`` for other programs, without secrets."""

from __future__ import annotations

import json
from typing import Any

from autotune import redact
from autotune.outputs.export.winner import Winner


def render(winner: Winner) -> str:
    """The object of ``recommendation.json``, indented."""
    recommendation, choice = winner.recommendation, winner.choice
    secrets = redact.found(choice.argv, choice.env)
    if recommendation.baseline is not None:
        secrets |= redact.found(recommendation.baseline.argv, recommendation.baseline.env)
    return json.dumps(_masked(recommendation.to_json(), secrets), indent=2) + "\n"


def _masked(value: Any, secrets: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _masked(item, secrets) for key, item in _redacted(value).items()}
    if isinstance(value, list):
        return [_masked(item, secrets) for item in value]
    return redact.text(value, secrets) if isinstance(value, str) else value


def _redacted(row: dict[str, Any]) -> dict[str, Any]:
    """A command's row with argv and env masked by name, which their strings alone do not tell."""
    if not row.get("argv"):
        return row
    return {**row, "argv": redact.argv(row["argv"]), "env": redact.env(row["env"])}
