"""Gives every memory of one vector database a vector, so that semantic search finds old ones too.

    python Scripts/backfill_embeddings.py --db PATH/vector_memory.db --url http://127.0.0.1:8080 --model NAME
        [--api-shape openai|ollama] [--api-key KEY] [--batch-size 32] [--timeout 120]

For a conversation in a state database, give ``--database URL --discussion ID`` in place of ``--db``, with the places of
the server, and ``--key-folder`` if a client with an API key has it.

It asks the server at ``--url`` (``/v1/embeddings``, or ``/api/embed`` of Ollama) and fills the gaps of that model,
oldest memories first. ``--model`` must be the ``modelNameToSendToAPI`` of the endpoint that searches use. What was done
stays when it is stopped; run it again to go on. A memory of which the server makes no vector, though it does of others,
is skipped and named. Exit status: 0 when nothing remains, 1 otherwise, 2 for wrong arguments. Encrypted databases
cannot be read without their key, and are refused.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sqlite3
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from Middleware.addons.postgres.addon import require_database_packages
from Middleware.addons.postgres.database_address import DATABASE_VARIABLE, chosen_database
from Middleware.cli.arguments import apply_directories
from Middleware.cli.program import StartError
from Middleware.cli.standard_streams import run_command
from Middleware.exceptions import DataKeyError, WilmerError
from Middleware.utilities import sqlite
from Middleware.utilities.discussion_state import MEMORIES
from Middleware.utilities.discussions.discussion_folder import stored_discussion
from Middleware.utilities.discussions.vector_memory import MemoryRow, SearchableMemories, VectorMemories, schema
from Middleware.utilities.discussions.vector_memory.schema import is_token
from Middleware.utilities.http.client import HttpClient
from Middleware.utilities.http.problems import HttpError
from Middleware.utilities.http.wire import HttpRequest, parse_target
from Middleware.utilities.vector_math_utils import vector_to_blob

MOST_FAILURES = 3
PAUSE = 1.0  # seconds after a failure
PATHS = {"openai": "/v1/embeddings", "ollama": "/api/embed"}
_HARMLESS = "memory"  # a text that any model takes
_SHOWN = 300  # characters of a server's complaint
_ENCRYPTED = (
    "this database is encrypted, and its memories cannot be read without the API key they were stored with. "
    "WilmerAI embeds them itself while the client is talking (memory setting embeddingBackfillBatchSize)."
)

Lock = Callable[[], contextlib.AbstractContextManager[None]]
"""Keeps a server from writing memories of the conversation at the same moment."""


class CannotStartError(Exception):
    """The database is not one to fill."""


class ServerError(Exception):
    """The server gave no usable vectors."""


@dataclass(frozen=True)
class Server:
    """A server that makes vectors."""

    url: str
    model: str
    shape: str = "openai"
    api_key: str | None = None
    timeout: float = 120.0

    def embed(self, texts: list[str]) -> list[list[float]]:
        """One vector for each text. Raises ServerError."""
        body = json.dumps({"model": self.model, "input": texts}).encode()
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        try:
            request = HttpRequest(parse_target(self._address()), "POST", headers, self.timeout, self.timeout)
            answer = HttpClient().call(request, body)
            # A redirect, too, is not followed: an API key is not handed on to another address.
            if answer.head.status >= 300:
                said = answer.body[: 4 * _SHOWN].decode("utf-8", "replace")[:_SHOWN].strip()
                raise ServerError(f"status {answer.head.status}: {said}")
            return self._vectors(json.loads(answer.body), len(texts))
        except (HttpError, ValueError) as error:
            raise ServerError(str(error)) from None

    def _address(self) -> str:
        base = self.url.rstrip("/")
        return (base.removesuffix("/v1") if self.shape == "openai" else base) + PATHS[self.shape]

    def _vectors(self, answer: Any, count: int) -> list[list[float]]:
        try:
            if self.shape == "ollama":
                vectors = answer["embeddings"]
            else:
                items = list(enumerate(answer["data"]))
                ordered = sorted(items, key=lambda item: item[1].get("index", item[0]))
                vectors = [item["embedding"] for _, item in ordered]
            checked = [_numbers(vector) for vector in vectors]
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError):
            raise ServerError("the answer does not hold vectors of numbers") from None
        if len(checked) != count:
            raise ServerError(f"{len(checked)} vector(s) for {count} text(s)")
        return checked


def _numbers(vector: Any) -> list[float]:
    numbers = [float(number) for number in vector]
    if not numbers or not all(map(math.isfinite, array("f", numbers))):  # 32 bits are stored
        raise ValueError("no vector")
    return numbers


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the gaps; returns the exit status."""
    options = _parse(arguments)
    server = Server(options.url, options.model, options.api_shape, options.api_key, options.timeout)
    try:
        with _of_database(options) if options.db is None else _of_file(options.db) as (memories, lock):
            return fill(memories, server, options.batch_size, lock)
    except (CannotStartError, StartError, WilmerError, sqlite3.Error, OSError) as error:
        print(f"{options.db or options.discussion}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped; run it again to go on.", file=sys.stderr)
        return 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Gives every memory of one vector database a vector.")
    parser.add_argument("--db", help="path of a vector_memory.db")
    parser.add_argument(
        "--database", metavar="URL", help=f"the state database of several servers (better: {DATABASE_VARIABLE})"
    )
    parser.add_argument("--discussion", metavar="ID", help="the conversation in the state database")
    parser.add_argument("--key-folder", metavar="F", help="the key folder of that conversation, if it has one")
    parser.add_argument("--User", help="the user whose conversation it is")
    for name in ("ConfigDirectory", "PublicDirectory", "DiscussionDirectory"):
        parser.add_argument(f"--{name}", metavar="P", help="as the server has it")
    parser.add_argument(
        "--url", required=True, type=_web_address, help="address of the server, such as http://127.0.0.1:8080"
    )
    parser.add_argument("--model", required=True, help="modelNameToSendToAPI of the embedding endpoint")
    parser.add_argument("--api-shape", choices=sorted(PATHS), default="openai")
    parser.add_argument("--api-key", help="sent as a bearer token")
    parser.add_argument("--batch-size", type=_positive, default=32, help="texts in one request (32)")
    parser.add_argument("--timeout", type=_seconds, default=120.0, help="seconds to wait for an answer (120)")
    options = parser.parse_args(arguments)
    options.database = chosen_database(options)
    if options.db is None and not (options.database and options.discussion):
        parser.error("give --db PATH, or --database URL with --discussion ID")
    return options


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not (number > 0 and math.isfinite(number)):
        raise argparse.ArgumentTypeError("must be more than 0")
    return number


def _web_address(text: str) -> str:
    if not text.lower().startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError("must start with http:// or https://")
    return text


@contextlib.contextmanager
def _of_database(options: argparse.Namespace) -> Iterator[tuple[SearchableMemories, Lock]]:
    """The memories of a conversation in a state database. Raises CannotStartError, StartError, WilmerError."""
    require_database_packages("--database")
    from Middleware.addons.postgres.database_discussions import discussions_of

    apply_directories(options, [options.User] if options.User else [])
    with discussions_of(options.database, "backfill"):
        try:
            state = stored_discussion(options.discussion, options.key_folder)
            with state.memories() as memories:
                if not memories.counts()["memories"]:
                    raise CannotStartError("this conversation has no searchable memories in the state database")
                yield memories, lambda: state.lock(MEMORIES)
        except DataKeyError:
            raise CannotStartError(_ENCRYPTED) from None
        # An id or key folder that no conversation can have.
        except ValueError as error:
            raise CannotStartError(str(error)) from None


@contextlib.contextmanager
def _of_file(path: str) -> Iterator[tuple[SearchableMemories, Lock]]:
    """The memories in a file, with a table for vectors. Raises CannotStartError, sqlite3.Error: nothing was changed."""
    path = os.path.expanduser(path)
    if not os.path.isfile(path):
        raise CannotStartError("there is no such file")
    with contextlib.closing(schema.connect(path)) as database:
        if "memories" not in schema.table_names(database):
            raise CannotStartError("this is not a memory database: it has no table 'memories'")
        newest = database.execute("SELECT memory_text FROM memories WHERE substr(memory_text, 1, 5) = 'gAAAA'")
        if any(is_token(row[0]) for row in newest):
            raise CannotStartError(_ENCRYPTED)
        sqlite.when_free(lambda: database.execute(schema.EMBEDDINGS_TABLE))
    with VectorMemories(path) as memories:
        yield memories, contextlib.nullcontext


def fill(memories: SearchableMemories, server: Server, batch_size: int, lock: Lock = contextlib.nullcontext) -> int:
    """Embed what lacks a vector of the server's model, a commit for each batch; returns the exit status.

    A memory on which the server fails alone, though it works for others, is skipped and named.
    """
    run = _Run(memories, server, lock)
    while rows := run.next_rows(batch_size):
        if not run.embed_patiently(rows):
            print(
                f"Stopped after {MOST_FAILURES} failures; {memories.count_without_embeddings(server.model)} memories "
                "remain.",
                file=sys.stderr,
            )
            return 1
        print(f"{memories.count_without_embeddings(server.model)} memories remain", flush=True)
    if run.skipped:
        print(
            f"The server makes no vectors of {len(run.skipped)} memories: {', '.join(map(str, sorted(run.skipped)))}",
            file=sys.stderr,
        )
        return 1
    print("All memories have vectors.")
    return 0


class _Run:
    """One way through a database. ``skipped`` are the memories on which the server failed alone."""

    def __init__(self, memories: SearchableMemories, server: Server, lock: Lock) -> None:
        self._memories, self._server, self._lock = memories, server, lock
        self.skipped: set[int] = set()

    def next_rows(self, count: int) -> list[MemoryRow]:
        rows = self._memories.without_embeddings(self._server.model, count + len(self.skipped))
        return [row for row in rows if row["id"] not in self.skipped][:count]

    def embed_patiently(self, rows: list[MemoryRow]) -> bool:
        """Whether there are vectors now, or memories to skip; otherwise it is the server that does not work."""
        for attempt in range(MOST_FAILURES):
            if attempt:
                time.sleep(PAUSE)
            if self._embed(rows):
                return True
        if not self._server_works():
            return False
        self._embed_halves(rows)
        return True

    def _server_works(self) -> bool:
        try:
            return bool(self._server.embed([_HARMLESS]))
        except ServerError:
            return False

    def _embed_halves(self, rows: list[MemoryRow]) -> None:
        """Skip what the server does not take."""
        if len(rows) == 1:
            self.skipped.add(rows[0]["id"])
            return
        for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            if not self._embed(half):
                self._embed_halves(half)

    def _embed(self, rows: list[MemoryRow]) -> bool:
        try:
            vectors = self._server.embed([row["memory_text"] for row in rows])
        except ServerError as error:
            print(f"Memories {rows[0]['id']} to {rows[-1]['id']}: {error}", file=sys.stderr)
            return False
        blobs = [(row["id"], vector_to_blob(vector)) for row, vector in zip(rows, vectors, strict=True)]
        with self._lock():
            self._memories.add_embeddings(blobs, self._server.model)
        return True


if __name__ == "__main__":
    sys.exit(run_command(main))
