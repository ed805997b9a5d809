"""Conversations: a request's body is known when the answer before it is there, as the history holds that answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from autotune.loadgen.client.stream import EventStream
from autotune.loadgen.client.target import Target
from autotune.loadgen.prompts import PromptKey, Prompts
from autotune.loadgen.requests import Requests


@dataclass(slots=True)
class Conversation:
    """One session on its way, with what was said so far.

    Attributes:
        turns: numbers of its requests in the load, in order.
        places: the same in the schedule of the worker that sends it.
        texts: what the user says in each, made before the clock starts.
    """

    target: Target
    prompts: Prompts
    requests: Requests
    turns: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)

    def think_s(self, number: int) -> float:
        """Seconds that pass before a turn."""
        assert self.requests.turns is not None
        return float(self.requests.turns.think_s[self.turns[number]])

    def request(self, number: int) -> bytes:
        """The whole HTTP request of a turn: everything that was said, and what the user says now."""
        assert self.requests.turns is not None
        turns, request = self.requests.turns, self.turns[number]
        system, tools = turns.systems[turns.system[request]] if turns.system[request] >= 0 else ("", ())
        if number == 0 and system:
            self.messages.append({"role": "system", "content": system})
        self.messages.append({"role": "user", "content": self.texts[number]})
        body = self.prompts.history_body(self.messages, tools, int(self.requests.output_tokens[request]))
        return self.target.request(self.prompts.endpoint, body)

    def answered(self, text: str) -> None:
        """Take the answer of the last turn into the history."""
        self.messages.append({"role": "assistant", "content": text})


def conversations(
    target: Target, prompts: Prompts, requests: Requests, key: PromptKey, chosen: Sequence[int]
) -> list[Conversation]:
    """The sessions of some requests of a load, which hold whole sessions one after the other."""
    assert requests.turns is not None
    begun: list[Conversation] = []
    for place, request in enumerate(chosen):
        if requests.turns.after[request] < 0:
            begun.append(Conversation(target, prompts, requests))
        content = requests.contents[request]
        if content is None:
            content = prompts.random_text(int(requests.turns.own_tokens[request]), request, key)
        assert isinstance(content, str)
        begun[-1].turns.append(request)
        begun[-1].places.append(place)
        begun[-1].texts.append(content)
    return begun


class AnswerStream(EventStream):
    """An answer whose text is wanted: its bytes are kept, and read when it has ended."""

    def __init__(self) -> None:
        super().__init__()
        self._body = bytearray()

    def feed(self, body: bytes, now_ns: int) -> None:
        """Parse the next piece of the body, and keep it."""
        self._body += body
        super().feed(body, now_ns)

    def text(self) -> str:
        """The answer's text; reasoning before it is not sent again."""
        events = bytes(self._body).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n")
        return "".join(map(_said, events))


def _said(event: bytes) -> str:
    data = b"\n".join(line[5:] for line in event.split(b"\n") if line.startswith(b"data:"))
    with suppress(ValueError, RecursionError):
        chunk: Any = json.loads(data)
        choices = chunk.get("choices") if isinstance(chunk, dict) else None
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        delta = choice.get("delta")
        text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
        return text if isinstance(text, str) else ""
    return ""
