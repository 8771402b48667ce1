"""What a row is tried in: a copy of the program as a clone or an image has it, its configuration, and its back-end."""

from __future__ import annotations

import configparser
import json
import os
import plistlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from Tests.backend_dialects import Answer, dialect_of, speak
from Tests.doors.calls import QUESTION
from Tests.doors.network import LAN
from Tests.doors.rows import KEY, KEYS, Row
from Tests.integration.launcher import (
    LAUNCHERS,
    NO_MARKS,
    PROJECT,
    ConfigTree,
    api_type,
    clean_environment,
    endpoint,
    llm_node,
)
from Tests.integration.shipped_users import copy_of_shipped
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, json_reply

USERS = ("me", "ann", "alice", "bob", "story")
_FILES = (*LAUNCHERS, "run_linux.sh", "run_macos.sh", "requirements.lock", "requirements-database.lock", "LICENSE")
_FOLDERS = ("Middleware", "Scripts", "deploy")


def reply(request: RecordedRequest) -> Reply:
    """Say the question again, if the request holds it, in the dialect of the path."""
    if dialect_of(request) is None:
        return json_reply({"success": True})
    text = f"You said: {QUESTION}" if QUESTION in json.dumps(request.json, ensure_ascii=False) else "You said nothing."
    return speak(request, Answer(tokens=re.findall(r"\S+\s*", text), usage=False))


# -- the program -------------------------------------------------------------------------------------------------------
def make_clone(clone: Path) -> None:
    """Copy the program, with an environment that is complete. The places of rows are made from it, by links."""
    # Otherwise each server would compile it for itself, which takes as long as its start.
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "Middleware", "deploy"],
        cwd=PROJECT,
        check=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
    )
    for name in _FOLDERS:
        shutil.copytree(PROJECT / name, clone / name)
    for name in _FILES:
        shutil.copy2(PROJECT / name, clone / name)
    python = clone / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    if os.name == "posix":
        # As the environment of the tests, which has all packages.
        prefix = Path(sys.prefix)
        python.symlink_to(sys.executable)
        (clone / "venv" / "lib").symlink_to(prefix / "lib")
        if (prefix / "pyvenv.cfg").is_file():
            shutil.copy2(prefix / "pyvenv.cfg", clone / "venv" / "pyvenv.cfg")
    shutil.copy2(clone / "requirements.lock", clone / "venv" / "installed-requirements.lock")


@dataclass
class Place:
    """The folder of one server, as a user has it.

    Attributes:
        app: the program's folder.
        folder: the one that stands for ``FOLDER`` in a row's flags.
        database: the address of an empty database, if the row needs one.
        environment: variables that are set.
    """

    row: Row
    app: Path
    folder: Path
    database: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def python(self) -> str:
        return str(self.app / "venv" / "bin" / "python") if os.name == "posix" else sys.executable

    @property
    def flags(self) -> list[str]:
        """The row's flags, with what their placeholders stand for."""
        values = {
            "/home/ann/old-wilmer": str(self.folder / "old-wilmer"),
            "FOLDER": str(self.folder),
            "CONFIGS": str(self.folder / "Configs"),
            "USER": "ann",
            "DATABASE": self.database,
            "192.168.1.5": LAN,
        }
        return [_replaced(word, values) for word in self.row.flags.split()]


def _replaced(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        if word.startswith(name):
            return value + word[len(name) :]
    return word


def prepare(row: Row, clone: Path, folder: Path, backend: StubBackend, database: str) -> Place:
    """Make the place of a row in an empty folder."""
    place = Place(row, folder / "app", folder, database, dict(clean_environment()))
    shutil.copytree(clone, place.app, copy_function=os.link, symlinks=True)
    public = place.app / "Public"
    if "demo" in row.needs:
        shutil.copytree(
            PROJECT / "Public",
            public,
            ignore=shutil.ignore_patterns("DiscussionIds", "SqlLiteDBs", "logs", "Console", "accepted-keys.txt"),
        )
    elif "shipped" in row.needs:
        copy_of_shipped(public, backend)
    else:
        for configured in (public, folder / "old-wilmer" / "Public", folder):
            configure(configured, backend.url)
    if database:
        place.environment["WILMER_DATABASE_URL"] = database
    keys = place.app / KEYS
    keys.write_text(f"{KEY}\n", "utf-8")
    keys.chmod(0o600)
    return place


def configure(public: Path, url: str) -> None:
    """Write users, each with one workflow that asks the back-end."""
    tree = ConfigTree(public)
    tree.write("Users/_current-user.json", {"currentUser": USERS[0]})
    tree.write("PromptTemplates/_chatonly.json", NO_MARKS)
    tree.write("Endpoints/Stub.json", endpoint(url))
    tree.write("ApiTypes/Chat.json", api_type())
    tree.write("Presets/Chat/Plain.json", {"temperature": 0.5})
    for user in USERS:
        tree.write(
            f"Users/{user}.json",
            {"customWorkflowOverride": True, "customWorkflow": "Chat", "chatPromptTemplateName": "_chatonly"},
        )
        tree.write(f"Workflows/{user}/Chat.json", {"nodes": [llm_node("chat", returnToUser=True)]})


# -- what starts it ----------------------------------------------------------------------------------------------------
Starter = Callable[[Place, list[str]], list[str]]


def command(place: Place, by: str, *more: str) -> list[str]:
    """Return the command line of a row with ``more`` flags; it may change the environment and folders of its place."""
    flags = [*place.flags, *more]
    if by.endswith(".service"):
        return _of_unit(place, by, flags)
    return STARTERS[by](place, flags)


def _of_launcher(launcher: str) -> Starter:
    return lambda place, flags: [place.python, launcher, *flags]


def _of_unit(place: Place, file: str, flags: Sequence[str]) -> list[str]:
    """Return what systemd runs for a unit, its number 1 if there may be several."""
    unit = configparser.ConfigParser(interpolation=None, delimiters="=", comment_prefixes="#")
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(PROJECT / file, encoding="utf-8")
    service = unit["Service"]
    for pair in shlex.split(service["Environment"]):
        name, _, value = pair.partition("=")
        place.environment[name] = value
    return [*(_in_clone(place, word.replace("%i", "1")) for word in shlex.split(service["ExecStart"])), *flags]


def _of_agent(place: Place, flags: list[str]) -> list[str]:
    """Return what launchd runs. Its PATH holds folders of macOS."""
    agent = plistlib.loads((PROJECT / "deploy" / "wilmerai.plist").read_bytes())
    variables = dict(agent["EnvironmentVariables"])
    variables["PATH"] = f"{variables['PATH']}{os.pathsep}{os.environ['PATH']}"
    place.environment.update(variables)
    return [*(_in_clone(place, word) for word in agent["ProgramArguments"]), *flags]


def _in_clone(place: Place, word: str) -> str:
    for installed in ("/opt/wilmerai", "%h/WilmerAI", "/Users/YOU/WilmerAI"):
        word = word.replace(installed, str(place.app))
    return word


def _of_container(place: Place, flags: list[str]) -> list[str]:
    """Return the image's entry point, in a folder like its ``/app``: the first start fills the volume ``Public``."""
    dockerfile = (PROJECT / "Dockerfile").read_text(encoding="utf-8")
    public, defaults = place.app / "Public", place.app / "Defaults"
    keys = (public / Path(KEYS).name).read_bytes()
    public.rename(defaults)
    public.mkdir()
    if "--accepted-keys-file" in flags:
        (public / Path(KEYS).name).write_bytes(keys)
    (defaults / Path(KEYS).name).unlink()
    variables = re.search(r"^ENV ((?:.*\\\n)*.*)$", dockerfile, re.MULTILINE)
    assert variables is not None
    for pair in shlex.split(variables[1].replace("\\\n", " ")):
        name, _, value = pair.partition("=")
        place.environment[name] = value
    words = re.search(r"^ENTRYPOINT (\[.*\])$", dockerfile, re.MULTILINE)
    assert words is not None and "\nCMD []\n" in dockerfile
    program, *rest = json.loads(words[1])
    assert program == "python"
    return [place.python, *rest, *flags]


def _of_other_host(place: Place, flags: list[str]) -> list[str]:
    return [place.python, "-m", "waitress", *flags, "server:application"]


STARTERS: dict[str, Starter] = {
    **{launcher: _of_launcher(launcher) for launcher in LAUNCHERS},
    "run_linux.sh": lambda place, flags: ["bash", "run_linux.sh", *flags],
    "deploy/wilmerai.plist": _of_agent,
    "container": _of_container,
    "waitress-serve": _of_other_host,
}


def nginx_configuration(folder: Path, upstream: str, blocks: dict[int, str]) -> str:
    """Return a configuration with a server for each block, on the port that is its key, as the pages write it."""
    places = "".join(
        f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    servers = "".join(
        f"server {{ listen {port}; listen [::]:{port};\n{block.replace('...', '')} }}\n"
        for port, block in blocks.items()
    ).replace("127.0.0.1:5000", upstream)
    return (
        f"daemon off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{places}{servers}}}\n"
    )


def nginx_blocks() -> list[str]:
    """Return the blocks for nginx on the pages about proxies, in their order."""
    from Tests.docs.pages import all_pages

    return [
        fence.text
        for name in ("Docs/User/reverse-proxy.md", "Docs/User/network-access.md")
        for fence in all_pages()[name].fences
        if fence.text.startswith("location ")
    ]


def run_quietly(words: Sequence[str], place: Path, log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a program whose output goes to a file."""
    with log.open("wb") as output:
        return subprocess.Popen(
            words, cwd=place, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
