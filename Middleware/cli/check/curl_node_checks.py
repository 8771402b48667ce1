"""The check of what a CurlCommand node lets others choose."""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from Middleware.cli.check.findings import Finding
from Middleware.cli.check.lookups import Lookups
from Middleware.cli.check.node_view import NodeView
from Middleware.utilities.config.declarations import as_flag
from Middleware.utilities.config.json_source import child
from Middleware.workflows.tools.curl.options import Argument, may_name_file, read_arguments

_INSTEAD = {
    "form": "--form-string, which takes a text as it is", "header": "-H 'X-Name: ...', with the header's name written "
    "here", "proxy-header": "--proxy-header 'X-Name: ...', with the header's name written here",
    "data-urlencode": "--data-urlencode 'name=...', with the field's name written here",
    "url-query": "--url-query 'name=...', with the field's name written here",
    "json": "--data-raw with -H 'Content-Type: application/json', which takes a text as it is"}
_DATA_INSTEAD = "--data-raw, which takes a text as it is"

_PLACEHOLDER = re.compile(r"\{[^{}]+\}")
_JINJA_PLACEHOLDER = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_NAME = re.compile(r"[^\W\d]\w{0,99}")
_FOREIGN = re.compile(r"agent\d+(Output|Input)|chat_user_prompt_|templated_user_prompt_|messages$")


def check_curl_node(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Findings about texts of a model or a client that may name a file, which curl then sends."""
    items = view.node.get("args")
    if view.runs_as != "CurlCommand" or not isinstance(items, (list, tuple)):
        return
    texts = [item if isinstance(item, str) else "" for item in items]
    variables = {**lookups.user_variables(), **view.loaded.variables}
    for argument in read_arguments(texts):
        placeholder = _risky_placeholder(argument, view.node, variables)
        if placeholder:
            mark = "with '=@' in it" if argument.name == "form" and "=" not in (argument.value or "") else (
                "beginning with '@'")
            yield view.finding(
                "warning", "args", f"{placeholder} is the text of a model or a client; {mark}, it makes curl send a "
                "file of this computer", expected=_INSTEAD.get(argument.name, _DATA_INSTEAD),
                path=child(child(view.path, "args"), argument.value_index or 0))


def _risky_placeholder(argument: Argument, node: Mapping[str, object], variables: Mapping[str, Any]) -> str:
    """The first placeholder of others that may make a file name of the argument's value; empty if there is none.

    Files with cookies are left out: curl sends none of them that are not for that server.
    """
    if argument.name == "cookie":
        return ""
    jinja = as_flag(node.get("jinja2"))
    value = (argument.value or "") if jinja else _with_own_texts(argument.value or "", variables)
    pattern = _JINJA_PLACEHOLDER if jinja else _PLACEHOLDER
    refused = as_flag(node.get("blockOptionInjection")) and argument.index != argument.value_index
    for found in pattern.finditer(value):
        before, after = (pattern.sub("", text) for text in (value[:found.start()], value[found.end():]))
        if refused and not before:
            continue  # the node refuses an item that begins with '@'
        if may_name_file(argument.name, before, after) and _is_foreign(found[0], variables):
            return found[0]
    return ""


def _with_own_texts(value: str, variables: Mapping[str, Any]) -> str:
    """The value with the author's own texts in place of their names, and without literal braces."""
    def text(match: re.Match[str]) -> str:
        found = variables.get(match[0][1:-1])
        return _without_literal_braces(found) if isinstance(found, str) else match[0]
    return _PLACEHOLDER.sub(text, _without_literal_braces(value))


def _without_literal_braces(text: str) -> str:
    return text.replace("{{", "((").replace("}}", "))")


def _is_foreign(placeholder: str, variables: Mapping[str, Any]) -> bool:
    return any(_FOREIGN.match(name) for name in _NAME.findall(placeholder) if name not in variables)
