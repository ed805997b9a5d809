"""Answers the requests: routes, completions, metrics, the cache's reset and the resolved arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import perf_counter, time
from typing import Any

from autotune.simulator.emulator.card import ResetAnswer, filled_tree, of_version
from autotune.simulator.emulator.completions import Completion
from autotune.simulator.emulator.engine import LiveEngine
from autotune.simulator.emulator.http import HttpExchange
from autotune.simulator.emulator.launch import EmulatedLaunch
from autotune.simulator.emulator.requests import Limits, RequestRefused, read_request
from autotune.space.entry import in_range

_STREAM_FAULTS = ("close-mid-stream", "reset-mid-stream", "stall-mid-stream", "cut-utf8")


class EngineApi:
    """The engine's HTTP interface over a live engine."""

    def __init__(self, launch: EmulatedLaunch, engine: LiveEngine, faults: Mapping[str, float]) -> None:
        self._launch, self._engine, self._faults = launch, engine, faults
        self._card = launch.card
        api = self._card.api
        server = launch.server
        self._limits = Limits(api, launch.models, server.context_length, engine.longest, server.prompt_limit)
        self._began_s = perf_counter()
        self._streams = 0
        report = of_version(api.cached_tokens, launch.parsed.version)
        silent = report is not None and report.option is not None and not launch.parsed.args.get(report.option)
        self._cached_tokens = None if silent else report
        self._keys = _keys(launch)
        handlers: dict[str, tuple[str, Callable[[HttpExchange], None]]] = {
            "health": ("GET", lambda exchange: exchange.respond(200)),
            "models": ("GET", self._models),
            "version": ("GET", lambda exchange: _json(exchange, {"version": launch.parsed.version})),
            "arguments": ("GET", self._arguments),
            "metrics": ("GET", self._metrics),
            "reset": ("POST", self._reset),
            "completions": ("POST", lambda exchange: self._complete(exchange, chat=False)),
            "chat": ("POST", lambda exchange: self._complete(exchange, chat=True)),
        }
        self._routes = {path: handlers[name] for path, name in api.routes.items() if self._offers(name)}

    def __call__(self, exchange: HttpExchange) -> None:
        """Answer a request."""
        method, handler = self._routes.get(exchange.path, ("", None))
        period_s = self._faults.get("unavailable-bursts", 0.0)
        if period_s and (perf_counter() - self._began_s) % period_s > 0.75 * period_s:
            exchange.respond(503, b"Service Unavailable", "text/plain; charset=utf-8")
        elif handler is None:
            _json(exchange, {"detail": "Not Found"}, 404)
        elif exchange.method != method:
            _json(exchange, {"detail": "Method Not Allowed"}, 405)
        elif (
            self._keys
            and exchange.path.startswith("/v1/")
            and exchange.headers.get(b"authorization", b"").decode("latin-1") not in self._keys
        ):
            _json(exchange, {"error": "Unauthorized"}, 401)
        else:
            handler(exchange)

    def _offers(self, name: str) -> bool:
        api, args = self._card.api, self._launch.parsed.args
        if name == "metrics" and api.metrics_option is not None:
            return bool(args.get(api.metrics_option) or self._launch.parsed.config.get(api.metrics_option))
        variable = {"reset": api.reset_variable, "arguments": api.arguments_variable}.get(name)
        return variable is None or self._launch.parsed.env.get(variable, "0") not in ("", "0")

    # What the routes answer

    def _models(self, exchange: HttpExchange) -> None:
        base = {"object": "model", "created": int(time()), "owned_by": self._card.api.owner}
        more = {"root": self._launch.parsed.model, "parent": None, "max_model_len": self._limits.context}
        _json(exchange, {"object": "list", "data": [{"id": name, **base, **more} for name in self._launch.models]})

    def _arguments(self, exchange: HttpExchange) -> None:
        _json(exchange, {**resolved_arguments(self._launch), "max_total_num_tokens": self._engine.capacity})

    def _metrics(self, exchange: HttpExchange) -> None:
        figures = self._engine.figures()
        labels = self._card.labels.replace("{model}", self._launch.models[0])
        lines: list[str] = []
        for metric in self._card.metrics:
            version, absent = self._launch.parsed.version, metric.absent_at_zero and not figures.get(metric.value)
            if absent or metric.value not in figures or not in_range(version, metric.versions):
                continue
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
            lines.append(f"{metric.name}{{{labels}}} {figures[metric.value]}")
        lines += ["# HELP autotune_emulator_lost_seconds_total time that the emulator fell behind and gave up"]
        lines += ["# TYPE autotune_emulator_lost_seconds_total counter"]
        lines += [f"autotune_emulator_lost_seconds_total {figures['lost_s']}", ""]
        exchange.respond(200, "\n".join(lines).encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _reset(self, exchange: HttpExchange) -> None:
        answer = of_version(self._card.api.reset, self._launch.parsed.version) or ResetAnswer()
        if self._engine.reset_cache():
            exchange.respond(200, answer.done.encode(), answer.content_type)
        else:
            exchange.respond(answer.refused_status, answer.refused.encode(), answer.content_type)

    def _complete(self, exchange: HttpExchange, *, chat: bool) -> None:
        api = self._card.api
        try:
            asked = read_request(exchange.body, chat=chat, limits=self._limits)
        except RequestRefused as error:
            content = {"message": error.message, "type": error.kind, "param": None, "code": error.status}
            _json(exchange, {"error": content} if api.error_nested else {"object": "error", **content}, error.status)
            return
        self._streams += asked.stream
        if self._due("error-mid-load"):
            _json(exchange, {"error": {"message": "EngineCore encountered an issue.", "code": 500}}, 500)
            return
        if "wrong-lengths" in self._faults:
            fewer = int(self._faults["wrong-lengths"])
            asked = replace(asked, output_tokens=[max(1, tokens - fewer) for tokens in asked.output_tokens])
        name, answers = self._launch.models[0], self._launch.answers
        completion = Completion(exchange, self._engine, asked, name, api, self._cached_tokens, answers)
        completion.start(next(filter(self._due, _STREAM_FAULTS), "") if asked.stream else "")

    def _due(self, fault: str) -> bool:
        """Whether a fault that meets every so many-th stream meets this one."""
        every = int(self._faults.get(fault, 0))
        return bool(every) and self._streams % every == 0


def resolved_arguments(launch: EmulatedLaunch) -> dict[str, Any]:
    """What the engine made of its arguments, in its own words, and beside them the knobs as it runs them."""
    api = launch.card.api
    options = launch.parsed.args if api.tells_options else {}
    knobs = dict(launch.resolved.effective.configuration.knobs)
    arguments = filled_tree(api.arguments, launch.scope)
    return {**options, **arguments, "version": launch.parsed.version, "effective_knobs": knobs}


def _keys(launch: EmulatedLaunch) -> frozenset[str]:
    """The ``Authorization`` headers that are accepted; empty = any. The option hides the variable."""
    option = launch.parsed.args.get("api_key")
    keys = option if isinstance(option, list) else [option]
    variable = launch.resolved.card.serving.api_key_variable
    named = [key for key in keys if key] or [launch.parsed.env.get(variable or "")]
    return frozenset(f"Bearer {key}" for key in named if key)


def _json(exchange: HttpExchange, document: Any, status: int = 200) -> None:
    exchange.respond(status, json.dumps(document, default=str).encode())
