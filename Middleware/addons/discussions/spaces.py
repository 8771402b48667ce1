"""The folders of discussions, and what the state database calls them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from Middleware.addons.discussions.catalog import StoredDiscussion, all_discussions, discussions_in
from Middleware.exceptions import ConfigurationError
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Middleware.utilities.config.users import existing_users, get_discussions_space


@dataclass(frozen=True)
class Space:
    """The folder of some users' discussions, and one of these users."""

    name: str
    root: str
    user: str


def spaces() -> list[Space]:
    """Return the folders of all users, each once, the default one first."""
    found: dict[str, Space] = {}
    for user in existing_users():
        try:
            with as_user(user):
                name = get_discussions_space()
                found.setdefault(name, Space(name, config_utils.get_discussions_root_directory(), user))
        # A user whom no server can serve; 'check' reports the file.
        except ConfigurationError:
            continue
    return [found[name] for name in sorted(found)]


def as_user(user: str) -> AbstractContextManager[RequestContext]:
    """Do something with the settings of a user."""
    return request_scope(RequestContext(request_id=f"state {user}", user=user))


def discussions_in_files(folder: str | None = None) -> Iterator[tuple[str, StoredDiscussion]]:
    """Yield the discussions in a folder, or those of all users, each with its space."""
    known = spaces()
    if folder is not None:
        name = next((space.name for space in known if os.path.realpath(space.root) == os.path.realpath(folder)), "")
        yield from ((name, discussion) for discussion in discussions_in(folder))
        return
    # Folders of old installations are below those of all users, but belong to the users whose own folder they are.
    roots = {os.path.realpath(space.root) for space in known}
    taken: set[tuple[str, str | None, str]] = set()
    for space in known:
        with as_user(space.user):
            found = all_discussions()
        for discussion in found:
            root = os.path.realpath(os.path.dirname(discussion.root) if discussion.key_hash else discussion.root)
            place = root, discussion.key_hash, discussion.discussion_id
            if place not in taken and (root == os.path.realpath(space.root) or root not in roots):
                taken.add(place)
                yield space.name, discussion
