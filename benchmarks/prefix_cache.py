"""How many tokens of prompts a server with a prompt cache reads per turn, for each workflow of a table.

    python benchmarks/prefix_cache.py [--real LLAMA_SERVER MODEL] [--only router,game] [--turns 20]
    python benchmarks/prefix_cache.py --check

Each workflow leads a conversation of 20 turns, of which the client sends the whole each time, and every call goes to
several caches at once: one slot, two and four, with and without a host cache (llama.cpp's --cache-ram). What the model
says is scripted (benchmarks/cache_backend.py). The caches are a simulation of llama.cpp's; with --real they are servers
of its own kind, started from the binary LLAMA_SERVER with the GGUF file MODEL.

Exit status 1: a workflow reads more than its limit. ``--check`` leads the workflows with several prompts for as long as
it takes to write a memory, and holds them to limits of their own, 5 % above what they read when these were set.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks.cache_backend import MODEL, WINDOW, Cache, CacheBackend, Call, RealCache, SimulatedCache, Words
from Tests.integration.launcher import PROJECT, Launcher, clean_environment, sse_payloads
from Tests.real.servers import llama_server

TURNS = 20
# The first memory is written after the seventh message of the user.
CHECK_TURNS = 8
SYSTEM_WORDS = 1260
QUESTION_WORDS = 80
# Long enough for a memory pass that waits until the user has read the answer.
TURN_SECONDS = 120.0

NAMES = {
    (slots, host): f"{slots} slot{'s' if slots > 1 else ''}{', host cache' if host else ''}"
    for slots in (1, 2, 4)
    for host in (True, False)
}
LIMITED = NAMES[1, True], NAMES[2, False]

# A person stays with a matter for a few messages. Two of five are no plain conversation.
ROUTES = [
    "CONVERSATION",
    *["CODING"] * 2,
    *["CONVERSATION"] * 4,
    *["WRITING"] * 3,
    *["CONVERSATION"] * 3,
    *["CODING"] * 2,
    *["CONVERSATION"] * 3,
    "WRITING",
    "CONVERSATION",
]


class Row(NamedTuple):
    """A workflow of the table, by the user it belongs to and the name that clients select it with.

    ``limits``: the tokens processed per turn with one slot and a host cache, and with two slots and none; ``short``:
    the same for a conversation of ``CHECK_TURNS``, in which the first prompts count for more.
    """

    name: str
    user: str
    model: str
    limits: tuple[int, int] | None = None
    routes: Sequence[str] = ()
    short: tuple[int, int] | None = None


ROWS = {
    row.name: row
    for row in (
        Row("straight", "", MODEL),
        Row("me:chat", "me", "me:chat", (190, 190)),
        Row("chat-ui:general", "chat-ui", "general", (190, 190)),
        Row("me:memory", "me", "me:memory", (700, 950), (), (559, 559)),
        Row("me:assistant", "me", "me:assistant", (1100, 1550), ROUTES, (990, 1055)),
        Row("chat-ui-cot", "chat-ui-cot", "general-reasoning", (800, 800), (), (912, 912)),
        Row("router", "_simple_router_no_memory", "any", (1050, 1300), ["GENERAL"], (623, 623)),
        Row("game", "_example_game_bot_with_file_memory", "any", (1600, 1800), (), (1233, 1233)),
        Row("vector", "_example_assistant_with_vector_memory", "any", (2000, 2700), (), (1710, 1710)),
    )
}


@dataclass(frozen=True)
class Result:
    """The figures of a row, each per turn.

    Attributes:
        read: tokens processed, by cache.
        kinds: calls, by the kind of node.
    """

    row: Row
    turns: int
    calls: float
    new: float
    read: Mapping[str, float]
    kinds: Mapping[str, int]

    def missed(self) -> bool:
        return any(self.read[name] > limit for name, limit in zip(LIMITED, self.row.limits or (), strict=False))


# -- the conversation --------------------------------------------------------------------------------------------------


class Conversation:
    """What a client keeps: a system prompt, and the messages so far."""

    def __init__(self, name: str) -> None:
        self._words = Words(1)
        system = f"[DiscussionId]{name}[/DiscussionId]{self._words.sentences(SYSTEM_WORDS)}"
        self.messages = [{"role": "system", "content": system}]

    def ask(self) -> None:
        text = f"{self._words.sentences(QUESTION_WORDS)} Which {self._words.some(1)}?"
        self.messages.append({"role": "user", "content": text})

    def hear(self, answer: str) -> None:
        self.messages.append({"role": "assistant", "content": answer})


def lead(row: Row, backend: CacheBackend, turns: int) -> Result:
    """Lead the conversation of a row. Raises RuntimeError if a turn fails."""
    first = len(backend.calls)
    conversation = Conversation(re.sub(r"\W", "-", row.name))
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        _server(row, backend, Path(folder)) as server,
    ):
        for turn in range(turns):
            backend.says.route = row.routes[turn % len(row.routes)] if row.routes else ""
            conversation.ask()
            conversation.hear(_turn(server, row.model, conversation, turn + 1))
    return result(row, turns, backend.calls[first:])


def result(row: Row, turns: int, calls: Sequence[Call]) -> Result:
    read = {name: sum(call.reads[name].processed for call in calls) / turns for name in calls[0].reads}
    kinds = {kind: sum(call.kind == kind for call in calls) for kind in dict.fromkeys(call.kind for call in calls)}
    return Result(row, turns, len(calls) / turns, sum(call.new for call in calls) / turns, read, kinds)


class _Straight(Launcher):
    """The back-end itself in place of the program."""

    def __init__(self, port: int) -> None:
        super().__init__("")
        self.port = port

    def __enter__(self) -> _Straight:
        return self


def _server(row: Row, backend: CacheBackend, folder: Path) -> Launcher:
    if not row.user:
        return _Straight(backend.port)
    public = folder / "Public"
    (written_by_init if row.user == "me" else shipped)(public, row.user, backend.url)
    # init asks the model for one token, which is no turn of a conversation.
    backend.calls.clear()
    return Launcher("run_waitress.py", "--PublicDirectory", public, "--User", row.user)


def written_by_init(public: Path, user: str, url: str) -> None:
    """Write what ``init`` writes for this server."""
    public.mkdir()
    subprocess.run(
        [
            sys.executable,
            str(PROJECT / "server.py"),
            "init",
            "--yes",
            "--backend",
            url,
            "--user",
            user,
            "--PublicDirectory",
            str(public),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        env=clean_environment(),
    )


def shipped(public: Path, user: str, url: str) -> None:
    """Copy the shipped configuration, with the address of this server in all endpoints."""
    shutil.copytree(PROJECT / "Public", public, ignore=shutil.ignore_patterns("Discussion*"))
    for path in (public / "Configs" / "Endpoints").rglob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**content, "endpoint": url}), encoding="utf-8")


def _turn(server: Launcher, model: str, conversation: Conversation, number: int) -> str:
    """Return the answer once the nodes after it have ended, too."""
    response = server.request(
        "POST",
        "/v1/chat/completions",
        {"model": model, "stream": True, "messages": conversation.messages},
        TURN_SECONDS,
    )
    if response.status != 200:
        raise RuntimeError(f"Status {response.status}: {response.body[:500]!r}")
    chunks = [json.loads(payload) for payload in sse_payloads(response.body) if payload != "[DONE]"]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk.get("choices", ()))
    if not text:
        raise RuntimeError(f"No answer: {response.body[:500]!r}")
    _wait_for_the_end(server, number)
    return text


def _wait_for_the_end(server: Launcher, turns: int) -> None:
    if isinstance(server, _Straight):
        return
    deadline = time.monotonic() + TURN_SECONDS
    while server.output().count(" done after ") < turns:
        if time.monotonic() > deadline:
            raise RuntimeError("The nodes after the answer do not end:\n" + server.output()[-2000:])
        time.sleep(0.01)


# -- the caches --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def caches(real: Sequence[str] | None, folder: Path) -> Iterator[dict[str, Cache]]:
    """Yield a cache for each setting of the table, empty. ``real``: the binary and the model of servers."""
    with contextlib.ExitStack() as stack:
        made: dict[str, Cache] = {}
        for number, ((slots, host), name) in enumerate(NAMES.items()):
            if not real:
                made[name] = SimulatedCache(slots, host)
                continue
            own = folder / str(number)
            own.mkdir()
            options = ["-c", str(WINDOW * slots), "-np", str(slots), "--cache-ram", "-1" if host else "0", "-t", "1"]
            made[name] = RealCache(
                stack.enter_context(llama_server(own, Path(real[1]), options, binary=Path(real[0]))).url
            )
        yield made


# -- the table ---------------------------------------------------------------------------------------------------------


def table(results: Sequence[Result]) -> Iterator[str]:
    """Yield the lines of the table, in Markdown."""
    yield "| Workflow | Calls | New text | " + " | ".join(NAMES.values()) + " | Limits |"
    yield "|---|--:|--:|" + "--:|" * len(NAMES) + "--:|"
    for found in results:
        limits = " / ".join(f"{limit:,}" for limit in found.row.limits or ()) + (" MISSED" if found.missed() else "")
        yield (
            f"| `{found.row.name}` | {found.calls:.1f} | {found.new:,.0f} | "
            + " | ".join(f"{found.read[name]:,.0f}" for name in NAMES.values())
            + f" | {limits} |"
        )
    yield f"Tokens processed per turn. The limits are those for {LIMITED[0]}, and for {LIMITED[1]}."


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", nargs=2, metavar=("LLAMA_SERVER", "MODEL"), help="servers in place of simulations")
    parser.add_argument("--only", default=",".join(ROWS), help="names of rows, with commas between them")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--check", action="store_true", help="some rows, shorter, with limits for that")
    parser.add_argument("--calls", action="store_true", help="also print what each call read with the first setting")
    options = parser.parse_args(words)
    rows = [ROWS[name] for name in options.only.split(",")]
    if options.check:
        rows, options.turns = [row._replace(limits=row.short) for row in rows if row.short], CHECK_TURNS
    results = []
    for row in rows:
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
            caches(options.real, Path(folder)) as made,
            CacheBackend(made) as backend,
        ):
            results.append(lead(row, backend, options.turns))
            print(f"{row.name}: {dict(results[-1].kinds)}", file=sys.stderr, flush=True)
            for call in backend.calls if options.calls else ():
                print(
                    f"  {call.kind:10}"
                    + "".join(f"{read.processed:6}/{read.prompt:<6}" for read in call.reads.values())
                )
    print("\n".join(table(results)))
    return int(any(found.missed() for found in results))


if __name__ == "__main__":
    sys.exit(main())
