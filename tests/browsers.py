"""Chromium for tests that look at a page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
DRIVER = shutil.which("chromedriver")

IN_A_BROWSER = [
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="no chromium and chromedriver on this machine"
    ),
    # Selenium and urllib leave sockets to the garbage collector when the browser ends.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@contextmanager
def chromium(profile: Path, *flags: str, logs: bool = False) -> Iterator[Any]:
    """A driver of a headless Chromium; with `logs` it keeps what the page requests and prints."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    if logs:
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for flag in (
        *(
            "headless",
            "no-sandbox",
            "disable-gpu",
            "disable-quic",
            "no-first-run",
            "disable-background-networking",
        ),
        *(
            "disable-component-update",
            "disable-sync",
            "disable-dev-shm-usage",
            f"user-data-dir={profile}",
            *flags,
        ),
    ):
        options.add_argument(f"--{flag}")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    try:
        yield driver
    finally:
        driver.quit()
