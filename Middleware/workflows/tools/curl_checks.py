"""What a curl command must not become when variables are filled in, and where it may lead."""
from __future__ import annotations

import re
from collections.abc import Sequence

from Middleware.utilities.address_guard import check_url_allowed
from Middleware.workflows.tools.curl_options import URL, Argument, read_arguments, touches_files_or_protocols

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):")
_HOST_AND_PORT = re.compile(r"[^:/]+:\d{1,5}(?:[/?#]|$)")


def injection_problem(raw: Sequence[str], filled: Sequence[str], block_options: bool,
                      allow_schemes: bool) -> str | None:
    """What the filled-in items do that their templates ``raw`` do not, None if nothing forbidden. Quotes no values."""
    arguments = list(read_arguments(filled))
    for index, (template, item) in enumerate(zip(raw, filled, strict=True)):
        if block_options and item[:1] in ("-", "@") and template[:1] != item[:1]:
            return f"args[{index}]: a filled-in value must not start with '{item[0]}' (blockOptionInjection)"
        if not allow_schemes and _brings_scheme(template, item, _holds_url(arguments, index)):
            return (f"args[{index}]: a filled-in value must not bring a URL scheme other than http or https "
                    "(allowSchemeInjection)")
    for argument in arguments:
        if touches_files_or_protocols(argument.name) and not _names_option(raw[argument.index], argument.name):
            return f"args[{argument.index}]: a filled-in value must not bring the option '{argument.name}'"
    return None


def address_problem(args: Sequence[str], block_private: bool, allowed_hosts: Sequence[str] | None) -> str | None:
    """Why the address guard refuses a URL among ``args``, None if it does not. Resolves names and so may block."""
    for argument in read_arguments(args):
        if argument.name == URL and argument.value is not None:
            url = argument.value if "://" in argument.value else f"http://{argument.value}"
            reason = check_url_allowed(url, block_private, allowed_hosts)
            if reason:
                return reason
    return None


def has_option(args: Sequence[str], name: str) -> bool:
    return any(argument.name == name for argument in read_arguments(args))


def _holds_url(arguments: Sequence[Argument], index: int) -> bool:
    return any(argument.name == URL and argument.value_index == index for argument in arguments)


def _brings_scheme(template: str, item: str, is_url: bool) -> bool:
    """Data such as ``Note: ...`` is no URL, so outside of URLs only ``scheme:/`` counts."""
    template, item = template.removeprefix("--url="), item.removeprefix("--url=")
    found = _SCHEME.match(item)
    if found is None or found[1].lower() in ("http", "https"):
        return False
    if not (item[found.end():found.end() + 1] == "/" or is_url and not _HOST_AND_PORT.match(item)):
        return False
    written = _SCHEME.match(template)
    return written is None or written[1] != found[1]


def _names_option(template: str, name: str) -> bool:
    """Whether the author wrote the option: only what stands before the first placeholder is surely his."""
    literal = template.partition("{")[0]
    return any(argument.name == name for argument in read_arguments([literal]) if argument.name != URL)
