"""Which keys may fit what lies in a key folder, and which key each text gets."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial

from Middleware.addons.discussions.rekey.journal import Operation
from Middleware.services.memory.discussion_keys import user_spellings
from Middleware.utilities import config_utils
from Middleware.utilities.encryption_utils import (
    NO_CIPHER,
    Cipher,
    DataKey,
    cipher_for,
    derive_encryption_key,
    hash_api_key,
)

Derive = Callable[[str | None], bytes]
"""The key of a user's name, as it is spelled; of None: without any name."""


@dataclass(frozen=True)
class KeyChange:
    """An API key and the one that takes its place; without a new one everything is decrypted.

    What other users of the configuration encrypted with the old API key stays theirs, under the new one.
    """

    user: str
    old_key: str = field(repr=False)
    new_key: str | None = field(default=None, repr=False)

    @property
    def operation(self) -> Operation:
        return Operation(self.user, hash_api_key(self.old_key), hash_api_key(self.new_key) if self.new_key else None)

    @property
    def source(self) -> Cipher:
        """Reads whatever may be read: also what an interrupted run did."""
        return cipher_for(DataKey(derive_encryption_key(self.old_key, self.user), self._keys))

    def target(self, mark: Hashable = None) -> Cipher:
        """What a text is encrypted with that was encrypted with the key of this mark, or, for None, that was not."""
        if not self.new_key:
            return NO_CIPHER
        return cipher_for(derive_encryption_key(self.new_key, self.owner(mark)))

    def _keys(self) -> Iterator[bytes]:
        return (derive(name) for derive in self._derivations() for name, _ in self._names())

    def _derivations(self) -> Iterator[Derive]:
        for key in (self.old_key, self.new_key):
            if key:
                yield partial(derive_encryption_key, key)

    def owner(self, mark: Hashable) -> str:
        """The user whose text has this mark; what was in clear becomes that of the user who was named."""
        if mark is None:
            return self.user
        return next(owner for derive in self._derivations() for name, owner in self._names() if derive(name) == mark)

    def _names(self) -> Iterator[tuple[str | None, str]]:
        """Names that may have been used, likely ones first, and whose they are."""
        for name in user_spellings(self.user):
            yield name, self.user
        yield None, self.user
        for other in config_utils.existing_users():
            for name in user_spellings(other):
                yield name, other
