"""Address of a server, and the bytes of a request to it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from urllib.parse import urlsplit

from autotune.base import BadInput, Json

_MAX_MESSAGE = 300

BALANCING = (
    "to the server with the fewest requests in flight, of those that the client process sent"
)
"""Policy that spreads requests over several servers."""

_TELLING = 8  # Least length of a prefix of an API key that is hidden


@dataclass(frozen=True)
class Target:
    """Parsed URL of a server; `prefix` is the path to the API, without ``/v1``, mostly empty.

    It is a list of addresses, its own and the `others`, which share the load.
    """

    scheme: str
    host: str
    port: int
    prefix: str = ""
    api_key: str | None = field(default=None, repr=False)
    others: tuple[Target, ...] = ()

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> Target:
        """Parse ``[http[s]://]HOST[:PORT][/PREFIX]``, or several with commas; raises `BadInput` for
        anything else."""
        first, *others = (cls._parse_one(one, api_key) for one in url.split(","))
        return replace(first, others=tuple(others))

    @classmethod
    def _parse_one(cls, url: str, api_key: str | None) -> Target:
        text = url if "://" in url else f"http://{url}"
        if "@" in text.partition("://")[2].partition("/")[0]:
            # Not repeated in the message: it holds a password.
            raise BadInput(
                "the URL of the server holds a user name or password, which results and studies would store; remove "
                "it, and give an API key with --api-key-env NAME"
            )
        try:
            parts = urlsplit(text)
            host = parts.hostname
            port = parts.port
            (host or "").encode("idna")  # as every resolver does
        except ValueError as error:
            raise BadInput(f"URL {url!r} is malformed ({error}); write http://HOST:PORT") from error
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise BadInput(f"URL {url!r} is invalid; write http://HOST:PORT")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise BadInput("the API key has invalid characters for an HTTP header")
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        if not (prefix.isascii() and prefix.isprintable()) or " " in prefix or port == 0:
            raise BadInput(
                f"URL {url!r}: no port 0, and no path that needs %-encoding; write http://HOST:PORT"
            )
        port = port or (443 if parts.scheme == "https" else 80)
        return cls(parts.scheme, host, port, prefix, api_key)

    def __iter__(self) -> Iterator[Target]:
        """List every address as its own target."""
        yield replace(self, others=())
        yield from self.others

    def __len__(self) -> int:
        return 1 + len(self.others)

    def beginning_with(self, number: int) -> Target:
        """Return the same addresses, rotated to start with another one."""
        addresses = list(self)
        start = number % len(self)
        first, *others = addresses[start:] + addresses[:start]
        return replace(first, others=tuple(others))

    def balancing(self) -> Json:
        """Return what a result says of the spreading of requests; nothing for one server."""
        return {"servers": len(self), "balancing": BALANCING} if self.others else {}

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.prefix}"

    @property
    def authority(self) -> str:
        """Return host and port, as in the Host header."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        return ssl.create_default_context() if self.scheme == "https" else None

    @cached_property
    def addresses(self) -> list[str]:
        """Return the host's numeric addresses, resolved once; raises `BadInput` for none."""
        try:
            entries = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise BadInput(f"host {self.host!r} is unknown: {error}") from error
        return list(dict.fromkeys(str(entry[4][0]) for entry in entries))

    def request(self, path: str, body: bytes) -> bytes:
        """Return a whole POST request with a JSON body, ready to send."""
        authorization = ""
        if self.api_key is not None:
            authorization = f"Authorization: Bearer {self.api_key}\r\n"
        head = (
            f"POST {self.prefix}{path} HTTP/1.1\r\n"
            f"Host: {self.authority}\r\n"
            "Content-Type: application/json\r\n"
            "Accept: */*\r\n"
            "Accept-Encoding: identity\r\n"
            f"Content-Length: {len(body)}\r\n"
            f"{authorization}\r\n"
        )
        return head.encode("latin-1") + body

    def redacted(self, text: str) -> str:
        """Remove the API key from a message, which a server may repeat; cut to a length for
        reports."""
        key = self.api_key or ""
        if key and key[:_TELLING] in text:
            # Also a beginning of it, as a server may cut its message within the key.
            for length in range(len(key), min(_TELLING, len(key)) - 1, -1):
                text = text.replace(key[:length], "***")
        return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]}…"
