"""The files by which commands find a running server, and learn that a folder of conversations is in use.

A process that uses a folder of conversations holds a lock on ``.server-<id>.lock`` in it for as long as it lives; the
system frees the lock of a process that was killed. ``.server-<id>.json`` next to it contains what the process serves.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from Middleware.cli import served_users
from Middleware.exceptions import ConfigurationError
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Middleware.utilities.files.file_access import atomic_write, open_to_read, process_lock

logger = logging.getLogger(__name__)

OWNER_ONLY = 0o600
_LOCK_FILE = re.compile(r"\.server-[0-9a-f]{16}\.lock")
# A server creates its file and then locks it. In between, the file must not be taken for one that was left behind.
LEFT_BEHIND_SECONDS = 60.0


@dataclass(frozen=True)
class RunningServer:
    """A process that uses a folder of conversations.

    Attributes:
        url: where programs on this machine reach it; "" for a process that does not listen, or whose address is not
            known.
        configuration: absolute path of its config root.
        users: the users that it serves.
    """

    url: str = ""
    configuration: str = ""
    users: tuple[str, ...] = ()
    pid: int = 0

    def __str__(self) -> str:
        return self.url or (f"process {self.pid}" if self.pid else "a process that is just starting")


@contextlib.contextmanager
def announced(url: str = "") -> Iterator[None]:
    """Leave the files in the folders of conversations of the served users while the block runs."""
    server = RunningServer(url, _configuration(), _served_users(), os.getpid())
    with contextlib.ExitStack() as left:
        for root in discussion_roots_of(server.users):
            try:
                left.enter_context(_announced_in(root, server))
            # A folder that cannot be written is reported when something has to be stored there.
            except OSError as error:
                logger.debug("%s cannot be marked as in use: %s", root, error.strerror or type(error).__name__)
        yield


def announce_until_exit() -> None:
    """Leave the files until the process ends, for servers of other programs, whose end is not reported."""
    left = contextlib.ExitStack()
    left.enter_context(announced())
    # The workers of a server that loads the program before it forks end earlier than the process that holds the locks.
    owner = os.getpid()
    atexit.register(lambda: left.close() if os.getpid() == owner else None)


@contextlib.contextmanager
def _announced_in(root: str, server: RunningServer) -> Iterator[None]:
    os.makedirs(root, mode=0o700, exist_ok=True)
    # Those of servers that were killed are removed now.
    servers_in(root)
    name = os.path.join(root, f".server-{secrets.token_hex(8)}")
    try:
        with process_lock(f"{name}.lock", timeout=0, mode=OWNER_ONLY):
            atomic_write(f"{name}.json", json.dumps(asdict(server)).encode("utf-8"), OWNER_ONLY)
            yield
    finally:
        _remove(name)


def _remove(name: str) -> None:
    # The lock goes last: without it, the other file is not looked for.
    for ending in (".json", ".lock"):
        with contextlib.suppress(OSError):
            os.unlink(name + ending)


def servers_in(root: str) -> list[RunningServer]:
    """Return the processes that use a folder of conversations, and remove the files of those that were killed."""
    try:
        names = sorted(filter(_LOCK_FILE.fullmatch, os.listdir(root)))
    except OSError:
        return []
    return [server for name in names if (server := _server_of(os.path.join(root, name.removesuffix(".lock"))))]


def _server_of(name: str) -> RunningServer | None:
    """Return the process that left a pair of files; None if it has ended."""
    try:
        with process_lock(f"{name}.lock", timeout=0, mode=OWNER_ONLY):
            is_left_behind = time.time() - os.stat(f"{name}.lock").st_mtime > LEFT_BEHIND_SECONDS
    except TimeoutError:
        return _read(f"{name}.json")
    # The process ended just now, or runs under an account whose files are closed to this one.
    except OSError as error:
        return RunningServer() if isinstance(error, PermissionError) else None
    if is_left_behind:
        _remove(name)
    return None


def _read(path: str) -> RunningServer:
    try:
        with open_to_read(path) as file:
            content = json.load(file)
        return RunningServer(
            str(content["url"]), str(content["configuration"]), tuple(map(str, content["users"])), int(content["pid"])
        )
    # The process is starting or ending, or is of another version.
    except (OSError, ValueError, KeyError, TypeError):
        return RunningServer()


def find_server(names: Sequence[str]) -> RunningServer | None:
    """Return a running server of this configuration that serves all users in ``names``, or None."""
    wanted = names or _served_users()
    return next(
        (
            server
            for root in discussion_roots_of(wanted)
            for server in servers_in(root)
            if server.url and _is_same(server.configuration) and set(names) <= set(server.users)
        ),
        None,
    )


def others_here() -> list[RunningServer]:
    """Return the other processes that serve this configuration, such as the workers of a WSGI host."""
    found = {server.pid: server for root in discussion_roots_of(_served_users()) for server in servers_in(root)}
    return [server for pid, server in found.items() if pid != os.getpid() and _is_same(server.configuration)]


def discussion_roots_of(names: Sequence[str]) -> list[str]:
    """Return the folders of conversations of some users, each once."""
    found: dict[str, str] = {}
    for user in names:
        # The file of a user that does not parse is reported elsewhere.
        with request_scope(RequestContext(user=user)), contextlib.suppress(ConfigurationError, OSError, ValueError):
            root = config_utils.get_discussions_root_directory()
            found.setdefault(os.path.realpath(root), os.path.abspath(root))
    return list(found.values())


def _served_users() -> tuple[str, ...]:
    # Under a WSGI host there may be no user yet; its requests fail until there is one.
    with contextlib.suppress(ConfigurationError, OSError, ValueError):
        return tuple(served_users.served_users())
    return ()


def _configuration() -> str:
    return os.path.abspath(config_utils.get_root_config_directory())


def _is_same(configuration: str) -> bool:
    return os.path.realpath(configuration) == os.path.realpath(_configuration())
