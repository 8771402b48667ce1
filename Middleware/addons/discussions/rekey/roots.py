"""In which folders of discussions a key is changed."""

from __future__ import annotations

import os
from dataclasses import dataclass

from Middleware.addons.discussions.output import say
from Middleware.addons.discussions.rekey.keys import KeyChange
from Middleware.utilities import config_utils
from Middleware.utilities.command_lines import own_command
from Middleware.utilities.config.paths import own_public_directory


@dataclass(frozen=True)
class DiscussionRoots:
    """The folders of discussions that are worked on, and the others in which the server may look."""

    selected: list[str]
    others: list[str]

    @classmethod
    def of(cls, is_one_named: bool) -> DiscussionRoots:
        """All folders in which the server looks. If one was named, only that: it may be a copy."""
        roots = (config_utils.get_discussions_root_directory(), os.path.join(own_public_directory(), "DiscussionIds"))
        different = list({os.path.realpath(root): root for root in reversed(roots)}.values())[::-1]
        count = 1 if is_one_named else len(different)
        return cls(different[:count], different[count:])


def print_other_folders(roots: DiscussionRoots, change: KeyChange) -> None:
    """Name the folders of the same key that are left alone, and how to change them."""
    for root in roots.others:
        folder = os.path.join(root, change.operation.old)
        if os.path.isdir(folder):
            configuration = os.path.abspath(config_utils.get_root_config_directory())
            again = own_command(
                "rekey", "--User", change.user, "--ConfigDirectory", configuration, "--DiscussionDirectory", root
            )
            say(
                f"{folder} is of the same key. It is left alone, as another folder was named. To change it, too, run "
                f"this with the same keys: {again}"
            )
