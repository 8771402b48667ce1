"""When the folder in which Python for Windows runs under Wine is made, which packages it gets, and a DLL for it."""

from __future__ import annotations

import ctypes
import os
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from Scripts.developer import windows_lab
from Scripts.developer.windows_lab import Lab, forwarding_dll, windows_requirements
from Tests.tables import table

PROJECT = Path(__file__).parents[2]
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


HASH = "    --hash=sha256:" + "0" * 64
# What stands before the hashes, and what of it a pip on Linux gets.
ENTRIES = [
    ("one==1.0", "one==1.0"),
    ("one[extra]==1.0", "one[extra]==1.0"),
    ("pywin32==312 ; sys_platform == 'win32'", "pywin32==312"),
    ("colorama==0.4.6 ; platform_system == 'Windows'", "colorama==0.4.6"),
    ("one==1.0 ; os_name == 'nt' and python_full_version >= '3.12'", "one==1.0"),
    ("one==1.0 ; platform_machine == 'AMD64' or sys_platform == 'linux'", "one==1.0"),
    ("uvloop==0.22 ; sys_platform != 'win32'", None),
    ("one==1.0 ; sys_platform == 'linux'", None),
    ("numpy==2.4.6 ; python_full_version < '3.12'", None),
    ("one==1.0 ; implementation_name == 'pypy'", None),
    ("one==1.0 ; platform_machine == 'ARM64'", None),
]


@table(("entry", "kept"), ENTRIES)
@pytest.mark.parametrize(
    "after", ["", "\n", "\n    # via two\n", "\n    # via\n    #   -r requirements.txt\n    #   two\n"]
)
def test_an_entry_is_kept_if_it_is_for_windows(entry: str, kept: str | None, after: str) -> None:
    lock = f"# A comment\n#\n{entry} \\\n{HASH} \\\n{HASH}{after}"
    wanted = [kept] if kept else []
    # It neither takes another entry along nor hides it.
    for text, names in ((lock, wanted), (f"{lock.rstrip()}\nlast==2 \\\n{HASH}\n", [*wanted, "last==2"])):
        entries = list(windows_requirements(text))
        assert [entry.split(" ")[0] for entry in entries] == names
        assert all(entry.count(HASH) == (1 if entry.startswith("last") else 2) for entry in entries)
        assert not any("#" in entry or ";" in entry for entry in entries)


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-test.lock"])
def test_of_a_lock_file_all_is_kept_that_windows_needs(name: str) -> None:
    lock = (PROJECT / name).read_text(encoding="utf-8")
    kept = {Requirement(entry.partition("\\")[0]).name: entry for entry in windows_requirements(lock)}
    named = set(re.findall(r"^([A-Za-z0-9][\w.-]*)[\[=]", lock, re.MULTILINE))
    without_marker = set(re.findall(r"^([A-Za-z0-9][\w.-]*)(?:\[.*?\])?==\S+ \\$", lock, re.MULTILINE))
    assert without_marker <= set(kept) <= named and "pywin32" in kept and len(without_marker) > 20
    for entry in kept.values():
        assert re.fullmatch(r"\S+ \\\n(?: *--hash=sha256:[0-9a-f]{64}(?: \\\n|\s*))+", entry)


class Dll:
    """A file of Windows, read as its loader does: https://learn.microsoft.com/windows/win32/debug/pe-format"""

    def __init__(self, data: bytes) -> None:
        self.data = data
        (self.header,) = struct.unpack_from("<I", data, 60)
        optional = self.header + 24
        self.machine, self.sections = struct.unpack_from("<HH", data, self.header + 4)
        (self.magic,) = struct.unpack_from("<H", data, optional)
        self.alignments = struct.unpack_from("<II", data, optional + 32)
        (self.image,) = struct.unpack_from("<I", data, optional + 56)
        self.exports = struct.unpack_from("<II", data, optional + 112)
        (size,) = struct.unpack_from("<H", data, self.header + 20)
        section = optional + size
        self.virtual_size, self.start, self.raw_size, self.raw = struct.unpack_from("<IIII", data, section + 8)

    def offset(self, address: int) -> int:
        assert self.start <= address < self.start + self.virtual_size
        return address - self.start + self.raw

    def text(self, address: int) -> str:
        begin = self.offset(address)
        return self.data[begin : self.data.index(b"\0", begin)].decode("ascii")


@table(
    ("name", "function", "target"),
    [
        ("bcryptprimitives.dll", "ProcessPrng", "advapi32.SystemFunction036"),
        ("a.dll", "f", "b.g"),
        ("long.dll", "F" * 600, "other." + "G" * 600),
    ],
)
def test_a_dll_leads_to_the_function_of_another(tmp_path: Path, name: str, function: str, target: str) -> None:
    dll = Dll(data := forwarding_dll(name, function, target))
    assert data[:2] == b"MZ" and data[dll.header : dll.header + 4] == b"PE\0\0"
    assert (dll.machine, dll.sections, dll.magic) == (0x8664, 1, 0x20B)
    in_memory, in_file = dll.alignments
    assert dll.start % in_memory == dll.image % in_memory == 0 and dll.image >= dll.start + dll.virtual_size
    assert dll.raw % in_file == dll.raw_size % in_file == 0 and len(data) == dll.raw + dll.raw_size
    address, size = dll.exports
    _, _, _, called, base, functions, names, at, name_at, ordinals = struct.unpack_from(
        "<IIIIIIIIII", data, dll.offset(address)
    )
    assert (dll.text(called), base, functions, names) == (name, 1, 1, 1)
    (forwarder,) = struct.unpack_from("<I", data, dll.offset(at))
    (named,) = struct.unpack_from("<I", data, dll.offset(name_at))
    # What lies within the directory of exports is no code, but the name of another function.
    assert address <= forwarder < address + size
    assert (dll.text(named), dll.text(forwarder)) == (function, target)
    assert struct.unpack_from("<H", data, dll.offset(ordinals)) == (0,)


@pytest.mark.skipif(os.name != "nt" or sys.maxsize < 2**32, reason="needs the loader of 64-bit Windows")
def test_windows_loads_the_dll(tmp_path: Path) -> None:
    file = tmp_path / "numbers.dll"
    file.write_bytes(forwarding_dll(file.name, "Fill", "advapi32.SystemFunction036"))
    numbers = ctypes.create_string_buffer(64)
    assert ctypes.CDLL(str(file)).Fill(numbers, 64) and numbers.raw != bytes(64)
