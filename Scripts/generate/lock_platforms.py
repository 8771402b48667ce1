"""Which systems and Pythons the wheels of the lock files serve, and what each locked package says about itself.

``Docs/Developer/platforms.md`` has the first as tables, and ``Tests/scripts/locked_packages.json`` the second, from
which a test makes packages without files. Both need the package index: :mod:`Scripts.generate.lock_requirements`, which
writes the lock files, calls this.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from packaging.pylock import Package, PackageWheel, Pylock
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags, create_compatible_tags_selector, mac_platforms
from packaging.utils import canonicalize_name, parse_wheel_filename

from Middleware.cli.installing import NEWEST, OLDEST_GLIBC
from Middleware.cli.prerequisites import OLDEST
from Scripts.generate.generated_files import ROOT, write_or_check

PAGE = ROOT / "Docs" / "Developer" / "platforms.md"
PACKAGES = ROOT / "Tests" / "scripts" / "locked_packages.json"
PYTHONS = [(3, minor) for minor in range(OLDEST[1], NEWEST[1] + 1)]
# The oldest system of each kind that is served: glibc 2.28 (Debian 10, RHEL 8), musl 1.2 (Alpine 3.13), macOS 13.
_GLIBC, _MUSL, _MACOS = OLDEST_GLIBC[1], 2, (13, 0)
_HEAD = """# Systems and Pythons

`python -m Scripts.generate.lock_requirements` writes this page. It has a table for each lock file: "yes" where every
package has a wheel whose hash is in the lock. Below the table are the packages that have none, or that do not take that
Python. They stop an installation, which takes wheels only; `Middleware/cli/installing.py` then says what to do.

"Linux (glibc)" is glibc 2.28 or later, "Linux (musl)" musl 1.2 or later, "macOS" 13 or later; 32-bit ARM is Raspberry
Pi OS 12 (glibc 2.36). The last three systems are listed for completeness: WilmerAI does not promise to run there.
"""


@dataclass(frozen=True)
class System:
    """A system with the tags of its wheels, the best first; whether it is promised that it is served."""

    name: str
    sys_platform: str
    machine: str
    platforms: tuple[str, ...]
    promised: bool = True

    def environment(self, python: tuple[int, int]) -> dict[str, str]:
        """What markers ask for."""
        version = f"{python[0]}.{python[1]}"
        return {
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "implementation_version": f"{version}.0",
            "python_full_version": f"{version}.0",
            "python_version": version,
            "sys_platform": self.sys_platform,
            "platform_machine": self.machine,
            "os_name": "nt" if self.sys_platform == "win32" else "posix",
            "platform_release": "",
            "platform_version": "",
            "platform_system": {"win32": "Windows", "darwin": "Darwin"}.get(self.sys_platform, "Linux"),
        }

    def tags(self, python: tuple[int, int]) -> list[Tag]:
        """The tags of the wheels that pip would take, the best first."""
        abi = f"cp{python[0]}{python[1]}"
        return [*cpython_tags(python, [abi], self.platforms), *compatible_tags(python, abi, self.platforms)]


def _glibc(machine: str, *old: str, newest: int = _GLIBC) -> tuple[str, ...]:
    kinds = [*(f"manylinux_2_{minor}" for minor in range(newest, 16, -1)), "manylinux2014", *old]
    return tuple(f"{kind}_{machine}" for kind in kinds)


def _musl(machine: str) -> tuple[str, ...]:
    return tuple(f"musllinux_1_{minor}_{machine}" for minor in range(_MUSL, -1, -1))


SYSTEMS = (
    System(
        "Linux (glibc), x86_64",
        "linux",
        "x86_64",
        _glibc("x86_64", "manylinux_2_12", "manylinux2010", "manylinux_2_5", "manylinux1"),
    ),
    System("Linux (glibc), aarch64", "linux", "aarch64", _glibc("aarch64")),
    System("Linux (musl), x86_64", "linux", "x86_64", _musl("x86_64")),
    System("Linux (musl), aarch64", "linux", "aarch64", _musl("aarch64")),
    System("macOS, Apple silicon", "darwin", "arm64", tuple(mac_platforms(_MACOS, "arm64"))),
    System("macOS, Intel", "darwin", "x86_64", tuple(mac_platforms(_MACOS, "x86_64"))),
    System("Windows, x64", "win32", "AMD64", ("win_amd64",)),
    System("Windows, ARM64", "win32", "ARM64", ("win_arm64",), promised=False),
    System("Windows, 32-bit", "win32", "x86", ("win32",), promised=False),
    System("Linux (glibc), 32-bit ARM", "linux", "armv7l", _glibc("armv7l", newest=36), promised=False),
)


class About(TypedDict, total=False):
    """What a package's metadata says: ``Requires-Dist``, ``Provides-Extra`` and ``Requires-Python``."""

    requires: list[str]
    extras: list[str]
    python: str


@dataclass(frozen=True)
class Locked:
    """A lock file, and what the package index has of the versions in it.

    Attributes:
        hashes: the lock's text, in which the hash of each file that may be installed stands.
    """

    name: str
    hashes: str
    index: Pylock

    def packages(self, system: System, python: tuple[int, int]) -> Iterator[tuple[Package, PackageWheel | None]]:
        """Each package that is installed there, with the wheel that pip takes, or None."""
        environment = system.environment(python)
        best = create_compatible_tags_selector(system.tags(python))
        for package in self.index.packages:
            if package.marker is None or package.marker.evaluate(environment, context="lock_file"):
                wheels = [wheel for wheel in package.wheels or () if wheel.hashes["sha256"] in self.hashes]
                yield package, next(best((wheel, parse_wheel_filename(_file(wheel))[-1]) for wheel in wheels), None)


def read(uv: str, lock: str) -> Locked:
    """Ask the package index, by uv, for the files of what is locked. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pylock.toml"
        subprocess.run(
            [
                uv,
                "pip",
                "compile",
                lock,
                "--universal",
                "--quiet",
                "--python-version",
                _version(PYTHONS[0]),
                "--output-file",
                str(path),
            ],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        index = Pylock.from_dict(tomllib.loads(path.read_text(encoding="utf-8")))
    return Locked(lock, (ROOT / lock).read_text(encoding="utf-8"), index)


def write(locks: Sequence[Locked]) -> None:
    """Write the page and the file of packages, and name on stderr what keeps promised systems from being served."""
    about = _all_about(locks)
    packages = json.dumps(about, indent=1, sort_keys=True) + "\n"
    write_or_check({PAGE: _page(locks, about), PACKAGES: packages}, check=False)
    for lock in locks:
        for system in filter(lambda one: one.promised, SYSTEMS):
            for python in PYTHONS:
                if names := missing(lock, system, python, about):
                    print(f"{lock.name}, {system.name}, Python {_version(python)}: {names}", file=sys.stderr)


def missing(lock: Locked, system: System, python: tuple[int, int], about: Mapping[str, About]) -> str:
    """What keeps the lock from being installed there: the packages that do not take the Python, or have no wheel."""
    packages = [(f"{package.name} {package.version}", wheel) for package, wheel in lock.packages(system, python)]
    refusing = [name for name, _ in packages if not _takes(about.get(name, {}), python)]
    return ", ".join(refusing or [name for name, wheel in packages if wheel is None])


def digest(text: str) -> str:
    """Of a lock file's text; the page has it, so that a test knows whether the page is about the present file."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def _takes(about: About, python: tuple[int, int]) -> bool:
    return SpecifierSet(about.get("python", "")).contains(f"{python[0]}.{python[1]}.0")


def _all_about(locks: Iterable[Locked]) -> dict[str, About]:
    """What every package says that is installed on a promised system, by its name and version."""
    about: dict[str, About] = {}
    for lock in locks:
        for system in SYSTEMS:
            for python in PYTHONS:
                new = [
                    (package, wheel)
                    for package, wheel in lock.packages(system, python)
                    if wheel and system.promised and f"{package.name} {package.version}" not in about
                ]
                about.update(_about(new, python))
    return about


def _about(wheels: list[tuple[Package, PackageWheel]], python: tuple[int, int]) -> dict[str, About]:
    """Have pip read the metadata of these wheels, by their hashes and for this Python. Raises CalledProcessError."""
    if not wheels:
        return {}
    tags = {tag.platform for _, wheel in wheels for tag in parse_wheel_filename(_file(wheel))[-1]} - {"any"}
    with tempfile.TemporaryDirectory() as folder:
        wanted, report = Path(folder) / "wanted.txt", Path(folder) / "report.json"
        wanted.write_text(
            "".join(
                f"{package.name}=={package.version} --hash=sha256:{wheel.hashes['sha256']}\n"
                for package, wheel in wheels
            ),
            encoding="utf-8",
        )
        platforms = [word for tag in sorted(tags) for word in ("--platform", tag)]
        # An old pip compares Requires-Python with the Python that it runs on, whatever --python-version says.
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "--quiet",
                "install",
                "--dry-run",
                "--no-deps",
                "--require-hashes",
                "--only-binary",
                ":all:",
                "--python-version",
                _version(python),
                "--ignore-requires-python",
                *platforms,
                "--target",
                folder,
                "--report",
                str(report),
                "-r",
                str(wanted),
            ],
            check=True,
        )
        found = [one["metadata"] for one in json.loads(report.read_text(encoding="utf-8"))["install"]]
    said = {canonicalize_name(one["name"]): one for one in found}
    return {f"{package.name} {package.version}": _said(said[package.name]) for package, _ in wheels}


def _said(metadata: Mapping[str, object]) -> About:
    names = {"requires": "requires_dist", "extras": "provides_extra", "python": "requires_python"}
    return {name: metadata[key] for name, key in names.items() if metadata.get(key)}  # type: ignore[return-value]


def _file(wheel: PackageWheel) -> str:
    return wheel.name or str(wheel.url).rsplit("/", 1)[-1]


def _page(locks: Iterable[Locked], about: Mapping[str, About]) -> str:
    return _HEAD + "".join(_section(lock, about) for lock in locks)


def _section(lock: Locked, about: Mapping[str, About]) -> str:
    rows = [["System", *map(_version, PYTHONS)], ["---"] * (len(PYTHONS) + 1)]
    notes = ""
    for system in SYSTEMS:
        found = {python: missing(lock, system, python, about) for python in PYTHONS}
        rows.append([system.name, *("no" if found[python] else "yes" for python in PYTHONS)])
        for names in dict.fromkeys(filter(None, found.values())):
            versions = ", ".join(_version(python) for python in PYTHONS if found[python] == names)
            notes += f"* {system.name}, {versions}: {names}\n"
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"\n## {lock.name}\n\n<!-- {lock.name} {digest(lock.hashes)} -->\n\n{table}\n{notes}"


def _version(python: tuple[int, int]) -> str:
    return f"{python[0]}.{python[1]}"
