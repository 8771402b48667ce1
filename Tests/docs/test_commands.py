"""Every program of this project that the documentation runs is there and takes the options it is given."""
from __future__ import annotations

import pytest

from Tests.docs.commands import problems
from Tests.docs.markdown import Page
from Tests.docs.pages import all_pages


@pytest.mark.parametrize("page", list(all_pages().values()), ids=str)
def test_command_lines(page: Page) -> None:
    found = problems(page)
    assert not found, "\n" + "\n".join(found)
