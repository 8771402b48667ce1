"""The configuration reference says what the program declares."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from Middleware.addons.check.file_check import KINDS
from Middleware.utilities.config.declarations import ConfigKey
from Scripts.generate import configuration_reference, generated_files
from Scripts.generate.reference_texts import TEXTS
from Tests.scripts.schema_lab import mistakes

PAGE = configuration_reference.render()


def section(name: str) -> str:
    heading = f"\n## {configuration_reference.heading(KINDS[name])}\n"
    assert PAGE.count(heading) == 1
    return PAGE.split(heading)[1].split("\n## ")[0]


def all_keys(keys: tuple[ConfigKey, ...]) -> Iterator[ConfigKey]:
    for key in keys:
        yield key
        yield from all_keys(key.keys)


def test_the_page_is_current() -> None:
    assert generated_files.stale_files({configuration_reference.PATH: PAGE}) == [], "run: python -m Scripts.generate"


def test_every_kind_has_a_section() -> None:
    assert set(TEXTS) == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_a_section_has_every_key_with_its_meaning(name: str) -> None:
    rows = [line for line in section(name).splitlines() if line.startswith("| `")]
    for key in all_keys(KINDS[name].keys):
        if key.name != "$schema":
            meaning = key.meaning.replace("<", "&lt;").replace("|", "\\|")
            assert any(row.startswith(f"| `{key.name}` |") and row.endswith(f" {meaning} |") for row in rows), key.name


@pytest.mark.parametrize("name", TEXTS)
def test_an_example_is_true(name: str) -> None:
    example = re.search(rf"```json part={name}\n(.*?)\n```", section(name), re.DOTALL)
    assert example is not None
    data = json.loads(example.group(1))
    assert data == TEXTS[name].example and mistakes(name, data) == []


def test_links_lead_somewhere() -> None:
    headings = {line[3:].lower().replace(" ", "-") for line in PAGE.splitlines() if line.startswith("## ")}
    links = set(re.findall(r"\]\(([^)]+)\)", PAGE))
    assert {link[1:] for link in links if link.startswith("#")} <= headings
    folder = configuration_reference.PATH.parent
    assert [link for link in links if not link.startswith("#") and not (folder / link).is_file()] == []


@pytest.mark.parametrize(
    ("section_name", "row"),
    [
        ("user", "| `port` | whole number | `5000` | 0 to 65535 |"),
        ("user", "| `customWorkflow` | string |  | [a workflow](#workflows) |"),
        ("user", "| `toolName` | string | required |  |"),
        ("endpoint", "| `apiTypeConfigFileName` | string | required | [an API type](#api-types) |"),
        ("mcp-server", "| `transport` | string | required | `stdio`, `sse`, `streamable_http` |"),
        ("endpoint", "| `stop` | list of strings or string |  |  |"),
    ],
)
def test_rows_say_type_default_and_values(section_name: str, row: str) -> None:
    assert f"\n{row} " in section(section_name)


def test_the_command_writes_and_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.md"
    monkeypatch.setattr(configuration_reference, "PATH", path)
    assert generated_files.write_or_check(configuration_reference.files(), check=True) == 1 and not path.exists()
    assert generated_files.write_or_check(configuration_reference.files(), check=False) == 0
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))  # as a checkout may have it
    assert generated_files.write_or_check(configuration_reference.files(), check=True) == 0
