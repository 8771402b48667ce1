"""Docs/User/nodes.md, the list of node types, and the table of keys in each page of Docs/User/nodes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config.keys.node import COMMON_KEYS
from Middleware.workflows.handlers.base.base_workflow_node_handler import Acts, BaseHandler
from Middleware.workflows.handlers.registry import node_types
from Scripts.generate import generated_files, key_tables

PAGES = generated_files.ROOT / "Docs" / "User" / "nodes"
BEGIN = "<!-- keys: written by python -m Scripts.generate -->\n"
END = "<!-- end of keys -->"
GROUPS = (
    "Answers",
    "Other workflows",
    "Texts and decisions",
    "Files and scripts",
    "Images",
    "The outside world",
    "Memory: write",
    "Memory: read",
    "Memory: read and write in one, the old way",
)
OFFLINE = "OfflineSearches"
"""The page of all types whose names begin with "Offline"; every other type has a page of its own."""
_LISTED = re.compile(r'^<!-- (?:(\w+): )?listed under "([^"]+)"(?:, (\d+))?: (.+) -->$', re.MULTILINE)
"""In a page: its type, unless it has its name; group of the type, position in it (the last without one), purpose."""
INTRODUCTION = """\
# Node types

A workflow is a list of nodes, and the `type` of a node says what it does. The page of a type has an example that you
can copy and run, all its keys, and notes on how it behaves.

The examples use what `bash run_linux.sh init` writes ([getting started](getting-started.md)): the user `me` and the
endpoints `Main` and `Worker`. Save each file under the path above it. A file
`Public/Configs/Workflows/me/mail/_DefaultWorkflow.json` is the model `me:mail` in your client's list a second later;
in most clients, you have to reload the list. `bash run_linux.sh check` finds mistakes. The
[cookbook](cookbook/README.md) has larger examples.

In the tables of keys, *Variables* says which [variables](variables.md) work in the value: **all**, such as
`{agent1Output}` or `{chat_user_prompt_last_one}`; or those that are known **early**, before the node's endpoint is:
custom variables, inputs, and outputs of nodes that are done. In other values, braces are ordinary text. *Values* lists
the valid values, or what a name refers to.
"""
COMMON = """\
In addition, a node can have the [keys of every node](../nodes.md#keys-of-every-node); that section also explains the
columns.
"""
PARALLEL = """\
## Nodes at the same time

With `"parallelNodes": true` at the top of a workflow file, nodes that do not depend on each other run at the same time.
A node waits for every node whose `{agentNOutput}` its texts name, and for those in its `dependsOn`. Nodes with side
effects (files, locks, memories, scripts, tools, other workflows) keep their order, unless they have
`"parallelSafe": true`. A WorkflowLock and an ImageProcessor wait for all nodes before them, and all nodes after them
wait for them. The responder answers when all nodes before it are done. Outputs, their numbers and the summary in the
log are in the order of the file.

What a node can do in addition to producing an output:

"""
ACTS: Mapping[Acts, str] = {
    "no": "nothing",
    "reads": "read stored data, files or another server",
    "writes": "change data of this installation, or the conversation",
    "outside": "anything: it runs code that the program does not know",
}


def files(pages: Path) -> dict[Path, str]:
    """The index next to the folder of pages, and the pages with current tables."""
    types: dict[Path, list[str]] = {}
    for node_type in node_types():
        types.setdefault(page_of(pages, node_type), []).append(node_type)
    each = {path: _page(path, sorted(on_page)) for path, on_page in types.items()}
    return {pages.with_suffix(".md"): index(each), **each}


def page_of(pages: Path, node_type: str) -> Path:
    return pages / f"{OFFLINE if node_type.startswith('Offline') else node_type}.md"


def marks(path: Path, node_type: str) -> tuple[str, str]:
    """What stands around the table of a type in its page."""
    return (BEGIN if path.stem == node_type else BEGIN.replace("keys", f"keys of {node_type}")), END


def index(pages: Mapping[Path, str]) -> str:
    """The list of all types. ``pages``: their pages with texts."""
    lines: dict[str, list[tuple[int, str, str]]] = {title: [] for title in GROUPS}
    for path, text in pages.items():
        for node_type, title, position, purpose in _listed(path, text):
            link = f"{path.stem}.md{'' if path.stem == node_type else f'#{node_type.lower()}'}"
            lines[title].append((position, node_type, f"| [{node_type}](nodes/{link}) | {purpose} |"))
    groups = [part for title, types in lines.items() for part in (f"### {title}\n", _list(sorted(types)))]
    return "\n".join(
        [
            INTRODUCTION,
            "## Types by purpose\n",
            *groups,
            "## Keys of every node\n",
            key_tables.table(COMMON_KEYS, COLUMNS),
            PARALLEL.rstrip("\n"),
            "",
            *_effects(),
            "",
        ]
    )


def _effects() -> Iterable[str]:
    """The table of what the types can do."""
    yield from ("| It can | Types |", "|---|---|")
    for acts, meaning in ACTS.items():
        types = sorted(node_type for node_type, handler in node_types().items() if handler.acts == acts)
        yield f"| {meaning} | {', '.join(types)} |"


def _listed(path: Path, text: str) -> list[tuple[str, str, int, str]]:
    """The types of a page, each with group, position in it, and purpose. Raises ValueError if the page does not say."""
    found = _LISTED.findall(text)
    if not found or any(title not in GROUPS for _, title, _, _ in found):
        raise ValueError(
            f'{path} needs a line such as <!-- listed under "{GROUPS[0]}": What for. -->; the groups are '
            f"{', '.join(GROUPS)}"
        )
    return [
        (node_type or path.stem, title, int(position or 1000), purpose) for node_type, title, position, purpose in found
    ]


def _list(types: Iterable[tuple[int, str, str]]) -> str:
    return "\n".join(["| Type | What for |", "|---|---|", *(row for _, _, row in types), ""])


def _page(path: Path, on_page: Sequence[str]) -> str:
    text = path.read_text(encoding="utf-8") if path.exists() else _beginning(path, on_page)
    for node_type in on_page:
        table = f"\n{key_tables.table(node_types()[node_type].KEYS[node_type], COLUMNS)}\n"
        table += f"{COMMON}\n" if path.stem == node_type else ""
        text = generated_files.with_part(path, text, marks(path, node_type), table)
    return text


def _beginning(path: Path, on_page: Sequence[str]) -> str:
    """A page that is yet to be written."""
    uses = {node_type: summary(node_types()[node_type]) for node_type in on_page}
    names = {node_type: "" if path.stem == node_type else f"{node_type}: " for node_type in on_page}
    listed = [
        f'<!-- {names[node_type]}listed under "{GROUPS[0]}": {" ".join(use.split())} -->'
        for node_type, use in uses.items()
    ]
    tables = ["".join(marks(path, node_type)) for node_type in on_page]
    common = [] if path.stem in uses else [COMMON.rstrip()]
    parts = [f"# {path.stem}", *listed, *uses.values(), "## Example", "## Keys", *common, *tables, "## Good to know\n"]
    return "\n\n".join(parts)


def strangers(pages: Path) -> list[Path]:
    """Pages that belong to no type."""
    return sorted({*pages.glob("*.md")} - {page_of(pages, node_type) for node_type in node_types()})


def summary(node: type[BaseHandler]) -> str:
    """The first paragraph of a handler's docstring."""
    return inspect.cleandoc(node.__doc__ or "").split("\n\n")[0].replace("``", "`")


def _variables(key: ConfigKey) -> str:
    return {"full": "all", "early": "early"}.get(key.variables, "")


COLUMNS = {
    "Key": key_tables.name,
    "Type": key_tables.kinds,
    "Default": key_tables.default,
    "Variables": _variables,
    "Values": key_tables.values,
    "Meaning": key_tables.meaning,
}
