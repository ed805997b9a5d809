"""Answer the requests: routes, metrics, and completions; their prompts go to the engine, their
tokens come back.

Every token's text has the same length, so an ordinary event of a stream is a fixed frame around a
word: nothing is serialised per token. Only greedy answers that may end by themselves are those of a
model (`GreedyAnswer`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from time import perf_counter, time
from typing import Any
from uuid import uuid4

from autotune.base import BadInput, FloatMap, Json, JsonObject, UnknownName, frozen
from autotune.engines.entry import first_for
from autotune.engines.expression import evaluate, fill_value

from .engine import LiveEngine
from .http import (
    Application,
    CompletionRequest,
    HttpExchange,
    Limits,
    RequestRefused,
    is_predictable,
    read_request,
    text_tokens,
)
from .launch import EmulatedLaunch, ResetAnswer
from .page import MetricsPage

WORDS = (
    " the",
    " and",
    " one",
    " all",
    " day",
    " sun",
    " sea",
    " own",
    " far",
    " new",
    " way",
    " old",
    " sky",
    " air",
)
"""The texts of the tokens that are generated; all of one length."""

_MARGIN = 3.0
"""Mean of the difference of log-probabilities of the two likeliest tokens, nats, exponentially
distributed."""
_THIRD = 1.5  # Nats from the second to the third
_ALONE = 0.25  # Noise of a request with nothing beside it, of that under load
_KEYS = ("wrong", "after", "under-load", "noise", "seed", "no-logprobs", "when")
_SWITCHES = {"under-load": ("under_load", True), "no-logprobs": ("logprobs", False)}
"""Keys without a value: the field that they set, and to what."""


@frozen
class AnswerSettings:
    """Settings of greedy answers: a share of `wrong` tokens, `after` a context length and `when` a
    condition holds.

    `noise` is the standard deviation of log-probabilities under load, nats; without a seed each
    launch has another one.
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
        """Read ``KEY[:VALUE],…,when:EXPRESSION`` of the option, else of the environment; raises
        `BadInput`."""
        text = option if option is not None else os.environ.get("AUTOTUNE_EMULATE_ANSWERS", "")
        parts, marked, when = text.partition("when:")
        settings = Json(when=when.strip()) if marked else {}
        for part in filter(None, (piece.strip() for piece in parts.split(","))):
            name, _, value = part.partition(":")
            if name not in _KEYS:
                raise UnknownName("setting of answers", name, _KEYS)
            try:
                if name in _SWITCHES and not value:
                    settings |= [_SWITCHES[name]]
                    continue
                kind = float if name in ("wrong", "noise") else int
                number = kind(value)
                if number < 0 or (name == "wrong" and number > 1) or name in _SWITCHES:
                    raise ValueError(value)
                settings[name] = number
            except ValueError:
                raise BadInput(
                    f"--answers {part}: {value!r} is no value; e.g. wrong:0.02,after:8192"
                ) from None
        return cls(**settings)

    def for_launch(self, scope: JsonObject) -> AnswerSettings:
        """Return the settings of one launch: without damage if its condition does not hold, and
        with a seed."""
        wrong = self.wrong if evaluate(self.when or "True", scope) else 0.0
        seed = int.from_bytes(os.urandom(6), "big") if self.seed is None else self.seed
        return replace(self, wrong=wrong, seed=seed)


@frozen
class GreedyToken:
    """A generated token: its word, and the likeliest words with their log-probabilities, its own
    first."""

    word: str
    logprobs: FloatMap


class GreedyAnswer:
    """The answer to one prompt, token by token.

    A table of hashes stands in for a model: the prompt and the answer so far decide the next word,
    the second-likeliest one, and the margin between them. Every launch adds noise to the
    log-probabilities. It depends on the number of requests in flight, as sums do in kernels that
    depend on the batch: near-ties fall one way or the other, and answers diverge from there.
    Damage replaces a share of tokens by any word, with the confidence of the right one.
    """

    def __init__(self, settings: AnswerSettings, prompt: list[int]) -> None:
        self._settings, self._context = settings, len(prompt)
        self._key = int(settings.seed or 0).to_bytes(8, "big")
        self._state = blake2b(repr(prompt).encode(), digest_size=16).digest()
        self.tokens: list[GreedyToken] = []

    def extend(self, count: int, others: int) -> None:
        """Generate this number of tokens."""
        for _ in range(count):
            self.next(others)

    def next(self, others: int) -> GreedyToken:
        """Generate a token with this number of other requests in flight."""
        settings, state = self._settings, self._state
        count = len(WORDS)
        first = state[0] % count
        step = 1 + state[1] % (count - 1)
        # Three different words: both steps lie between 1 and the number of words, and differ.
        ranks = (first, (first + step) % count, (first + 1 + step % (count - 2)) % count)
        margin = -_MARGIN * math.log(_uniform(state[2:6]))
        here = blake2b(state + others.to_bytes(4, "big"), digest_size=32, key=self._key).digest()
        sigma = settings.noise * (1.0 if others else _ALONE)
        scores = [
            score + sigma * _normal(here[8 * i : 8 * i + 8])
            for i, score in enumerate((0.0, -margin, -margin - _THIRD))
        ]
        total = math.log(sum(map(math.exp, scores)) * 1.02)
        likely = sorted(zip(scores, ranks, strict=True), reverse=True)
        words = [WORDS[rank] for _, rank in likely]
        damaged = self._context > settings.after and (others or not settings.under_load)
        if damaged and _uniform(here[24:28]) < settings.wrong:
            # Half of them are the second-likeliest word, because small damage swaps near-ties.
            wrong_words = [word for word in WORDS if word != words[0]]
            wrong = words[1] if here[30] % 2 else wrong_words[here[31] % len(wrong_words)]
            words = [*dict.fromkeys((wrong, *words))]
        self._state = blake2b(state + words[0].encode(), digest_size=16).digest()
        self._context += 1
        logprobs = {w: round(s - total, 6) for w, (s, _) in zip(words, likely, strict=False)}
        self.tokens.append(GreedyToken(words[0], logprobs))
        return self.tokens[-1]


def _uniform(four: bytes) -> float:
    """Return a number above 0, at most 1."""
    return (int.from_bytes(four, "big") + 1) / 2**32


def _normal(eight: bytes) -> float:
    """Apply Box and Muller's transform."""
    return math.sqrt(-2 * math.log(_uniform(eight[:4]))) * math.cos(
        2 * math.pi * _uniform(eight[4:])
    )


ANSWER_TOKENS = text_tokens("".join(WORDS))
"""Tokens of answers in a resent history."""

_QUOTED = tuple(json.dumps(word).encode() for word in WORDS)
_TOKENS_BEFORE_FAULT = 3
_POSTED = ("reset", "completions", "chat")
_STREAM_FAULTS = ("close-mid-stream", "reset-mid-stream", "stall-mid-stream", "cut-utf8")


def words(start: int, count: int) -> str:
    return "".join(WORDS[(start + i) % len(WORDS)] for i in range(count))


def _http_chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


_DONE = _http_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Completion:
    """One completion request in progress; without the API's `report` its usage lacks cached
    tokens."""

    def __init__(self, api: EngineApi, exchange: HttpExchange, asked: CompletionRequest) -> None:
        self._exchange, self._engine, self._asked = exchange, api.engine, asked
        self._connection = exchange.connection
        self._dialect, self._report, self._page = api.dialect, api.report, api.page
        answers = api.answers
        self._interval = api.stream_interval
        kind, name = ("chatcmpl", "chat.completion") if asked.chat else ("cmpl", "text_completion")
        name += ".chunk" if asked.chat and asked.stream else ""
        self._head = {
            "id": f"{kind}-{uuid4().hex}",
            "object": name,
            "created": int(time()),
            "model": api.model,
        }
        # The bytes before and after the word in an event of one token, per prompt.
        self._frames = [
            self._event(index, self._text(WORDS[0])).rpartition(_QUOTED[0])
            for index in range(len(asked.prompts))
        ]
        self._generated, self._sent = ([0] * len(asked.prompts) for _ in range(2))
        prompts = asked.prompts if asked.greedy else ()
        self._greedy = [GreedyAnswer(answers, prompt) for prompt in prompts]
        self._logprobs = asked.logprobs if answers.logprobs and asked.greedy else 0
        self._cached_tokens: dict[int, int] = {}  # of each prompt
        self._began_s = perf_counter()
        self._seen_s: dict[int, tuple[float, float]] = {}  # first and latest tokens of each prompt
        self._slots: dict[int, int] = {}
        self._fault = ""

    def start(self, fault: str) -> None:
        """Submit the prompts to the engine; a stream's `fault` (of `process.FAULTS`) comes after a
        few tokens."""
        self._fault = fault
        self._exchange.on_abandoned = self._abandon
        if self._asked.stream:
            self._exchange.begin_stream()
        for index, (prompt, tokens) in enumerate(
            zip(self._asked.prompts, self._asked.output_tokens, strict=True)
        ):
            on_tokens = partial(self._tokens, index)
            guessed = self._engine.server.speculative_tokens > 0 and is_predictable(prompt)
            self._slots[index] = self._engine.submit(
                prompt,
                tokens,
                on_tokens,
                partial(self._cached_tokens.__setitem__, index),
                self._asked.were_text,
                guessed,
            )

    def _abandon(self) -> None:
        for slot in self._slots.values():
            self._engine.abandon(slot)

    def _tokens(self, index: int, count: int, last: bool) -> None:
        self._generated[index] += count
        self._observe(index, count, last)
        if self._greedy:
            self._greedy[index].extend(count, self._engine.under_way - 1)
        if last:
            del self._slots[index]
        if not self._asked.stream:
            if not self._slots:
                self._exchange.respond(200, self._whole())
            return
        sent, held = self._sent[index], self._generated[index] - self._sent[index]
        if last or not sent or held >= self._interval:
            self._sent[index] += held
            self._send(index, self._events(index, sent, held, last))

    def _observe(self, index: int, count: int, last: bool) -> None:
        """Count what the engine's front end counts of a step's tokens."""
        observe, now_s = self._page.observe, perf_counter()
        first_s, latest_s = self._seen_s.get(index, (now_s, now_s))
        if index not in self._seen_s:
            observe("first_token_s", now_s - self._began_s)
        elif count:
            observe("step_s", now_s - latest_s)
            observe("token_s", (now_s - latest_s) / count, count)
        self._seen_s[index] = first_s, now_s
        if last:
            read, written = len(self._asked.prompts[index]), self._generated[index]
            cached = self._cached_tokens.get(index, 0)
            observe("request_s", now_s - self._began_s)
            observe("request_token_s", (now_s - first_s) / max(1, written - 1))
            observe("answers", 1)
            observe("prompt_length", read)
            observe("answer_length", written)
            observe("cached_length", cached)
            observe("uncached_length", read - cached)
            self._page.ended[self._asked.finish_reasons[index]] += 1

    def _send(self, index: int, data: bytes) -> None:
        if self._fault == "cut-utf8":
            # Keep only the first byte of a character of two.
            data = data.replace(b'" ', b'"\xc3', 1)
        if not self._slots:
            if self._asked.include_usage:
                data += self._chunk([], usage=self._usage())
            self._connection.write(data + _DONE)
            self._exchange.finished()
            return
        self._connection.write(data)
        if self._generated[index] >= _TOKENS_BEFORE_FAULT:
            # End the stream here: left as it is, closed or reset.
            close, reset = self._connection.close, self._connection.reset
            ends = {"stall": self._abandon, "close": close, "reset": reset}
            if end := ends.get(self._fault.removesuffix("-mid-stream")):
                end()

    def _events(self, index: int, reached: int, count: int, last: bool) -> bytes:
        """Return the HTTP chunks of a prompt's tokens, the first of them the `reached`-th of the
        answer."""
        if count == 1 and not last and reached and not self._greedy:
            before, _, after = self._frames[index]
            return before + _QUOTED[reached % len(WORDS)] + after
        role = b""
        if self._asked.chat and not reached:
            role = self._event(index, {"delta": {"role": "assistant", "content": ""}})
        reason = self._asked.finish_reasons[index] if last else None
        text = self._text(self._words(index, reached, count))
        return role + self._event(index, text | self._likely(index, reached, count), reason)

    def _words(self, index: int, start: int, count: int) -> str:
        if not self._greedy:
            return words(start, count)
        return "".join(token.word for token in self._greedy[index].tokens[start : start + count])

    def _likely(self, index: int, start: int, count: int) -> Json:
        """Return the log-probabilities of this number of tokens, if requested; chats have another
        form."""
        if not self._logprobs:
            return {}
        spoken = self._greedy[index].tokens[start : start + count]
        top = [dict(list(token.logprobs.items())[: self._logprobs]) for token in spoken]
        words = [token.word for token in spoken]
        own = [token.logprobs[token.word] for token in spoken]
        if not self._asked.chat:
            columns = {"tokens": words, "token_logprobs": own, "top_logprobs": top}
            offsets = list(range(start, start + len(spoken)))
            return {"logprobs": {**columns, "text_offset": offsets}}
        rows = [
            {
                "token": word,
                "logprob": logprob,
                "top_logprobs": [{"token": w, "logprob": lp} for w, lp in likely.items()],
            }
            for word, logprob, likely in zip(words, own, top, strict=True)
        ]
        return {"logprobs": {"content": rows}}

    def _text(self, text: str) -> Json:
        return {"delta": {"content": text}} if self._asked.chat else {"text": text}

    def _choice(self, index: int, content: JsonObject, reason: str | None) -> Json:
        return {
            "index": index,
            "logprobs": None,
            **content,
            "finish_reason": reason,
            **self._dialect.choice,
        }

    def _event(self, index: int, content: JsonObject, reason: str | None = None) -> bytes:
        return self._chunk([self._choice(index, content, reason)])

    def _chunk(self, choices: Sequence[JsonObject], **more: Any) -> bytes:
        document = {**self._head, "choices": choices, **self._dialect.chunk, **more}
        return _http_chunk(
            b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"
        )

    def _usage(self) -> Json:
        read, written = sum(map(len, self._asked.prompts)), sum(self._generated)
        counts = {
            "prompt_tokens": read,
            "total_tokens": read + written,
            "completion_tokens": written,
        }
        cached = sum(self._cached_tokens.values())
        if self._report is None or (self._report.unless_zero and not cached):
            return counts
        return {**counts, "prompt_tokens_details": {"cached_tokens": cached}}

    def _whole(self) -> bytes:
        choices = []
        for index, (count, reason) in enumerate(
            zip(self._generated, self._asked.finish_reasons, strict=True)
        ):
            text = self._words(index, 0, count)
            content: Json = {"text": text}
            if self._asked.chat:
                content = {"message": {"role": "assistant", "content": text, "tool_calls": []}}
            choices.append(self._choice(index, content | self._likely(index, 0, count), reason))
        return json.dumps({**self._head, "choices": choices, "usage": self._usage()}).encode()


class EngineApi:
    """The engine's HTTP interface over a live engine.

    Attributes:
        report: how an answer's usage tells its cached tokens; None: not at all.
        stream_interval: tokens of a stream that are sent together.
        page: what the engine publishes of its requests.
        answers: settings of greedy answers.
    """

    def __init__(self, launch: EmulatedLaunch, engine: LiveEngine, faults: FloatMap) -> None:
        self._launch, self.engine, self._faults = launch, engine, faults
        self.model = launch.models[0]
        self.dialect = api = launch.card.api
        self.page = MetricsPage(launch, engine)
        server = launch.server
        self._limits = Limits(
            api, launch.models, launch.context, engine.longest, server.prompt_limit
        )
        self._began_s = perf_counter()
        self._streams = 0
        self.answers = AnswerSettings.read(launch.asked.answers).for_launch(launch.scope)
        report = first_for(api.cached_tokens, launch.parsed.version)
        if report is not None and report.option and not launch.parsed.args.get(report.option):
            report = None
        self.report = report
        self.stream_interval = int(evaluate(api.stream_interval, launch.scope))
        self._keys = _keys(launch)
        pool = {"max_total_num_tokens": engine.capacity}
        version = {"version": launch.parsed.version}
        handlers: dict[str, Application] = {
            "health": lambda exchange: exchange.respond(200),
            "models": self._models,
            "version": lambda exchange: exchange.respond_json(version),
            "arguments": lambda exchange: exchange.respond_json(resolved_arguments(launch) | pool),
            "metrics": self._metrics,
            "iterations": self._iterations,
            "reset": self._reset,
            "completions": partial(self._complete, chat=False),
            "chat": partial(self._complete, chat=True),
        }
        self._routes = {
            path: ("POST" if name in _POSTED else "GET", handlers[name])
            for path, name in api.routes.items()
            if self._offers(name)
        }

    def __call__(self, exchange: HttpExchange) -> None:
        method, handler = self._routes.get(exchange.path, ("", None))
        period_s = self._faults.get("unavailable-bursts", 0.0)
        if period_s and (perf_counter() - self._began_s) % period_s > 0.75 * period_s:
            exchange.respond(503, b"Service Unavailable", "text/plain; charset=utf-8")
        elif handler is None:
            exchange.respond_json({"detail": "Not Found"}, 404)
        elif exchange.method != method:
            exchange.respond_json({"detail": "Method Not Allowed"}, 405)
        elif (
            self._keys
            and exchange.path.startswith("/v1/")
            and exchange.headers.get(b"authorization", b"").decode("latin-1") not in self._keys
        ):
            exchange.respond_json({"error": "Unauthorized"}, 401)
        else:
            handler(exchange)

    def _offers(self, name: str) -> bool:
        api, parsed = self.dialect, self._launch.parsed
        if name == "metrics":
            return parsed.has(api.metrics_option)
        variable = {"reset": api.reset_variable, "arguments": api.arguments_variable}.get(name)
        return variable is None or parsed.env.get(variable, "0") not in ("", "0")

    def _models(self, exchange: HttpExchange) -> None:
        about = {
            "object": "model",
            "created": int(time()),
            "owned_by": self.dialect.owner,
            **fill_value(self.dialect.model, self._launch.scope),
        }
        models = [{"id": name, **about} for name in self._launch.models]
        exchange.respond_json({"object": "list", "data": models})

    def _metrics(self, exchange: HttpExchange) -> None:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        exchange.respond(200, self.page.text().encode(), kind)

    def _iterations(self, exchange: HttpExchange) -> None:
        """Answer with the statistics of the latest step as a list, empty before the first."""
        api, figures = self.dialect, self.engine.figures()
        told = self._launch.parsed.has(api.iterations_option) and figures["prompt_tokens"]
        scope = {**self._launch.scope, **figures}
        exchange.respond_json([fill_value(api.iterations, scope)] if told else [])

    def _reset(self, exchange: HttpExchange) -> None:
        answer = first_for(self.dialect.reset, self._launch.parsed.version) or ResetAnswer()
        done = self.engine.reset_cache()
        status, text = (200, answer.done) if done else (answer.refused_status, answer.refused)
        exchange.respond(status, text.encode(), answer.content_type)

    def _complete(self, exchange: HttpExchange, *, chat: bool) -> None:
        try:
            asked = read_request(exchange.body, chat=chat, limits=self._limits)
        except RequestRefused as error:
            content = {
                "message": error.message,
                "type": error.kind,
                "param": None,
                "code": error.status,
            }
            document = (
                {"error": content} if self.dialect.error_nested else {"object": "error", **content}
            )
            exchange.respond_json(document, error.status)
            return
        self._streams += asked.stream
        if self._due("error-mid-load"):
            problem = {"message": "EngineCore encountered an issue.", "code": 500}
            exchange.respond_json({"error": problem}, 500)
            return
        if "wrong-lengths" in self._faults:
            fewer = int(self._faults["wrong-lengths"])
            shorter = [max(1, tokens - fewer) for tokens in asked.output_tokens]
            asked = replace(asked, output_tokens=shorter)
        completion = Completion(self, exchange, asked)
        completion.start(next(filter(self._due, _STREAM_FAULTS), "") if asked.stream else "")

    def _due(self, fault: str) -> bool:
        """Return whether a periodic stream fault applies to this stream."""
        every = int(self._faults.get(fault, 0))
        return bool(every) and self._streams % every == 0


def resolved_arguments(launch: EmulatedLaunch) -> Json:
    """Return the resolved arguments in the engine's own words, and the effective knobs."""
    api = launch.card.api
    options = launch.parsed.args if api.tells_options else {}
    knobs = dict(launch.resolved.effective.knobs)
    arguments = fill_value(api.arguments, launch.scope)
    return {**options, **arguments, "version": launch.parsed.version, "effective_knobs": knobs}


def _keys(launch: EmulatedLaunch) -> frozenset[str]:
    """Return the accepted ``Authorization`` headers; empty = any. The option overrides the
    variable."""
    option = launch.parsed.args.get("api_key")
    keys = option if isinstance(option, list) else [option]
    variable = launch.resolved.card.serving.api_key_variable
    named = [key for key in keys if key] or [launch.parsed.env.get(variable or "")]
    return frozenset(f"Bearer {key}" for key in named if key)
