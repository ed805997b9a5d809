"""Schema of an engine's ``serving`` and ``failures`` sections: access to a running server and its
log."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import field_validator, model_validator

from autotune.base import StringDict

from .entry import Entry, Explained, NonEmpty, Sourced, Versioned, VersionRange
from .failure import FailureKind, Phase


class CacheMetrics(Versioned):
    """Prometheus counters of the prompt tokens looked up in the prefix cache, and of those found.

    A gauge of the hit rate will not do: it says nothing of the time between two readings.
    """

    queries: str
    """Prompt tokens looked up."""
    queries_without_hits: bool = False
    """True if `queries` counts only tokens that are not found."""
    hits: NonEmpty
    """Prompt tokens found, added up; the first is there or none is."""
    hits_zero_with: str | None = None
    """A metric of the same page; where it stands, counters of hits that are missing are 0, as the
    engine writes them from the first hit on. None: a page without the first of `hits` is another
    engine's."""
    source: str


class DraftCounters(Entry):
    """Prometheus counters of speculative decoding."""

    drafts: str
    """How often tokens were drafted for a sequence."""
    drafted: str
    """Drafted tokens."""
    accepted: str
    """Drafted tokens that were kept."""


class DraftsOfRequests(Entry):
    """Prometheus counters that grow at a request's end; accepted = generated - requests - drafts.

    Prefill generates the first token of a request, every verified draft one token beside those that
    it accepts.
    """

    drafts: str
    """How often a draft of a sequence was verified."""
    generated: str
    """Generated tokens."""
    requests: str
    """Requests that ended."""
    verified: str
    """Gauge: tokens verified per draft, one of which is not drafted."""


class DraftGauges(Entry):
    """Prometheus gauges of speculative decoding, means of the latest steps of a data-parallel
    rank."""

    length: str
    """Tokens that a sequence gains per step, the one without drafting included."""
    rate: str | None = None
    """Acceptance rate; None: the version tells none."""
    rate_of: Literal["drafted", "verified"] = "drafted"
    """Accepted over drafted tokens, or the length over the tokens verified per step."""


class DraftMetrics(Versioned):
    """Metrics of the number of accepted drafted tokens."""

    counters: DraftCounters | None = None
    requests: DraftsOfRequests | None = None
    gauges: DraftGauges | None = None
    source: str

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> DraftMetrics:
        if sum(kind is not None for kind in (self.counters, self.requests, self.gauges)) != 1:
            raise ValueError("give either counters, or requests, or gauges")
        return self


class TrafficMetrics(Versioned):
    """Prometheus metrics of the requests that a server is sent; histograms without their suffix."""

    prompt: str | None = None
    """Histogram of prompt tokens, of requests that ended; None: the version has means only."""
    answer: str | None = None
    """Histogram of generated tokens, of requests that ended."""
    bounds: list[float] = []
    """Upper bounds of the buckets of both, by default."""
    began: str
    """Histogram of seconds up to the first token; its count has the requests that are cancelled
    later."""
    ended: str
    """Counter of the requests that ended."""
    latency: str
    """Histogram of seconds from a request's arrival to its end."""
    token: str | None = None
    """Histogram of a request's mean seconds per token after the first."""
    samples: str | None = None
    """Histogram of a request's `n`; each of its answers is a request of the other metrics."""
    source: str


class ResolvedSource(Versioned):
    """Source of a running engine's resolved arguments: a path of its server, or a line of its log.

    What is found stands under `name` in the knobs' `resolved` readings; of entries with one name
    the first that gives something counts. A pattern is searched in the log up to readiness. Its
    group ``settings`` is read as printed settings (``{'a': 1}``, ``a=1, b=2`` or ``a=1 b=2``);
    without that group its named groups are the settings.
    """

    name: str
    path: str | None = None
    """Path of the server; GET gives a JSON object."""
    key: str = ""
    """Key of the arguments in that object; empty: all of it."""
    pattern: str | None = None
    """Regular expression with named groups."""
    source: str

    @model_validator(mode="after")
    def _is_one_of_both(self) -> ResolvedSource:
        if (self.path is None) == (self.pattern is None):
            raise ValueError("give either a path of the server or a pattern of the log")
        if self.pattern is not None and not re.compile(self.pattern).groupindex:
            raise ValueError("the pattern has no named group, so nothing could be read from it")
        return self


class OwnLimit(Versioned, Explained):
    """A time limit inside the engine that is raised above autotune's, which know more of the launch;
    what the user sets stays."""

    environment: StringDict = {}
    arguments: list[str] = []
    """``--option=value``, where the version has the option."""


class SharedMemoryName(Explained):
    """A name that an engine or a library gives to its files in ``/dev/shm``: what is left of them
    is removed. Its reason says what they are for, and when they are left behind."""

    pattern: str
    """Regular expression of the whole name."""

    @field_validator("pattern")
    @classmethod
    def _is_a_name(cls, pattern: str) -> str:
        if re.compile(pattern).fullmatch("model-00001-of-00002.safetensors"):
            raise ValueError("the pattern would match a file of a model")
        return pattern


class LockFile(Explained):
    """A file that exists while something, its reason, is locked, and that a killed process leaves
    behind."""

    pattern: str
    """Regular expression of the whole path."""


class SharedMemoryNames(Entry):
    """``search_spaces/shared_memory.yaml``."""

    shared_memory: list[SharedMemoryName]
    locks: list[LockFile]


class LogWords(Sourced):
    """Words of a log."""

    pattern: str
    """Regular expression, searched in one line; ``^`` stands behind its process, time and level."""


class Heartbeat(LogWords):
    """A line that a server prints while nothing happens: it is no progress of a start.

    The group ``lock`` of its pattern is the path of a lock file that is waited for.
    """

    reason: str
    abandoned_after_s: float | None = None
    """Seconds without progress after which the start has failed if no process holds that lock."""

    @model_validator(mode="after")
    def _waits_for_a_lock(self) -> Heartbeat:
        if self.abandoned_after_s is not None and "lock" not in re.compile(self.pattern).groupindex:
            raise ValueError("abandoned_after_s needs a pattern with the group `lock`")
        return self


class Serving(Entry):
    """Ways to talk to a running server of the engine. Paths are below the server's URL."""

    host_flag: str = "--host"
    port_flag: str = "--port"
    derived_ports: list[int] = []
    """Distances of the server's other ports from its own; leased with it."""
    port_flags: dict[str, int] = {}
    """Option to the distance of the port that a launched server is given by it, where its version
    has the option; leased as well."""
    environment: StringDict = {}
    """Environment of servers that autotune launches."""
    arguments: list[str] = []
    """Words added to the command of servers that autotune launches."""
    limits: list[OwnLimit] = []
    """Raised for servers that autotune launches; each that holds counts."""
    api_key_flag: str | None = None
    """Option that makes the server want an API key."""
    api_key_variable: str | None = None
    """Environment variable that does the same."""
    health: str = "/health"
    reset_cache: str | None = None
    """POST empties the prefix cache; None: there is no way."""
    reset_cache_needs: str = ""
    """Option that a server without that path was started without."""
    told_command: str | None = None
    """Key of the source `info` of its reported settings that has the words of its command line."""
    tells_with: str = ""
    """Setting without which a server does not report its settings."""
    caches: StringDict = {}
    """Variables to a folder of its own for compiled kernels, below one per engine, version and GPU
    kind; set for servers that autotune launches where the user has not set it."""
    shared_memory: list[SharedMemoryName] = []
    """The engine's own files in /dev/shm; those of its libraries are listed once for all."""
    locks: list[LockFile] = []
    """The engine's own lock files; those of its libraries are listed once for all."""
    heartbeats: list[Heartbeat] = []
    """The engine's own lines without progress; those of its libraries are listed once for all."""
    metrics_path: str = "/metrics"
    metrics: StringDict = {}
    """Our names to the engine's Prometheus names."""
    cache_metrics: list[CacheMetrics] = []
    """Metrics; the first that the page has counts."""
    draft_metrics: list[DraftMetrics] = []
    """Metrics; the first that the page has counts."""
    traffic_metrics: list[TrafficMetrics] = []
    """Metrics; the first that the page has counts."""


class LogPattern(LogWords):
    """A line of the engine's log that gives the cause of a failure; the first matching line
    applies."""

    kind: FailureKind
    way_out: str
    """Advice; it may use the pattern's named groups as {name}."""
    phase: Phase | None = None
    """Phase of the failure, where the line alone tells it."""
    way_out_at: dict[Phase, str] = {}
    """A better way out where the phase is known."""
    retry: bool = True
    """For infrastructure: false where the next launch would fail as well."""
    weak: bool = False
    """The line may follow from another, or be got over: it counts as an error of a server that did
    not get ready after it, where no other pattern matches."""


class Remark(LogWords):
    """A line of a server that runs, by which its engine says why it may be slow."""

    remark: str
    """The same as a sentence of the report."""


class SharedFailures(Entry):
    """``search_spaces/failures.yaml``."""

    failures: list[LogPattern]
    heartbeats: list[Heartbeat]
    wrappers: list[LogWords]
    """Errors that name no cause."""
    remarks: list[Remark]


class ProgressMark(LogWords):
    """A line that marks a starting server's progress: a later failure belongs to that phase."""

    phase: Phase
    names_the_cause: bool = False
    """The line stands behind the failure, and says where that was."""


class ContainerImage(Versioned):
    """A container image with the engine, for some versions on one vendor's hardware."""

    image: str
    """Name and tag; {version} stands for the engine's version."""
    vendor: Literal["nvidia", "amd", "cpu"]
    generation: str | None = None
    """Generation of the hardware, where the image is for that one only."""
    seen: VersionRange = "*"
    """Versions whose tag is known to exist; others' follow the name."""
    own_entrypoint: bool = True
    """True if the image's own entry point runs the words after the image's name as a command; if
    not (it is the server itself), it is reset."""
    source: str
