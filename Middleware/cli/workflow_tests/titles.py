"""The titles by which tests name nodes: ``title``, else ``agentName``, else ``type``."""
from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from Middleware.exceptions import ConfigurationError
from Middleware.utilities.config.keys.node import NODE, WORKFLOW_FILE
from Middleware.utilities.config.paths import display_path, get_root_config_directory
from Middleware.utilities.config.store import config_store
from Middleware.utilities.config.workflows import TEST_SUFFIX
from Middleware.utilities.text_utils import nearest


def title_of(node: Mapping[str, object], node_type: str = "") -> str:
    """Return the title by which tests name a node. ``node_type``: the type that an unknown or missing one runs as."""
    return str(NODE.value(node, "title") or NODE.value(node, "agentName") or node_type
               or NODE.value(node, "type") or "Standard")


def is_title(name: str, workflow: str, title: str) -> bool:
    """Return whether ``name`` in a test refers to the node ``title`` of ``workflow``."""
    return name in (title, f"{workflow}/{title}")


class Titles:
    """The titles of all nodes, by the file of their workflow relative to the config root."""

    def __init__(self, by_file: Mapping[str, list[str]]) -> None:
        self._by_file = by_file
        self._known = {title for titles in by_file.values() for title in titles}
        self._qualified = {name for file, titles in by_file.items() for title in titles
                           for name in _qualified(file, title)}

    @staticmethod
    def of_all_workflows() -> Titles:
        """Return the titles of every readable workflow below the config root."""
        root = os.path.join(get_root_config_directory(), "Workflows")
        return Titles({display_path(path): titles for path in _workflow_files(root) if (titles := _titles(path))})

    def knows(self, name: str) -> bool:
        return name in self._known or name in self._qualified

    def nearest(self, name: str, display: str) -> str:
        """Return the title most similar to ``name``, first among the workflows beside the file ``display``."""
        folder = display.rpartition("/")[0] + "/"
        near = [title for file, titles in self._by_file.items() if file.startswith(folder) for title in titles]
        if "/" in name:
            return nearest(name, sorted(self._qualified))
        return nearest(name, near) or nearest(name, sorted(self._known))


def _qualified(file: str, title: str) -> Iterator[str]:
    """Return the forms of ``Workflow/title``: a workflow in a sub-folder may be named with or without it."""
    parts = file.removeprefix("Workflows/").removesuffix(".json").split("/")
    return ("/".join([*parts[start:], title]) for start in range(len(parts)))


def _workflow_files(root: str) -> Iterator[str]:
    for folder, _, names in sorted(os.walk(root)):
        yield from (os.path.join(folder, name) for name in sorted(names)
                    if name.endswith(".json") and not name.endswith(TEST_SUFFIX))


def _titles(path: str) -> list[str]:
    try:
        data = config_store().read_json(path, display=display_path(path))
    except ConfigurationError:
        return []
    nodes = WORKFLOW_FILE.value(data, "nodes") if isinstance(data, Mapping) else data
    if not isinstance(nodes, (list, tuple)):
        return []
    return [title_of(node) for node in nodes if isinstance(node, Mapping)]
