"""What a curl command must not become when variables are filled in, and where it may lead."""
from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import replace
from urllib.parse import unquote

from Middleware.utilities.http.addresses import judge_url
from Middleware.workflows.tools.curl.options import (
    URL,
    Argument,
    brings_break,
    harm_of_value,
    read_arguments,
    touches_files_or_protocols,
)

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):")
_HOST_AND_PORT = re.compile(r"[^:/]+:\d{1,5}(?:[/?#]|$)")
_BEFORE_SCHEME_ENDS = re.compile(r"[^:/]*")
_GLOBS = frozenset("{}[]\\")
_IPV6_HOST = re.compile(r"\[[0-9a-fA-F:.]+](?:[:/?#]|$)")
_GUESSED = re.compile(r"(?:[^/?#]*@)?(?:ftp|dict|ldap|imap|smtp|pop3)\.", re.IGNORECASE)
"""Hosts without a scheme for which curl chooses another protocol than HTTP."""

_NO_SPACE = dict.fromkeys((*range(33), 127))
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


def injection_problem(raw: Sequence[str], filled: Sequence[str], block_options: bool,
                      allow_schemes: bool) -> str | None:
    """What the filled-in items do that their templates ``raw`` do not, None if nothing forbidden. Quotes no values."""
    arguments = list(read_arguments(filled))
    for index, (template, item) in enumerate(zip(raw, filled, strict=True)):
        if block_options and item[:1] in ("-", "@") and template[:1] != item[:1]:
            return f"args[{index}]: a filled-in value must not start with '{item[0]}' (blockOptionInjection)"
        if not allow_schemes and _brings_scheme(template, item, _url_in(arguments, index)):
            return (f"args[{index}]: a filled-in value must not bring a URL scheme other than http or https "
                    "(allowSchemeInjection)")
    options = {argument.name for argument in arguments}
    return next(filter(None, (_harm(raw, argument, options) for argument in arguments)), None)


def address_problem(args: Sequence[str], block_private: bool, allowed_hosts: Sequence[str] | None) -> str | None:
    """Why the address guard refuses a URL among ``args``, None if it does not. Resolves names and so may block."""
    for argument in read_arguments(args):
        if argument.name == URL and argument.value is not None:
            url = argument.value if "://" in argument.value else f"http://{argument.value}"
            reason = judge_url(url, block_private, allowed_hosts).reason
            if reason:
                return reason
    return None


def has_option(args: Sequence[str], name: str) -> bool:
    return any(argument.name == name for argument in read_arguments(args))


def _url_in(arguments: Sequence[Argument], index: int) -> str | None:
    """The URL in the item at ``index``."""
    return next((argument.value for argument in arguments
                 if argument.name == URL and argument.value_index == index), None)


def _brings_scheme(template: str, item: str, url: str | None) -> bool:
    if url is None:
        return brings_scheme_to_data(template, item)
    option = item[:len(item) - len(url)]  # such as --url=
    return brings_scheme_to_url(template.removeprefix(option), url)


def _harm(raw: Sequence[str], argument: Argument, options: Collection[str]) -> str | None:
    """What is forbidden about an argument that its author did not write so."""
    ours = _names_option(raw[argument.index], argument.name)
    if not ours and touches_files_or_protocols(argument.name):
        return f"args[{argument.index}]: a filled-in value must not bring the option '{argument.name}'"
    if argument.value is None or argument.value_index is None:
        return None
    template = _value_in(raw, argument)
    harm = harm_of_value(argument, ours)
    if brings_break(argument, template, options):
        harm = "bring a line break into the head of the request"
    elif not harm or harm_of_value(replace(argument, value=template), ours):
        return None
    return f"args[{argument.value_index}]: a filled-in value must not {harm}"


def _value_in(raw: Sequence[str], argument: Argument) -> str:
    """The template of an argument's value: what stands behind an option in the same item, or all of an item."""
    template = raw[argument.value_index or 0]
    if argument.value_index != argument.index:
        return template
    found = next((own.value for own in read_arguments([template]) if own.name == argument.name), None)
    return "" if found is None else found


def _names_option(template: str, name: str) -> bool:
    """Whether the author wrote the option: only what stands before the first placeholder is surely his."""
    literal = template.partition("{")[0]
    return any(argument.name == name for argument in read_arguments([literal]) if argument.name != URL)
