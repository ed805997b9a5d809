"""Workloads: the requests sent to a server, by familiar names.

A workload is a list of load points, measured one after the other on one server. The named ones are
documents of ``search_spaces/workloads/``; ``random:IN:OUT[:N]``, ``sharegpt:FILE[:N]``,
``jsonl:FILE``, ``trace:FILE`` and ``sessions:FILE`` are made on the spot.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from copy import deepcopy
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import (
    Field,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from autotune.base import BadInput, Json, StringDict, Strings, UnknownName, beside
from autotune.engines import Entry, Library
from autotune.engines.entry import parse_yaml
from autotune.engines.library import load

from ..requests import Requests
from ..tokenizers import Approximate, Tokenizer
from .arrivals import Arrival, arrival_of, send_times
from .lengths import (
    FileLengths,
    FixedLengths,
    Lengths,
    Limited,
    OfFile,
    SessionLengths,
    ShareGPTLengths,
    TableLengths,
    TraceLengths,
)
from .prompt_files import Half, held_at_once
from .traces import waits

_FORMS: dict[str, StringDict] = parse_yaml(beside(__file__, "forms.yaml"))
"""Generated workloads: the syntax of each, as a pattern and for people."""

_LENGTHS: TypeAdapter[Lengths] = TypeAdapter(Lengths)
_DEFAULT_PROMPTS = 1000
_HINT = (
    "Or random:IN:OUT[:N], sharegpt:FILE[:N], jsonl:FILE, trace:FILE, sessions:FILE, live:URL; "
    "others are described in search_spaces/workloads/<name>.yaml."
)

_SWEPT = (
    ("lengths", "input_tokens"),
    ("lengths", "output_tokens"),
    ("prompts",),
    ("arrival", "concurrency"),
)
"""Fields of a load point that may have a list instead of a number; the last changes first."""

_OWN_PROMPTS = (FileLengths, TraceLengths, SessionLengths)
"""Kinds of `lengths` with whole prompts from a user's file."""

LEAST_OF_HALF = 200
"""Least prompts of half a file: fewer do not fill a batch, and their 99th percentile is the slowest
two."""

_LABELS = {"prompts": "b", "input_tokens": "in", "output_tokens": "out", "concurrency": "c"}
"""Prefix of each swept number in a label, in its order."""


class Prefix(Entry):
    """Shared prefix of prompts: the first `tokens` are the same within each of `groups` groups."""

    tokens: PositiveInt
    groups: PositiveInt


class LoadPoint(Entry):
    """One load: this number of prompts of these lengths, with these arrivals."""

    label: str = ""
    prompts: PositiveInt
    arrival: Arrival = Arrival()
    lengths: Lengths

    @property
    def in_flight(self) -> float:
        """Most requests in flight; infinite for an open loop."""
        if self.arrival.open_loop:
            return math.inf
        return min(self.arrival.concurrency or self.prompts, self.prompts)


class Workload(Entry):
    """Content of ``search_spaces/workloads/<name>.yaml``."""

    name: str
    description: str
    origin: str = Field(
        description="who uses it, and which of its figures are choices of this project"
    )
    points: list[LoadPoint] = Field(min_length=1)
    prefix: Prefix | None = None
    streaming: bool = True

    @field_validator("points", mode="before")
    @classmethod
    def _expand(cls, points: object) -> object:
        """Expand a list in place of a number into one load point for each."""
        if not isinstance(points, list) or not any(map(_swept, points)):
            return points
        return [
            one for number, point in enumerate(points, start=1) for one in _expanded(point, number)
        ]

    @model_validator(mode="after")
    def _check(self) -> Workload:
        for point in self.points:
            if problem := _misfit(point.lengths, point.arrival):
                raise ValueError(problem)
        if self.prefix is not None:
            for point in self.points:
                lengths = point.lengths
                shortest = lengths.input_tokens if isinstance(lengths, FixedLengths) else 0
                if shortest < self.prefix.tokens and not isinstance(lengths, TableLengths):
                    raise ValueError(
                        "prefix.tokens must not exceed the input tokens of a load point of fixed lengths"
                    )
        return self

    @property
    def longest_request(self) -> int:
        """Input + output tokens of the longest possible request."""
        return max(point.lengths.longest for point in self.points)

    @property
    def concurrency(self) -> float:
        """Most requests in flight; infinite for an open loop."""
        return max(point.in_flight for point in self.points)

    @property
    def tokens_in_flight(self) -> float:
        """Tokens of the requests in flight, prompts and answers, on average; of the load point with
        most."""
        drawn = [self.draw(position, 0) for position in range(len(self.points))]
        means = [float((one.input_tokens + one.output_tokens).mean()) for one in drawn]
        return max(point.in_flight * mean for point, mean in zip(self.points, means, strict=True))

    @property
    def prefix_tokens(self) -> float:
        """Tokens with which prompts may begin alike: of a workload's prefixes, or infinite for the
        text of a user's file."""
        if any(isinstance(point.lengths, _OWN_PROMPTS) for point in self.points):
            return math.inf
        return self.prefix.tokens * self.prefix.groups if self.prefix else 0

    @property
    def has_text(self) -> bool:
        """True if its prompts are a file's text, whose tokens must be counted."""
        return any(isinstance(one.lengths, Limited) and one.lengths.has_text for one in self.points)

    @property
    def notes(self) -> list[str]:
        """Sentences on what is not sent of its files, or counts otherwise."""
        files = [one.lengths for one in self.points if isinstance(one.lengths, OfFile)]
        return [f"--workload {one.named}" for one in files if one.read.said]

    def with_concurrency(self, concurrency: int) -> Workload:
        """Return the same prompts with this number in flight; raises `BadInput` for less than 1."""
        return self.with_arrival(arrival_of(concurrency=concurrency))

    def with_arrival(self, arrival: Arrival) -> Workload:
        """Return the same prompts with these arrivals; load points that differ only in arrival
        become one."""
        points = [point.with_fields(arrival=arrival) for point in self._distinct()]
        for point in points:
            if problem := _misfit(point.lengths, arrival):
                raise BadInput(problem)
        return self.with_fields(points=points)

    def with_concurrencies(self, concurrencies: Sequence[int]) -> Workload:
        """Return a curve: for each a load point c4, c8, … with its own prompts; raises `BadInput`
        for none."""
        if not concurrencies:
            raise BadInput("a curve needs at least one concurrency, e.g. 4,8,16")
        points = []
        for point, concurrency in product(self._distinct(), dict.fromkeys(concurrencies)):
            label = "-".join(filter(None, (point.label, f"{_LABELS['concurrency']}{concurrency}")))
            arrival = arrival_of(concurrency=concurrency)
            points.append(point.with_fields(label=label, arrival=arrival))
        return self.with_fields(points=points)

    def _distinct(self) -> list[LoadPoint]:
        """Return the load points that differ in more than arrival, with labels that omit it."""
        first: dict[tuple[str, int, str], LoadPoint] = {}
        for point in self.points:
            label = re.sub(r"(^|-)c\d+$", "", point.label)
            key = (label, point.prompts, point.lengths.model_dump_json())
            first.setdefault(key, point.with_fields(label=label))
        return list(first.values())

    def with_prompts(self, count: int) -> Workload:
        """Return the load with this number of prompts; raises `BadInput` for several loads, or a
        file's own one."""
        name = f"{self.name}:{count}"
        point, *others = self.points
        if others or isinstance(point.lengths, TraceLengths | SessionLengths) or not count:
            raise BadInput(
                f"--workload {name}: a number of prompts (above 0) needs a workload of one load"
            )
        description = f"{count} prompts of {self.name}, {point.arrival.describe()}"
        point = point.with_fields(prompts=count)
        return self.with_fields(name=name, description=description, points=[point])

    @property
    def limited(self) -> bool:
        """True if the number of its prompts is limited, so that another seed may repeat them."""
        return any(isinstance(point.lengths, Limited) for point in self.points)

    def half(self, number: Half) -> Workload | None:
        """Return the load with the first or second half of its files' requests; None if that is too
        little."""
        points = []
        for point in self.points:
            if isinstance(point.lengths, Limited):
                lengths = point.lengths.with_fields(half=number)
                prompts = point.prompts if lengths.held is None else lengths.held
                prompts = min(prompts, point.prompts)
                if prompts < min(LEAST_OF_HALF, point.prompts):
                    return None
                point = point.with_fields(lengths=lengths, prompts=prompts)
            points.append(point)
        halved = self.with_fields(points=points)
        try:
            for position in range(len(points)):
                halved.draw(position, 0)
        except BadInput:  # Only drawing shows how many texts of a file pass its filter.
            return None
        return halved

    def lengths_source(self, tokenizer: Tokenizer | None = None) -> str:
        """Describe the source of the lengths of prompts and answers, for a report; `tokenizer` as
        in `draw`."""
        return "; ".join(
            dict.fromkeys(point.lengths.source(tokenizer or Approximate()) for point in self.points)
        )

    def draw(self, position: int, seed: int, tokenizer: Tokenizer | None = None) -> Requests:
        """Return the requests of one load point: the same for one seed, new prompts for another
        seed or point.

        Args:
            tokenizer: counts the tokens of a file's text; None = approximated.

        Raises `BadInput`: a file that cannot be read, is malformed, or holds too few prompts.
        """
        point = self.points[position]
        prompts = point.prompts
        arrival = point.arrival
        generator = np.random.default_rng([seed, position])
        drawn = point.lengths.draw(prompts, generator, tokenizer or Approximate())
        group = np.full(prompts, -1)
        if self.prefix is not None:
            group = generator.permutation(np.arange(prompts) % self.prefix.groups)
        concurrency = arrival.concurrency or prompts
        if drawn.turns is not None:
            # The concurrency of sessions is the number of those that are open together.
            sessions = int((drawn.turns.after < 0).sum())
            concurrency = min(arrival.concurrency or sessions, sessions)
        if arrival.kind == "trace" and drawn.send_s is not None:
            send_s = drawn.send_s / arrival.speedup
        else:
            send_s = send_times(arrival, prompts, self.name, position, seed)
        return Requests(
            input_tokens=drawn.input_tokens,
            output_tokens=drawn.output_tokens,
            send_s=send_s,
            group=group,
            prefix_tokens=self.prefix.tokens if self.prefix else 0,
            concurrency=concurrency,
            turns=drawn.turns,
            contents=drawn.contents,
            blocks=drawn.blocks,
            block_tokens=drawn.block_tokens,
            ramp_s=arrival.ramp_s,
        )

    def check_fits(self, context: int) -> None:
        """Raise `BadInput` for a request beyond a model's context; with its line in a file."""
        for point in self.points:
            if isinstance(point.lengths, OfFile):
                point.lengths.check_fits(context)
        if self.longest_request > context:
            longest = f"its longest request has {self.longest_request:,} tokens"
            raise BadInput(
                f"--workload {self.name}: {longest}, but the model takes at most {context:,}"
            )


def _misfit(lengths: Lengths, arrival: Arrival) -> str:
    """Return why these requests cannot be sent in this way; empty if they can."""
    if arrival.kind == "trace" and not isinstance(lengths, TraceLengths):
        return "an arrival of kind trace needs the times of lengths of kind trace"
    if arrival.open_loop and isinstance(lengths, SessionLengths):
        return "a session's turns wait for its answers, so it has no rate: give --concurrency, the number of sessions"
    return ""


def _swept(point: Any) -> dict[Strings, list[Any]]:
    """Return the lists in place of numbers, by position."""
    fields = {path: _at(point, path[:-1]).get(path[-1]) for path in _SWEPT}
    return {path: values for path, values in fields.items() if isinstance(values, list)}


def _expanded(point: Any, number: int) -> list[LoadPoint]:
    """Return the load points of a written one with lists; checked here, where their place in the
    file is known."""
    swept = _swept(point)
    points = []
    for values in product(*swept.values()):
        document = deepcopy(point)
        numbers = {}
        for path, value in zip(swept, values, strict=True):
            _at(document, path[:-1])[path[-1]] = numbers[path[-1]] = value
        try:
            checked = LoadPoint.model_validate(document)
        except ValidationError as error:
            # Name a misspelt key before the one that is missing for it.
            first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
            where = ".".join(map(str, first["loc"]))
            raise ValueError(
                f"load point {number}: {where}: {first['msg'].removeprefix('Value error, ')}"
            ) from error
        labels = [f"{short}{numbers[name]}" for name, short in _LABELS.items() if name in numbers]
        label = "-".join(filter(None, (checked.label, *labels)))
        points.append(checked.with_fields(label=label))
    if not points:
        raise ValueError(f"load point {number}: an empty list in place of a number gives no load")
    return points


def _at(document: Any, path: Sequence[str]) -> Json:
    """Return the mapping at a path of a document; empty for none."""
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def load_workload(text: str, library: Library | None = None) -> Workload:
    """Return a workload by name or form (``short:500``, ``random:IN:OUT``); raises `UnknownName`,
    `BadInput`."""
    if library and text in library.traffic:
        return Workload.model_validate(library.traffic[text])
    form, colon, rest = text.partition(":")
    if colon and form in _FORMS and not rest.isdecimal():
        return _in_form(text)
    by_name = _named(library or Library())
    if rest.isdecimal() and form in by_name:
        return by_name[form].with_prompts(int(rest))
    if text not in by_name:
        raise UnknownName("workload", text, by_name, _HINT)
    return by_name[text]


def workload_names(library: Library | None = None) -> list[str]:
    """Return the names that `load_workload` knows."""
    return sorted(_named(library or Library()))


def _named(library: Library) -> dict[str, Workload]:
    return {workload.name: workload for workload in map(_read, library.paths("workloads"))}


@lru_cache(maxsize=256)
def _read(path: Path) -> Workload:
    return load(path, Workload)


def _in_form(text: str) -> Workload:
    """Make a workload of a form such as ``random:IN:OUT``; raises `BadInput` for a malformed
    one."""
    form = _FORMS[text.partition(":")[0]]
    match = re.fullmatch(form["pattern"], text)
    parts = {name: part for name, part in match.groupdict().items() if part} if match else {}
    speedup = float(parts.pop("speedup", 1))
    if match is None or not 0 < speedup < math.inf:
        raise BadInput(f"malformed workload {text!r}: write {form['usage']}")
    if form["kind"] == "trace" and waits(Path(parts["file"])):
        form = _FORMS["sessions"]
        if speedup != 1:
            raise BadInput(f"{text}: its rows are turns of sessions, which wait for answers")
    asked = int(parts.pop("prompts", 0))
    lengths = _LENGTHS.validate_python(
        _drawn(parts, form["usage"]) or {"kind": form["kind"], **parts}
    )
    arrival = Arrival(kind="trace", speedup=speedup) if form["kind"] == "trace" else Arrival()
    held = lengths.held if isinstance(lengths, Limited) else None
    if isinstance(lengths, ShareGPTLengths):
        held = held_at_once(Path(lengths.file), _DEFAULT_PROMPTS, lengths.output_len)
    sessions = len(lengths.sessions) if isinstance(lengths, SessionLengths) else 0
    prompts = asked or held or _DEFAULT_PROMPTS
    facts = {"sent": arrival.describe(), "prompts": prompts, "sessions": sessions, **parts}
    return Workload(
        name=text,
        description=form["description"].format(**facts),
        origin=form["origin"].format(**facts),
        points=[LoadPoint(prompts=prompts, arrival=arrival, lengths=lengths)],
    )


def _drawn(parts: StringDict, usage: str) -> Json:
    """Return the lengths of ``random:LEAST-MOST:…``, drawn uniformly; empty for fixed ones.

    Replaces the numbers in `parts` by ranges, as people read them. Raises `BadInput` for a range
    that falls.
    """
    if parts.keys().isdisjoint(("input_least", "output_least")):
        return {}
    drawn: Json = {"kind": "quantiles", "total_limit": 0}
    for side in ("input", "output"):
        most = int(parts[f"{side}_tokens"])
        least = int(parts.pop(f"{side}_least", most))
        if least > most:
            raise BadInput(f"the range {least}-{most} falls: write {usage}")
        drawn[f"{side}_quantiles"] = {0.0: least, 1.0: most}
        drawn["total_limit"] += most
        parts[f"{side}_tokens"] = f"{least} to {most}"
    return drawn


def with_options(names: Sequence[str], speedup: float | None, output_len: int | None) -> Strings:
    """Return the workloads' names, with traces replayed this number of times faster, and with this
    length of the answers that files lack; None: unchanged.

    Raises `BadInput` for a number that is none above 0, or where no workload takes it or one has
    its own already.
    """
    asked = (("speedup", "x", speedup, "a trace"), ("output_len", "o", output_len, "a file"))
    for group, letter, value, kind in asked:
        if value is None:
            continue
        option = f"--{group.replace('_', '-')} {value:.12g}"
        if not 0 < value < math.inf:
            raise BadInput(f"{option}: write a number above 0")
        forms = {name: _FORMS.get(name.partition(":")[0], {}).get("pattern", "") for name in names}
        takes = {name: re.fullmatch(form, name) for name, form in forms.items() if group in form}
        if not takes:
            raise BadInput(f"{option} is for {kind}: give one with --workload trace:FILE")
        if any(match and match[group] for match in takes.values()):
            raise BadInput(f"{option}: {', '.join(takes)} already has one")
        names = [f"{name}:{letter}{value:.12g}" if name in takes else name for name in names]
    return tuple(names)


def how_fixed(workload: Workload) -> str:
    """Describe how a workload fixes its load; empty if it does not."""
    if len(workload.points) > 1:
        return f"already has {len(workload.points)} loads"
    arrival = workload.points[0].arrival
    return "" if arrival.kind == "all_at_once" else f"is sent {arrival.describe()}"
