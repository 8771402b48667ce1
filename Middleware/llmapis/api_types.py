"""The back-end dialects (the ``type`` of an ApiTypes file), and helpers that read endpoint files."""

from __future__ import annotations

from collections.abc import Mapping

from Middleware.exceptions import ConfigValueError
from Middleware.utilities.config.keys.api_type import API_TYPE, OLDER_TYPES, TYPES
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.text_utils import nearest

(
    OPENAI_CHAT,
    CLAUDE_MESSAGES,
    OLLAMA_CHAT,
    OPENAI_COMPLETION,
    OLLAMA_GENERATE,
    KOBOLD_GENERATE,
    OPENAI_EMBEDDINGS,
    OLLAMA_EMBEDDINGS,
) = TYPES
# Configurations of older versions contain these names.
ALIASES = dict(zip(OLDER_TYPES, (OPENAI_CHAT, OLLAMA_CHAT, KOBOLD_GENERATE), strict=True))
COMPLETION_TYPES = frozenset({OPENAI_COMPLETION, OLLAMA_GENERATE, KOBOLD_GENERATE})
EMBEDDINGS_TYPES = frozenset({OPENAI_EMBEDDINGS, OLLAMA_EMBEDDINGS})
KNOWN_TYPES = frozenset(TYPES)

WHOLE_PROMPT = "prompt"
"""The role of a message that stands for the whole text which a back-end of completions gets."""


def canonical_type(api_type: Mapping[str, object], file: str = "") -> str:
    """Return the ``type`` of an ApiTypes file with aliases resolved.

    ``file`` is the file's path relative to the config root, for the error text. Raises ConfigValueError for a missing
    or unknown type, with the nearest valid one as a suggestion.
    """
    name = API_TYPE.value(api_type, "type")
    if not isinstance(name, str) or not name.strip():
        raise ConfigValueError(
            "the API type has no 'type'", file=file, json_path="type", expected=", ".join(sorted(KNOWN_TYPES))
        )
    name = ALIASES.get(name, name)
    if name not in KNOWN_TYPES:
        raise ConfigValueError(
            f"unsupported type '{name}'",
            file=file,
            json_path="type",
            expected=", ".join(sorted(KNOWN_TYPES)),
            suggestion=nearest(name, sorted(KNOWN_TYPES | ALIASES.keys()), 0.6),
        )
    return name


def model_name(endpoint: Mapping[str, object]) -> str:
    """Return the model name that an endpoint sends to its back-end, "" for none."""
    return str(ENDPOINT.value(endpoint, "modelNameToSendToAPI") or "")


def injected_text(endpoint: Mapping[str, object], flag: str, key: str) -> str:
    """Return the text of one of the endpoint's text injections, ``""`` unless its flag is set."""
    text = ENDPOINT.text(endpoint, key)
    return text if text and ENDPOINT.flag(endpoint, flag) else ""
