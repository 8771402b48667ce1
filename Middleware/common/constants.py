"""Names that the specification fixes."""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

OPENAI_CHAT = "openaichatcompletion"
OPENAI_COMPLETION = "openaicompletion"
OLLAMA_CHAT = "ollamaapichat"
OLLAMA_GENERATE = "ollamagenerate"

LEFT_BRACE_SENTINEL = "__WILMER_L_CURLY__"
RIGHT_BRACE_SENTINEL = "__WILMER_R_CURLY__"

VERSION = "0.1.0"
OLLAMA_VERSION = "0.9"  # what Ollama clients that check for features are told


if not TYPE_CHECKING:
    def __getattr__(name: str) -> list[str]:
        # Users' scripts may import this name from here; nothing in this program does, as the handler classes, which are
        # the list, are on a higher floor.
        if name == "VALID_NODE_TYPES":
            return [*importlib.import_module("Middleware.workflows.handlers.registry").node_types()]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
