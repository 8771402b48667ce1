"""When the folder in which Python for Windows runs under Wine is made, and which packages it gets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from Scripts.developer import windows_lab
from Scripts.developer.windows_lab import Lab
from Tests.tables import table

BOTH = ["python", "packages"]


class RecordedLab(Lab):
    """What it makes is only recorded. A step named in ``fails`` is interrupted."""

    steps: list[str]
    fails = ""

    def _make_python(self) -> None:
        self._record("python")
        (self.folder / "installed.lock").unlink(missing_ok=True)

    def _install(self) -> None:
        self._record("packages")

    def _record(self, step: str) -> None:
        self.steps.append(step)
        if step == self.fails:
            raise KeyboardInterrupt


class Place:
    """A folder, and the lock files in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.next_row()

    def next_row(self) -> None:
        """Begin with a folder that is made for the packages of the tests."""
        self.lab = self.folder / str(len(list(self.folder.iterdir())))
        self.lab.mkdir()
        for name in ("requirements.lock", "requirements-test.lock"):
            (self.lab / name).write_text(f"{name}: a==1", encoding="utf-8")
        assert self.make() == BOTH

    def make(self, lock: str = "requirements-test.lock", fails: str = "") -> list[str]:
        """Make it; return the steps that this took."""
        lab = RecordedLab(self.lab, self.lab / lock)
        lab.steps, lab.fails = [], fails
        if fails:
            with pytest.raises(KeyboardInterrupt):
                lab.make()
        else:
            lab.make()
        return lab.steps

    def change(self, text: str = "a==2") -> None:
        """Change the lock file of the tests."""
        (self.lab / "requirements-test.lock").write_text(text, encoding="utf-8")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def _changed_and_back(place: Place) -> None:
    place.change("a==2")
    place.make(fails="packages")
    place.change("requirements-test.lock: a==1")


def _interrupted_from_the_start(place: Place) -> None:
    (place.lab / "made").unlink()
    place.make(fails="python")


@table(
    ("before", "expected"),
    [
        (lambda place: None, []),
        (lambda place: (place.lab / "requirements.lock").write_text("b", encoding="utf-8"), []),
        (lambda place: place.change(), ["packages"]),
        (lambda place: place.make("requirements.lock"), ["packages"]),
        (_changed_and_back, ["packages"]),
        (_interrupted_from_the_start, BOTH),
        (lambda place: (place.lab / "made").write_text("Python 3.12", encoding="utf-8"), BOTH),
        (lambda place: (place.lab / "winpy").unlink(), []),
    ],
)
def test_what_is_made(place: Place, before: Callable[[Place], object], expected: list[str]) -> None:
    before(place)
    assert place.make() == expected
    assert place.make() == [] and (place.lab / "winpy").exists()


LOCK = """\
# comment
both==1 \\
    --hash=sha256:1 \\
    --hash=sha256:2
    # via x
elsewhere==1 ; sys_platform != "win32" \\
    --hash=sha256:3
here==1 ; sys_platform == "win32" and python_version >= "3.13" \\
    --hash=sha256:4
old==1 ; python_version < "3.13" \\
    --hash=sha256:5
"""


def test_packages_for_windows() -> None:
    entries = [entry.split() for entry in windows_lab.windows_requirements(LOCK)]
    assert entries == [
        ["both==1", "\\", "--hash=sha256:1", "\\", "--hash=sha256:2"],
        ["here==1", "\\", "--hash=sha256:4"],
    ]
