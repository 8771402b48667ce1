"""A discussion: what is stored of one conversation, wherever that is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.encryption_utils import Cipher, KeySalt

if TYPE_CHECKING:
    from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
    from Middleware.utilities.discussions.message_index.message_rows import MessageIndex
    from Middleware.utilities.discussions.vector_memory.searchable import SearchableMemories

SHORT = ".lock"
MEMORIES = ".memories.lock"
COMPACTOR = ".compactor.lock"
VECTOR_DATABASE = "vector_memory.db"
MESSAGE_INDEX = "message_index.db"
BACKUP = ".bak"
"""What the name of a document's copy ends with."""


class DiscussionState(Protocol):
    """The documents, the searchable memories and the locks of one conversation.

    A document has the name of the file that held it first, such as ``memories.json``. Methods that read create
    nothing. All raise OSError if the place does not answer, and DataKeyError for data of another API key.
    """

    @property
    def discussion_id(self) -> str:
        """The id that the client sent."""

    @property
    def place(self) -> str:
        """Where it is stored: the same for each object of one discussion, and for no other."""

    @property
    def cipher(self) -> Cipher:
        """What its texts are encrypted with."""

    def display(self, name: str) -> str:
        """Return the name of a document in messages."""

    def read(self, name: str) -> bytes | None:
        """Return a document as it is stored, which may be encrypted, or None."""

    def together(self, *names: str) -> contextlib.AbstractContextManager[None]:
        """Return a block in which these documents may be read at one moment, the first time that one is wanted.

        So a database is asked once for all of them. What is written inside the block is read there; what others write
        during that time may not be, so nothing inside may wait for an LLM. Taking a lock inside begins another moment.
        """

    def write(self, name: str, content: bytes) -> None:
        """Replace a document by ``content``, which is not encrypted.

        A document that is encrypted with another of the cipher's keys keeps that key. If it cannot be decrypted, it is
        not changed.
        """

    def change(
        self,
        name: str,
        function: Callable[[bytes | None], bytes | None],
        scope: CancelScope | None = None,
        timeout: float | None = None,
    ) -> None:
        """Replace a document by what ``function`` makes of it, with no other change in between; None leaves it.

        ``function`` gets what ``read`` returns, and may be called more than once. Raises what it raises, and
        EarlyTerminationException and TimeoutError as ``lock`` does.
        """

    def copy(self, name: str, suffix: str, instead: bytes | None = None) -> None:
        """Copy a document, if there is one, to the same name with ``suffix``, encrypted if the cipher is active.

        ``instead``: what the copy contains in place of the document, which need not exist; not encrypted.
        """

    def hide(self, name: str, suffix: str) -> None:
        """Encrypt such a copy that is still in clear, from before encryption was switched on."""

    def lock(
        self, name: str, scope: CancelScope | None = None, timeout: float | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Return a lock on ``MEMORIES`` or ``COMPACTOR``, for work that calls LLMs.

        Raises EarlyTerminationException, and TimeoutError after ``timeout`` seconds (0: one attempt).
        """

    def memories(self, *, write: bool = False, scope: CancelScope | None = None) -> SearchableMemories:
        """Open the searchable memories for one pass; ``write`` creates them. Also raises sqlite3.Error."""

    def messages(self, *, write: bool = False, scope: CancelScope | None = None) -> MessageIndex:
        """Open the index of messages for one request; ``write`` creates it. Also raises sqlite3.Error."""


@dataclass(frozen=True)
class ListedDocument:
    """A document in a list; ``modified`` in seconds since 1970."""

    name: str
    size: int
    modified: float


@dataclass(frozen=True)
class Searchable:
    """The searchable memories of a discussion, as far as they can be counted without a key.

    Attributes:
        vectors: for each embedding model, the number of memories with a vector.
        encrypted: the newest memory is encrypted.
        messages: the number of rows in the index of messages.
    """

    memories: int = 0
    vectors: dict[str, int] = field(default_factory=dict)
    encrypted: bool = False
    messages: int = 0


@dataclass(frozen=True)
class ListedDiscussion:
    """A discussion in a list.

    Attributes:
        place: the same for discussions with the same owner.
        remove: deletes the discussion and returns how many documents it had; all its searchable memories count as
            one.
    """

    place: str
    key_hash: str | None
    discussion_id: str
    documents: tuple[ListedDocument, ...]
    searchable: Searchable
    remove: Callable[[], int] = field(repr=False, compare=False)


class Discussions(Protocol):
    """All discussions, wherever they are stored: the one object that knows."""

    @property
    def worker(self) -> int:
        """The number of this process among those that share the discussions in a database; 0 with files."""

    @property
    def health(self) -> str:
        """Whether the database answers: ``ok`` or ``unreachable``; empty with files."""

    def listed(self) -> list[ListedDiscussion] | None:
        """Return all discussions of the current user; None if they are files, which are found in folders."""

    def state(
        self, discussion_id: str, key_hash: str | None = None, encryption_key: bytes | None = None
    ) -> DiscussionState:
        """Return a discussion; nothing is looked up yet.

        ``key_hash`` and ``encryption_key`` belong to the client's API key. Raises ValueError for an id or hash that is
        not usable as the name of a folder.
        """

    def folder(
        self, discussion_id: str, key_hash: str | None = None, encryption_key: bytes | None = None
    ) -> DiscussionFolder | None:
        """Return the folder of a discussion, for scripts that open its files; None if no files are used."""

    def hold_data_of_a_key(self, discussion_id: str) -> bool:
        """Return whether this id, without a key, is the name of a client's key that has conversations."""

    def key_salt(self, user: str | None = None) -> KeySalt | None:
        """Return the salt of format 2 of the discussions of ``user`` (None: the current one); None in format 1.

        Raises KeySaltError.
        """

    def keep_key_salt(self, salt: KeySalt, user: str | None = None) -> KeySalt:
        """Store a salt, unless there is one; return the one that is stored. Raises KeySaltError and OSError."""

    def has_key(self, name: str, user: str | None = None) -> bool:
        """Return whether a key, by the name that it has here, has discussions. Raises StateUnavailableError."""

    def first_name(self, names: Sequence[str], user: str | None = None) -> str | None:
        """Return that of the names of a key under which its data is: the first one, in the first place that has any;
        None without data. If a database is away, the last name may be returned unseen: the caller has to name the one
        whose data must not be hidden by new data last."""
