"""Every whole workflow in the documentation answers as its page says."""

from __future__ import annotations

import pytest

from Tests.docs.blocks import Block, whole_files
from Tests.docs.pages import all_pages
from Tests.docs.running import Example, Runner, examples, helpers, name_of

EXAMPLES = [example for page in all_pages().values() for example in examples(page)]
HELPERS = [block for page in all_pages().values() for block in helpers(page)]


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.block.place for example in EXAMPLES])
def test_workflow(example: Example, results: dict[str, list[str]]) -> None:
    complaints = results[example.block.place]
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize("block", HELPERS, ids=[block.place for block in HELPERS])
def test_workflow_that_others_run(block: Block, results: dict[str, list[str]], runner: Runner) -> None:
    runner.run([example for example in examples(block.page) if example.block.place not in results])
    assert name_of(block) in runner.ran[block.page.name], f"{block.place}: no example of the page runs it"


def test_every_workflow_is_run_by_one_of_these() -> None:
    run = {example.block.place for example in EXAMPLES} | {block.place for block in HELPERS}
    assert not [
        block.place
        for page in all_pages().values()
        for block in whole_files(page)
        if block.is_workflow and block.place not in run
    ]
