"""A pytest plugin: checks every workflow that tests run, and writes what it calls errors although the run was fine.

The file named by ``WILMER_CORPUS`` gets a line of JSON per run: whether it ended well, and the messages of its errors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from typing import Any

from Middleware.addons.check.lookups import Lookups
from Middleware.addons.check.workflow_check import check_workflow
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.workflows.processors.workflows_processor import WorkflowProcessor

_execute = WorkflowProcessor.execute


def _checked(processor: WorkflowProcessor) -> Generator[Any, None, None]:
    run = processor.run
    loaded = LoadedWorkflow(run.workflow_name, run.folder, "", "", run.nodes, dict(run.variables))
    findings = check_workflow(loaded, Lookups())
    well = True
    try:
        yield from _execute(processor)
    except Exception:
        well = False
        raise
    finally:
        errors = [finding.message for finding in findings if finding.severity == "error"]
        with open(os.environ["WILMER_CORPUS"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"well": well, "errors": errors}) + "\n")


WorkflowProcessor.execute = _checked  # type: ignore[method-assign]
