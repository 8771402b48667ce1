"""Several servers on one state database as if they were one server with files: a command for tests that know no more.

    python -m Tests.workers_behind_proxy 2 --admin CONNINFO --database postgresql://wilmer@127.0.0.1/{name} -- \\
        run_waitress.py --ConfigDirectory C --port P ...

On the port, a proxy gives each request to the next server. Before the first request that is no GET or HEAD,
``state import`` stores in the database what is in the folders of discussions. From then on, ``state export`` writes
each change of the database into these folders within a moment, and once more when the servers have ended. So a test
finds the files that a server in file mode would have written.

While nodes run after an answer, the time of the file ``working`` in these folders changes all the time: the suite takes
a while without changes for the end of them, and a busy machine may need longer than that for the first one.

The servers get all flags behind ``--``. SIGTERM ends everything. A server that ends by itself ends everything too, and
so does a command of ``state`` whose exit status is not 0. What they print comes out here.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import itertools
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg import sql

from Tests.postgres_lab import ROLE

PROJECT = Path(__file__).resolve().parents[1]
# Bytes. More than any client sends as the head of a request, and any server prints as a line.
_LONGEST = 1 << 20
# Seconds that servers have after SIGTERM: they let background nodes run for ten. The conformance suite waits for 15.
_ENDING_SECONDS = 13.0
# How often to look for changes in the database, and at the nodes that run. The suite gives up 1.5 s after the last
# change of a file, and takes half a second without one for calm.
_LOOKING_SECONDS = 0.05
_ADDRESS = re.compile(rb"Listening on:.*http://127\.0\.0\.1:(\d+)")
_BEGUN = re.compile(rb"Request (\S+): nodes after its answer")
_DONE = re.compile(rb"Request (\S+): .* done after ")
_CONNECTION = re.compile(rb"\r\nconnection:[^\r]*", re.IGNORECASE)
# Where each row is and which transaction has written it: different after any change.
_FINGERPRINT = " UNION ALL ".join(
    f"SELECT count(*), sum(hashtextextended(ctid::text || xmin::text, 0)) FROM wilmer.{table}"
    for table in ("discussions", "documents", "memories", "memory_embeddings", "memory_hash_log")
)


class Ending:
    """Whether all must end, and with which exit status."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.status = 0

    def begin(self, status: int, why: str) -> None:
        """End all; only the first call counts."""
        if not self.begun.is_set():
            self.status = status
            _print(f"Ending: {why}\n".encode())
            self.begun.set()


@dataclass
class Conversations:
    """Stored conversations, moved from files into the database and back by the program's own commands."""

    url: str
    places: Sequence[str]
    ending: Ending
    imported: bool = False
    # The commands set up the whole process, so they run one after the other.
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def move_in(self) -> None:
        """Import what is in files, once."""
        async with self.busy:
            if not self.imported:
                await self._command("import")
                self.imported = True

    async def move_out(self) -> None:
        """Write what is in the database to the files."""
        async with self.busy:
            await self._command("export", "--replace")

    async def follow(self) -> None:
        """Move out each change after the import. Does not return."""
        before: object = None
        with psycopg.connect(self.url, autocommit=True) as connection:
            while True:
                now = await asyncio.to_thread(lambda: connection.execute(_FINGERPRINT).fetchall())
                if self.imported and now != before:
                    before = now
                    await self.move_out()
                await asyncio.sleep(_LOOKING_SECONDS)

    async def show_work(self, workers: Sequence[Worker]) -> None:
        """Touch a file in the users' folders while nodes run. Does not return. Moving out does not interrupt it."""
        from Middleware.addons.postgres.moving import spaces

        roots: list[Path] = []
        while True:
            await asyncio.sleep(_LOOKING_SECONDS)
            if self.imported and any(worker.working for worker in workers):
                # The command that imports sets up the process, so that the users' folders are known.
                roots = roots or [Path(space.root) for space in spaces()]
                for root in roots:
                    root.mkdir(parents=True, exist_ok=True)
                    (root / "working").touch()

    async def _command(self, *words: str) -> None:
        # It is loaded while the servers start.
        from Middleware.addons.postgres import state_command

        status = await asyncio.to_thread(state_command.main, [*self.places, "--database", self.url, *words])
        sys.stdout.flush()
        if status != 0:
            self.ending.begin(1, f"state {words[0]} ended with status {status}")


class Worker:
    """A server process.

    Attributes:
        port: has a result when it listens.
        working: the requests whose answers are out and whose nodes run.
    """

    def __init__(self, process: asyncio.subprocess.Process, ending: Ending) -> None:
        self.process = process
        self.port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.working: set[bytes] = set()
        self.printing = asyncio.create_task(self._print_all(ending))

    async def _print_all(self, ending: Ending) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            _print(line)
            if (found := _ADDRESS.search(line)) and not self.port.done():
                self.port.set_result(int(found[1]))
            elif found := _BEGUN.search(line):
                self.working.add(found[1])
            elif found := _DONE.search(line):
                self.working.discard(found[1])
        status = await self.process.wait()
        ending.begin(status or 1, f"a server has ended with status {status}")


class Proxy:
    """Gives each request to the next server, on a connection that the server closes after it.

    Bytes are passed on as they come. Whichever side closes its connection, the other one is closed at once.
    """

    def __init__(self, ports: Sequence[int], conversations: Conversations) -> None:
        self._turns = itertools.cycle(ports)
        self._conversations = conversations

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A client may leave at any time, and so may a server.
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith((b"GET ", b"HEAD ")):
                await self._conversations.move_in()
                if self._conversations.ending.begun.is_set():
                    # The import has failed, and the servers may take a moment to end.
                    return
            answer, request = await asyncio.open_connection("127.0.0.1", next(self._turns))
            with contextlib.closing(request):
                # Then the client's next request has a connection, and a server, of its own.
                request.write(_CONNECTION.sub(b"", head[:-4]) + b"\r\nConnection: close\r\n\r\n")
                pumps = [asyncio.create_task(_pump(reader, request)), asyncio.create_task(_pump(answer, writer))]
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    while piece := await source.read(65536):
        to.write(piece)
        await to.drain()


async def _serve(workers: Sequence[Worker], port: int, conversations: Conversations) -> None:
    """Let clients in once all servers listen. Does not return."""
    from Middleware.addons.postgres import state_command as state_command

    proxy = Proxy(await asyncio.gather(*(worker.port for worker in workers)), conversations)
    async with await asyncio.start_server(proxy.serve, "127.0.0.1", port, limit=_LONGEST) as server:
        [socket] = server.sockets
        print(f"{len(workers)} servers behind http://127.0.0.1:{socket.getsockname()[1]}", flush=True)
        await asyncio.gather(conversations.follow(), conversations.show_work(workers))


async def run(count: int, words: Sequence[str], port: int, places: Sequence[str], url: str) -> int:
    """Serve until SIGTERM or Ctrl-C; return the exit status.

    Args:
        words: the script of a server and its flags.
        places: those flags that say where configuration and conversations are.
    """
    ending = Ending()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.begin, 0, "as asked")
    workers = [
        Worker(
            await asyncio.create_subprocess_exec(
                sys.executable,
                *words,
                "--port",
                "0",
                "--database",
                url,
                cwd=PROJECT,
                limit=_LONGEST,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            ),
            ending,
        )
        for _ in range(count)
    ]
    conversations = Conversations(url, places, ending)
    serving = asyncio.create_task(_serve(workers, port, conversations))
    serving.add_done_callback(lambda task: ending.begin(1, _problem(task)))
    await ending.begun.wait()
    serving.cancel()
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            worker.process.terminate()
    _, slow = await asyncio.wait([worker.printing for worker in workers], timeout=_ENDING_SECONDS)
    for worker in workers:
        if worker.printing in slow:
            worker.process.kill()
    await asyncio.gather(*(worker.printing for worker in workers))
    await conversations.move_out()
    return ending.status


def _problem(task: asyncio.Task[None]) -> str:
    error = None if task.cancelled() else task.exception()
    return "".join(traceback.format_exception(error)) if error else "the proxy has ended"


def _print(output: bytes) -> None:
    sys.stdout.buffer.write(output)
    sys.stdout.buffer.flush()


def database_for(admin: str, url: str, folder: str) -> str:
    """Return the address of the database for a configuration, which is made if there is none.

    Args:
        admin: how to connect as somebody who may create databases.
        url: the address, with ``{name}`` for the database's name.
    """
    name = "conversations_" + hashlib.sha256(os.path.abspath(folder).encode()).hexdigest()[:16]
    # A server that is started again finds its conversations.
    with psycopg.connect(admin, autocommit=True) as connection, contextlib.suppress(psycopg.errors.DuplicateDatabase):
        connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(name), sql.Identifier(ROLE)))
    return url.replace("{name}", name)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: that of the server that has ended, 1 if something else failed."""
    parser = argparse.ArgumentParser(prog="python -m Tests.workers_behind_proxy")
    parser.add_argument("count", type=int, help="how many servers")
    parser.add_argument("--admin", required=True, help="how to connect to PostgreSQL to create a database")
    parser.add_argument("--database", required=True, help="the servers' address of it, with {name} for its name")
    parser.add_argument("words", nargs="+", help="the script of a server and its flags")
    options = parser.parse_args(argv)
    flags = argparse.ArgumentParser(allow_abbrev=False)
    flags.add_argument("--port", type=int, required=True)
    flags.add_argument("--ConfigDirectory", required=True)
    flags.add_argument("--PublicDirectory")
    flags.add_argument("--DiscussionDirectory")
    server, _ = flags.parse_known_args(options.words)
    places = [f"--{name}={value}" for name, value in vars(server).items() if name != "port" and value is not None]
    url = database_for(options.admin, options.database, server.ConfigDirectory)
    return asyncio.run(run(options.count, options.words, server.port, places, url))


if __name__ == "__main__":
    sys.exit(main())
