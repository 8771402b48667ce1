"""The page of the console and its files, which are public and hold nothing."""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

STATIC = Path(__file__).parent / "static"
PAGE = "index.html"
# The standard library's table depends on the system; Windows' lacks .mjs.
TYPES = {
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain",
    "": "text/plain",
    ".md": "text/plain",
}
# Browsers ask no more for a file under its version, which changes with any file.
FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class StaticFile:
    """A file to send."""

    data: bytes
    content_type: str
    cache_control: str


class StaticFiles:
    """The files below one folder. What is not listed there at the time of a request is not served."""

    def __init__(self, folder: Path = STATIC) -> None:
        self._folder = folder

    def page(self) -> tuple[bytes, str]:
        """Return the page, with the version of its files filled in, and the nonce that its policy must name."""
        nonce = secrets.token_urlsafe(18)
        text = (self._folder / PAGE).read_text("utf-8")
        return text.replace("{nonce}", nonce).replace("{version}", self.version()).encode("utf-8"), nonce

    def version(self) -> str:
        """Return a word that changes when any of the files does."""
        parts = sorted(f"{name} {path.stat().st_size} {path.stat().st_mtime_ns}" for name, path in self._files())
        return hashlib.sha256("\n".join(parts).encode("utf-8")).hexdigest()[:12]

    def find(self, version: str, name: str) -> StaticFile | None:
        """Return the file ``name``, or None."""
        # Only listed names are compared with what the client sent, so no spelling of a path leads out of the folder.
        path = dict(self._files()).get(name)
        if path is None or name == PAGE:
            return None
        kind = TYPES.get(path.suffix.lower())
        if kind is None:
            return None
        # A page of an older version, still open, gets the present files, but must not keep them under its old name.
        cache = FOR_EVER if version == self.version() else "no-store"
        charset = "; charset=utf-8" if kind.startswith("text/") else ""
        return StaticFile(path.read_bytes(), kind + charset, cache)

    def _files(self) -> list[tuple[str, Path]]:
        found = []
        for folder, _, names in os.walk(self._folder):
            found += [(path.relative_to(self._folder).as_posix(), path) for path in map(Path(folder).joinpath, names)]
        return found
