"""The check of the files that a workflow names, while the server runs: from what it has read of them."""
from __future__ import annotations

from dataclasses import replace

from Middleware.cli.check.backup_checks import check_endpoint_presets
from Middleware.cli.check.endpoint_checks import check_key
from Middleware.cli.check.file_checks import check_content, syntax_finding
from Middleware.cli.check.file_kinds import KINDS
from Middleware.cli.check.findings import Finding
from Middleware.cli.check.folders import path_of
from Middleware.cli.check.lookups import Lookups
from Middleware.cli.check.user_checks import UserCheck, allowed_folders, check_current_user
from Middleware.cli.check.workflow_checks import all_located
from Middleware.exceptions import ConfigSyntaxError, ConfigurationError, WilmerError
from Middleware.utilities import config_utils
from Middleware.utilities.config.store import config_store


def file_version(display: str) -> object:
    """What is the same object for as long as a file says the same; the text of the error if it cannot be read."""
    try:
        return config_store().read_json(path_of(display), display=display)
    except ConfigurationError as error:
        return str(error)


def check_named(display: str, kind: str, lookups: Lookups, asked_by: str) -> list[Finding]:
    """What is worse than a note in a file that the current user's workflow ``asked_by`` (none: "") names.

    ``kind``: as in ``KINDS``.
    """
    try:
        content = config_store().read_json(path_of(display), display=display)
    except ConfigSyntaxError as error:
        return [replace(syntax_finding(display, error), asked_by=asked_by)]
    except ConfigurationError:  # it cannot be opened, which the node says that needs it
        return []
    found = [*check_content(display, KINDS[kind], content)]
    if kind == "user" and isinstance(content, dict):
        found += [*UserCheck(lookups).findings(), *allowed_folders(content, display)]
    elif kind == "current-user" and isinstance(content, dict):
        found += check_current_user(content, display, config_utils.existing_users())
    elif kind == "endpoint" and isinstance(content, dict):
        found += [*check_endpoint_presets(display, content), *check_key(display, content)]
    found = [replace(finding, asked_by=asked_by) for finding in found if finding.severity != "note"]
    return all_located(found, lookups)


def check_start(lookups: Lookups) -> list[Finding]:
    """What keeps the current user's requests from reaching a workflow although no name is wrong."""
    try:
        check = UserCheck(lookups)
    except WilmerError:  # there is no user, or no file of theirs that can be read
        return []
    return all_located([*check.startable()], lookups)
