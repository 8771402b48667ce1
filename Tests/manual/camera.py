"""Pictures for the documentation: a part of a page, as a small PNG file."""

from __future__ import annotations

import io
from pathlib import Path

from Tests.manual.browser import Browser

MAX_BYTES = 120_000
_HULL = """
const found = arguments[0].flatMap(s => [...document.querySelectorAll(s)]).filter(e => e.getClientRects().length);
const boxes = found.map(e => e.getBoundingClientRect());
return [Math.min(...boxes.map(b => b.left)), Math.min(...boxes.map(b => b.top)),
        Math.max(...boxes.map(b => b.right)), Math.max(...boxes.map(b => b.bottom))]
"""


class Camera:
    """Saves parts of what a browser shows as ``<program>-<name>.png`` in a folder."""

    def __init__(self, browser: Browser, folder: Path, program: str) -> None:
        self._browser = browser
        self._folder = folder
        self._program = program

    def take(self, name: str, *selectors: str, margin: int = 12) -> None:
        """The part of the page that holds all elements matched, and as many pixels around it."""
        left, top, right, bottom = self._browser.run(_HULL, selectors)
        self.take_area(name, left - margin, top - margin, right + margin, bottom + margin)

    def take_area(self, name: str, left: float, top: float, right: float, bottom: float) -> None:
        """The part of the page between these pixels, as far as it can be seen. Raises AssertionError if it is large."""
        width, height = self._browser.run("return [innerWidth, innerHeight]")
        left, top, right, bottom = max(0, left), max(0, top), min(width, right), min(height, bottom)
        file = self._folder / f"{self._program}-{name}.png"
        data = _smaller(self._browser.picture(left, top, right - left, bottom - top))
        assert len(data) <= MAX_BYTES, f"{file.name} has {len(data)} bytes, more than {MAX_BYTES}"
        self._folder.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        print(f"{file}: {right - left:.0f} x {bottom - top:.0f} pixels, {len(data)} bytes", flush=True)


def _smaller(data: bytes) -> bytes:
    """A smaller PNG file where the package pillow is installed, of 256 colours only if it is too large otherwise."""
    try:
        from PIL import Image
    except ImportError:
        return data
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    whole, coarse = io.BytesIO(), io.BytesIO()
    picture.save(whole, "PNG", optimize=True)
    picture.quantize(256, dither=Image.Dither.NONE).save(coarse, "PNG", optimize=True)
    return next((one for one in (whole.getvalue(), data) if len(one) <= MAX_BYTES), coarse.getvalue())
