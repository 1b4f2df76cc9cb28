"""The page in a real browser: light and dark, wide and on a phone; no errors, no requests, nothing runs."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import struct
import subprocess
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capfuzz.campaign.events import Event, Found, Started
from capfuzz.differential import Outcome, Verdict
from capfuzz.findings.heat import Cell, HeatMap
from capfuzz.reports import HtmlReport

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium with its chromedriver on the PATH")

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
PHONE, DESK = 390, 1100
Events = Callable[..., list[Event]]


class Browser:
    """A session of chromedriver, over its protocol."""

    def __init__(self, address: str, profile: Path) -> None:
        self._address = address
        options = {"binary": CHROMIUM, "args": [*ARGUMENTS, f"--user-data-dir={profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        self._session = "session"
        self._session = f"session/{self._ask('', {'capabilities': {'alwaysMatch': wanted}})['sessionId']}"

    def _ask(self, what: str, body: dict[str, Any] | None = None, method: str = "POST") -> Any:
        data = None if body is None else json.dumps(body).encode()
        address = f"{self._address}/{self._session}{what}"
        request = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def command(self, name: str, **params: Any) -> Any:
        return self._ask("/goog/cdp/execute", {"cmd": name, "params": params})

    def show(self, page: Path, width: int, scheme: str = "light") -> None:
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width == PHONE)
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.log("performance")
        self._ask("/url", {"url": page.as_uri()})

    def run(self, script: str) -> Any:
        return self._ask("/execute/sync", {"script": f"return {script}", "args": []})

    def log(self, kind: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self._ask("/se/log", {"type": kind})
        return entries

    def requests(self) -> list[str]:
        """The addresses of all that was asked for since the page was shown."""
        messages = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]

    def screenshot(self) -> bytes:
        """Chromium answers "Unable to capture screenshot" where a busy machine has not drawn a frame in time: asked again."""
        for _ in range(4):
            with contextlib.suppress(urllib.error.HTTPError):
                return base64.b64decode(self.command("Page.captureScreenshot", captureBeyondViewport=True)["data"])
            time.sleep(1)
        return base64.b64decode(self.command("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def close(self) -> None:
        self._ask("", method="DELETE")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert DRIVER is not None
    driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert driver.stdout is not None
        port = next(filter(None, (re.search(r"on port (\d+)\.", line) for line in driver.stdout)))[1]
        session = Browser(f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("profile"))
        with contextlib.closing(session):
            yield session
    finally:
        driver.terminate()
        driver.wait(timeout=30)


@pytest.fixture
def page(events: Events, finding: Callable[..., Found], render: Callable[..., bytes], tmp_path: Path) -> Path:
    """A page with every part: a capture error, a divergence, a crash without a line, a heat map, names that are long."""
    cells = [[Cell.HOLDS] * 3 + [Cell.FAILS] * 5, [Cell.FAILS] * 7 + [Cell.OTHER], [Cell.NOT_LEGAL] * 4 + [Cell.NOT_TRIED] * 4]
    heat = HeatMap("batch", "fold_factor", [0, 1, 2048], [1, 2, 3, 4, 5, 8, 16, 1024], cells, 1, 0, True)
    long = "a_very_long_name_" * 12
    found = finding(heat=heat, implementation=f"user:{long}:{long}", axes={"batch": f"only {', '.join(map(str, range(99)))}"})
    crash = replace(found, finding=replace(found.finding, outcome=Outcome(Verdict.CRASH, None, long), heat="time ran out"))
    started = Started("fold_indptr", f"user:{long}", "sim", "hypothesis", 1, 100, None)
    told = [*events(), *events("token_to_req_indices", "variant:host_count"), started, found, crash]
    path = tmp_path / "report.html"
    path.write_bytes(render(HtmlReport, told))
    return path


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_is_quiet(browser: Browser, page: Path, width: int, scheme: str) -> None:
    browser.show(page, width, scheme)
    assert browser.run("window.innerWidth") == width
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("[...document.querySelectorAll('section')].every(e => e.scrollWidth <= e.clientWidth)")
    assert browser.log("browser") == []
    assert browser.requests() == [page.as_uri()]
    assert browser.run("document.querySelectorAll('td.differs').length") == 1
    assert browser.run("document.querySelector('td.differs').innerText.trim()") == "0\u2260"
    shades = "[...new Set([...document.querySelectorAll('.heat tbody td')].map(e => getComputedStyle(e).backgroundColor))]"
    assert len(browser.run(shades)) == 4, "fails, another fault, holds, and what is not known"
    assert Shot(browser.screenshot()).width == width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(browser: Browser, page: Path, scheme: str) -> None:
    """The contrast of each element that has text of its own, as WCAG computes it: at least 4.5, its level AA."""
    browser.show(page, DESK, scheme)
    pairs: list[list[str]] = browser.run(
        """(() => {
            const behind = e => {
                for (; e; e = e.parentElement) {
                    const colour = getComputedStyle(e).backgroundColor;
                    if (!colour.endsWith(', 0)')) return colour;
                }
                return 'none';
            };
            const own = e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
            const all = [...document.body.querySelectorAll('*')].filter(own);
            return [...new Set(all.map(e => getComputedStyle(e).color + '|' + behind(e)))].map(p => p.split('|'));
        })()"""
    )
    assert len(pairs) > 8
    assert {pair: round(contrast(*pair), 1) for pair in map(tuple, pairs) if contrast(*pair) < 4.5} == {}
    page_colour = luminance(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert page_colour > 0.8 if scheme == "light" else page_colour < 0.05


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_light_and_dark_are_seen(browser: Browser, page: Path) -> None:
    corners = {}
    for scheme in ("light", "dark"):
        browser.show(page, DESK, scheme)
        corners[scheme] = Shot(browser.screenshot()).first_pixel
    assert min(corners["light"]) > 230
    assert max(corners["dark"]) < 40


def test_what_the_code_under_test_says_does_not_run(
    browser: Browser, finding: Callable[..., Found], render: Callable[..., bytes], tmp_path: Path
) -> None:
    bad = "</code><script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
    found = finding()
    told = replace(
        found,
        finding=replace(found.finding, outcome=replace(found.finding.outcome, message=bad), heat=bad),
        note=bad,
        trace=bad,
    )
    path = tmp_path / "report.html"
    path.write_bytes(render(HtmlReport, [Started("fold_indptr", bad, "sim", "hypothesis", 1, None, None), told]))
    browser.show(path, DESK)
    assert browser.run("document.querySelectorAll('script, img').length") == 0
    assert browser.run("document.title").startswith("capfuzz: 1 finding")
    assert browser.run("document.querySelector('.message').innerText") == bad
    assert browser.log("browser") == []
    assert browser.requests() == [path.as_uri()]


class Shot:
    """A PNG, as far as a test looks at it."""

    def __init__(self, data: bytes) -> None:
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        chunks: dict[bytes, bytes] = {}
        at = 8
        while at < len(data):
            (length,) = struct.unpack_from("!I", data, at)
            kind = data[at + 4 : at + 8]
            chunks[kind] = chunks.get(kind, b"") + data[at + 8 : at + 8 + length]
            at += length + 12
        self.width, self.height = struct.unpack_from("!II", chunks[b"IHDR"])
        first_line = zlib.decompress(chunks[b"IDAT"])[:4]  # its filter, then the first pixel, which no filter changes
        self.first_pixel = tuple(first_line[1:4])
