"""Random text of a given number of tokens.

Text is made of whole words with a blank between them. Tokenizers split at blanks before anything else, so that the
tokens of a text are those of its words, a shared beginning keeps its tokens whatever follows, and a text made of
words that are one token each has the length asked for at once. What is off by other words is corrected by counting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

from autotune.arrays import Ints
from autotune.loadgen.client.tokenizers import Tokenizer

Ids = Ints

_FREQUENT_WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so up said what its "
    "about than into them can only other time new some could these two may first then do any like my now over such"
)
_FREQUENT = _FREQUENT_WORDS.split()
"""Frequent English words: with the blank before it, each is one token of every large vocabulary."""
_LETTERS = "xqz"
"""Letters that seldom go on with a word."""


class Texts:
    """Makes texts from random numbers, one word for each.

    Args:
        tokenizer: counts; without an exact one a word stands for a token, which a foreign vocabulary and the chat
            template's own tokens make inexact: what counts is the server's usage.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        exact = tokenizer if tokenizer is not None and tokenizer.exact else None
        self._count = exact.count if exact else None
        self._first = lru_cache(maxsize=None)(exact.count) if exact else None
        self._words = (exact.words if exact else ()) or _FREQUENT
        self._beginnings: dict[bytes, str] = {}

    def text(self, shared: Ids, own: Ids) -> str:
        """A text of ``len(shared) + len(own)`` tokens; those with the same `shared` begin alike for so many tokens.

        Words of several tokens can make the length impossible to hit; it comes as near as a letter allows.
        """
        beginning = ""
        if len(shared):
            key = shared.tobytes()
            if key not in self._beginnings:
                self._beginnings[key] = self._fitted("", shared, len(shared))
            beginning = self._beginnings[key]
        return self._fitted(beginning, own, len(shared) + len(own)) if len(own) else beginning

    def _fitted(self, beginning: str, drawn: Ids, tokens: int) -> str:
        words = [beginning] if beginning else []
        words += [self._words[i % len(self._words)] for i in drawn.tolist()]
        if self._count is None or self._first is None:
            return " ".join(words)
        # Every word but the first has a blank before it.
        spare = 0 if beginning else self._first(words[0]) - 1
        least = 2 if beginning else 1
        return _cut(words, range(least, len(words) + 1), len(words) - spare, tokens, self._count)


def _cut(words: Sequence[str], lengths: range, tried: int, tokens: int, count: Callable[[str], int]) -> str:
    """The words joined and cut to so many tokens, or as near as it goes: whole words first, then letters of the last.

    Tokens grow with words: each try goes to where the end would be if all words were of the length seen so far.

    Args:
        lengths: how many words there may be.
        tried: how many to try first.
    """
    excess: dict[str, int] = {}

    def hits(text: str) -> bool:
        excess[text] = count(text) - tokens
        return excess[text] == 0

    low, high = lengths.start, len(words)  # Fewer than `low` words are too short, more than `high` too long.
    while low <= high:
        tried = min(max(tried, low), high)
        text = " ".join(words[:tried])
        if hits(text):
            return text
        if excess[text] < 0:
            low = tried + 1
        else:
            high = tried - 1
        tried -= math.ceil(excess[text] * tried / max(tokens + excess[text], 1))
    before, last = " ".join(words[:high]), words[high] if high < len(words) else ""
    nearer = [f"{before} {last[:letters]}".strip() for letters in range(len(last) - 1, 0, -1)]
    # A blank can be a token of its own: then a letter more of the word before makes one token, not two.
    nearer += [f"{before}{letter}" for letter in _LETTERS if high in lengths]
    for text in nearer:
        if hits(text):
            return text
    return min(excess, key=lambda text: abs(excess[text]))
