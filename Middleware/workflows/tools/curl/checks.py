"""What a curl command must not become when variables are filled in, and where it may lead."""
from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from Middleware.utilities.http.addresses import check_url_allowed
from Middleware.workflows.tools.curl.options import (
    URL,
    Argument,
    brings_break,
    harm_of_value,
    read_arguments,
    touches_files_or_protocols,
)
from Middleware.workflows.tools.curl.schemes import brings_scheme_to_data, brings_scheme_to_url


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
            reason = check_url_allowed(url, block_private, allowed_hosts)
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
