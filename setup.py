"""Builds the wheel. ``pyproject.toml`` declares what the project is; here is what depends on the folder.

A clone's ``Public`` also has its owner's files, with keys in them, so only files that git tracks are taken; a source
archive has no others. The same commit gives the same wheel, byte for byte, with the same Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
# Packages in the wheel, and the folders of the project that they are made from. utilities/config/paths.py finds them.
SHIPPED = {"Middleware.shipped.Public": "Public", "Middleware.shipped.Docs": "Docs"}


def git(*words: str) -> str:
    """Return the output of git; "" where the project is not a clone. Raises SystemExit if a clone cannot be read."""
    if not (ROOT / ".git").exists():
        return ""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, encoding="utf-8")
    except OSError as error:
        raise SystemExit(f"ERROR: To build a clone, git must tell which files are the project's: {error}") from error
    if done.returncode:
        raise SystemExit(f"ERROR: To build a clone, git must tell which files are the project's: {done.stderr.strip()}")
    return done.stdout


@cache
def tracked() -> frozenset[str]:
    """Return the paths of the files that git tracks; nothing where the project is not a clone."""
    return frozenset(filter(None, git("ls-files", "-z").split("\0")))


def is_own(path: str) -> bool:
    """Return whether a file is the project's, not one that the owner of a clone or a program has added."""
    return "__pycache__" not in path and (not tracked() or Path(path).as_posix() in tracked())


class TrackedFiles(build_py):
    """Takes only the project's own files, and begins with an empty folder."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        return [found for found in super().find_package_modules(package, package_dir) if is_own(found[2])]

    def find_data_files(self, package: str, src_dir: str) -> list[str]:
        return sorted(filter(is_own, super().find_data_files(package, src_dir)))


class SameForAll(bdist_wheel):
    """Gives files the same permissions, whatever those of the folder are."""

    def write_wheelfile(self, wheelfile_base: str, *words: str) -> None:
        super().write_wheelfile(wheelfile_base, *words)
        for path in filter(Path.is_file, Path(self.bdist_dir).rglob("*")):
            path.chmod(0o644)


# The time in the wheel: that of the commit, or of the source archive.
os.environ.setdefault(
    "SOURCE_DATE_EPOCH", git("log", "-1", "--format=%ct").strip() or str(int((ROOT / "pyproject.toml").stat().st_mtime))
)

setup(
    packages=[*find_packages(include=["Middleware", "Middleware.*"]), *SHIPPED],
    package_dir=SHIPPED,
    cmdclass={"build_py": TrackedFiles, "bdist_wheel": SameForAll},
)
