"""Whether a filled-in argument makes curl speak another protocol than HTTP, which its author did not write there."""
from __future__ import annotations

import re
import unicodedata
from urllib.parse import unquote

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):")
_HOST_AND_PORT = re.compile(r"[^:/]+:\d{1,5}(?:[/?#]|$)")
_BEFORE_SCHEME_ENDS = re.compile(r"[^:/]*")
_GLOBS = frozenset("{}[]\\")
_IPV6_HOST = re.compile(r"\[[0-9a-fA-F:.]+](?:[:/?#]|$)")
_GUESSED = re.compile(r"(?:[^/?#]*@)?(?:ftp|dict|ldap|imap|smtp|pop3)\.", re.IGNORECASE)
"""Hosts without a scheme for which curl chooses another protocol than HTTP."""

_NO_SPACE = {code: None for code in (*range(0x21), 0x7f)}
_LOOK_ALIKES = str.maketrans({"\u2236": ":", "\ua789": ":", "\u2215": "/", "\u2044": "/", "\u29f8": "/",
                              "\u2216": "\\", "\u29f5": "\\"})


def brings_scheme_to_url(template: str, url: str) -> bool:
    """For an item that curl takes as a URL. URL globs and host names that curl guesses a scheme from count as well.

    White space and control characters do not hide a scheme, nor do characters that Windows turns into ASCII ones.
    """
    if url == template:
        return False
    literal = template.partition("{")[0]
    return any(_brings(template, literal, text) for text in {url.translate(_NO_SPACE), _in_ascii(url)})


def brings_scheme_to_data(template: str, item: str) -> bool:
    """For any other item. Data such as ``Note: ...`` is no URL, so only ``scheme:/`` counts."""
    found = _foreign_scheme(item)
    return found is not None and item[found.end():found.end() + 1] == "/" and not _is_written(template, found)


def _brings(template: str, literal: str, url: str) -> bool:
    if _globs_before_scheme_ends(literal, url):
        return True
    found = _foreign_scheme(url)
    if found is not None and not _HOST_AND_PORT.match(url):
        return not _is_written(template, found)
    return bool(_GUESSED.match(unquote(url))) and not _GUESSED.match(literal)


def _globs_before_scheme_ends(literal: str, url: str) -> bool:
    """Whether characters with which curl builds several URLs from one stand where a scheme would, not as ``literal``.

    ``{file,http}:`` and ``fil[e-e]:`` are ``file:``. What the author wrote up to a colon or slash is settled.
    """
    if ":" in literal or "/" in literal or _IPV6_HOST.match(url):
        return False
    found = _BEFORE_SCHEME_ENDS.match(url)
    head = found[0] if found else ""
    return not _GLOBS.isdisjoint(head.removeprefix(literal))


def _foreign_scheme(text: str) -> re.Match[str] | None:
    found = _SCHEME.match(text)
    return None if found is None or found[1].lower() in ("http", "https") else found


def _is_written(template: str, scheme: re.Match[str]) -> bool:
    written = _SCHEME.match(template)
    return written is not None and written[1] == scheme[1]


def _in_ascii(url: str) -> str:
    """The URL as a curl on Windows may get it, which is given the nearest characters of an old code page."""
    return unicodedata.normalize("NFKC", url.translate(_LOOK_ALIKES)).translate(_NO_SPACE)
