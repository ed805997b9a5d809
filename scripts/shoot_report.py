"""Makes the pictures of the documentation: a study's report on a desktop, a phone, a dark screen
and on paper.

    autotune run --model deepseek-ai/DeepSeek-V3.2 --hw h200 --study demo
    python scripts/shoot_report.py mlruns/studies/demo --out docs

Writes ``report-desktop.png``, ``report-phone.png``, ``report-dark.png`` and ``report-print.png``,
each below 300 kB. Needs Chromium with its driver, and Selenium and Pillow, which come with the
tests and with matplotlib.
"""

from __future__ import annotations

import argparse
import base64
import io
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image
from selenium import webdriver

VIEWS: dict[str, dict[str, Any]] = {
    "desktop": {"width": 1100, "height": 1400},
    "phone": {"width": 390, "height": 1500, "mobile": True, "scale": 1.5},
    "dark": {
        "width": 1100,
        "height": 1400,
        "features": {"prefers-color-scheme": "dark"},
        "from": "#speed",
    },
    "print": {"width": 794, "height": 1123, "media": "print", "from": "#finals"},
}
"""Name of the file to what it is seen on; ``from``: a picture whose section stands at the top."""
_COLOURS = 255


def shoot(page: Path, out: Path) -> None:
    """Write every view of a page."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium") or shutil.which("google-chrome"))
    with TemporaryDirectory() as profile:
        for flag in (
            "headless",
            "no-sandbox",
            "disable-gpu",
            "hide-scrollbars",
            f"user-data-dir={profile}",
        ):
            options.add_argument(f"--{flag}")
        driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            driver.get(page.resolve().as_uri())
            for name, view in VIEWS.items():
                save(_view(driver, view), out / f"report-{name}.png")
        finally:
            driver.quit()


def _view(driver: Any, view: dict[str, Any]) -> bytes:
    scale, mobile = view.get("scale", 1), view.get("mobile", False)
    screen = {
        "width": view["width"],
        "height": view["height"],
        "deviceScaleFactor": scale,
        "mobile": mobile,
    }
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    features = [{"name": name, "value": value} for name, value in view.get("features", {}).items()]
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"media": view.get("media", ""), "features": features}
    )
    driver.execute_script("scrollTo(0, 0)")
    if picture := view.get("from"):
        up = "let e = document.querySelector(arguments[0]); while (e.tagName != 'H2') e = "
        driver.execute_script(
            f"{up}e.previousElementSibling; e.scrollIntoView(); scrollBy(0, -20)", picture
        )
    return base64.b64decode(
        driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    )


def save(picture: bytes, path: Path) -> None:
    """Write a picture in few colours, which makes it small."""
    # Not the most frequent colours: those of the marks are rare.
    few = (
        Image.open(io.BytesIO(picture))
        .convert("RGB")
        .quantize(_COLOURS, Image.Quantize.MAXCOVERAGE)
    )
    few.save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    shoot(arguments.folder / "report.html", arguments.out)
