"""The first checks of a launcher: the version of Python, and the installed packages.

Old Pythons must be able to parse this file and the launchers, or they would end with a SyntaxError instead of the
message. So there is no ``from __future__ import annotations`` here, which Python 3.6 does not know, and nothing newer.
"""

import importlib.util
import os
import sys

from Middleware.utilities.quoting import quoted_program, quoted_word

OLDEST = (3, 11)
NEEDED = ("flask", "jinja2", "urllib3", "h11", "certifi")
"""The modules without which no server starts. Modules that are loaded on first use have their own messages."""


def require_python() -> None:
    """End the process with a message and status 1 if this Python is too old."""
    if sys.version_info < OLDEST:
        found = ".".join(str(number) for number in sys.version_info[:3])
        _end(
            f"WilmerAI needs Python {OLDEST[0]}.{OLDEST[1]} or later; this is Python {found} ({sys.executable}).\n"
            f"Start it with: {_start_command()}"
        )


def require_packages(*modules: str) -> None:
    """End the process with a message and status 1 if a module of ``NEEDED`` or ``modules`` is not installed."""
    missing = [name for name in NEEDED + modules if importlib.util.find_spec(name) is None]
    if missing:
        _end(
            f"Python packages are missing: {', '.join(missing)}. This Python does not have them: {sys.executable}\n"
            + _installation()
        )


def _installation() -> str:
    """Return how the missing packages are installed."""
    listed = _in_project("requirements.lock")
    if not os.path.exists(listed):
        return "Install WilmerAI's wheel again, with the packages that it needs."
    install = f"{quoted_program(sys.executable)} -m pip install -r {quoted_word(listed)}"
    return f"Start WilmerAI with: {_start_command()}\nOr install them: {install}{_environment_hint()}"


def _start_command() -> str:
    """Return the command that starts the program in its own virtual environment."""
    if sys.platform == "win32":
        return quoted_program(_in_project("run_windows.bat"))
    return "bash " + quoted_word(_in_project("run_macos.sh" if sys.platform == "darwin" else "run_linux.sh"))


def _environment_hint() -> str:
    """Return a line with another Python, which the start scripts have set up, or "" without one."""
    folder = _in_project("venv")
    python = os.path.join(folder, "Scripts\\python.exe" if sys.platform == "win32" else "bin/python")
    # The start scripts write this file when the installation is complete. A package may still be missing in it.
    has_them = os.path.exists(os.path.join(folder, "installed-requirements.lock"))
    if not has_them or not os.path.exists(python) or os.path.realpath(sys.prefix) == os.path.realpath(folder):
        return ""
    return f"\nOr use the Python that has them: {quoted_program(python)}"


def _in_project(name: str) -> str:
    return os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), name)


def _end(text: str) -> None:
    sys.stderr.write("ERROR: " + text + "\n")
    sys.exit(1)
