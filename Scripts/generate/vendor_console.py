"""Brings the files of other projects that the pages of the run console use, byte for byte as they were published.

``Middleware/addons/console/static/vendor/vendor.json`` names each package with its version, the integrity that the npm
registry states for it, and the SHA-256 of each file that is taken from it. For a newer version or another file, change
the version there or add the file, make the integrity and the hashes that change empty, and run this with the network
and npm. Empty values are filled in; others must agree with what was fetched::

    python -m Scripts.generate.vendor_console            # fetches all packages and writes their files
    python -m Scripts.generate.vendor_console --check    # without the network: the files are those that are named
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict

from Middleware.cli.standard_streams import run_command

VENDOR = Path(__file__).resolve().parents[2] / "Middleware" / "addons" / "console" / "static" / "vendor"
LIST = "vendor.json"


class Package(TypedDict):
    """One package of the list; ``files``: path in the package -> SHA-256."""

    name: str
    version: str
    license: str
    integrity: str
    files: dict[str, str]


class DifferentFileError(Exception):
    """What was fetched is not what the list says."""


def packages(vendor: Path = VENDOR) -> list[Package]:
    """Return the packages of the list."""
    found: list[Package] = json.loads((vendor / LIST).read_text(encoding="utf-8"))["packages"]
    return found


def problems(vendor: Path = VENDOR) -> Iterator[str]:
    """Yield a sentence for each file that is missing, differs, or is in the folder without being named."""
    named = {LIST}
    for package in packages(vendor):
        if not package["integrity"].startswith("sha512-"):
            yield f"{package['name']}: no integrity of the package is named"
        if not any(Path(path).name.upper().startswith("LICENSE") for path in package["files"]):
            yield f"{package['name']}: its licence is missing"
        for path, expected in package["files"].items():
            file = vendor / package["name"] / path
            named.add(file.relative_to(vendor).as_posix())
            if not file.is_file():
                yield f"{package['name']}: {path} is missing"
            elif _sha256(file.read_bytes()) != expected:
                yield f"{package['name']}: {path} is not the file that was published"
    for file in sorted(vendor.rglob("*")):
        if file.is_file() and (path := file.relative_to(vendor).as_posix()) not in named:
            yield f"{path} belongs to no package of {LIST}"


def renew(vendor: Path = VENDOR) -> None:
    """Fetch all packages, write their files, and fill in what the list has left empty.

    Raises:
        DifferentFileError: if a package or a file is not the one that the list names.
    """
    renewed = packages(vendor)
    for package in renewed:
        with tempfile.TemporaryDirectory() as folder:
            archive = _fetch(package, Path(folder))
            package["integrity"] = _agreed(package["integrity"], _integrity(archive.read_bytes()), package["name"])
            shutil.rmtree(vendor / package["name"], ignore_errors=True)
            with tarfile.open(archive) as content:
                for path, expected in package["files"].items():
                    member = content.extractfile(f"package/{path}")
                    if member is None:
                        raise DifferentFileError(f"{package['name']} has no file {path}")
                    data = member.read()
                    package["files"][path] = _agreed(expected, _sha256(data), f"{package['name']}: {path}")
                    target = vendor / package["name"] / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(data)
    (vendor / LIST).write_text(json.dumps({"packages": renewed}, indent=2) + "\n", encoding="utf-8", newline="\n")


def _fetch(package: Package, folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise DifferentFileError("npm is needed to fetch packages, and it was not found")
    subprocess.run(
        [npm, "pack", "--silent", f"{package['name']}@{package['version']}"],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return next(folder.glob("*.tgz"))


def _agreed(expected: str, found: str, what: str) -> str:
    if expected and expected != found:
        raise DifferentFileError(f"{what} is not what {LIST} names: {found} in place of {expected}")
    return found


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _integrity(data: bytes) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode("ascii")


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m Scripts.generate.vendor_console",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="fetch nothing; exit status 1 if a file differs")
    if not parser.parse_args(argv).check:
        try:
            renew()
        except (DifferentFileError, subprocess.CalledProcessError) as error:
            print(error, file=sys.stderr)
            return 1
    found = list(problems())
    for problem in found:
        print(problem, file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(run_command(main))
