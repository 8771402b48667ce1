"""Classify the entries of a message's ``images`` list: data URIs, raw base64 or web addresses."""

from __future__ import annotations

import base64
import binascii
import re

# Shorter strings are more likely words that happen to be valid base64.
MIN_RAW_LENGTH = 100
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II*\x00", "tiff"),
    (b"MM\x00*", "tiff"),
)


def image_format(data: bytes) -> str | None:
    """Return the format of an image by its first bytes, as in ``image/<format>``; None for an unknown format."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[4:12] in (b"ftypavif", b"ftypheic"):
        return data[8:12].decode("ascii")
    return next((name for signature, name in _SIGNATURES if data.startswith(signature)), None)


def without_line_breaks(source: str) -> str:
    """Return base64 in one line; several tools wrap it, and Ollama accepts that."""
    return source.replace("\r", "").replace("\n", "") if "\n" in source else source


def looks_like_base64(text: str) -> bool:
    return len(text) >= MIN_RAW_LENGTH and len(text) % 4 == 0 and _BASE64.fullmatch(text) is not None


def base64_data(source: object) -> str | None:
    """Return the base64 of an image without the prefix of a data URI; None for web addresses and anything else."""
    if not isinstance(source, str):
        return None
    kind, separator, data = source.partition(",")
    if separator and kind[:5].lower() == "data:" and kind.lower().endswith(";base64"):
        return data
    # Base64 contains no colon, unlike a web address.
    return None if ":" in source else source


def image_url(source: object) -> str | None:
    """Return ``source`` as an image URL that back-ends accept; None for anything else, such as ``file://``."""
    if not isinstance(source, str):
        return None
    if source.startswith(("data:image/", "http://", "https://")):
        return source
    source = without_line_breaks(source)
    try:
        found = image_format(base64.b64decode(source, validate=True)) if looks_like_base64(source) else None
    # Padding characters in the wrong number.
    except binascii.Error:
        found = None
    return f"data:image/{found};base64,{source}" if found else None
