"""Which errors of nodes may quote a conversation."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from Middleware.exceptions import ConfigurationError

_NEVER_TOLD = frozenset({"systemPrompt", "prompt", "args", "kwargs", "arguments", "scoped_variables"})


def mark_if_private(error: Exception, node: Mapping[str, Any]) -> None:
    """Keep a configuration error out of the log of redacted requests if a name in the node comes from variables.

    Such an error says which file does not exist, or which value cannot be used, and that may be what a model wrote.
    """
    if isinstance(error, ConfigurationError) and any(
            "{" in str(value) for key, value in node.items() if key not in _NEVER_TOLD):
        error.private = True
