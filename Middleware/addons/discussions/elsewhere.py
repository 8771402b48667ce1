"""Discussions that are not in files, as the commands ``memory`` and ``rekey`` ask another add-on for them."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

from Middleware.cli.addon import found

if TYPE_CHECKING:
    from Middleware.addons.discussions.rekey.folder_keys import KeyChange
    from Middleware.addons.discussions.rekey.key_folder import Result


class StoredElsewhere:
    """A place of conversations. This one is empty: everything is in files.

    Attributes:
        about: a sentence for the description of a command, with ``{}`` in place of what the command then does.
    """

    about = ""

    def add_flag(self, parser: argparse.ArgumentParser) -> None:
        """Add the flag that names the place."""

    def chosen(self, options: argparse.Namespace) -> str:
        """Return the name of the place in the options or the environment; "" for files."""
        return ""

    def used_by(self, name: str, command: str) -> contextlib.AbstractContextManager[None]:
        """Return a block in which all discussions are those of the place. Raises StartError and WilmerError."""
        raise NotImplementedError

    def rekey(self, name: str, change: KeyChange) -> tuple[int, Result]:
        """Change the discussions of the old key; return how many it has, and what was done. Raises WilmerError."""
        raise NotImplementedError


def stored_elsewhere() -> StoredElsewhere:
    """Return the place that another add-on offers, else one that is never chosen."""
    return next(found(StoredElsewhere), StoredElsewhere())
