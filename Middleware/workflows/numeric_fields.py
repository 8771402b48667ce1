"""Node keys that hold numbers, and how texts in them become numbers."""
from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

KEEP = object()  # no default: a text that is no number stays

NUMERIC_FIELDS: dict[str, object] = {
    "maxResponseSizeInTokens": 400, "maxContextTokenSize": 4096, "minMessagesInVariable": 5,
    "maxEstimatedTokensInVariable": 2048, "nMessagesToIncludeInVariable": 5,
    "estimatedTokensToIncludeInVariable": 2048, "lastMessagesToSendInsteadOfPrompt": 5,
    "lastMessagesToSendInsteadOfPromptMaxTokenSize": KEEP, "limit": 5, "maxTurnsToPull": KEEP,
    "maxSummaryChunksFromFile": KEEP, "lookbackStart": 0, "lookbackStartTurn": 0, "minMemoriesPerSummary": 3,
    "loopIfMemoriesExceed": 3, "visionScanMessageLimit": 20, "num_results": 10, "top_n_articles": 3,
    "chunksPerMemory": 3, "vectorMemoryMaxResponseSizeInTokens": 1024, "vectorMemoryChunkEstimatedTokenSize": 1000,
    "vectorMemoryMaxMessagesBetweenChunks": 5, "chunkEstimatedTokenSize": 1000, "maxMessagesBetweenChunks": 5,
    "memoryCondensationBuffer": 0, "offlineWikiApiPort": KEEP, "maxImagesToSend": 0,
}
FLOAT_FIELDS: dict[str, float] = {"percentile": 0.5}


def coerce_numeric_fields(config: dict[str, object], substitute: Callable[[str], str], node_name: str) -> None:
    """Turn the numeric keys present in ``config`` into numbers, in place.

    A text is substituted with early variables if it holds a placeholder; one that is no number becomes the default,
    or stays where the key has none.
    """
    for key in config.keys() & NUMERIC_FIELDS.keys():
        config[key] = _coerce(config[key], key, NUMERIC_FIELDS[key], int, substitute, node_name)
    for key in config.keys() & FLOAT_FIELDS.keys():
        config[key] = _coerce(config[key], key, FLOAT_FIELDS[key], float, substitute, node_name)


def _coerce(value: object, key: str, default: object, convert: Callable[[Any], Any], substitute: Callable[[str], str],
            node_name: str) -> object:
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, (str, float)):
        text = substitute(value) if isinstance(value, str) and "{" in value else value
        try:
            return convert(text)
        except (ValueError, OverflowError):  # no number, or an infinite one
            pass
    if default is KEEP:
        logger.error("Node '%s': '%s' is not a number: %r", node_name, key, value)
        return value
    logger.warning("Node '%s': '%s' is not a number: %r; using %s", node_name, key, value, default)
    return default
