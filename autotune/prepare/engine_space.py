"""One engine in one study: its context, its candidates, and what it makes of a few settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.engines import Engine
from autotune.space.context import Context
from autotune.space.enumeration import Enumeration
from autotune.space.fingerprint import effective
from autotune.space.schema import EngineCard
from autotune.trial import Configuration, Scalar


@dataclass(frozen=True, slots=True)
class EngineSpace:
    """One engine in one study: the engine, the context of its rules, and its candidates.

    Attributes:
        pins: the pinned knobs that it has, with ``auto`` replaced by its default.
        chosen: the knobs of which the user left one value.
    """

    engine: Engine
    context: Context
    space: Enumeration
    pins: Mapping[str, Scalar]
    chosen: frozenset[str] = frozenset()

    @property
    def card(self) -> EngineCard:
        return self.engine.card

    def effective(self, settings: Mapping[str, Scalar]) -> Configuration:
        """The engine's defaults on all GPUs with some settings; pins override both."""
        knobs = self.engine.default_knobs(self.context, {**settings, **self.pins})
        return effective(self.card, Configuration(self.engine.name, knobs), self.context).configuration

    def without(self, configuration: Configuration) -> dict[str, Configuration]:
        """A configuration's settings, each with what the engine makes of the command without it."""
        settings = dict(configuration.knobs)
        for name in configuration.knobs:
            fewer = {other: value for other, value in settings.items() if other != name}
            if self.effective(fewer) == configuration:
                settings = fewer  # The engine decides so by itself.
        others = {name: {n: value for n, value in settings.items() if n != name} for name in settings}
        return {name: self.effective(kept) for name, kept in others.items()}
