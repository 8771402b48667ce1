"""Runs the black-box conformance cases that this version passes, if the suite lies beside the repository.

The cases are listed in ``Tests/conformance_passing.txt``, one name a line. Further arguments go to the suite's own
``run.py``. Without the suite this says so and succeeds.
"""
from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SUITE = os.path.join(ROOT, "..", "shared", "conformance", "run.py")
LIST = os.path.join(ROOT, "Tests", "conformance_passing.txt")


def listed_cases(path: str = LIST) -> list[str]:
    """The case names in a list file, without comments and blank lines."""
    with open(path, encoding="utf-8") as file:
        lines = (line.split("#")[0].strip() for line in file)
        return [line for line in lines if line]


def exact_pattern(case: str) -> str:
    """A pattern for this case alone: a plain name would also select cases whose names contain it."""
    return f"[{case[0]}]{case[1:]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the suite's exit status."""
    if not os.path.isfile(SUITE):
        print("The conformance suite is not here; nothing to run.")
        return 0
    cases = listed_cases()
    if not cases:
        print("No conformance case is listed yet.")
        return 0
    selection = [word for case in cases for word in ("--only", exact_pattern(case))]
    # What the servers keep beside a configuration does not belong into the repository, whose files the tests look at.
    with tempfile.TemporaryDirectory(prefix="conformance-public-") as public:
        server = (f"{shlex.quote(sys.executable)} run_waitress.py --ConfigDirectory {{config}} --User {{user}} "
                  f"--PublicDirectory {shlex.quote(public)} --port {{port}} --concurrency 0")
        command = [sys.executable, SUITE, "--cwd", ROOT, "--server", server, *selection]
        return subprocess.call(command + list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
