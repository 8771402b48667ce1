"""The page of node types says what the program declares."""
from __future__ import annotations

import pytest

from Middleware.workflows.managers.workflow_manager import build_registry
from Scripts import node_reference


def test_the_page_is_current() -> None:
    assert node_reference.PATH.read_text(encoding="utf-8") == node_reference.render(), \
        "run: python -m Scripts.node_reference"


@pytest.mark.parametrize("node_type", sorted(build_registry()))
def test_every_type_has_its_section_with_all_keys(node_type: str) -> None:
    section = node_reference.render().split(f"\n## {node_type}\n", 1)[1].split("\n## ", 1)[0]
    handler = build_registry()[node_type]
    assert all(f"| `{key.name}` | {key.kind} |" in section for key in handler.KEYS[node_type])
    assert section.strip().splitlines()[0]
