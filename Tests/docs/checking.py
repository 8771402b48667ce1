"""What ``python server.py check`` says about the examples of a page."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from Middleware.addons.check.file_check import KINDS, check_content
from Middleware.addons.check.findings import Finding
from Middleware.cli.commands import all_commands
from Middleware.common import instance_global_variables as instance
from Middleware.utilities.config.check import KeyCheck, Severity
from Middleware.utilities.config.declarations import KeyTable
from Middleware.utilities.config.keys.workflow_test import TEST_KEYS
from Middleware.utilities.json_data import freeze
from Tests.docs.blocks import Block
from Tests.docs.sandbox import USER, Sandbox, own_process, scripts

WRAPPED = f"Workflows/{USER}/documentation/_DefaultWorkflow.json"
FILLER = {"title": "An earlier node", "type": "StringConcatenator", "strings": ["text"]}
_MISSING = re.compile(r"the key '[^']+' is missing|names no endpoint")
_EARLIER = re.compile(r"\bagent(\d+)Output")


@dataclass(frozen=True)
class Diagnostic:
    """An error or warning. ``line``: in the file, 0 if it is not known."""

    file: str
    line: int
    text: str


def rounds(found: Sequence[Block]) -> list[list[Block]]:
    """The whole files of a page, in groups: one that stands there again replaces the earlier one in the next group."""
    groups: list[list[Block]] = []
    count: Counter[str] = Counter()
    for block in found:
        if block.mark == "file":
            groups += [[]] if len(groups) == count[block.value] else []
            groups[count[block.value]].append(block)
            count[block.value] += 1
    for number, group in enumerate(groups[1:], 1):
        again = {block.value for block in group}
        group += [block for block in groups[number - 1] if block.value not in again]
    return groups


class Checker:
    """Checks blocks in one sandbox. ``page``: the whole files of the block's page, which are there meanwhile."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._results: dict[tuple[str, str], list[tuple[Block, str]]] = {}  # by name and text of the page
        self.before: list[Diagnostic] = []
        self.before = self._check()
        """What there is to say without any page."""

    def complaints(self, block: Block, page: Sequence[Block], python: Sequence[Block]) -> list[str]:
        """What is wrong with a block, each with its place."""
        if block.mark in ("wire", "other"):
            block.json()
            return []
        if block.mark == "part":
            return self._part(block, page, python)
        if block.mark == "node":
            content = block.json()
            return self._nodes(block, {"type": block.value, **content} if block.value else content, page, python)
        about = block.page.name, block.page.source
        if about not in self._results:
            self._results[about] = list(self._files(page, python))
        block.json()
        return [text for other, text in self._results[about] if other == block]

    def _files(self, page: Sequence[Block], python: Sequence[Block]) -> Iterator[tuple[Block, str]]:
        # A page about what check advises against shows it nevertheless.
        notes = [str(block.how["note"]) for block in page if block.how and "note" in block.how]
        for group in rounds(page):
            with self._installed(group, python):
                for told in self._check():
                    if any(told.text.startswith("note: ") and note in told.text for note in notes):
                        continue
                    block = next((block for block in group if block.value == told.file), group[0])
                    other = "" if block.value == told.file else f"{told.file}, which the page's files change: "
                    yield block, str(block.error(other + told.text, told.line if not other else 0))

    def _nodes(self, block: Block, content: Any, page: Sequence[Block], python: Sequence[Block]) -> list[str]:
        nodes = content if isinstance(content, list) else [content]
        earlier = max(map(int, _EARLIER.findall(block.fence.text)), default=0)
        workflow = {**(block.how or {}).get("variables", {}), "nodes": [FILLER] * earlier + nodes}
        with self._installed((rounds(page) or [[]])[-1], python):
            text = json.dumps(workflow, indent=1)
            self._sandbox.put_config(WRAPPED, self._sandbox.moved(text, scripts(python)))
            found = [told.text for told in self._check() if told.file == WRAPPED]
        return [str(block.error(text)) for text in found if not (block.value and _MISSING.search(text))]

    def _part(self, block: Block, page: Sequence[Block], python: Sequence[Block]) -> list[str]:
        content = block.json()
        if block.value == "workflow" and "nodes" in content:
            return self._nodes(block, content["nodes"], page, python)
        kind = KINDS[block.value]
        with own_process(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(instance, "CONFIG_DIRECTORY", str(self._sandbox.configs))
            found = list(check_content(block.value, kind, freeze(content)))
        if kind.name == "workflow-test":  # whole files are checked elsewhere
            found = list(KeyCheck(_finding).findings(content, {**kind.key, **KeyTable(TEST_KEYS)}))
        return [
            str(block.error(f"{finding.json_path}: {finding.text}"))
            for finding in found
            if not _MISSING.search(finding.message)
        ]

    @contextlib.contextmanager
    def _installed(self, group: Sequence[Block], python: Sequence[Block]) -> Iterator[None]:
        sandbox, paths = self._sandbox, scripts(python)
        try:
            for path, text in paths.items():
                sandbox.put(sandbox.place(path), text)
            for block in group:
                sandbox.put_config(block.value, sandbox.moved(block.fence.text, paths))
            for block in group:
                sandbox.change_user((block.how or {}).get("user", {}))
            yield
        finally:
            sandbox.restore()

    def _check(self) -> list[Diagnostic]:
        with own_process(), pytest.MonkeyPatch.context() as patch:
            patch.chdir(self._sandbox.folder)
            with contextlib.redirect_stdout(io.StringIO()) as output:
                all_commands()["check"].run(["--json", "--PublicDirectory", str(self._sandbox.public)])
        findings = json.loads(output.getvalue())["findings"]
        found = [Diagnostic(told["file"], told["line"] or 0, _text(told)) for told in findings]
        return [told for told in found if told not in self.before]


def _text(told: Mapping[str, Any]) -> str:
    expected = f". Expected: {told['expected']}" if told.get("expected") else ""
    hint = f" Did you mean '{told['suggestion']}'?" if told.get("suggestion") else ""
    return f"{told['severity']}: {told['jsonPath']}: {told['message']}{expected}{hint}"


def _finding(severity: Severity, path: str, message: str, expected: str, suggestion: str) -> Finding:
    return Finding(severity, "", path, None, message, expected, suggestion)
