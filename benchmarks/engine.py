"""What the engine itself costs per node: runs workflows of trivial nodes in this process and prints CPU time per node.

    python -m benchmarks.engine [--nodes 10000]
"""
from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from pathlib import Path

from Middleware.common import instance_global_variables as instance
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.workflows.managers.workflow_manager import WorkflowManager

PER_WORKFLOW = 100


def write_configuration(root: Path) -> None:
    """One user and workflows of ``PER_WORKFLOW`` nodes each: fixed texts, texts with variables, both with a child."""
    nodes = {
        "fixed": [{"type": "StaticResponse", "content": "text"}] * PER_WORKFLOW,
        "variables": [{"type": "StringConcatenator", "strings": ["{agent1Input}", "{todays_date_iso}"]}] * PER_WORKFLOW,
        "conditions": [{"type": "Conditional", "condition": "'{agent1Input}' == 'x' OR 2 > 1"}] * PER_WORKFLOW}
    files = {"Users/_current-user": {"currentUser": "bench"}, "Users/bench": {},
             **{f"Workflows/bench/{name}": {"nodes": entries} for name, entries in nodes.items()}}
    for name, content in files.items():
        path = root / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")


def run(name: str, count: int) -> float:
    """CPU milliseconds per node."""
    begun = time.process_time()
    for _ in range(max(count // PER_WORKFLOW, 1)):
        with request_scope(RequestContext()):
            WorkflowManager.run_custom_workflow(name, "bench", None, [{"role": "user", "content": "hi"}],
                                                scoped_inputs=["x"])
    return (time.process_time() - begun) * 1000 / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000, help="how many nodes to run of each kind")
    count = parser.parse_args().nodes
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        write_configuration(Path(folder))
        instance.CONFIG_DIRECTORY, instance.USERS = folder, ["bench"]
        for name in ("fixed", "variables", "conditions"):
            run(name, PER_WORKFLOW)
            print(f"{name:12} {run(name, count):.4f} ms CPU per node")


if __name__ == "__main__":
    main()
