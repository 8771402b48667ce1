"""Names that the specification fixes."""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

OPENAI_CHAT = "openaichatcompletion"
OPENAI_COMPLETION = "openaicompletion"
OLLAMA_CHAT = "ollamaapichat"
OLLAMA_GENERATE = "ollamagenerate"
EMBEDDINGS = "embeddings"
OPENAI_RESPONSES = "openairesponses"
ANTHROPIC_MESSAGES = "anthropicmessages"
KOBOLD_GENERATE = "koboldgenerate"
# They have neither roles nor tool calls.
COMPLETION_APIS = frozenset((OPENAI_COMPLETION, OLLAMA_GENERATE, KOBOLD_GENERATE))

LEFT_BRACE_SENTINEL = "__WILMER_L_CURLY__"
RIGHT_BRACE_SENTINEL = "__WILMER_R_CURLY__"

VERSION = "0.2.0"
# The version that is reported to Ollama clients that check for features.
OLLAMA_VERSION = "0.9"


if not TYPE_CHECKING:
    def __getattr__(name: str) -> list[str]:
        # Only users' scripts import this name from here. The handler classes that form the list are in a higher layer.
        if name == "VALID_NODE_TYPES":
            return [*importlib.import_module("Middleware.workflows.handlers.registry").node_types()]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

# In the environment of a process that another one has started beside others: it reads its sockets from its standard
# input.
CHILD_VARIABLE = "WILMER_WORKER_PROCESS"
