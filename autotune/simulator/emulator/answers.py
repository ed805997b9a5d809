"""What an emulated engine answers to a greedy request that may end by itself, and how it may be told to answer wrongly.

The stand-in for a model is a table of hashes: what stands before a token (prompt and answer so far) decides which word
comes next, which is second, and by how much. Every launch adds a noise to the log-probabilities that depends on how
many requests are under way, as sums do in kernels that depend on the batch: so near-ties fall one way or the other, and
answers diverge from there. Damage is another thing: a share of tokens is replaced by any word, with the confidence of
the right one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from autotune.errors import BadInput, UnknownName
from autotune.space.expression import evaluate

VARIABLE = "AUTOTUNE_EMULATE_ANSWERS"
WORDS = (" the", " and", " one", " all", " day", " sun", " sea", " own", " far", " new", " way", " old", " sky", " air")
"""The texts of the tokens that are generated; all of one length."""

_MARGIN = 3.0
"""Mean of the difference of log-probabilities of the two likeliest tokens, nats, exponentially distributed."""
_THIRD = 1.5
"""Nats from the second to the third."""
_ALONE = 0.25
"""Noise of a request with nothing beside it, of that under load."""
_KEYS = ("wrong", "after", "under-load", "noise", "seed", "no-logprobs", "when")


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """How greedy answers come about.

    Attributes:
        wrong: share of the tokens that are replaced.
        after: only behind so many tokens of context.
        under_load: only while other requests run.
        when: only where this holds of knobs and model, as in a rule.
        noise: standard deviation of log-probabilities under load, nats.
        seed: of noise and damage; None: another one at each launch.
        logprobs: whether they are told.
    """

    wrong: float = 0.0
    after: int = 0
    under_load: bool = False
    when: str = ""
    noise: float = 0.03
    seed: int | None = None
    logprobs: bool = True

    @classmethod
    def read(cls, option: str | None) -> AnswerSettings:
        """Read ``KEY[:VALUE],…,when:EXPRESSION`` of the option, else of the environment; raises `BadInput`."""
        text = option if option is not None else os.environ.get(VARIABLE, "")
        parts, marked, when = text.partition("when:")
        given = dict[str, Any](when=when.strip()) if marked else {}
        for part in filter(None, (piece.strip() for piece in parts.split(","))):
            name, _, value = part.partition(":")
            if name not in _KEYS:
                raise UnknownName("setting of answers", name, _KEYS)
            try:
                if name in ("under-load", "no-logprobs"):
                    if value:
                        raise ValueError(value)
                    given |= {"under_load": True} if name == "under-load" else {"logprobs": False}
                    continue
                number = float(value) if name in ("wrong", "noise") else int(value)
                if number < 0 or (name == "wrong" and number > 1):
                    raise ValueError(value)
                given[name] = number
            except ValueError:
                raise BadInput(f"--answers {part}: {value!r} is no value; e.g. wrong:0.02,after:8192") from None
        return cls(**given)

    def of_launch(self, scope: Mapping[str, Any]) -> AnswerSettings:
        """Return the settings of one launch: without damage where its condition does not hold, and with a seed."""
        wrong = self.wrong if not self.when or evaluate(self.when, scope) else 0.0
        seed = int.from_bytes(os.urandom(6), "big") if self.seed is None else self.seed
        return replace(self, wrong=wrong, seed=seed)


@dataclass(frozen=True, slots=True)
class GreedyToken:
    """A generated token: its word, and the likeliest words with their log-probabilities, its own first."""

    word: str
    logprobs: Mapping[str, float]


class GreedyAnswer:
    """The answer to one prompt, token by token."""

    def __init__(self, settings: AnswerSettings, prompt: list[int]) -> None:
        self._settings, self._context = settings, len(prompt)
        self._key = int(settings.seed or 0).to_bytes(8, "big")
        self._state = blake2b(repr(prompt).encode(), digest_size=16).digest()

    def next(self, others: int) -> GreedyToken:
        """Generate a token while so many other requests are under way."""
        settings, state = self._settings, self._state
        first, step = state[0] % len(WORDS), 1 + state[1] % (len(WORDS) - 1)
        ranks = (first, (first + step) % len(WORDS), (first + 1 + step % (len(WORDS) - 2)) % len(WORDS))
        if ranks[2] in ranks[:2]:
            ranks = (*ranks[:2], next(i for i in range(len(WORDS)) if i not in ranks[:2]))
        margin = -_MARGIN * math.log(_uniform(state[2:6]))
        here = blake2b(state + others.to_bytes(4, "big"), digest_size=32, key=self._key).digest()
        sigma = settings.noise * (1.0 if others else _ALONE)
        scores = [
            score + sigma * _normal(here[8 * i : 8 * i + 8]) for i, score in enumerate((0.0, -margin, -margin - _THIRD))
        ]
        total = math.log(sum(map(math.exp, scores)) * (1 + 0.02))
        likely = sorted(zip(scores, ranks, strict=True), reverse=True)
        words = [WORDS[rank] for _, rank in likely]
        damaged = self._context > settings.after and (others or not settings.under_load)
        if damaged and _uniform(here[24:28]) < settings.wrong:
            # Half of them are the second-likeliest word, as damage that is small changes the order of few.
            others_of_it = [word for word in WORDS if word != words[0]]
            wrong = words[1] if here[30] % 2 else others_of_it[here[31] % len(others_of_it)]
            words = [*dict.fromkeys((wrong, *words))]
        self._state = blake2b(state + words[0].encode(), digest_size=16).digest()
        self._context += 1
        return GreedyToken(words[0], {w: round(s - total, 6) for w, (s, _) in zip(words, likely, strict=False)})


def _uniform(four: bytes) -> float:
    """Return a number above 0, at most 1."""
    return (int.from_bytes(four, "big") + 1) / 2**32


def _normal(eight: bytes) -> float:
    """Apply Box and Muller's transform."""
    return math.sqrt(-2 * math.log(_uniform(eight[:4]))) * math.cos(2 * math.pi * _uniform(eight[4:]))
