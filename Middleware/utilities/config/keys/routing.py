"""The keys of one category of a routing file, in which every key is the name of a category."""
from __future__ import annotations

from Middleware.utilities.config.declarations import ConfigKey, KeyTable

ROUTING_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("description", "str", "", "What belongs to the category; the model that chooses sees this text.",
              required=True),
    ConfigKey("workflow", "str", "", "The workflow that answers such requests.", names="workflow", required=True),
)
ROUTING = KeyTable(ROUTING_KEYS)
