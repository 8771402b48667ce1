"""Every link, picture and path in the documentation leads somewhere, and every page can be found."""

from __future__ import annotations

import pytest

from Tests.docs.links import Links
from Tests.docs.markdown import Page
from Tests.docs.pages import all_pages
from Tests.integration.launcher import PROJECT
from Tests.tables import table

PAGES = list(all_pages().values())


@pytest.fixture(scope="module")
def links() -> Links:
    return Links(all_pages(), PROJECT)


@table("page", PAGES, ids=str)
def test_links(page: Page, links: Links) -> None:
    dead = links.dead(page)
    assert not dead, "\n" + "\n".join(dead)


@table("page", PAGES, ids=str)
def test_paths(page: Page, links: Links) -> None:
    missing = list(links.missing_files(page))
    assert not missing, "\n" + "\n".join(missing)


def test_every_page_can_be_reached(links: Links) -> None:
    assert not links.orphans(), "no link leads to these pages from README.md or Docs/README.md"
