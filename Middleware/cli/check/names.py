"""Which names the texts of a node may use, and which name a wrong one was probably meant to be."""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from Middleware.utilities.text_utils import nearest
from Middleware.workflows.managers.variable_table import BUILT_IN_VARIABLES

EARLY_BUILT_IN = frozenset({"Discussion_Id"})
NOT_VARIABLES: Mapping[str, str] = {
    "current_chat_summary": "", "userInput": "chat_user_prompt_last_one",
    "lastUserMessage": "chat_user_prompt_last_one", "userName": "", "currentDate": "todays_date_pretty",
    "current_username": "", "llm_responder_output": ""}
"""Names that examples in circulation use although they were never variables, and what comes closest."""

_NUMBERED = re.compile(r"agent([1-9][0-9]{0,5})(Input|Output)")
_OUTPUT_PLACEHOLDER = re.compile(r"\{\s*(agent[1-9][0-9]{0,5}Output)\b[^{}]*\}")


@dataclass(frozen=True)
class Names:
    """The names that the texts of one node may use.

    Attributes:
        custom: the top-level keys of the workflow file with their values.
        user_wide: names of the user's own variables.
        number: of the node, from 1.
        count: of all nodes.
    """

    custom: Mapping[str, object]
    user_wide: frozenset[str]
    number: int
    count: int

    def knows(self, name: str, early: bool = False) -> bool:
        """Whether there is such a variable when the node runs; ``early``: before its endpoint is known."""
        if name in (EARLY_BUILT_IN if early else BUILT_IN_VARIABLES) or name in self.custom or name in self.user_wide:
            return True
        numbered = _NUMBERED.fullmatch(name)
        return numbered is not None and (numbered[2] == "Input" or int(numbered[1]) < self.number)

    def never_comes(self, name: str) -> str:
        """Why there is no such output when this node runs; empty if ``name`` is not such an output."""
        numbered = _NUMBERED.fullmatch(name)
        if numbered is None or numbered[2] != "Output" or self.knows(name):
            return ""
        number = int(numbered[1])
        if number > self.count:
            return f"there is no node {number}, the last one is node {self.count}"
        return "that is the output of this node itself" if number == self.number else (
            f"node {number} runs after this node")

    def through(self, name: str) -> list[str]:
        """The outputs named inside the variable ``name`` of the file that do not exist when this node runs."""
        found = (match for text in _texts(self.custom.get(name)) for match in _OUTPUT_PLACEHOLDER.findall(text))
        return [output for output in dict.fromkeys(found) if self.never_comes(output)]

    def nearest(self, name: str, early: bool = False) -> str:
        """The known name most like ``name``; empty if none is near."""
        if name in NOT_VARIABLES:
            return NOT_VARIABLES[name]
        numbered = [f"agent{number}{kind}" for number in range(1, min(self.number, 10)) for kind in ("Output", "Input")]
        built_in = EARLY_BUILT_IN if early else BUILT_IN_VARIABLES
        return nearest(name, [*built_in, *self.custom, *self.user_wide, *numbered])


def is_numbered(name: str) -> bool:
    """Whether a variable is an input of a workflow or the output of a node."""
    return _NUMBERED.fullmatch(name) is not None


def _texts(value: object) -> Sequence[str]:
    """All texts inside JSON data, without recursion."""
    found, waiting = [], [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, Mapping):
            waiting.extend(item.values())
        elif isinstance(item, (list, tuple)):
            waiting.extend(item)
    return found
