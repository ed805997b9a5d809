"""What is an address of a server, and what is not."""

from __future__ import annotations

import pytest

from autotune.base.errors import BadInput
from autotune.load.client.target import Target


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://h:1/中",
        "http://h:1/a b",
        "http://h:0",
        "http://h:port",
        "ftp://h",
        "http://a..b",
    ],
)
def test_what_cannot_be_asked_is_refused(url: str):
    with pytest.raises(BadInput, match="http://HOST:PORT"):
        Target.parse(url)


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1/"]
)
def test_spellings_of_one_url(url: str):
    assert Target.parse(url).url == "http://127.0.0.1:8000"
