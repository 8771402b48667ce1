"""Keys without effect that may stand at the top of configuration files of several kinds."""
from __future__ import annotations

from Middleware.utilities.config.declarations import ConfigKey

SCHEMA_KEY = ConfigKey("$schema", "str", "", "The JSON Schema with which editors check and complete this file.",
                       inert=True)
DESCRIPTION_KEY = ConfigKey("description", "str", "", "A remark about this file.", inert=True)
