"""Every node type has a page with an example that contains it, is tried, and can fail."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from Middleware.workflows.handlers.registry import node_types
from Scripts.generate import node_reference
from Tests.docs.blocks import Block, blocks, judged
from Tests.docs.markdown import Page, read
from Tests.integration.launcher import PROJECT

HEADINGS = ["Example", "Keys", "Good to know"]
EXPECTATIONS = {"expect", "sent", "writes"}


def page_of(node_type: str) -> Page:
    return read(node_reference.page_of(node_reference.PAGES, node_type), PROJECT)


def workflows_with(node_type: str) -> list[Block]:
    """The whole workflows on a type's page that have a node of it."""
    return [block for block in whole_files(node_type) if block.is_workflow and node_type in types(block.json())]


def whole_files(node_type: str) -> list[Block]:
    return [judged(block) for block in blocks(page_of(node_type)) if block.mark == "file"]


def types(workflow: Any) -> Iterator[str]:
    for node in workflow["nodes"] if isinstance(workflow, dict) else workflow:
        yield node.get("type", "Standard")


def expects(how: Mapping[str, Any]) -> bool:
    return any(EXPECTATIONS & set(part) for part in (how, *how.get("requests", ())))


@pytest.mark.parametrize("node_type", node_types())
def test_a_page_has_its_parts_in_order(node_type: str) -> None:
    page = page_of(node_type)
    assert re.search(rf"^#+ {node_type}$", page.prose, re.MULTILINE), "no heading has the name of the type"
    found = re.findall(r"^## (.+)$", page.prose, re.MULTILINE)
    assert [heading for heading in found if heading in HEADINGS] == HEADINGS
    parts = re.split(r"^#+ .+$", page.prose, flags=re.MULTILINE)
    assert all(part.strip() for part in parts[1:]), "a part is empty"


@pytest.mark.parametrize("node_type", node_types())
def test_a_page_has_a_whole_workflow_with_its_node_and_says_what_must_come_out(node_type: str) -> None:
    assert workflows_with(node_type), f"no block ```json file=Workflows/... has a node of type {node_type}"
    # On a page about several types, the example of another one proves nothing.
    is_alone = node_reference.page_of(node_reference.PAGES, node_type).stem == node_type
    shown = whole_files(node_type) if is_alone else workflows_with(node_type)
    tried = [how for block in shown if (how := block.how) is not None]
    assert any(map(expects, tried)), "no comment 'try' expects anything"


@pytest.mark.parametrize("node_type", node_types())
def test_a_reader_sees_under_which_path_to_save_each_file(node_type: str) -> None:
    written = {code.text.removeprefix("Public/Configs/") for code in page_of(node_type).codes}
    hidden = [
        block.place
        for block in whole_files(node_type)
        if block.value not in written and not set(block.value.rsplit("/", 1)) <= written
    ]
    assert not hidden, "write the path, or folder and name, above the block: fences hide it"


def test_examples_of_different_pages_do_not_overwrite_each_other() -> None:
    """Only workflows, as other files may be the same on several pages."""
    found = [block for node_type in node_types() for block in whole_files(node_type) if block.is_workflow]
    pages = {(block.value, block.page.name) for block in found}
    assert sorted(path for path, count in Counter(path for path, _ in pages).items() if count > 1) == []


@pytest.mark.parametrize("node_type", node_types())
def test_the_table_of_a_page_has_every_key(node_type: str) -> None:
    path = node_reference.page_of(node_reference.PAGES, node_type)
    begin, end = node_reference.marks(path, node_type)
    table = page_of(node_type).source.split(begin)[1].split(end)[0]
    missing = [key.name for key in node_types()[node_type].KEYS[node_type] if f"\n| `{key.name}` |" not in table]
    assert not missing
