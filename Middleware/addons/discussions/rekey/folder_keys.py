"""Which keys may fit what lies in a key folder, and which key each text gets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from Middleware.addons.discussions.rekey.journal import Operation
from Middleware.cli.program import NotDoneError
from Middleware.exceptions import KeySaltError
from Middleware.models.process import process
from Middleware.utilities import config_utils
from Middleware.utilities.discussions.client_keys import KeyPlace, key_place, user_spellings
from Middleware.utilities.discussions.discussion_folder import discussions
from Middleware.utilities.discussions.key_salts import SaltFiles
from Middleware.utilities.encryption_utils import (
    NO_CIPHER,
    Cipher,
    DataKey,
    KeySalt,
    cipher_for,
    derive_encryption_key,
    hash_api_key,
    key_folder_name,
)

Derive = Callable[[str | None], bytes]
"""The key of a user's name, as it is spelled; of None: without any name."""
_NOWHERE = KeyPlace("")


@dataclass(frozen=True)
class KeyChange:
    """An API key and the one that takes its place; without a new one everything is decrypted.

    What other users of the configuration encrypted with the old API key stays theirs, under the new one.

    Attributes:
        old, new: where the data is, and where it will be; ``placed`` looks for them.
        salt: that of format 2; None if the discussions have none.
    """

    user: str
    old_key: str = field(repr=False)
    new_key: str | None = field(default=None, repr=False)
    old: KeyPlace = _NOWHERE
    new: KeyPlace | None = None
    salt: KeySalt | None = field(default=None, repr=False)

    def placed(self) -> KeyChange:
        """Return the change of the discussions that are used now. The new key has format 2, unless it has data in the
        other one already, from which the old key's can be kept apart only by hand. Raises KeySaltError."""
        stored, key, new = process().one(discussions), self.new_key, None
        salt = stored.key_salt(self.user)
        if key:
            salt = salt or KeySalt.new()
            new = KeyPlace(key_folder_name(key, salt), salt)
            first = hash_api_key(key)
            if key != self.old_key and stored.has_key(first, self.user) and not stored.has_key(new.name, self.user):
                new = KeyPlace(first)
        return replace(self, old=key_place(self.old_key, self.user), new=new, salt=salt)

    def sources(self) -> list[KeyChange]:
        """Return the change for each format in which there may be data of the old key: of an interrupted change of
        the format, or next to each other."""
        places = dict.fromkeys((self.old, KeyPlace(hash_api_key(self.old_key))))
        return [replace(self, old=place) for place in places]

    def as_begun(self, journal: Mapping[str, Any]) -> KeyChange:
        """Return the change as an older program may have begun it, by the journal: it gave the new key format 1."""
        first = KeyPlace(hash_api_key(self.new_key)) if self.new_key else None
        if first and (journal.get("old"), journal.get("new")) == (self.old.name, first.name):
            return replace(self, new=first)
        return self

    def keep_salt(self, root: str | None = None) -> None:
        """Store the salt of the new key. Raises NotDoneError if another one was stored a moment ago, KeySaltError,
        OSError.

        ``root``: of the folder that is changed, where the salt is needed too: the discussions of others may be there.
        """
        salt = self.new.salt if self.new else None
        if salt and process().one(discussions).keep_key_salt(salt, self.user) != salt:
            raise NotDoneError("Another process was faster. Nothing was changed; run this again.")
        if salt and root is not None:
            # One that is damaged, or lost, is not this user's.
            with contextlib.suppress(KeySaltError):
                process().one(SaltFiles).keep([root], salt)

    @property
    def operation(self) -> Operation:
        return Operation(self.user, self.old.name, self.new.name if self.new else None)

    @property
    def source(self) -> Cipher:
        """Reads whatever may be read: also what an interrupted run did."""
        return cipher_for(DataKey(derive_encryption_key(self.old_key, self.user, self.old.salt), self._keys))

    def target(self, mark: Hashable = None) -> Cipher:
        """What a text is encrypted with that was encrypted with the key of this mark, or, for None, that was not."""
        if not self.new_key or not self.new:
            return NO_CIPHER
        return cipher_for(derive_encryption_key(self.new_key, self.owner(mark), self.new.salt))

    def _keys(self) -> Iterator[bytes]:
        return (derive(name) for derive in self._derivations() for name, _ in self._names())

    def _derivations(self) -> Iterator[Derive]:
        for key, place in ((self.old_key, self.old), (self.new_key, self.new)):
            if key and place:
                for salt in dict.fromkeys((place.salt, self.salt, None)):
                    yield partial(derive_encryption_key, key, salt=salt)

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
