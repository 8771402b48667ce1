"""The short form of ``check`` at start: errors of the served users, logged once the server listens."""
from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from Middleware.cli import users
from Middleware.cli.check.data_checks import check_data_folders
from Middleware.cli.check.findings import Finding
from Middleware.cli.console import program_name, same_configuration
from Middleware.utilities.config.check import shortened

if TYPE_CHECKING:
    from Middleware.cli.check.load_check import LoadCheck

logger = logging.getLogger(__name__)

MAX_LINES = 10
MAX_WIDTH = 400
# A pause between files leaves the interpreter to requests that arrive in the meantime.
PAUSE_SECONDS = 0.002


def begin(load_check: LoadCheck) -> None:
    """Check in the background. Nothing waits for the check, and no failure in it reaches the server."""
    threading.Thread(target=run, args=[load_check], name="start-check", daemon=True).start()


def run(load_check: LoadCheck) -> None:
    """Check the files that the served users reach and the places of their data, and log the errors, if any.

    ``load_check`` records what was reported, so that it does not report it again.
    """
    try:
        _check(load_check)
    except OSError as error:
        # Often a lack of file descriptors, which connections cause and a traceback does not explain.
        logger.warning("The configuration could not be checked: %s", error)
    # The server runs, whatever the check runs into.
    except Exception:
        logger.warning("The configuration could not be checked", exc_info=True)


def _check(load_check: LoadCheck) -> None:
    from Middleware.cli.check.tree_check import TreeCheck

    result = TreeCheck(users.served_users(), lambda: time.sleep(PAUSE_SECONDS)).run()
    folders = [finding for finding in check_data_folders(result.users) if finding.severity == "error"]
    text, told = short_form([*folders, *result.findings])
    if text:
        logger.warning("%s", text)
    for user in result.users:
        load_check.remember(user, told, result.workflows.get(user, {}))


def short_form(findings: Sequence[Finding]) -> tuple[str, list[Finding]]:
    """Return a line for each error up to MAX_LINES, the number of the rest, and the findings with a line of their own.

    Empty if there is nothing worse than a note.
    """
    errors = [finding for finding in findings if finding.severity == "error"]
    warnings = sum(finding.severity == "warning" for finding in findings)
    if not errors and not warnings:
        return "", []
    told = errors[:MAX_LINES]
    counts = [_number(len(errors), "error")] if errors else []
    counts += [_number(warnings, "warning")] if warnings else []
    rest = [f"  ... and {_number(len(errors) - len(told), 'error')} more"] if len(errors) > len(told) else []
    first = (f"In the configuration there {'is' if counts[0].startswith('1 ') else 'are'} {' and '.join(counts)} "
             f"(for all run: {program_name('check', *same_configuration())}){':' if told else ''}")
    return "\n".join([first, *map(_line, told), *rest]), told


def _line(finding: Finding) -> str:
    place = "".join(f":{number}" for number in (finding.line, finding.column) if number is not None)
    where = f"{finding.json_path}: " if finding.json_path else ""
    return shortened(f"  {finding.file}{place}: {where}{finding.text}", MAX_WIDTH)


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


