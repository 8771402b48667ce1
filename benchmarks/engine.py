"""What the engine itself costs per node: runs workflows of trivial nodes in this process and prints CPU time per node.

python benchmarks/engine.py [--nodes 10000]
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from Middleware.common import instance_global_variables as instance
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Tests.integration.launcher import ConfigTree

PER_WORKFLOW = 100


def write_configuration(tree: ConfigTree) -> None:
    """One user and workflows of ``PER_WORKFLOW`` nodes each: fixed texts, texts with variables, both with a child."""
    nodes = {
        "fixed": [{"type": "StaticResponse", "content": "text"}] * PER_WORKFLOW,
        "variables": [{"type": "StringConcatenator", "strings": ["{agent1Input}", "{todays_date_iso}"]}] * PER_WORKFLOW,
        "conditions": [{"type": "Conditional", "condition": "'{agent1Input}' == 'x' OR 2 > 1"}] * PER_WORKFLOW,
    }
    tree.write("Users/_current-user.json", {"currentUser": "bench"})
    tree.write("Users/bench.json", {})
    for name, entries in nodes.items():
        tree.write(f"Workflows/bench/{name}.json", {"nodes": entries})


def run(name: str, count: int) -> float:
    """CPU milliseconds per node."""
    begun = time.process_time()
    for _ in range(max(count // PER_WORKFLOW, 1)):
        with request_scope(RequestContext()):
            WorkflowManager.run_custom_workflow(
                name, "bench", None, [{"role": "user", "content": "hi"}], scoped_inputs=["x"]
            )
    return (time.process_time() - begun) * 1000 / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000, help="how many nodes to run of each kind")
    count = parser.parse_args().nodes
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        tree = ConfigTree(Path(folder))
        write_configuration(tree)
        instance.CONFIG_DIRECTORY, instance.USERS = str(tree.configs), ["bench"]
        for name in ("fixed", "variables", "conditions"):
            run(name, PER_WORKFLOW)
            print(f"{name:12} {run(name, count):.4f} ms CPU per node")


if __name__ == "__main__":
    main()
