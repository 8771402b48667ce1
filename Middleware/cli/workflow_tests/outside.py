"""Find the nodes that would reach outside and have no stub, before a test runs."""
from __future__ import annotations

from collections.abc import Iterator, Mapping

from Middleware.cli.workflow_tests.sandbox import stub_for
from Middleware.cli.workflow_tests.suites import WorkflowTest
from Middleware.cli.workflow_tests.titles import title_of
from Middleware.exceptions import ConfigurationError
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.workflows.handlers.registry import node_types


def nodes_without_stub(test: WorkflowTest) -> list[str]:
    """Return lines about the nodes that certainly run and would reach outside; empty if each has a stub.

    Nodes of a workflow that is chosen while the test runs are reported when they are about to run.
    """
    if test.is_request:
        return []
    found = []
    for workflow, node in _certain_nodes(test.suite.workflow, test.suite.folder or None, None, set(), test.stubs):
        title, node_type = title_of(node), str(NODE.value(node, "type"))
        handler = node_types().get(node_type)
        if handler is not None and handler.reaches_outside and stub_for(test.stubs, workflow, title) is None:
            found.append(missing_stub(f"{workflow}/{title}", node_type))
    return found


def missing_stub(name: str, node_type: str = "") -> str:
    kind = f" ({node_type})" if node_type else ""
    return f"node '{name}'{kind} would reach outside: name its output in \"stubs\""


def _certain_nodes(name: str, folder: str | None, caller: LoadedWorkflow | None, seen: set[str],
                   stubs: Mapping[str, str]) -> Iterator[tuple[str, Mapping[str, object]]]:
    try:
        loaded = config_utils.load_workflow(name, folder, caller.folder if caller else None,
                                            caller.name if caller else None)
    except ConfigurationError:
        # The run reports it.
        return
    if loaded.path in seen:
        return
    seen.add(loaded.path)
    for node in loaded.nodes:
        yield loaded.name, node
        child = NODE.value(node, "workflowName")
        if NODE.value(node, "type") == "CustomWorkflow" and isinstance(child, str) \
                and stub_for(stubs, loaded.name, title_of(node)) is None:
            folder = NODE.value(node, "workflowUserFolderOverride") or None
            yield from _certain_nodes(child, folder, loaded, seen, stubs)
