"""A config tree with workflows and tests of them, which are run in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.workflow_tests.running import Result, run_tests
from Middleware.addons.workflow_tests.sandbox import sandbox_folder
from Middleware.addons.workflow_tests.suite_reader import read_tests
from Middleware.addons.workflow_tests.tests_command import main
from Middleware.utilities import config_utils
from Tests.llmapis.lab import Lab

USER = "tester"


def says(text: str = "hi", role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def static(title: str, text: str, **more: Any) -> dict[str, Any]:
    return {"title": title, "type": "StaticResponse", "content": text, **more}


def asks(title: str, prompt: str = "", **more: Any) -> dict[str, Any]:
    """A node that asks the LLM; without a prompt it sends the conversation."""
    return {
        "title": title,
        "type": "Standard",
        "endpointName": "Main",
        "systemPrompt": f"You are {title}.",
        "prompt": prompt,
        **more,
    }


def test(**keys: Any) -> dict[str, Any]:
    """A test that says ``hi``, unless told otherwise."""
    return {"name": "it works", "messages": [says()], **keys}


test.__test__ = False  # type: ignore[attr-defined]


class SuiteLab(Lab):
    """Workflows of the user ``tester``, whose endpoint leads to a port that nobody listens on."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(root, monkeypatch)
        self.user(chatPromptTemplateName="_chatonly")

    def workflow(self, name: str, *nodes: dict[str, Any], folder: str = USER, **top: Any) -> None:
        self.write(f"Workflows/{folder}/{name}", {**top, "nodes": list(nodes)})

    def suite(self, name: str, *tests: dict[str, Any], folder: str = USER, **top: Any) -> Path:
        """Write a test file; returns where it is."""
        self.write(f"Workflows/{folder}/{name}.test", {**top, "tests": list(tests)})
        return self.root / "Workflows" / folder / f"{name}.test.json"

    def text(self, name: str, text: str) -> Path:
        """Write a file as it is."""
        path = self.root / "Workflows" / USER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        config_utils.reset_config_store()
        return path

    def findings(self, path: Path) -> list[str]:
        """What is wrong with a test file, as lines."""
        return [str(finding) for finding in read_tests([str(path)])[1]]

    def results(self, *nodes: dict[str, Any], tests: list[dict[str, Any]], jobs: int = 2, **top: Any) -> list[Result]:
        """Run tests of a workflow ``Main`` that consists of ``nodes``."""
        self.workflow("Main", *nodes, **top)
        read, findings = read_tests([str(self.suite("Main", *tests))])
        assert not findings, [str(finding) for finding in findings]
        with sandbox_folder() as folder:
            return run_tests(read, folder, jobs)

    def failures(self, *nodes: dict[str, Any], **keys: Any) -> dict[str, list[str]]:
        """What does not hold in one test of these nodes, by expectation."""
        [result] = self.results(*nodes, tests=[test(**keys)])
        return {failure.json_path: failure.lines for failure in result.failures}


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit status, output and errors of the command."""
    try:
        status = main(words)
    except SystemExit as end:
        status = int(end.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    status, out, _ = run(capsys, "--json", *words)
    found: dict[str, Any] = json.loads(out)
    return status, found
