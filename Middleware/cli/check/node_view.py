"""A node as its checks see it."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from Middleware.cli.check.findings import Finding
from Middleware.utilities.config.check import Severity, shortened
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config.json_source import child
from Middleware.utilities.config.keys.node import COMMON_KEYS
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.workflows.handlers.registry import node_types

COMMON: Mapping[str, ConfigKey] = {key.name: key for key in COMMON_KEYS}


@dataclass(frozen=True)
class NodeView:
    """A node with the declarations of its type.

    Attributes:
        index: from 0.
        runs_as: the type that runs; Standard for an unknown type.
        keys: the declared keys of that type by name, common ones included.
        is_misread: the type is unknown, and the keys are those of the probable type.
    """

    loaded: LoadedWorkflow
    index: int
    node: Mapping[str, Any]
    runs_as: str
    keys: Mapping[str, ConfigKey]
    is_misread: bool = False

    @property
    def needs_endpoint(self) -> bool:
        """Whether the node fails unless it names an endpoint."""
        return node_types()[self.runs_as].needs_endpoint and not self.is_misread

    def finding(self, severity: Severity, key: str, message: str, *, expected: str = "", suggestion: str = "",
                path: str = "") -> Finding:
        """Return a finding at ``key`` of this node ("": the node), or at ``path`` inside it."""
        where = path or (child(self.path, key) if key else self.path)
        return Finding(severity, self.loaded.display, where, None, f"{self.label}: {message}", expected, suggestion)

    def at(self, severity: Severity, path: str, message: str, expected: str, suggestion: str) -> Finding:
        return self.finding(severity, "", message, expected=expected, suggestion=suggestion, path=path)

    @property
    def path(self) -> str:
        return f"nodes[{self.index}]"

    @property
    def label(self) -> str:
        """How a message names this node."""
        name = self.node.get("title") or self.node.get("agentName")
        return f"node {self.index + 1}" + (f" '{shortened(name, 40)}'" if isinstance(name, str) else "")

    def values(self) -> Iterator[tuple[ConfigKey, Any]]:
        """Yield the declared keys that the node gives a value, with these values."""
        for name, value in self.node.items():
            key = self.keys.get(name)
            if key is not None and value is not None:
                yield key, value


def texts_in(value: object, path: str, secret_keys: frozenset[str]) -> Iterator[tuple[str, str, bool]]:
    """Yield (path, text, whether a secret-like key leads to it) for every string in JSON data, without recursion."""
    waiting = [(path, value, False)]
    while waiting:
        place, item, secret = waiting.pop()
        if isinstance(item, str):
            yield place, item, secret
        elif isinstance(item, Mapping):
            waiting.extend((child(place, str(key)), entry, secret or str(key).lower() in secret_keys)
                           for key, entry in reversed([*item.items()]))
        elif isinstance(item, (list, tuple)):
            waiting.extend((child(place, index), entry, secret) for index, entry in reversed([*enumerate(item)]))
