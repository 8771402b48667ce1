"""A Chromium without a window, driven over the WebDriver protocol with the standard library alone.

with Browser(chromedriver="chromedriver", chromium="chromium") as browser:
    browser.open("http://127.0.0.1:8000/")
    browser.type("#message", "Hello")
    browser.wait(lambda: "Hi" in browser.text(".answer"), "the answer")
"""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from Tests.manual.program import Program, free_port

ENTER = "\ue007"
ESCAPE = "\ue00c"
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--window-size=1280,900",
    "--no-proxy-server",
    "--disable-background-networking",
    "--hide-scrollbars",
]
_VISIBLE = """
const found = [...document.querySelectorAll(arguments[0])].filter(e => e.getClientRects().length);
"""

T = TypeVar("T")


class BrowserError(Exception):
    """What the browser refused; the message is the driver's."""


class Browser:
    """One browser window. ``chromedriver`` and ``chromium``: the programs to run."""

    def __init__(self, chromedriver: str, chromium: str) -> None:
        self._chromium = chromium
        self._port = free_port()
        self._driver = Program([chromedriver, f"--port={self._port}"])
        self._session = ""

    def __enter__(self) -> Browser:
        self._driver.start()
        try:
            self._driver.wait_answer(f"http://127.0.0.1:{self._port}/status", 20)
            options = {"binary": self._chromium, "args": _FLAGS}
            wanted = {"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}}
            self._session = "/session/" + self._request("POST", "/session", wanted)["sessionId"]
        except BaseException:
            self._driver.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._request("DELETE", self._session)
        finally:
            self._driver.stop()

    def open(self, url: str) -> None:
        """Load a page."""
        self._command("POST", "/url", {"url": url})

    @property
    def address(self) -> str:
        """The address of the page shown."""
        return str(self._command("GET", "/url"))

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript; its ``return`` value, promises awaited."""
        return self._command("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def count(self, selector: str) -> int:
        """How many elements that can be seen match."""
        return int(self.run(_VISIBLE + "return found.length", selector))

    def text(self, selector: str) -> str:
        """The text of the last element that can be seen, ``""`` without one."""
        return str(self.run(_VISIBLE + "return found.length ? found.at(-1).innerText : ''", selector))

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements that can be seen."""
        return list(self.run(_VISIBLE + "return found.map(e => e.innerText)", selector))

    def click(self, selector: str, timeout: float = 20.0) -> float:
        """Click on the last element that can be seen; ``time.monotonic()`` of the click."""
        return self._on(selector, timeout, lambda element: self._command("POST", f"/element/{element}/click", {}))

    def click_text(self, text: str, timeout: float = 20.0) -> None:
        """Click on the last button or menu entry that says exactly this."""
        self.wait(
            lambda: self.run(
                _VISIBLE + "const hit = found.findLast(e => e.innerText.trim() === arguments[1]); if (hit) hit.click();"
                "return Boolean(hit)",
                "button, [role=menuitem]",
                text,
            ),
            f"button '{text}'",
            timeout,
        )

    def type(self, selector: str, text: str, timeout: float = 20.0) -> float:
        """Type into the last element that can be seen; ``time.monotonic()`` of the start."""
        return self._on(selector, timeout, lambda element: self._keys(element, text))

    def choose(self, selector: str, text: str, timeout: float = 20.0) -> None:
        """Choose the entry of a ``select`` that says exactly this."""
        self.wait(
            lambda: self.run(
                _VISIBLE + "const field = found.at(-1);"
                "const entry = [...field?.options ?? []].find(e => e.textContent.trim() === arguments[1]);"
                "if (entry) { field.value = entry.value; field.dispatchEvent(new Event('change', {bubbles: true})); }"
                "return Boolean(entry)",
                selector,
                text,
            ),
            f"entry '{text}' in {selector}",
            timeout,
        )

    def upload(self, selector: str, file: Path) -> None:
        """Choose a file for a file input, hidden or not."""
        found = self._command("POST", "/element", {"using": "css selector", "value": selector})
        self._keys(found[_ELEMENT], str(file))

    def wait(self, condition: Callable[[], T], what: str, timeout: float = 20.0) -> T:
        """The first true result of ``condition``. Raises AssertionError."""
        deadline = time.monotonic() + timeout
        while not (result := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} within {timeout:.0f} s")
            time.sleep(0.05)
        return result

    def screenshot(self, file: Path) -> None:
        """Save what the window shows as PNG."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(self._command("GET", "/screenshot")))

    def picture(self, left: float, top: float, width: float, height: float) -> bytes:
        """A part of what the window shows as PNG; pixels from its upper left corner."""
        clip = {"x": left, "y": top, "width": width, "height": height, "scale": 1}
        shown = self._command(
            "POST", "/goog/cdp/execute", {"cmd": "Page.captureScreenshot", "params": {"format": "png", "clip": clip}}
        )
        return base64.b64decode(shown["data"])

    def _on(self, selector: str, timeout: float, action: Callable[[str], Any]) -> float:
        """Do something with an element, again while the page is still moving it about."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                element = self.run(_VISIBLE + "return found.at(-1)", selector)
                if element:
                    began = time.monotonic()
                    action(element[_ELEMENT])
                    return began
            except BrowserError:
                if time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline:
                raise AssertionError(f"nothing matches {selector}")
            time.sleep(0.1)

    def _keys(self, element: str, text: str) -> None:
        self._command("POST", f"/element/{element}/value", {"text": text})

    def _command(self, method: str, path: str, body: Any = None) -> Any:
        return self._request(method, self._session + path, body)

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        try:
            data = None if body is None else json.dumps(body).encode("utf-8")
            connection.request(method, path, data, {"Content-Type": "application/json"})
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(value, dict) and "error" in value:
            raise BrowserError(f"{value['error']}: {value['message'].splitlines()[0]}")
        return value
