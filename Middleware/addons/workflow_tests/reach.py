"""The nodes that a test can run: those of its workflow, or of its user, and of all workflows that these lead to."""

from __future__ import annotations

from collections.abc import Iterable

from Middleware.addons.check.lookups import Lookups
from Middleware.addons.check.memory_check import COMPACTOR_KEY, HELPERS, MEMORY_KEY
from Middleware.addons.check.user_check import UserCheck, WorkflowReference, followed, reached_workflows
from Middleware.addons.workflow_tests.suites import Suite, title_of
from Middleware.exceptions import ConfigurationError
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Middleware.utilities.config.workflows import LoadedWorkflow


class Reach:
    """Answers for all tests of a configuration. ``workflows``: all its workflow files, relative to its root."""

    def __init__(self, workflows: Iterable[str]) -> None:
        self._workflows = [*workflows]
        self._known: dict[tuple[str, str], frozenset[str] | None] = {}

    def titles(self, suite: Suite, is_request: bool) -> frozenset[str] | None:
        """Return the titles of the nodes that a test can run; None if the user's file cannot be used."""
        key = suite.user, "" if is_request else suite.display
        if key not in self._known:
            with request_scope(RequestContext(request_id="check of tests", user=suite.user)):
                try:
                    self._known[key] = frozenset(
                        title_of(node) for loaded in self._reached(suite, is_request) for node in loaded.nodes
                    )
                # Reported at the user's file.
                except ConfigurationError:
                    self._known[key] = None
        return self._known[key]

    def _reached(self, suite: Suite, is_request: bool) -> Iterable[LoadedWorkflow]:
        lookups = Lookups()
        # What memory nodes run is in files that the user's file names.
        for key in (MEMORY_KEY, COMPACTOR_KEY):
            if name := config_utils.user_name_setting(key):
                lookups.settings_file(name)
        if is_request:
            return reached_workflows(UserCheck(lookups), lookups, self._workflows)
        helpers = [name for key in HELPERS if (name := config_utils.user_name_setting(key))]
        return followed(
            [WorkflowReference(suite.workflow, suite.folder or "."), *map(WorkflowReference, helpers)], lookups
        )
