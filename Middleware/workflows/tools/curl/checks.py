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
    refusal,
)

# A URL whose scheme is http, or that is a host without a scheme. With braces, brackets or backslashes before the scheme
# is settled, curl would build others of it: ``{file,http}:`` and ``fil[e-e]:`` are ``file:``.
_HTTP_OR_HOST = re.compile(r"[hH][tT]{2}[pP][sS]?:|[a-zA-Z]:|"
                           r"(?:\[[0-9a-fA-F:.]+]|[^:/?#{}\[\]\\]*)(?::\d{1,5})?(?:[/?#]|$)")
_GLOBS = str.maketrans("", "", "{}[]\\")

# Hosts without a scheme for which curl chooses another protocol than HTTP.
_GUESSED = re.compile(r"(?:[^/?#]*@)?(?:ftp|dict|ldap|imap|smtp|pop3)\.", re.IGNORECASE)

_SCHEME = re.compile(r"(?!https?:)([a-zA-Z][a-zA-Z0-9+.-]+):/", re.IGNORECASE)

# Characters that curl skips, and those that a curl on Windows may get as ASCII ones, from an old code page.
_NO_SPACE = dict.fromkeys((*range(0x21), 0x7f))
_LOOK_ALIKES = str.maketrans({"\u2236": ":", "\ua789": ":", "\u2215": "/", "\u2044": "/", "\u29f8": "/",
                              "\u2216": "\\", "\u29f5": "\\"})


def brings_scheme_to_url(template: str, url: str) -> bool:
    """Return whether variables bring a scheme other than http to an item that curl takes as a URL."""
    literal = template.partition("{")[0]
    # What the author wrote up to a colon or slash is settled.
    if url == template or ":" in literal or "/" in literal:
        return False
    own = literal.translate(_GLOBS) + url.removeprefix(literal)
    forms = (own.translate(_NO_SPACE), unicodedata.normalize("NFKC", own.translate(_LOOK_ALIKES)).translate(_NO_SPACE))
    return any(not _HTTP_OR_HOST.match(form) or (_GUESSED.match(unquote(form)) and not _GUESSED.match(literal))
               for form in forms)


def brings_scheme_to_data(template: str, item: str) -> bool:
    """Return whether variables bring a scheme to any other item. ``Note: ...`` is data, so ``scheme:/`` counts only."""
    found = _SCHEME.match(item)
    return found is not None and not template.startswith(f"{found[1]}:")


def injection_problem(raw: Sequence[str], filled: Sequence[str], block_options: bool,
                      allow_schemes: bool) -> str | None:
    """Return why the arguments are refused, None if they are not. Quotes no values.

    Refused are options that are not allowed, and what the filled-in items do that their templates ``raw`` do not.
    """
    arguments = list(read_arguments(filled))
    urls = {argument.value_index: argument.value or "" for argument in arguments if argument.name == URL}
    for index, (template, item) in enumerate(zip(raw, filled, strict=True)):
        if block_options and item[:1] in ("-", "@") and template[:1] != item[:1]:
            return f"args[{index}]: a filled-in value must not start with '{item[0]}' (blockOptionInjection)"
        if not allow_schemes and _brings_scheme(template, item, urls.get(index)):
            return (f"args[{index}]: a filled-in value must not bring a URL scheme other than http or https "
                    "(allowSchemeInjection)")
    options = {argument.name for argument in arguments}
    return next(filter(None, (_harm(raw, argument, options) for argument in arguments)), None)


def address_problem(args: Sequence[str], block_private: bool, allowed_hosts: Sequence[str] | None) -> str | None:
    """Return why the address guard refuses a URL, None if it does not. Resolves names, so it may block."""
    for argument in read_arguments(args):
        if argument.name == URL and argument.value is not None:
            url = argument.value if "://" in argument.value else f"http://{argument.value}"
            reason = judge_url(url, block_private, allowed_hosts).reason
            if reason:
                return reason
    return None


def has_option(args: Sequence[str], name: str) -> bool:
    return any(argument.name == name for argument in read_arguments(args))


def names_option(template: str, name: str) -> bool:
    """Return whether the author wrote the option: only what precedes the first placeholder is surely the author's."""
    literal = template.partition("{")[0]
    return any(argument.name == name for argument in read_arguments([literal]) if not argument.positional)


def _brings_scheme(template: str, item: str, url: str | None) -> bool:
    if url is None:
        return brings_scheme_to_data(template, item)
    option = item.removesuffix(url)  # such as --url=
    return brings_scheme_to_url(template.removeprefix(option), url)


def _harm(raw: Sequence[str], argument: Argument, options: Collection[str]) -> str | None:
    """Return what is forbidden about an argument, None if nothing. An author may do more than a variable."""
    ours = argument.positional or names_option(raw[argument.index], argument.name)
    if not argument.allowed:
        # The name of an option that a variable brings may be part of a conversation.
        return f"args[{argument.index}]: " + (
            refusal(argument.name) if ours else "a filled-in value must not bring an option that is not allowed")
    if not ours and argument.touches_files_or_protocols:
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
    """Return the template of an argument's value: what follows an option in the same item, or all of an item."""
    template = raw[argument.value_index or 0]
    if argument.value_index != argument.index:
        return template
    found = next((own.value for own in read_arguments([template]) if own.name == argument.name), None)
    return "" if found is None else found
