"""A container's health check: exit status 0 if the server of this container answers, 1 if not. It needs no key."""

from __future__ import annotations

import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

FIRST_PROCESS = Path("/proc/1/cmdline")
START_MODULE = "deploy.container.start"
DEFAULT_PORT = "5000"
TIMEOUT_SECONDS = 4.0


def main() -> int:
    port = port_of(first_command_line()) or os.environ.get("WILMER_PORT") or DEFAULT_PORT
    url = f"http://127.0.0.1:{port}/health"
    problem = problem_at(url)
    if problem:
        print(f"{url}: {problem}", file=sys.stderr)
    return 1 if problem else 0


def first_command_line(path: Path = FIRST_PROCESS) -> list[str]:
    """The words that the container was started with, an engine's own ``init`` in front of them or not."""
    try:
        return path.read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return []


def port_of(words: Sequence[str]) -> str | None:
    """The value of ``--port``, if it is on the command line of the container's start; the last one counts."""
    if START_MODULE not in words:
        return None
    found = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        if flag == "--port":
            found = value if equals else following
    return found or None


def problem_at(url: str, timeout: float = TIMEOUT_SECONDS) -> str | None:
    """What is wrong with the server there; None if it works. A proxy of the environment is not asked."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout):
            return None
    except urllib.error.HTTPError as error:
        with error:
            return f"status {error.code}"
    except (OSError, http.client.HTTPException) as error:
        return str(error)


if __name__ == "__main__":
    sys.exit(main())
