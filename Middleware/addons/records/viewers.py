"""Who looks at runs, and what of them is theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from Middleware.addons.records.model import ConfigVersion, RunFacts, RunOwner

# The folder of workflows, in paths below the config root.
WORKFLOWS = "Workflows/"
ViewerRole: TypeAlias = Literal["own", "all", "operator"]


@dataclass(frozen=True)
class Viewer:
    """A user who is signed in.

    Attributes:
        role: ``own``: runs of this very key; ``all``: runs of the users of the key; ``operator``: all runs.
        key_names: what ``RunFacts`` may have for the key; empty for an operator.
        users: the users of the key; None for all users.
        api_key: the key itself, which decrypts; None for an operator.
    """

    role: ViewerRole
    key_names: frozenset[str] = frozenset()
    users: frozenset[str] | None = None
    api_key: str | None = field(default=None, repr=False)

    def sees(self, facts: RunOwner) -> bool:
        """Return whether the viewer may see the facts of a run, and its texts if it is not private."""
        if self.role == "operator":
            return True
        if self._made(facts):
            return True
        return self.role == "all" and (self.users is None or facts["user"] in self.users)

    def reads(self, facts: RunFacts) -> bool:
        """Return whether the viewer may see the texts of a run."""
        # The operator has no key, and so cannot have made a private run.
        return self._made(facts) if facts["private"] else self.sees(facts)

    def files(self, used: Sequence[ConfigVersion]) -> list[ConfigVersion]:
        """Return the configuration files of a run that the viewer may know of: ``all`` reads workflows."""
        if self.role == "operator":
            return list(used)
        return [file for file in used if self.role == "all" and file["path"].startswith(WORKFLOWS)]

    def changes(self, facts: RunFacts) -> bool:
        """Return whether the viewer may pin, annotate and delete a run."""
        return self.role == "operator" or self._made(facts)

    def _made(self, facts: RunOwner) -> bool:
        """Return whether the run was made with the viewer's key."""
        # A run without a key does not belong to a user.
        return self.role != "operator" and facts["key_hash"] in self.key_names
