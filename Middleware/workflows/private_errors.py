"""Which errors of nodes may quote a conversation."""
from __future__ import annotations

from collections.abc import Mapping

from Middleware.exceptions import ConfigurationError

_NEVER_TOLD = frozenset({"systemPrompt", "prompt", "args", "kwargs", "arguments", "scoped_variables"})


def mark_if_private(error: Exception, node: Mapping[str, object]) -> None:
    """Keep a configuration error out of the log of redacted requests if a name in the node comes from variables.

    Such an error says which file does not exist, or which value cannot be used, and that may be what a model wrote.
    """
    if isinstance(error, ConfigurationError) and any(
            _has_variable(value) for key, value in node.items() if key not in _NEVER_TOLD):
        error.private = True


def _has_variable(value: object) -> bool:
    """Whether a text in a configured value may hold a placeholder."""
    if isinstance(value, Mapping):
        return any(map(_has_variable, (*value, *value.values())))
    if isinstance(value, (list, tuple)):
        return any(map(_has_variable, value))
    return "{" in str(value)
