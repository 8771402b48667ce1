"""The dependencies between the nodes of a workflow, and running independent nodes at the same time.

This applies only with ``"parallelNodes": true`` at the top of a workflow file. A node waits for the nodes whose outputs
its texts name, for those in its ``dependsOn``, and, if it has side effects, for every earlier node that has them too.
"""

from __future__ import annotations

import contextvars
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.json_data import strings_in
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler

if TYPE_CHECKING:
    from concurrent.futures import Future

MAX_WORKERS = 16
_TYPE = NODE.lookup("type")

_OUTPUT = re.compile(r"\bagent(\d+)Output\b")
_WORD = re.compile(r"[^\W\d]\w*")

Node = Mapping[str, Any]


def dependencies(
    nodes: Sequence[Node], variables: Mapping[str, Any], handlers: Mapping[str, BaseHandler]
) -> list[frozenset[int]]:
    """Return for each node the indexes of the earlier nodes that it waits for, without those that they wait for.

    ``handlers``: by node type.
    """
    through = {name: found for name, value in variables.items() if (found := _outputs_in(value))}
    result: list[frozenset[int]] = []
    # The newest node whose order relative to others matters.
    acting: int | None = None
    barrier: int | None = None
    for index, node in enumerate(nodes):
        needed = {number for number in _outputs_used(node, through) | _demanded(node, nodes) if number < index}
        if barrier is not None:
            needed.add(barrier)
        if _is_barrier(node, handlers):
            needed = set(range(index))
            barrier = acting = index
        elif _keeps_order(node, handlers):
            if acting is not None:
                needed.add(acting)
            acting = index
        result.append(frozenset(needed))
    return result


def run_when_ready(
    indexes: Iterable[int],
    needed: Sequence[frozenset[int]],
    run: Callable[[int], object],
    order_of: Callable[[int], tuple[object, ...]] = lambda index: (),
) -> None:
    """Call ``run(index)`` for all ``indexes``, each when those it needs are done.

    Of several that are ready at the same time, those with the least ``order_of(index)`` are started first.
    Indexes that are in ``needed`` but not in ``indexes`` are done already. After a failure no further node is started,
    the running ones are waited for, and the failure of the first node in order is raised.
    """
    # Imported here because most workflows run their nodes one after the other.
    from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
    from graphlib import TopologicalSorter

    wanted = frozenset(indexes)
    order = TopologicalSorter({index: needed[index] & wanted for index in wanted})
    order.prepare()
    running: dict[Future[object], int] = {}
    failures: dict[int, BaseException] = {}
    with ThreadPoolExecutor(MAX_WORKERS, thread_name_prefix="parallel-node") as pool:
        while running or (order.is_active() and not failures):
            for index in () if failures else _sorted(order.get_ready(), order_of):
                # Threads of a pool know nothing of the current request, which the context names.
                running[pool.submit(contextvars.copy_context().run, run, index)] = index
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                index = running.pop(future)
                error = future.exception()
                if error is None:
                    order.done(index)
                else:
                    failures[index] = error
    if failures:
        raise failures[min(failures)]


def _sorted(ready: tuple[int, ...], order_of: Callable[[int], tuple[object, ...]]) -> Sequence[int]:
    return ready if len(ready) == 1 else sorted(ready, key=lambda index: (*order_of(index), index))


def _keeps_order(node: Node, handlers: Mapping[str, BaseHandler]) -> bool:
    if NODE.flag(node, "parallelSafe"):
        return False
    handler = _handler(node, handlers)
    # The intention behind an unknown type cannot be known, although such a node runs as Standard.
    return handler is None or not handler.is_pure(node)


def _is_barrier(node: Node, handlers: Mapping[str, BaseHandler]) -> bool:
    handler = _handler(node, handlers)
    return handler is not None and handler.barrier and not NODE.flag(node, "parallelSafe")


def _handler(node: Node, handlers: Mapping[str, BaseHandler]) -> BaseHandler | None:
    node_type = node.get(*_TYPE)
    return handlers.get(node_type) if isinstance(node_type, str) else None


def _outputs_used(node: Node, through: Mapping[str, set[int]]) -> set[int]:
    """Return the indexes of the nodes whose outputs a node's texts name, directly or through a variable of the file."""
    found = _outputs_in(node)
    if through:
        for text in _texts(node):
            for word in _WORD.findall(text):
                found |= through.get(word, set())
    return found


def _outputs_in(value: object) -> set[int]:
    return {int(number) - 1 for text in _texts(value) for number in _OUTPUT.findall(text)}


def _texts(value: object) -> Iterable[str]:
    # A title that mentions an output does not use it.
    return (text for keys, text in strings_in(value) if keys not in (("title",), ("agentName",)))


def _demanded(node: Node, nodes: Sequence[Node]) -> set[int]:
    """Return the indexes of the nodes in ``dependsOn``: numbers, counted from 1, or titles."""
    wanted = NODE.value(node, "dependsOn")
    found: set[int] = set()
    for entry in wanted if isinstance(wanted, list) else ():
        # A boolean is an int in Python, but no node's number.
        if isinstance(entry, int) and not isinstance(entry, bool):
            found.add(entry - 1)
        else:
            found |= {
                index
                for index, other in enumerate(nodes)
                if entry in (NODE.value(other, "title"), NODE.value(other, "agentName"))
            }
    return {index for index in found if index >= 0}
