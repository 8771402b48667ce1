"""The pages of node types say what the program declares."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from Middleware.workflows.handlers.registry import node_types
from Scripts.generate import __main__ as generate
from Scripts.generate import generated_files, key_tables, node_reference
from Tests.tables import table

Command = Callable[..., int]
REGISTRY = node_types()
WRITTEN = node_reference.files(node_reference.PAGES)
INDEX = WRITTEN[node_reference.PAGES.with_suffix(".md")]


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A folder with a new page for every type, and the index beside it."""
    generated_files.write_or_check(node_reference.files(tmp_path / "nodes"), check=False)
    return tmp_path / "nodes"


@pytest.fixture
def command(pages: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """``python -m Scripts.generate`` for that folder only."""
    monkeypatch.setattr(node_reference, "PAGES", pages)
    monkeypatch.setattr(generate, "files", lambda: node_reference.files(pages))
    return lambda *words: generate.main(words)


@table("path", WRITTEN, ids=lambda path: path.stem)
def test_a_page_is_current(path: Path) -> None:
    assert generated_files.stale_files({path: WRITTEN[path]}) == [], "run: python -m Scripts.generate"


def test_there_is_no_page_for_an_unknown_type() -> None:
    assert node_reference.strangers(node_reference.PAGES) == []


def test_the_index_lists_each_type_once_with_a_link_to_its_page() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(nodes/(\w+\.md[#\w]*)\) \| .+ \|$", INDEX, re.MULTILINE)
    assert sorted(node_type for node_type, _ in rows) == sorted(node_types())
    for node_type, link in rows:
        page = node_reference.page_of(node_reference.PAGES, node_type)
        assert link == (page.name if page.stem == node_type else f"{page.name}#{node_type.lower()}")


@pytest.mark.parametrize("title", ["Keys of every node", *node_reference.GROUPS, "Nodes at the same time"])
def test_the_index_has_its_sections(title: str) -> None:
    assert re.search(rf"^##+ {re.escape(title)}$", INDEX, re.MULTILINE)


@pytest.mark.parametrize("node_type", sorted(REGISTRY))
def test_every_page_has_all_keys_of_its_type(node_type: str, pages: Path) -> None:
    path = node_reference.page_of(pages, node_type)
    page = path.read_text(encoding="utf-8")
    begin, end = node_reference.marks(path, node_type)
    table = page.split(begin)[1].split(end)[0]
    keys = REGISTRY[node_type].KEYS[node_type]
    assert all(f"| `{key.name}` | {key_tables.kinds(key)} |" in table for key in keys)
    assert ("no keys of its own" in table) == (not keys)
    assert "(../nodes.md#keys-of-every-node)" in page
    assert page.startswith(f"# {path.stem}\n") and "\n## Example\n" in page


def test_a_page_keeps_what_stands_around_its_table(pages: Path) -> None:
    page = pages / "StaticResponse.md"
    before = page.read_text(encoding="utf-8")
    begin, _, end = re.split(f"({node_reference.BEGIN}.*?{node_reference.END})", before, flags=re.DOTALL)
    page.write_text(f"{begin}{node_reference.BEGIN}old\n{node_reference.END} More.{end}", encoding="utf-8")
    assert node_reference.files(pages)[page] == before.replace(node_reference.END, f"{node_reference.END} More.")


def test_the_check_names_stale_missing_and_strange_pages(
    command: Command, pages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pages / "Standard.md").unlink()
    (pages / "Stendard.md").write_text("# Stendard\n", encoding="utf-8")
    stale = pages / "Conditional.md"
    stale.write_text(stale.read_text(encoding="utf-8").replace("`condition`", "`conditions`"), encoding="utf-8")
    assert command("--check") == 1
    *files, unknown = capsys.readouterr().err.splitlines()
    assert sorted(files) == [f"missing: {pages / 'Standard.md'}", f"not current: {stale}"]
    assert unknown == (f"no node type of this name: {pages / 'Stendard.md'} (did you mean Standard?)")
    assert not (pages / "Standard.md").exists()


def test_pages_are_written_and_strange_ones_left_alone(command: Command, pages: Path) -> None:
    (pages / "Standard.md").unlink()
    (pages / "Foreign.md").write_text("# Foreign\n", encoding="utf-8")
    assert command() == 1
    assert (pages / "Standard.md").exists() and (pages / "Foreign.md").exists()
    (pages / "Foreign.md").unlink()
    assert command("--check") == 0


def test_a_page_without_a_place_for_the_table_is_named(pages: Path) -> None:
    (pages / "WebFetch.md").write_text("# WebFetch\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"WebFetch\.md has no place"):
        node_reference.files(pages)


@pytest.mark.parametrize("line", ["", '<!-- listed under "Nothing": What for. -->'])
def test_a_page_that_does_not_say_where_it_is_listed_is_named(pages: Path, line: str) -> None:
    page = pages / "WebFetch.md"
    page.write_text(re.sub("<!-- listed .* -->", line, page.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(ValueError, match=r"WebFetch\.md needs a line such as .* the groups are Answers, Other"):
        node_reference.files(pages)


def test_the_index_follows_the_pages(pages: Path) -> None:
    page = pages / "WebFetch.md"
    line = '<!-- listed under "Images": Look at something. -->'
    page.write_text(re.sub("<!-- listed .* -->", line, page.read_text(encoding="utf-8")), encoding="utf-8")
    index = node_reference.files(pages)[pages.with_suffix(".md")]
    group = index.split("### Images\n")[1].split("###")[0]
    assert group.strip().splitlines()[-1] == "| [WebFetch](nodes/WebFetch.md) | Look at something. |"
