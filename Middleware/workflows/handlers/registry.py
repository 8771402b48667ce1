"""The node types: every handler class in the modules below ``handlers/impl``."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator, Mapping

from Middleware.workflows.handlers import impl
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import VariableService


@functools.cache
def node_types() -> Mapping[str, type[BaseHandler]]:
    """Return the handler class of each node type."""
    found: dict[str, type[BaseHandler]] = {}
    for handler in _handlers():
        for node_type in handler.KEYS:
            if node_type in found:
                raise TypeError(f"{handler.__name__} and {found[node_type].__name__} both declare {node_type}")
            found[node_type] = handler
    # The folder is listed without an error where it cannot be read; an empty table must not be kept.
    if not found:
        raise RuntimeError("no node types were found: the folder Middleware/workflows/handlers/impl cannot be listed")
    return found


def build_registry(variables: VariableService | None = None) -> dict[str, BaseHandler]:
    """Return a handler object for each node type; types of one class share it."""
    handlers = {handler: handler(None, variables) for handler in node_types().values()}
    return {node_type: handlers[handler] for node_type, handler in node_types().items()}


def _handlers() -> Iterator[type[BaseHandler]]:
    for module in pkgutil.walk_packages(impl.__path__, f"{impl.__name__}."):
        for member in vars(importlib.import_module(module.name)).values():
            if isinstance(member, type) and issubclass(member, BaseHandler) and member.__module__ == module.name:
                yield member
