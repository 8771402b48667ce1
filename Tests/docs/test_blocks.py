"""Every code block in the documentation says what it is, and is it."""

from __future__ import annotations

import pytest

from Tests.docs.blocks import Block, blocks, judged, whole_files
from Tests.docs.checking import Checker
from Tests.docs.pages import all_blocks, places

JSON, PYTHON = all_blocks("json"), all_blocks("python")
LIKE_JSON = [block for language in ("jsonc", "json5", "jsonl") for block in all_blocks(language)]


@pytest.mark.parametrize("block", JSON, ids=places(JSON))
def test_json(block: Block, checker: Checker) -> None:
    complaints = checker.complaints(judged(block), whole_files(block.page), list(blocks(block.page, "python")))
    assert not complaints, "\n" + "\n".join(complaints)


def test_there_is_nothing_to_say_about_what_init_writes(checker: Checker) -> None:
    assert not checker.before


@pytest.mark.parametrize("block", PYTHON, ids=places(PYTHON))
def test_python(block: Block) -> None:
    try:
        compile(block.fence.text, block.place, "exec")
    except SyntaxError as error:
        pytest.fail(str(block.error(f"{error.msg}", error.lineno or 0)))
    assert block.mark in ("", "file"), block.error(f"'{block.mark}' is no mark of Python; expected file=...")


def test_json_is_named_so() -> None:
    """Editors' variants of JSON would escape the check."""
    assert not places(LIKE_JSON)
