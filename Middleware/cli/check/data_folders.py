"""Whether the folders in which conversations, locks and logs are kept can be written."""
from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from Middleware.cli.check.data_checks import DataDirectory, check_directories, user_directories
from Middleware.cli.check.findings import Finding
from Middleware.cli.check.lookups import Lookups
from Middleware.exceptions import ConfigurationError
from Middleware.models.request_context import RequestContext, request_scope


def check_data_folders(users: Sequence[str], logs: str | None = None) -> Iterator[Finding]:
    """What is wrong with the folders of these users, how they are named included.

    ``logs``: the folder of the log files, which may contain ``<user>``; None: it does not matter.
    """
    found = list(_of_users(users))
    folders = [entry for entry in found if isinstance(entry, DataDirectory)]
    if logs is not None:
        folders.append(DataDirectory("log files", os.path.expanduser(logs.partition("<user>")[0]) or os.curdir))
    yield from check_directories(folders)
    yield from (entry for entry in found if isinstance(entry, Finding))


def _of_users(users: Sequence[str]) -> Iterator[object]:
    """The data directories of the users, and findings about their names."""
    for user in users:
        with request_scope(RequestContext(request_id=f"check {user}", user=user)):
            try:
                file = Lookups().user_file()
                yield from list(user_directories(file.display, file.content))
            except ConfigurationError:  # reported at the file
                continue
