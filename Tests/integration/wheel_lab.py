"""The wheel of a clone, and an installation of it: an environment of its own and a home, without the network.

What the wheel needs is that of the tests: their packages are visible from the environment.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from Tests.integration.launcher import PROJECT, Launcher, clean_environment, home_environment

BUILD = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]


def git(folder: Path, *words: str) -> str:
    named = ["git", "-c", "user.name=n", "-c", "user.email=n@example.com", *words]
    return subprocess.run(named, cwd=folder, check=True, capture_output=True, encoding="utf-8").stdout


def tracked(folder: Path) -> list[str]:
    """The files that git tracks."""
    return [name for name in git(folder, "ls-files", "-z").split("\0") if name]


def repository(folder: Path) -> Path:
    """A repository with the tracked files of this project, as they are now."""
    for name in tracked(PROJECT):
        if (PROJECT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, folder / name)
    git(folder, "init", "-q")
    git(folder, "add", "--force", ".")
    git(folder, "commit", "-qm", "All")
    return folder


def build(source: Path, target: Path, **environment: str) -> Path:
    """Build the wheel of a folder as pip does; returns its file."""
    done = subprocess.run(
        [*BUILD, "--wheel-dir", str(target), str(source)],
        encoding="utf-8",
        timeout=300,
        capture_output=True,
        env={**clean_environment(), **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = target.glob("*.whl")
    return wheel


class Installation:
    """An environment with the command ``wilmerai`` of a wheel, a home, and a working directory apart from both."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.root = folder / "env"
        venv.create(self.root, with_pip=False, symlinks=os.name != "nt")
        scripts = self.root / ("Scripts" if os.name == "nt" else "bin")
        self.python, self.program = scripts / "python", scripts / ("wilmerai.exe" if os.name == "nt" else "wilmerai")
        words = [str(self.python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        self.packages = Path(subprocess.run(words, check=True, capture_output=True, encoding="utf-8").stdout.strip())
        (self.packages / "of-the-tests.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
        self.install(wheel)
        self.move(folder)

    def move(self, folder: Path) -> None:
        """Take another home and another working directory, both empty and below ``folder``."""
        self.home, self.elsewhere = folder / "home", folder / "elsewhere"
        for made in (self.home, self.elsewhere):
            made.mkdir(parents=True)

    @property
    def public(self) -> Path:
        """The folder for data that it uses if nothing else is said."""
        return {"win32": self.home / "AppData/Local", "darwin": self.home / "Library/Application Support"}.get(
            sys.platform, self.home / ".local/share"
        ) / "wilmerai"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a user who has entered the environment."""
        return {
            **clean_environment(),
            **home_environment(self.home),
            "PATH": f"{self.program.parent}{os.pathsep}{os.environ['PATH']}",
        }

    def install(self, wheel: Path) -> None:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "--python",
                str(self.python),
                "install",
                "--no-deps",
                "--no-index",
                "--force-reinstall",
                str(wheel),
            ],
            capture_output=True,
            encoding="utf-8",
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, *words: str | os.PathLike[str], **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        return self.run_python(str(self.program), *words, **environment)

    def run_python(self, *words: str | os.PathLike[str], **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.python), *map(os.fspath, words)],
            cwd=self.elsewhere,
            timeout=120,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            env={**self.environment, **environment},
        )

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Take the right to write from all that is installed, and see that it was not used in the block.

        The administrator may write all the same, so the content is compared, too.
        """
        before, paths = self._content(), [self.packages, *self.packages.rglob("*")]
        for path in paths:
            path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
        try:
            yield
        finally:
            for path in paths:
                path.chmod(path.stat().st_mode | stat.S_IWUSR)
        assert self._content() == before

    def _content(self) -> dict[str, str]:
        return {
            path.relative_to(self.root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in self.root.rglob("*")
            if path.is_file()
        }


class InstalledServer(Launcher):
    """The server that the command of an installation starts."""

    def __init__(self, installation: Installation, *arguments: str | os.PathLike[str]) -> None:
        super().__init__("wilmerai", *arguments, folders=(installation.elsewhere, installation.home))
        self._installation = installation

    def command(self) -> list[str]:
        return [str(self._installation.python), str(self._installation.program)]
