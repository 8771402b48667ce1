"""Launchers that start with something changed, such as the servers' patience or the number of open files."""

from __future__ import annotations

from pathlib import Path

from Tests.integration.launcher import PROJECT

TEXT = """import runpy, sys
sys.path.insert(0, {project!r})
{lines}
runpy.run_path({script!r}, run_name="__main__")
"""


def launcher_after(folder: Path, script: str, *lines: str) -> str:
    """The path of a script that runs ``lines`` of Python and then becomes ``script``, a launcher or another server."""
    file = folder / f"changed_{Path(script).name}"
    file.write_text(
        TEXT.format(project=str(PROJECT), script=str(PROJECT / script), lines="\n".join(lines)), encoding="utf-8"
    )
    return str(file)


# Commands that the console runs give way to requests. Where other work keeps the machine busy, they would never end.
COMMANDS_IN_TIME = ("from Middleware.addons.console import command_process", "command_process.NICENESS = 0")


def patience(**seconds: float) -> list[str]:
    """Lines that set the servers' limits, named as in ``Middleware/cli/serving/limits.py``."""
    return [
        "from Middleware.cli.serving import limits",
        *(f"limits.{name} = {value!r}" for name, value in seconds.items()),
    ]
