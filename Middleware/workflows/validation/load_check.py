"""Checks each version of a workflow file when it is first run, and logs what it found."""
from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from typing import Any

from Middleware.utilities.config_workflows import LoadedWorkflow
from Middleware.workflows.validation.findings import only_notes, report
from Middleware.workflows.validation.lookups import Lookups
from Middleware.workflows.validation.workflow_checks import Registry, check_workflow

logger = logging.getLogger(__name__)


class LoadCheck:
    """Logs one record per version of a workflow file that has something to look at; never stops a run."""

    def __init__(self, built_in: Collection[str], size: int = 256) -> None:
        """``built_in``: the names of variables that every workflow may use."""
        self._built_in, self._size = built_in, size
        self._seen: dict[int, list[dict[str, Any]]] = {}
        self._lock = threading.Lock()

    def check(self, loaded: LoadedWorkflow, registry: Registry) -> None:
        """Check ``loaded`` unless that was done. Belongs inside the request: the user's settings count."""
        if self._seen.get(id(loaded.nodes)) is not loaded.nodes and self._is_new(loaded):
            self._report(loaded, registry)

    def _is_new(self, loaded: LoadedWorkflow) -> bool:
        with self._lock:
            if self._seen.get(id(loaded.nodes)) is loaded.nodes:
                return False  # another thread was faster
            if len(self._seen) >= self._size:
                self._seen.clear()
            self._seen[id(loaded.nodes)] = loaded.nodes  # kept alive, so that its id is not used again
            return True

    def _report(self, loaded: LoadedWorkflow, registry: Registry) -> None:
        try:
            findings = check_workflow(loaded, registry, Lookups(self._built_in))
        except Exception:  # a workflow that would run must run, whatever its check comes across
            logger.warning("Workflow %s could not be checked", loaded.display, exc_info=True)
            return
        if findings:
            logger.log(logging.INFO if only_notes(findings) else logging.WARNING, "%s", report(findings))
