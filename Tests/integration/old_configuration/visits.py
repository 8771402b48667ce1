"""Who is asked what in the old installation, and a server that is asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from Tests.integration.launcher import Launcher
from Tests.integration.old_configuration.backend import old_backend
from Tests.integration.old_configuration.installation import MODES, Case, Exchange, Installation, install, talk

USERS = ("Old-Timer", "Minimal", "archivist", "curator", "tinkerer", "sharer", "teamster")
MODELS = ("claude", "llamacpp", "mlx", "webui", "ollama", "llava", "completer", "blocker")
OLD_TIMER = (
    Case("Old-Timer", "The companion answers.", "NOTHING"),
    Case("Old-Timer", "The coder answers.", "CODING"),
    Case("Old-Timer", "Deep answer.", "REASONING"),
    Case("Old-Timer", "The librarian answers.", "FACTUAL"),
    Case("Old-Timer", "The novelist answers.", "CREATIVE WRITING"),
    Case("Old-Timer", " ".join(f"The {name} answers." for name in MODELS), "MODELS"),
)
SHARER = (
    Case("sharer:Quick", "The quick one answers."),
    Case("sharer:general", "The model answers."),
    Case("sharer:self-contained", "The teller answers."),
    Case("sharer:_hidden", "The ghost answers."),
)
ALL = (
    *OLD_TIMER,
    Case("Minimal", "The minimalist answers.", modes=len(MODES)),
    Case("archivist", "The storyteller answers.", discussion="old-chat", messages=9),
    Case("curator", "The guide answers.", discussion="cafe", messages=5),
    Case("tinkerer", "The smith answers.", discussion="old-tools", messages=5, picture=True),
    *SHARER,
    Case("sharer", "The doorman answers."),
    Case("teamster:review", "The reviewer answers."),
)
LISTED = [
    "Old-Timer",
    "Minimal",
    "archivist",
    "curator",
    "tinkerer",
    "sharer:Quick",
    "sharer:general",
    "sharer:self-contained",
    "teamster:review",
]


@dataclass(frozen=True)
class Visit:
    """A server with the old configuration, after all that was said to it."""

    home: Installation
    before: dict[str, bytes]
    exchanges: list[Exchange]
    models: Any
    tags: Any
    log: str

    def of(self, model: str, topic: str = "", mode: int = 0) -> Exchange:
        [found] = [
            exchange
            for exchange in self.exchanges
            if exchange.mode == mode and (exchange.case.model, exchange.case.topic) == (model, topic)
        ]
        return found

    def sent(self, model: str, topic: str, role: str, mode: int = 0) -> Any:
        """The body of the only request to that model."""
        return self.of(model, topic, mode).request(role).json


def visit(root: Path, cases: tuple[Case, ...], script: str, *arguments: str) -> Visit:
    """Install in ``root``, start ``script``, and have every conversation. ``CONFIGS`` in arguments is the tree."""
    with old_backend() as backend:
        home = install(root, backend)
        before = home.config_bytes()
        words = [word.replace("CONFIGS", str(home.configs)) for word in arguments]
        with Launcher(script, *words, "--PublicDirectory", root / "Public", "--concurrency", "0") as server:
            models, tags = (server.request("GET", path).json for path in ("/v1/models", "/api/tags"))
            exchanges = talk(server, backend, cases)
            log = server.output()
    return Visit(home, before, exchanges, models, tags, log)
