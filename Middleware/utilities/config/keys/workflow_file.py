"""The keys at the top of a workflow file that mean something; every other one is a variable of the workflow."""
from __future__ import annotations

from Middleware.utilities.config.declarations import ConfigKey, KeyTable
from Middleware.utilities.json_data import FrozenList

WORKFLOW_FILE_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("description", "str", "", "What the workflow does, for readers; also a variable."),
    ConfigKey("nodes", "list", FrozenList(), "The steps of the workflow, in the order in which they run."),
    ConfigKey("parallelNodes", "bool", False,
              "Nodes that do not need each other's outputs run at the same time; also a variable."),
)
WORKFLOW_FILE = KeyTable(WORKFLOW_FILE_KEYS)
