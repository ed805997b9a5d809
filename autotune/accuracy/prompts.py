"""The contexts of the built-in check: what is sent, alone and under load.

Every context is a text of ours, so each position up to the first differing token is teacher-forced: both servers have
read the same. Texts are cut at several places, which gives many short answers: one that has diverged tells no more.
Long contexts are a ledger of made-up entries and a question about one of them, the needle; they share their beginning,
so that a prefix cache reads it once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml

CUTS = (0.25, 0.5, 0.75, 1.0)
SHORT_TOKENS, LONG_TOKENS = 32, 48
"""Generated for each context."""
ENTRIES = 560
"""Of the ledger: more than 8192 tokens by any tokenizer that takes no more than five characters for one, 3/4 of it."""
NEEDLES = 16
ALONE_SHORT, ALONE_LONG = 12, 4
"""Contexts of each length that are sent one at a time."""
_PLACES = ("north pier", "south pier", "old mill", "grain store", "east lock", "chapel", "boat yard", "fish market")
_PEOPLE = ("Ida", "Tomas", "Renske", "Jonah", "Mirela", "Pavel", "Aiko")
_WORK = ("checked the lamp", "oiled the gate", "wrote down the tide", "mended a net", "swept the steps")


@dataclass(frozen=True, slots=True)
class Context:
    """One text to go on from.

    Attributes:
        name: by which two answers to it are found.
        group: ``alone``, ``load`` or ``long``, which are compared each for itself.
        alone: whether it is sent with nothing beside it.
    """

    name: str
    group: str
    prompt: str
    max_tokens: int
    alone: bool

    @property
    def body(self) -> dict[str, object]:
        """What is sent."""
        return {"prompt": self.prompt, "max_tokens": self.max_tokens}


@lru_cache(maxsize=1)
def contexts() -> tuple[Context, ...]:
    """All contexts: those that are sent alone first, then those under load."""
    short = list(_short())
    long = list(_long())
    step = len(short) // ALONE_SHORT
    alone = [Context(f"alone {name}", "alone", text, SHORT_TOKENS, True) for name, text in short[3::step]]
    alone += [
        Context(f"alone {name}", "long", text, LONG_TOKENS, True) for name, text in long[:: NEEDLES // ALONE_LONG]
    ]
    load = [Context(name, "load", text, SHORT_TOKENS, False) for name, text in short]
    load += [Context(name, "long", text, LONG_TOKENS, False) for name, text in long]
    return (*alone, *load)


def _short() -> Iterator[tuple[str, str]]:
    texts = yaml.safe_load((Path(__file__).parent / "prompts.yaml").read_text(encoding="utf-8"))
    for number, text in enumerate(texts):
        whole = text["text"].rstrip()
        for cut in CUTS:
            # At the end of a word, where there are spaces; Chinese and Japanese have none.
            end = len(whole) if cut == 1 else whole.rfind(" ", 0, int(cut * len(whole)))
            yield f"{text['kind']} {number} {cut:g}", whole[: end if end > 20 else int(cut * len(whole))]


def _entry(number: int) -> tuple[str, str]:
    """An entry of the ledger, and the question for its needle up to where the answer begins."""
    place, person = _PLACES[number * 5 % len(_PLACES)], _PEOPLE[number * 3 % len(_PEOPLE)]
    level, hour = 11 + number * 7 % 83, f"{number * 11 % 24:02d}:{number * 17 % 60:02d}"
    line = f"Entry {number:04d}. At {hour} {person} {_WORK[number % len(_WORK)]} at the {place}; level {level} cm.\n"
    question = f"\nQuestion: what does entry {number:04d} say, word for word?\nAnswer: Entry {number:04d}. At"
    return line, question


def _long() -> Iterator[tuple[str, str]]:
    ledger = "Ledger of the harbour watch.\n" + "".join(_entry(number)[0] for number in range(1, ENTRIES + 1))
    for number in range(NEEDLES):
        # From the first entries to the last ones.
        needle = 1 + number * (ENTRIES - 1) // (NEEDLES - 1)
        yield f"needle {needle}", ledger + _entry(needle)[1]
