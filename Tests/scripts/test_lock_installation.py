"""Each lock file is installed by this environment's pip, the oldest that people have, while newer releases are out.

The index is a folder of packages without files. Each has the metadata of the package that is locked
(``locked_packages.json``, which ``Scripts.generate.lock_requirements`` records), once in the locked version and once in
a newer one, which pip takes for every requirement that the lock does not answer.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from Scripts.generate.lock_platforms import PACKAGES
from Scripts.generate.lock_requirements import LOCKS

ROOT = Path(__file__).resolve().parents[2]
ABOUT = json.loads(PACKAGES.read_text(encoding="utf-8"))
_ENTRY = re.compile(r"^([a-z0-9-]+)((?:\[[^]]*\])?)==(\S+)(?: ; ([^\\\n]+))?", re.MULTILINE)
PIP = version("pip")
REFUSED = "all requirements must have their versions pinned with =="


def wheel(folder: Path, name: str, release: str, about: dict[str, object]) -> str:
    """Write a package without files, and return its SHA-256."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {release}"]
    lines += [f"Provides-Extra: {extra}" for extra in about.get("extras", [])]
    lines += [f"Requires-Dist: {requirement}" for requirement in about.get("requires", [])]
    lines += [f"Requires-Python: {about['python']}"] if "python" in about else []
    file = folder / f"{name.replace('-', '_')}-{release}-py3-none-any.whl"
    info = f"{name.replace('-', '_')}-{release}.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(file.read_bytes()).hexdigest()


def index(folder: Path, lock: str) -> str:
    """Fill a folder with what the lock names, each with a newer release. Returns the lock with their hashes."""
    lines = []
    for name, extras, locked, marker in _ENTRY.findall((ROOT / lock).read_text(encoding="utf-8")):
        about = ABOUT.get(f"{name} {locked}")
        if about is None:  # for none of the systems
            continue
        wheel(folder, name, f"{locked}.post99", about)
        digest = wheel(folder, name, locked, about)
        lines.append(f"{name}{extras}=={locked}{f' ; {marker}' if marker else ''} --hash=sha256:{digest}\n")
    return "".join(lines)


def install(folder: Path, requirements: str) -> subprocess.CompletedProcess[str]:
    """Have pip find all that is needed, as in an empty environment, and install nothing."""
    (folder / "wanted.lock").write_text(requirements, encoding="utf-8")
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--isolated",
            "install",
            "--disable-pip-version-check",
            "--dry-run",
            "--ignore-installed",
            "--no-index",
            "--find-links",
            str(folder),
            "--require-hashes",
            "-r",
            str(folder / "wanted.lock"),
        ],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONUTF8": "1"},
    )


# The coding agent does not take later Pythons.
INSTALLED = [lock for _, lock in LOCKS if "agents" not in lock or sys.version_info < (3, 13)]


def test_this_is_the_oldest_pip() -> None:
    pins = [
        Requirement(line.partition("#")[0])
        for line in (ROOT / "requirements-test.txt").read_text(encoding="utf-8").splitlines()
        if line.startswith("pip==")
    ]
    [oldest] = [str(pin.specifier) for pin in pins if pin.marker and pin.marker.evaluate()]
    assert f"=={PIP}" == oldest, "run bash Scripts/developer/run_tests.sh --prepare-only"


@pytest.mark.slow
@pytest.mark.parametrize("lock", INSTALLED)
def test_it_is_installed_while_newer_releases_are_out(tmp_path: Path, lock: str) -> None:
    done = install(tmp_path, index(tmp_path, lock))
    assert (done.returncode, done.stderr) == (0, "")
    assert "Would install" in done.stdout and ".post99" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-test.lock"])
def test_without_the_extras_a_pip_before_23_3_refuses_it(tmp_path: Path, lock: str) -> None:
    requirements = index(tmp_path, lock)
    without = re.sub(r"^([a-z0-9-]+)\[[^]]*\]", r"\1", requirements, flags=re.MULTILINE)
    done = install(tmp_path, without)
    assert without != requirements
    assert (done.returncode == 1 and REFUSED in done.stderr) == (Version(PIP) < Version("23.3")), done.stderr


@pytest.mark.slow
def test_a_package_that_is_missing_is_noticed_by_every_pip(tmp_path: Path) -> None:
    requirements = index(tmp_path, "requirements-database.lock")
    done = install(tmp_path, re.sub(r"^typing-extensions==.*\n", "", requirements, flags=re.MULTILINE))
    assert done.returncode == 1 and REFUSED in done.stderr and "typing-extensions" in done.stderr
