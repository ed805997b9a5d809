"""The schema of an engine's ``serving`` and ``failures`` sections: how a running server is talked to and understood."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from autotune.space.entry import Entry, VersionRange
from autotune.trial import FailureKind


class CacheMetrics(Entry):
    """Prometheus counters of the prompt tokens that were looked up in the prefix cache, and of those found there.

    A gauge of the hit rate will not do: it says nothing of the time between two readings.
    """

    queries: str = Field(description="prompt tokens looked up")
    hits: list[str] = Field(min_length=1, description="prompt tokens found, added up; the first is there or none is")
    hits_zero_with: str | None = Field(
        default=None,
        description="a metric of the same page; where it stands, counters of hits that are missing are 0, as the "
        "engine writes them from the first hit on. None: a page without the first of `hits` is another engine's",
    )
    versions: VersionRange = "*"
    source: str


class Serving(Entry):
    """How a running server of the engine is talked to. Paths are below the server's URL."""

    host_flag: str = "--host"
    port_flag: str = "--port"
    environment: dict[str, str] = Field(default={}, description="set for servers that autotune launches")
    arguments: list[str] = Field(default=[], description="added to the command of servers that autotune launches")
    api_key_flag: str | None = Field(default=None, description="option that makes the server want an API key")
    api_key_variable: str | None = Field(default=None, description="environment variable that does the same")
    health: str = "/health"
    reset_cache: str | None = Field(default=None, description="POST empties the prefix cache; None: there is no way")
    reset_cache_needs: str = Field(default="", description="what a server without that path was started without")
    resolved_arguments: str | None = Field(default=None, description="GET tells what the engine made of its arguments")
    metrics_path: str = "/metrics"
    metrics: dict[str, str] = Field(default={}, description="our name to the engine's Prometheus name")
    cache_metrics: list[CacheMetrics] = Field(default=[], description="the first that the metrics page has counts")


class LogPattern(Entry):
    """A line of the engine's log that tells why it failed; the first line that matches any pattern counts."""

    pattern: str = Field(description="regular expression, searched in one line")
    kind: FailureKind
    way_out: str = Field(description="what to do; may use the pattern's named groups as {name}")
    source: str


class ContainerImage(Entry):
    """A container image that holds the engine, for some versions on one vendor's hardware."""

    image: str = Field(description="name and tag; {version} stands for the engine's version")
    vendor: Literal["nvidia", "amd", "cpu"]
    generation: str | None = Field(default=None, description="of the hardware, where the image is for that one only")
    versions: VersionRange = "*"
    own_entrypoint: bool = Field(
        default=True,
        description="whether the image's own entry point runs the words after the image's name as a command; if not "
        "(it is the server itself), it is reset",
    )
    source: str
