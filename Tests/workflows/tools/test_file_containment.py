"""The directories that the files of workflows are kept in."""

from __future__ import annotations

import ntpath
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigValueError
from Middleware.models.request_context import request_scope
from Middleware.utilities.files import path_utils
from Middleware.workflows.tools import file_containment
from Middleware.workflows.tools.file_containment import allowed_directories, contained_path, real_path_within
from Tests.stub_backend import StubBackend
from Tests.tables import table
from Tests.windows import needs_links, tells_capitals_apart
from Tests.workflows.engine_lab import EngineLab


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        lab = EngineLab(tmp_path / "configs", monkeypatch, backend)
        with request_scope(lab.request):
            yield lab


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.md").write_text("a")
    (tmp_path / "secret.txt").write_text("secret")
    return folder


# -- the user's key ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{}, {"allowedFileDirectories": None}])
def test_without_the_key_every_path_stays_as_it_is(lab: EngineLab, keys: dict[str, Any]) -> None:
    lab.user(**keys)
    assert allowed_directories() is None
    assert contained_path("../../x.txt", "filepath", "t") == "../../x.txt"


def test_directories_are_absolute_or_below_the_public_root(
    lab: EngineLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance, "PUBLIC_DIRECTORY", str(tmp_path / "public"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    lab.user(allowedFileDirectories=[str(tmp_path / "a"), "Notes/deep", "~/b", " c "])
    real = Path(os.path.realpath(tmp_path))
    assert allowed_directories() == tuple(
        map(str, (real / "a", real / "public" / "Notes" / "deep", real / "home" / "b", real / "public" / "c"))
    )


@pytest.mark.parametrize("value", ["/srv", {}, 5, True, [""], ["  "], [5], ["/srv", None], [["/srv"]]], ids=repr)
def test_anything_but_a_list_of_paths_is_an_error(lab: EngineLab, value: Any) -> None:
    lab.user(allowedFileDirectories=value)
    with pytest.raises(ConfigValueError, match="a list of the paths") as raised:
        contained_path("x", "filepath", "x")
    assert raised.value.json_path == "allowedFileDirectories" and raised.value.file.startswith("Users/")


def test_an_empty_list_allows_nothing(lab: EngineLab, notes: Path) -> None:
    lab.user(allowedFileDirectories=[])
    with pytest.raises(ConfigValueError, match="leads out"):
        contained_path(str(notes / "a.md"), "filepath", "t")


# -- what is inside ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["a.md", "new.md", "sub/new.md", "new/deep/x.md", "sub/../a.md", "./a.md", "..hidden", "sub//x", "ä.md"]
)
def test_inside(notes: Path, path: str) -> None:
    real = os.path.realpath(notes)
    assert real_path_within(f"{notes}/{path}", [real]) == os.path.normpath(os.path.join(real, path))


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "sub/../../secret.txt",
        "..",
        ".",
        "",
        "/etc/passwd",
        "../notes2/x",
        "../notes",
        "new/../../x",
        "a\0b",
        "\ud800",
    ],
    ids=repr,
)
def test_outside(notes: Path, path: str) -> None:
    assert real_path_within(os.path.join(notes, path), [os.path.realpath(notes)]) is None


def test_a_relative_path_counts_from_the_working_directory(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(notes)
    real = os.path.realpath(notes)
    assert real_path_within("a.md", [real]) == os.path.join(real, "a.md")
    assert real_path_within("../secret.txt", [real]) is None


def test_another_case_counts_where_it_is_asked_for(notes: Path) -> None:
    real = os.path.realpath(notes)
    found = real_path_within(str(notes / "A.MD"), [real])
    if tells_capitals_apart(notes):
        assert found == os.path.join(real, "A.MD")
    else:
        assert found is not None and os.path.samefile(found, notes / "a.md")
    found = real_path_within(str(notes / "A.MD"), [real], any_case=True)
    assert found is not None and os.path.samefile(found, notes / "a.md")


@needs_links
def test_links_count_as_what_they_lead_to(notes: Path, tmp_path: Path) -> None:
    (notes / "out.txt").symlink_to(tmp_path / "secret.txt")
    (notes / "out").symlink_to(tmp_path)
    (notes / "dangling").symlink_to(tmp_path / "later.txt")
    (notes / "in.txt").symlink_to(notes / "a.md")
    (notes / "loop").symlink_to("loop")
    (tmp_path / "way").symlink_to(notes)
    real = os.path.realpath(notes)
    for name in ("out.txt", "OUT.TXT", "out/secret.txt", "out/new.txt", "dangling", "sub/../out/x"):
        assert real_path_within(str(notes / name), [real], any_case=True) is None, name
    assert real_path_within(str(notes / "in.txt"), [real]) == os.path.join(real, "a.md")
    assert real_path_within(str(tmp_path / "way" / "a.md"), [real]) == os.path.join(real, "a.md")


def test_several_directories(notes: Path, tmp_path: Path) -> None:
    real = os.path.realpath(tmp_path)
    directories = [os.path.join(real, "other"), os.path.join(real, "notes")]
    assert real_path_within(str(notes / "a.md"), directories) == os.path.join(real, "notes", "a.md")
    assert real_path_within(str(tmp_path / "secret.txt"), directories) is None


def test_the_root_of_a_disk_holds_everything(notes: Path) -> None:
    assert real_path_within(str(notes / "a.md"), [Path(os.path.realpath(notes)).anchor]) is not None


# -- Windows -----------------------------------------------------------------------------------------------------------


class NtOs:
    """What ``file_containment`` needs of ``os``, on a Windows machine with an empty disk."""

    class path:
        realpath = staticmethod(ntpath.normpath)
        splitdrive, normcase, join = map(staticmethod, (ntpath.splitdrive, ntpath.normcase, ntpath.join))

    sep = "\\"


@table(
    ("path", "inside"),
    [
        ("C:\\notes\\a.md", True),
        ("c:/NOTES/sub/a.md", True),
        ("\\\\nas\\share\\a.md", True),
        ("//NAS/share/a.md", True),
        ("C:\\notes\\a.md:stream", False),
        ("C:\\notes\\CON", False),
        ("C:\\notes\\com¹.txt\\x", False),
        ("C:\\notes\\a.md.", False),
        ("C:\\notes\\a. \\x", False),
        ("C:\\notes2\\a.md", False),
        ("D:\\notes\\a.md", False),
        ("\\\\evil\\share\\a.md", False),
        ("//evil/share/a.md", False),
        ("\\\\?\\C:\\notes\\a.md", False),
        ("\\\\.\\C:\\notes\\a.md", False),
        ("C:\\notes\\..\\x.md", False),
    ],
)
def test_windows(monkeypatch: pytest.MonkeyPatch, path: str, inside: bool) -> None:
    monkeypatch.setattr(file_containment, "os", NtOs)
    monkeypatch.setattr(path_utils, "WINDOWS", True)
    monkeypatch.setattr(file_containment, "resolve_file_path", str)
    assert (real_path_within(path, ["C:\\Notes", "\\\\nas\\share"]) is not None) is inside


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("notes/{agent1Output}.md", "notes/{agent1Output}.md"),
        ("/srv/deep/{Discussion_Id}.md", ".../{Discussion_Id}.md"),
        ("~/deep/x.md", ".../x.md"),
        ("C:\\deep\\x.md", ".../x.md"),
        ("{dir}/x.md", "{dir}/x.md"),
    ],
)
def test_the_error_shows_the_template_and_no_folder(
    lab: EngineLab, caplog: pytest.LogCaptureFixture, notes: Path, template: str, shown: str
) -> None:
    lab.user(allowedFileDirectories=[str(notes)])
    with pytest.raises(ConfigValueError) as raised:
        contained_path("/elsewhere/private words", "filepath", template)
    text = str(raised.value)
    assert f"'{shown}'" in text and "'filepath'" in text and "allowedFileDirectories" in text
    assert "deep" not in text.replace(shown, "") and "private" not in text + caplog.text and str(notes) not in text
    assert repr(template) in caplog.text
