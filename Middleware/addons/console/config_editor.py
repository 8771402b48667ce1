"""The configuration as the console shows and changes it, in the words of its API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from Middleware.addons.records.records import RunRecords

Answer = dict[str, object]


class ConfigEditor(Protocol):
    """Reads, checks and saves configuration files. A path is relative to the config root; texts are without secrets.

    All methods raise the errors of the console's API.
    """

    def files(self) -> Answer:
        """Return all files that the program reads."""

    def file(self, path: str) -> Answer:
        """Return the text of a file, and the findings about it."""

    def check(self, path: str, text: str) -> Answer:
        """Return the findings about a text that is not saved."""

    def assist(self, path: str, text: str, offset: int) -> Answer:
        """Return what may be written at an offset in UTF-16 units, and what stands there."""

    def check_all(self) -> Answer:
        """Return the findings about the whole configuration."""

    def history(self, path: str, version: int | None = None) -> Answer:
        """Return the older versions of a file, or the text of one."""

    def save(self, path: str, text: str, base: str, confirm: str, session: str) -> Answer:
        """Replace a file whose SHA-256 is ``base``. ``confirm`` names the list of new capabilities that was shown."""


class MakeEditor(Protocol):
    """Makes the editor of a process."""

    def __call__(self, records: RunRecords) -> ConfigEditor: ...
