"""What all nodes that run another workflow share."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from Middleware.utilities.config.keys.node import NODE
from Middleware.workflows.models.execution_context import ExecutionContext


class ChildRun:
    """A child workflow that is the responder of its parent.

    Iterating gives its chunk dicts; ``item`` its single result; ``finish`` runs whatever nodes remain.
    """

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return self._items

    def item(self) -> object:
        """The child's result, before its later nodes run; an empty text if it has none."""
        value = next(self._items, None)
        return "" if value is None else value

    def finish(self) -> object:
        """Run to the end. Returns the last item not yet taken, or an empty text."""
        last = [*self._items][-1:]
        return "" if not last or last[0] is None else last[0]


def scoped_inputs(context: ExecutionContext) -> tuple[str, ...]:
    """The node's ``scoped_variables`` with variables filled in; a bare value counts as a list of one."""
    values = NODE.value(context.config, "scoped_variables")
    if values is None:
        return ()
    if not isinstance(values, list):
        values = [values]
    return tuple(context.substitute(value) for value in values)
