"""The old installation: a copy of the tree beside this file, moved to a folder of its own, and what is said to it."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from Middleware.utilities.config.json_source import legacy_code_page
from Tests.integration.client_dialects import FRONTS, Heard, Turn
from Tests.integration.launcher import PROJECT, Launcher
from Tests.integration.old_configuration.backend import role_of
from Tests.stub_backend import RecordedRequest, StubBackend
from Tests.workflows.engine_lab import until

HERE = Path(__file__).parent
PARTS = ("Configs", "DiscussionIds", "Scripts", "notes")
MCP_SERVER = PROJECT / "Tests" / "workflows" / "tools" / "mcp" / "plain_mcp_server.py"
OLD_ENCODINGS = {
    "Configs/Users/archivist.json": "utf-8-sig",
    "Configs/Workflows/old-timer/Coding.json": "utf-8-sig",
    "Configs/Users/curator.json": "legacy",
    "Configs/Workflows/_overrides/curation/Chat.json": "legacy",
}
"""What editors of their time stored otherwise than as plain UTF-8; here it is UTF-8, so that any editor may open it."""
OLD_LINE_ENDS = ("Configs/Endpoints/Home-Server/SmallModel.json", "Configs/PromptTemplates/chatml-old.json")
SETTINGS_KEYS = ("discussionIdMemoryFileWorkflowSettings", "contextCompactorSettingsFile")
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
LOCK_TABLE = (
    "CREATE TABLE WorkflowLocks (Id INTEGER PRIMARY KEY AUTOINCREMENT, WilmerSessionId NVARCHAR(50), "
    "WorkflowId NVARCHAR(50), WorkflowLockId NVARCHAR(500), ExpirationDate DATETIME)"
)
_SUMMARY = re.compile(
    r"=== Workflow Node Execution Summary: ((.+)\.json \(request .+\)) ===\n((?:Node .+\n)+)"
    r"=== End of Summary: \1 ==="
)
_NODE = re.compile(r"Node (\d+): (\S+) \|\| '(.*)' \|\| \S+ \|\| \S+ \|\| [\d.]+ seconds?(?: \|\| .+)?$")


@dataclass(frozen=True)
class Installation:
    """The copy in ``root``, whose addresses and paths are those of this machine."""

    root: Path

    @property
    def configs(self) -> Path:
        return self.root / "Configs"

    @property
    def discussions(self) -> Path:
        return self.root / "DiscussionIds"

    def read(self, name: str) -> Any:
        """A JSON file of the conversations."""
        return json.loads((self.discussions / name).read_text(encoding="utf-8"))

    def config_bytes(self) -> dict[str, bytes]:
        """Every file of the configuration tree with its content."""
        return {
            path.relative_to(self.root).as_posix(): path.read_bytes()
            for path in sorted(self.configs.rglob("*"))
            if path.is_file()
        }


def install(root: Path, backend: StubBackend) -> Installation:
    """Copy the tree, with the addresses of ``backend`` and the paths below ``root`` in place of the old ones."""
    moved = {
        "http://127.0.0.1:5001": backend.url,
        "5728": str(backend.port),
        "8890": str(backend.port),
        "/old/wilmer": root.as_posix(),
        "old-python": Path(sys.executable).as_posix(),
    }
    places = re.compile("|".join(map(re.escape, moved)))  # in one go: what comes in may look like what goes
    for part in PARTS:
        shutil.copytree(HERE / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    for path in sorted((root / "Configs").rglob("*.json")):
        text = places.sub(lambda found: moved[found[0]], path.read_text(encoding="utf-8"))
        name = path.relative_to(root).as_posix()
        encoding = OLD_ENCODINGS.get(name, "utf-8")
        data = text.encode(legacy_code_page() if encoding == "legacy" else encoding)
        path.write_bytes(data.replace(b"\n", b"\r\n") if name in OLD_LINE_ENDS else data)
    shutil.copyfile(MCP_SERVER, root / "Scripts" / "notes_server.py")
    _leave_a_lock(root / "Locks" / "WilmerDb.archivist.sqlite", "MemoryLock")
    return Installation(root)


def _leave_a_lock(path: Path, name: str) -> None:
    """The lock database of a server that was killed while it held a lock."""
    path.parent.mkdir()
    expires = (datetime.now() + timedelta(minutes=9)).strftime("%Y-%m-%d %H:%M:%S.%f")
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(LOCK_TABLE)
        database.execute(
            "INSERT INTO WorkflowLocks (WilmerSessionId, WorkflowId, WorkflowLockId, ExpirationDate) "
            "VALUES ('dead-session', 'dead-run', ?, ?)",
            (name, expires),
        )


# -- what there is to run ----------------------------------------------------------------------------------------------

Nodes = tuple[tuple[str, str], ...]
"""Type and name of each node."""


def workflow_files() -> dict[str, tuple[str, Nodes]]:
    """Every workflow file below ``Workflows``, with its name and nodes as an execution summary tells them."""
    folder = HERE / "Configs" / "Workflows"
    settings = set(_settings_files())
    found = {}
    for path in sorted(folder.rglob("*.json")):
        if path.stem in settings:
            continue
        content = json.loads(path.read_text(encoding="utf-8"))
        nodes = content if isinstance(content, list) else content["nodes"]
        found[path.relative_to(folder).as_posix()] = (path.stem, tuple(map(_shown, nodes)))
    return found


def _settings_files() -> Iterator[str]:
    for path in (HERE / "Configs" / "Users").glob("*.json"):
        user = json.loads(path.read_text(encoding="utf-8"))
        yield from (user[key] for key in SETTINGS_KEYS if user.get(key))


def _shown(node: dict[str, Any]) -> tuple[str, str]:
    kind, name = node.get("type", "Standard"), node.get("title") or node.get("agentName") or "N/A"
    if kind == "CustomWorkflow":
        name += f" -> {node['workflowName']}"
    if kind == "ConditionalCustomWorkflow":
        name += f" -> [{', '.join(node['conditionalWorkflows'].values())}]"
    return "Standard" if kind == "Sandard" else kind, name


def executed(log: str) -> set[tuple[str, Nodes]]:
    """The runs that the log tells of: the workflow's name, lower case and without folder, with the nodes that ran."""
    runs = set()
    for _, name, lines in _SUMMARY.findall(log):
        nodes = [_NODE.match(line) for line in lines.splitlines()]
        assert all(nodes), lines
        runs.add((_plain(name), tuple((node[2], node[3]) for node in nodes if node)))
    return runs


def never_run(log: str, files: Iterable[str]) -> list[str]:
    """Which of the workflow files no run executed from the first node to the last."""
    runs, known = executed(log), workflow_files()
    return [file for file in files if (_plain(known[file][0]), known[file][1]) not in runs]


def _plain(name: str) -> str:
    return name.rpartition("/")[2].lower()


# -- what is said ------------------------------------------------------------------------------------------------------

MODES = [
    (front, stream)
    for front in ("OpenAI chat", "Ollama chat", "OpenAI text", "Ollama generate")
    for stream in (False, True)
]
"""Every dialect, whole and streamed."""
CHAT_MODES = 4


def said(number: int) -> str:
    """A message of the client, the user's if the number is even."""
    return f"#{number}# some {'{words}' if number == 3 else 'words'} about the mill"


@dataclass(frozen=True)
class Case:
    """A conversation with one model id.

    Attributes:
        answer: what it must answer.
        discussion: the name of the conversation in the first mode; the others get names of their own.
        messages: how many there are apart from the system message.
        modes: in how many of ``MODES`` it is held.
    """

    model: str
    answer: str
    topic: str = ""
    discussion: str = ""
    messages: int = 3
    picture: bool = False
    modes: int = CHAT_MODES

    def __str__(self) -> str:
        return f"{self.model} {self.topic}".strip()

    def turns(self, mode: int) -> list[Turn]:
        name = self.discussion + (f"-{mode}" if mode else "")
        tag = f"[DiscussionId]{name}[/DiscussionId]" if self.discussion else ""
        texts = [said(index) for index in range(self.messages)]
        if self.topic:
            texts[-1] = f"Topic: {self.topic}."
        turns = [Turn(("user", "assistant")[index % 2], text) for index, text in enumerate(texts)]
        if self.picture:
            turns[-1] = Turn("user", texts[-1], image=PIXEL)
        return [Turn("system", f"{tag}Be kind."), *turns]


@dataclass(frozen=True)
class Exchange:
    """A case in one mode: what the client heard, and what the back-end was asked until all nodes had run."""

    case: Case
    mode: int
    heard: Heard
    asked: Sequence[RecordedRequest] = field(repr=False)

    def request(self, role: str) -> RecordedRequest:
        """The only request to the model of that role (or to that path)."""
        [found] = self.requests(role)
        return found

    def requests(self, role: str) -> list[RecordedRequest]:
        return [request for request in self.asked if role_of(request) == role]

    @property
    def roles(self) -> list[str]:
        return [role_of(request) for request in self.asked]


def talk(server: Launcher, backend: StubBackend, cases: Iterable[Case]) -> list[Exchange]:
    """Every case in every mode, one behind the other, each with all its nodes."""
    return [_exchange(server, backend, case, mode) for case in cases for mode in range(case.modes)]


def _exchange(server: Launcher, backend: StubBackend, case: Case, mode: int) -> Exchange:
    name, stream = MODES[mode]
    front, asked, printed = FRONTS[name], len(backend.requests), server.output_size()
    response = server.request("POST", front.path, front.body(case.model, case.turns(mode), stream))
    heard = front.read(response, stream)
    until(lambda: "done after" in server.output(printed), 10)
    return Exchange(case, mode, heard, backend.requests[asked:])
