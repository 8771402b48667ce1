"""The tools of a request: what the LLM is offered, and what the client calls that."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from Middleware.exceptions import ClientError
from Middleware.utilities.answers.tool_calls import arguments_object, arguments_text
from Middleware.utilities.text_utils import did_you_mean

logger = logging.getLogger(__name__)

_KIND = re.compile(r"[a-z][a-z0-9_]{0,40}")
# A tool without a schema takes no arguments. Some back-ends refuse a function without one.
_NO_PARAMETERS = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool as its client knows it.

    Attributes:
        name: the client's own name of the tool.
        kind: the type under which the client gets calls of it.
        namespace: the client's group of tools that it belongs to; "" without one.
    """

    name: str
    kind: str = "function"
    namespace: str = ""


class OfferedTools:
    """The tools that the LLM is offered, by the names of their functions.

    Attributes:
        functions: the tools in the engine's form, which is OpenAI's.
    """

    def __init__(self) -> None:
        self.functions: list[dict[str, object]] = []
        self._by_name: dict[str, ClientTool] = {}
        self._by_folded_name: dict[str, ClientTool] = {}

    def __len__(self) -> int:
        return len(self.functions)

    def add(
        self,
        name: str,
        description: str | None,
        parameters: Mapping[str, object] | None,
        tool: ClientTool | None = None,
    ) -> None:
        """Offer a function under ``name``. Of several with the same name, the LLM gets the first only.

        Args:
            tool: what the client calls it; by default the same.
        """
        if name in self._by_name:
            return
        tool = tool or ClientTool(name)
        self._by_name[name] = tool
        self._by_folded_name.setdefault(name.casefold(), tool)
        function: dict[str, object] = {"name": name}
        if description:
            function["description"] = description
        function["parameters"] = dict(_NO_PARAMETERS if parameters is None else parameters)
        self.functions.append({"type": "function", "function": function})

    def called(self, name: str) -> ClientTool:
        """Return the client's tool for the name in a call of the LLM; a name that was not offered stays as it is.

        Models and nodes (``lowercaseToolCallFunctionNames``) change the case of names.
        """
        return self._by_name.get(name) or self._by_folded_name.get(name.casefold()) or ClientTool(name)

    def choice(self, name: str, path: str) -> dict[str, object]:
        """Return the engine's ``tool_choice`` that requires a call of one function.

        Args:
            name: the name of the function at the LLM.
            path: the place of the name in the request, for the message of the error if it is not offered.
        """
        if name not in self._by_name:
            hint = did_you_mean(name, self._by_name)
            raise ClientError(
                f"{path}: the request offers no tool '{name[:100]}' that the LLM could call.{hint}", param=path
            )
        return {"type": "function", "function": {"name": name}}


def custom_input(arguments: object) -> str:
    """Return the input of a custom tool from the arguments of its function, or these as they are."""
    given = (arguments_object(arguments) or {}).get("input")
    return given if isinstance(given, str) else arguments_text(arguments)


def log_not_offered(kinds: Sequence[str]) -> None:
    """Log the tools of a request that only the provider of the original API can run, so the LLM does not get it."""
    if kinds:
        # Whatever else a client writes there must not get into the log.
        names = ", ".join(kind if _KIND.fullmatch(kind) else "an unknown type" for kind in kinds)
        logger.warning(
            "The client offers tools that only the original provider runs; the LLM does not get them: %s", names
        )
