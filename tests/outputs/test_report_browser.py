"""The report's page in a real browser without a network: nothing requested, nothing wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from autotune.outputs.report import StudyRecord
from autotune.outputs.report.render import render
from tests import small_study
from tests.browsers import IN_A_BROWSER, chromium
from tests.outputs import report_studies
from tests.small_study import WINNER

pytestmark = IN_A_BROWSER

STUDIES = (
    report_studies.everything,
    report_studies.one_launch,
    report_studies.none_ran,
    report_studies.many,
    report_studies.hostile,
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile"), "window-size=1280,900", logs=True) as driver:
        driver.execute_cdp_cmd("Network.enable", {})
        nowhere = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        driver.execute_cdp_cmd("Network.emulateNetworkConditions", nowhere)
        yield driver


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Callable[[Callable[[Path], StudyRecord]], Any]:
    """Opens the page of a study."""

    def open_page(make: Callable[[Path], StudyRecord]) -> Any:
        path = tmp_path / "report.html"
        path.write_text(render(make(tmp_path / "study"), "html"), encoding="utf-8")
        for kind in ("performance", "browser"):
            browser.get_log(kind)
        browser.get(path.as_uri())
        return browser

    return open_page


@pytest.mark.parametrize("make", STUDIES, ids=lambda make: make.__name__)
def test_the_page_requests_nothing_and_nothing_is_wrong_on_it(
    make: Any, opened: Any, tmp_path: Path
) -> None:
    page = opened(make)
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [
        m["params"]["request"]["url"]
        for m in messages
        if m["method"] == "Network.requestWillBeSent"
    ]
    assert asked == [(tmp_path / "report.html").as_uri()]
    assert page.get_log("browser") == []
    assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth"), (
        "it does not scroll aside"
    )
    assert page.execute_script("return document.querySelectorAll('.drawn .mark').length") > 0


def test_a_click_copies_the_command(opened: Any) -> None:
    page = opened(report_studies.everything)
    page.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]},
    )
    button = page.find_element("css selector", "button.copy")
    assert button.rect["y"] < 900, "on the first screen"
    button.click()
    _wait(page, "return document.querySelector('button.copy').textContent == 'Copied'")
    read = (
        "const done = arguments[0]; navigator.clipboard.readText().then(done, e => done(String(e)))"
    )
    assert page.execute_async_script(read) == small_study.COMMANDS[WINNER].shell()


def _wait(page: Any, condition: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(page, 10).until(lambda driver: driver.execute_script(condition))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("make", STUDIES[:3], ids=lambda make: make.__name__)
def test_axe_finds_nothing_serious(make: Any, dark: bool, opened: Any) -> None:
    package = find_spec("axe_playwright_python")
    if package is None or package.origin is None:
        pytest.skip("axe-playwright-python is not installed")
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    page = opened(make)
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    try:
        page.execute_script(
            Path(package.origin).with_name("axe.min.js").read_text(encoding="utf-8")
        )
        found = page.execute_async_script(
            "axe.run().then(arguments[0], e => arguments[0]({error: String(e)}))"
        )
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    wrong = [
        (one["id"], one["impact"], one["nodes"][0]["html"][:200]) for one in found["violations"]
    ]
    assert wrong == []


def test_it_is_readable_on_a_phone_and_on_paper(opened: Any) -> None:
    page = opened(report_studies.everything)
    screen = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    try:
        assert page.execute_script("return document.documentElement.scrollWidth") <= 390
        sizes = "return [...document.querySelectorAll('.drawn text')].map(t => t.getBoundingClientRect().height)"
        assert min(size for size in page.execute_script(sizes) if size) >= 9
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        shown = "return getComputedStyle(document.querySelector(arguments[0])).display"
        assert page.execute_script(shown, "button.copy") == "none"
        assert page.execute_script(shown, ".drawn") == "block"
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
