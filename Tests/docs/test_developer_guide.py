"""The pages of the developer guide, followed step by step in a copy of the project, end where they say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from Tests.docs.fake_services import FakeServices
from Tests.docs.guide import GuideError, Program, Typed, ask, copy_project, typed, written
from Tests.docs.markdown import Page
from Tests.docs.pages import all_pages
from Tests.docs.sandbox import USER, Sandbox
from Tests.integration.launcher import Launcher

PAGES = [page for page in all_pages().values() if page.name.startswith("Docs/Developer/adding-")]
STEPS = [step for page in PAGES for step in typed(page)]
REQUESTS = [step for step in STEPS if step.is_request]


@pytest.fixture(scope="module")
def services() -> Iterator[FakeServices]:
    with FakeServices() as services:
        yield services


@pytest.fixture(scope="module")
def changed(services: FakeServices, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project after ``init``, with all that the pages write and change."""
    root = tmp_path_factory.mktemp("guide") / "project"
    Sandbox(root, services.url)
    copy_project(root)
    for page in PAGES:
        for file in written(page):
            file.apply(root)
    return root


@pytest.fixture(scope="module")
def program(changed: Path) -> Program:
    return Program(changed)


@pytest.fixture(scope="module")
def server(changed: Path) -> Iterator[Launcher]:
    with Launcher(
        str(changed / "run_waitress.py"),
        "--PublicDirectory",
        changed / "Public",
        "--User",
        USER,
        folders=(changed, changed / "home"),
    ) as server:
        yield server


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_programs(page: Page, program: Program) -> None:
    """In the order of the page: a later program may need what an earlier one has written."""
    for step in typed(page):
        if not step.is_request:
            program.run(step)


@pytest.mark.parametrize("step", REQUESTS, ids=str)
def test_requests(step: Typed, server: Launcher) -> None:
    ask(step, server.port)


def test_each_page_is_tried() -> None:
    assert len(PAGES) == 5
    for page in PAGES:
        tests = {file.path for file in written(page) if Path(file.path).name.startswith("test_") and not file.is_change}
        lines = [step.line for step in typed(page)]
        assert tests and all(any(path in line for line in lines) for path in tests), page.name
        assert any("curl" in line or "matrix" in line for line in lines), f"{page.name} ends without a real request"


# -- that it can fail --------------------------------------------------------------------------------------------------

NEW = "A new file, **a/b.py**:\n\n```python\nx = 1\ny = 2\n```\n"
CHANGE = "In **a/b.py**:\n\n```diff\n x = 1\n-y = 2\n+y = 3\n@@\n+# end\n z = 4\n```\n"


def followed(root: Path, *texts: str) -> str:
    for file in written(Page("page.md", "\n".join(texts))):
        file.apply(root)
    return (root / "a" / "b.py").read_text(encoding="utf-8")


def test_files_are_written_and_changed(tmp_path: Path) -> None:
    longer = NEW.replace("y = 2\n", "y = 2\nz = 4\n")
    assert followed(tmp_path, longer, "Words.\n", CHANGE) == "x = 1\ny = 3\n# end\nz = 4\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (NEW + NEW, "page.md:9: a/b.py exists already"),
        (CHANGE, "page.md:3: there is no a/b.py to change"),
        (NEW + "\n" + CHANGE, "page.md:10: these lines stand 0 times in a/b.py:\nz = 4"),
        (NEW.replace("y = 2", "x = 1") + "\n**a/b.py**:\n\n```diff\n-x = 1\n```\n", "these lines stand 2 times"),
        ("Words about **a/b.py**.\n\n```diff\n x\n```\n", "page.md:3: the paragraph above does not end with the path"),
    ],
)
def test_what_does_not_fit_is_told(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(GuideError) as raised:
        followed(tmp_path, text)
    assert told in str(raised.value)


def test_what_appears_must_be_what_the_page_shows() -> None:
    (step,) = typed(Page("page.md", '```bash\ncurl \\\n  http://x/\n```\n\n```text\n{"a":...}\n[1]\n```\n'))
    assert step.line == "curl http://x/" and step.is_request
    step.check('{"a":5,\n"b":6}\n[1]')
    with pytest.raises(GuideError, match="page.md:1: curl http://x/\nshows"):
        step.check('{"b":5}\n[1]')


def test_a_program_that_fails_is_told(tmp_path: Path) -> None:
    (step,) = typed(Page("page.md", "```bash\npython -c 'import sys; sys.exit(\"no\")'\n```\n"))
    with pytest.raises(GuideError, match=r"fails:\n\nno"):
        Program(tmp_path).run(step)
