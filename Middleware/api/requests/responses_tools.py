"""The tools of one request to the Responses API: what the LLM is offered for them, and what its calls become."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

from Middleware.api.requests.offered_tools import ClientTool, OfferedTools, log_not_offered
from Middleware.exceptions import ClientError
from Middleware.utilities.text_utils import encode_text

# The longest name of a function that the APIs of OpenAI and Anthropic accept, and its characters.
MAX_NAME = 64
_SAFE_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_NAME}}}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_HASH_DIGITS = 8
_CUSTOM_PARAMETERS: Mapping[str, object] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
_SHELL_PARAMETERS: Mapping[str, object] = {
    "type": "object",
    "required": ["command"],
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}, "description": "The program and its arguments."},
        "timeout_ms": {"type": "integer"},
        "working_directory": {"type": "string"},
    },
}
_SHELL_DESCRIPTION = "Run a command on the computer of the user, and return its output."
Choice = tuple[list[dict[str, object]], object]


class ResponsesTools:
    """The tools of one request. Each becomes one function for the LLM, whatever its type.

    Attributes:
        functions: what the LLM is offered.
    """

    def __init__(self, tools: object = None) -> None:
        """``tools``: the field of the request. Raises ClientError if it is not a list of tools."""
        self._offered = OfferedTools()
        # Namespace and name of a tool, and its name for the LLM: both ways.
        self._names: dict[tuple[str, str], str] = {}
        self._identities: dict[str, tuple[str, str]] = {}
        # The names for the LLM of all tools with the same own name.
        self._inside: dict[str, set[str]] = {}
        if not isinstance(tools, list | None):
            raise ClientError("The 'tools' field must be a list of objects.", param="tools")
        if tools:
            self.add(tools, "tools")

    @property
    def functions(self) -> list[dict[str, object]]:
        return self._offered.functions

    def add(self, tools: Iterable[object], path: str) -> list[str]:
        """Offer more tools from now on, and return the names under which the LLM knows them.

        Hosted tools, which the provider of the original API runs itself, are not offered.

        Args:
            path: the JSON path of ``tools``, for errors.
        """
        hosted: list[str] = []
        names = [self._add(tool, f"{path}[{number}]", "", hosted) for number, tool in enumerate(tools)]
        log_not_offered(hosted)
        return [name for some in names for name in some]

    def _add(self, tool: object, path: str, namespace: str, hosted: list[str]) -> list[str]:
        if not isinstance(tool, Mapping):
            raise ClientError("A tool must be an object.", param=path)
        kind = tool.get("type")
        if kind == "namespace":
            inner = tool.get("tools")
            names = [
                self._add(entry, f"{path}.tools[{number}]", _name_of(tool, path), hosted)
                for number, entry in enumerate(inner if isinstance(inner, list) else [])
            ]
            return [name for some in names for name in some]
        if kind == "function":
            client = ClientTool(_name_of(tool, path), "function", namespace)
            return self._offer(client, tool.get("description"), tool.get("parameters"))
        if kind == "custom":
            client = ClientTool(_name_of(tool, path), "custom", namespace)
            return self._offer(client, _with_grammar(tool), _CUSTOM_PARAMETERS)
        if kind == "tool_search" and tool.get("execution") == "client":
            return self._offer(ClientTool(kind, kind), tool.get("description"), tool.get("parameters"))
        if kind == "local_shell":
            return self._offer(ClientTool(kind, kind), _SHELL_DESCRIPTION, _SHELL_PARAMETERS)
        hosted.append(str(kind))
        return []

    def _offer(self, tool: ClientTool, description: object, parameters: object) -> list[str]:
        name, identity = self.offered_name(tool.name, tool.namespace), (tool.namespace, tool.name)
        # "a__b" with "c" and "a" with "b__c" would be one name.
        if self._identities.setdefault(name, identity) != identity:
            name = _hashed(name, "\n".join(identity))
        self._names[identity] = name
        self._inside.setdefault(tool.name, set()).add(name)
        self._offered.add(
            name,
            description if isinstance(description, str) else None,
            parameters if isinstance(parameters, Mapping) else None,
            tool,
        )
        return [name]

    # -- names ---------------------------------------------------------------------------------------------------
    def offered_name(self, name: str, namespace: str = "") -> str:
        """Return the name of a tool for the LLM, also of a tool that this request does not offer any more."""
        known = self._names.get((namespace, name))
        return known or (_joined_name(namespace, name) if namespace else name)

    def called(self, name: str) -> ClientTool:
        """Return the client's tool for the name in a call of the LLM."""
        return self._offered.called(name)

    # -- tool_choice ---------------------------------------------------------------------------------------------
    def choose(self, choice: object) -> Choice:
        """Return the functions to offer, and the engine's ``tool_choice``, for that of the request."""
        if choice == "none":
            return [], None
        if choice in (None, "auto", "required"):
            # Without a tool there is nothing to require, and some back-ends refuse a choice without tools.
            return self.functions, choice if self.functions else None
        if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
            return self._allowed(choice)
        return self.functions, self._offered.choice(self._chosen(choice), "tool_choice")

    def _allowed(self, choice: Mapping[str, object]) -> Choice:
        allowed, mode = choice.get("tools"), choice.get("mode") or "auto"
        if not isinstance(allowed, list) or mode not in ("auto", "required"):
            raise ClientError(
                "A 'tool_choice' of type 'allowed_tools' needs a list of 'tools' and a 'mode' that is "
                "'auto' or 'required'.",
                param="tool_choice",
            )
        names = set()
        for tool in allowed:
            name = self._chosen(tool)
            self._offered.choice(name, "tool_choice")
            names.add(name)
        functions = [tool for tool in self.functions if _function_name(tool) in names]
        return functions, mode if functions else None

    def _chosen(self, choice: object) -> str:
        """Return the function's name at the LLM for an object that names one of the client's tools."""
        if (
            not isinstance(choice, Mapping)
            or choice.get("type") not in ("function", "custom")
            or not isinstance(choice.get("name"), str)
        ):
            raise ClientError(
                "'tool_choice' must be 'none', 'auto', 'required', or an object of type 'function' or "
                "'custom' with the 'name' of a tool, or of type 'allowed_tools'.",
                param="tool_choice",
            )
        name, namespace = str(choice["name"]), choice.get("namespace")
        if isinstance(namespace, str) and namespace:
            return self.offered_name(name, namespace)
        # Most clients choose a tool of a namespace by its own name.
        inside = self._inside.get(name, set())
        return self._names.get(("", name)) or (next(iter(inside)) if len(inside) == 1 else name)


def _function_name(tool: Mapping[str, object]) -> object:
    function = tool["function"]
    return function["name"] if isinstance(function, Mapping) else None


def _name_of(tool: Mapping[str, object], path: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise ClientError("A tool of this type needs a 'name'.", param=f"{path}.name")
    return name


def _with_grammar(tool: Mapping[str, object]) -> str:
    """Return the description of a custom tool, with the grammar of its input, which the LLM sees nowhere else."""
    description, form = str(tool.get("description") or ""), tool.get("format")
    if not isinstance(form, Mapping) or not form.get("definition"):
        return description
    kind = f"{form['syntax']} grammar" if form.get("syntax") else "grammar"
    grammar = f"The input must follow this {kind}:\n{form['definition']}"
    return f"{description}\n\n{grammar}" if description else grammar


def _joined_name(namespace: str, name: str) -> str:
    whole = f"{namespace}__{name}"
    return whole if _SAFE_NAME.fullmatch(whole) else _hashed(whole, whole)


def _hashed(name: str, identity: str) -> str:
    """Return a safe name that two tools share only if they have the same identity."""
    digits = hashlib.sha256(encode_text(identity)).hexdigest()[:_HASH_DIGITS]
    return f"{_UNSAFE.sub('_', name)[: MAX_NAME - _HASH_DIGITS - 1]}_{digits}"
