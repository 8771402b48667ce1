"""Runs the black-box conformance cases that this version passes, if the suite lies beside the repository.

The cases are listed in ``Tests/conformance_passing.txt``, one name a line. With ``--workers N``, N servers that
share a database of PostgreSQL answer the requests by turns (``Tests/workers_behind_proxy.py``). ``--launcher FILE``
starts the servers by another launcher than ``run_waitress.py``, ``--python FILE`` with another Python. Further
arguments go to the suite's own ``run.py``; with ``--only`` among them, they select the cases in place of the list.
Without the suite this says so and succeeds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SUITE = os.path.join(ROOT, "..", "shared", "conformance", "run.py")
LIST = os.path.join(ROOT, "Tests", "conformance_passing.txt")
sys.path.insert(0, ROOT)


def listed_cases(path: str = LIST) -> list[str]:
    """The case names in a list file, without comments and blank lines."""
    with open(path, encoding="utf-8") as file:
        lines = (line.split("#")[0].strip() for line in file)
        return [line for line in lines if line]


def exact_pattern(case: str) -> str:
    """A pattern for this case alone: a plain name would also select cases whose names contain it."""
    return f"[{case[0]}]{case[1:]}"


@contextlib.contextmanager
def several_workers(count: int) -> Iterator[list[str]]:
    """Start PostgreSQL and yield the words in front of a server's own, which start so many on one database."""
    from Tests.postgres_lab import Server

    # Each server has up to ten connections, and the suite starts as many at a time as there are processors, or -j says.
    server = Server(max_connections="1000")
    try:
        yield [
            sys.executable,
            "-m",
            "Tests.workers_behind_proxy",
            str(count),
            "--admin",
            server.admin,
            "--database",
            server.url("{name}"),
            "--",
        ]
    finally:
        server.remove()


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the suite's exit status."""
    if not os.path.isfile(SUITE):
        print("The conformance suite is not here; nothing to run.")
        return 0
    cases = listed_cases()
    if not cases:
        print("No conformance case is listed yet.")
        return 0
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--launcher", default="run_waitress.py")
    parser.add_argument("--python", default=sys.executable)
    options, words = parser.parse_known_args(argv)
    if options.workers > 1:
        from Tests.postgres_lab import missing

        if problem := missing():
            print(f"{problem}: the cases on several workers are left out")
            return 1 if os.environ.get("CI") else 0
    if not any(word.partition("=")[0] == "--only" for word in words):
        words = [word for case in cases for word in ("--only", exact_pattern(case))] + words
    with contextlib.ExitStack() as stack:
        # What servers keep beside a configuration does not belong into the repository, whose files the tests look at.
        public = stack.enter_context(tempfile.TemporaryDirectory(prefix="conformance-public-"))
        launch = [options.python]
        if options.workers > 1:
            launch = stack.enter_context(several_workers(options.workers))
        # Next to other checks, starting servers again takes most of the suite's 30 s for a case.
        words = ["--timeout", "120", "--start-timeout", "120", *words]
        server = [
            *launch,
            options.launcher,
            "--ConfigDirectory",
            "{config}",
            "--User",
            "{user}",
            "--PublicDirectory",
            public,
            "--port",
            "{port}",
            "--concurrency",
            "0",
        ]
        return subprocess.call([sys.executable, SUITE, "--cwd", ROOT, "--server", shlex.join(server), *words])


if __name__ == "__main__":
    sys.exit(main())
