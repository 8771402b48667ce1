"""Carries out the steps of the ``Dockerfile`` in an empty folder, where no container engine can build it.

    python Scripts/container_steps.py FOLDER                  installs the packages into an environment in FOLDER
    python Scripts/container_steps.py FOLDER --reuse-packages takes those of the Python that runs this

The folder stands for the root of the container: ``/app`` becomes ``FOLDER/app``. ``FROM`` becomes a Python environment,
``COPY`` obeys ``.dockerignore``, ``RUN`` runs in a clean environment, and the rest is noted and printed at the end with
the command line that starts the result. This shows that the steps fit together and that their result runs. It is no
isolation, and only absolute paths of ``WORKDIR`` and ``COPY`` are led into the folder: use it for this Dockerfile, not
for one of a stranger. Needs a POSIX system. Exit status: 0; 1 if a step fails.
"""
from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from Scripts.container_file import DockerfileError, Step, expand, read_steps  # noqa: E402
from Scripts.container_ignore import Ignored  # noqa: E402

PROJECT = Path(__file__).resolve().parents[1]
PYTHON_FOLDER = "python"
STAND_INS = "stand-ins"
KEPT_VARIABLES = ("LANG", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "COVERAGE_PROCESS_START")
PIP_STAND_IN = '''#!{python}
"""Stands for pip: the packages are those of the Python that carries out the steps."""
import os, sys
words = sys.argv[1:]
if words[:1] != ["install"]:
    sys.exit(f"pip {{words[:1]}}: only install is known here")
for flag, name in zip(words, words[1:]):
    if flag in ("-r", "--requirement") and not os.path.getsize(name):
        sys.exit(f"{{name}} is empty")
print("not installed again:", *words[1:])
'''


@dataclass
class Image:
    """What the steps have made.

    Attributes:
        root: the folder that stands for the container's root.
        entrypoint, command, health: words of processes; the first two together start the container.
        user: who should run it.
    """

    root: Path
    base: str = ""
    workdir: str = "/"
    variables: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    user: str = ""
    stop_signal: str = "SIGTERM"
    ports: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)

    def place(self, path: str) -> Path:
        """Where a path of the container lies; relative ones start at the working folder."""
        return self.root / os.path.normpath(os.path.join(self.workdir, path)).lstrip("/")

    @property
    def folder(self) -> Path:
        """The working folder."""
        return self.place(".")

    def environment(self) -> dict[str, str]:
        """What a process of the container finds there; little of this process's own."""
        own = {name: value for name, value in os.environ.items() if name in KEPT_VARIABLES or name.startswith("PIP_")}
        search = [self.root / STAND_INS, self.root / PYTHON_FOLDER / "bin", "/usr/local/bin", "/usr/bin", "/bin",
                  "/usr/local/sbin", "/usr/sbin", "/sbin"]
        return {**own, **self.variables, "PATH": os.pathsep.join(map(str, search))}

    def start_words(self, *words: str) -> list[str]:
        """The words of the process that the container is: its own command, or ``words`` in place of it."""
        return [*self.entrypoint, *(words or self.command)]


class Builder:
    """Carries out steps one after the other.

    Args:
        reuse_packages: the environment sees this Python's packages, and a stand-in takes pip's place.
    """

    def __init__(self, context: Path, root: Path, reuse_packages: bool = False,
                 say: Callable[[str], object] = print) -> None:
        self._context, self._reuse, self._say = context, reuse_packages, say
        self._ignored = Ignored.of(context)
        self.image = Image(root)

    def build(self) -> Image:
        """Raises DockerfileError for a step that fails or is unknown, and OSError."""
        for step in read_steps(self._context / "Dockerfile"):
            action = getattr(self, f"_do_{step.keyword.lower()}", None)
            if action is None:
                raise DockerfileError(f"{step.place}: {step.keyword} is not known to this script")
            if not self.image.base and step.keyword not in ("FROM", "ARG"):
                raise DockerfileError(f"{step.place}: {step.keyword} before FROM")
            self._say(f"{step.keyword} {step.text}")
            action(step)
        return self.image

    def _words(self, step: Step) -> list[str]:
        return step.words({**self.image.arguments, **self.image.variables})

    def _do_from(self, step: Step) -> None:
        self.image.base, *more = self._words(step)
        if more or not self.image.base.startswith("python:"):
            raise DockerfileError(f"{step.place}: only one stage, on an image of Python, can be carried out")
        folder = self.image.root / PYTHON_FOLDER
        venv.create(folder, with_pip=not self._reuse, symlinks=True)
        (self.image.root / STAND_INS).mkdir()
        if self._reuse:
            _share_packages(folder)
            self._stand_in("pip", PIP_STAND_IN.format(python=sys.executable))
        if sys.platform != "win32" and os.geteuid() != 0:  # only root can give files away
            self._stand_in("chown", '#!/bin/sh\necho "$*" >> "$0.log"\n')

    def _stand_in(self, name: str, text: str) -> None:
        file = self.image.root / STAND_INS / name
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)

    def _do_arg(self, step: Step) -> None:
        for word in self._words(step):
            name, _, value = word.partition("=")
            self.image.arguments.setdefault(name, value)

    def _do_env(self, step: Step) -> None:
        for word in self._words(step):
            name, _, value = word.partition("=")
            self.image.variables[name] = value

    def _do_workdir(self, step: Step) -> None:
        self.image.workdir = os.path.join(self.image.workdir, self._words(step)[0])
        self.image.folder.mkdir(parents=True, exist_ok=True)

    def _do_copy(self, step: Step) -> None:
        *sources, target = self._words(step)
        if set(step.flags) - {"chown", "chmod"} or not sources:
            raise DockerfileError(f"{step.place}: this form of COPY is not known to this script")
        into = target.endswith("/") or target == "."
        if len(sources) > 1 and not into:
            raise DockerfileError(f"{step.place}: with several sources the target must end with a slash")
        for source in sources:
            self._copy(step, source.strip("/"), self.image.place(target), into)

    def _copy(self, step: Step, source: str, target: Path, into: bool) -> None:
        """A folder's content goes to ``target``; a file goes into it or becomes it."""
        files = list(self._ignored.files(self._context, source))
        if not files:
            raise DockerfileError(f"{step.place}: {source} is not there, or .dockerignore leaves it out")
        is_folder = (self._context / source).is_dir()
        for file in files:
            below = os.path.relpath(file, source) if is_folder else os.path.basename(file) if into else ""
            place = target / below
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self._context / file, place)

    def _do_run(self, step: Step) -> None:
        environment = {**self.image.environment(), **self.image.arguments}
        status = subprocess.run(step.command(), cwd=self.image.folder, env=environment,
                                stdin=subprocess.DEVNULL).returncode
        if status:
            raise DockerfileError(f"{step.place}: exit status {status}")

    def _do_healthcheck(self, step: Step) -> None:
        keyword, _, text = step.text.partition(" ")
        if keyword.upper() != "CMD":
            raise DockerfileError(f"{step.place}: HEALTHCHECK without CMD")
        self.image.health = Step("CMD", text.strip()).command()

    def _do_entrypoint(self, step: Step) -> None:
        self.image.entrypoint, self.image.command = step.command(), []

    def _do_cmd(self, step: Step) -> None:
        self.image.command = step.command()

    def _do_user(self, step: Step) -> None:
        self.image.user = self._words(step)[0]

    def _do_stopsignal(self, step: Step) -> None:
        self.image.stop_signal = expand(step.text, self.image.variables)

    def _do_expose(self, step: Step) -> None:
        self.image.ports += self._words(step)

    def _do_volume(self, step: Step) -> None:
        for word in self._words(step):
            self.image.volumes.append(word)
            self.image.place(word).mkdir(parents=True, exist_ok=True)

    def _do_label(self, step: Step) -> None:
        """Says nothing about what runs."""


def _share_packages(folder: Path) -> None:
    """Have an environment find the packages of the Python that runs this, too."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    places = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    file = folder / "lib" / version / "site-packages" / "shared.pth"
    file.write_text("\n".join(sorted(places)) + "\n", encoding="utf-8")


def build(context: Path, folder: Path, reuse_packages: bool = False, say: Callable[[str], object] = print) -> Image:
    """Carry out the Dockerfile of ``context`` in ``folder``, which must be empty or missing.

    Raises DockerfileError and OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise DockerfileError(f"{folder} is not empty")
    return Builder(context, folder.resolve(), reuse_packages, say).build()


def describe(image: Image) -> list[str]:
    """What a person does with the result."""
    variables = [f"{name}={value}" for name, value in image.environment().items()]
    start = shlex.join(["env", "-i", *variables, *image.start_words()])
    return ["", f"Meant for user {image.user or 'root'}, ports {', '.join(image.ports) or 'none'}, volumes "
            f"{', '.join(image.volumes) or 'none'}, ended by {image.stop_signal}. It starts with:",
            f"cd {shlex.quote(str(image.folder))} && {start}"]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Carries out the steps of the Dockerfile in an empty folder.")
    parser.add_argument("folder", type=Path, help="the empty folder that stands for the container's root")
    parser.add_argument("--reuse-packages", action="store_true", help="install nothing; use this Python's packages")
    words = parser.parse_args(argv)
    try:
        print(*describe(build(PROJECT, words.folder, words.reuse_packages)), sep="\n")
    except (DockerfileError, OSError) as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
