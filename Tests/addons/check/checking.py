"""Short ways to check workflows that exist in memory only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from Middleware.addons.check.findings import Finding
from Middleware.addons.check.lookups import ConfigFile, Lookups, Problem
from Middleware.addons.check.workflow_check import check_workflow
from Middleware.utilities.config.json_source import JsonSource
from Middleware.utilities.config.workflows import LoadedWorkflow

Node = dict[str, Any]


class FakeLookups(Lookups):
    """What is called ``missing...`` is missing, with the suggestion ``near``; all else exists. Notes questions."""

    def __init__(
        self,
        user: Mapping[str, Any] | None = None,
        partly: bool = False,
        source: str = "",
        children: Mapping[str, LoadedWorkflow] | None = None,
    ) -> None:
        super().__init__()
        self.children = children or {}
        self.asked: list[tuple[Any, ...]] = []
        self._user, self._is_partial, self._source = user or {}, partly, source

    def _find(self, kind: str, name: Any, *more: Any) -> Problem | None:
        self.asked.append((kind, name, *more))
        return Problem(f"{kind} '{name}' does not exist", "near") if str(name).startswith("missing") else None

    def endpoint(self, name: str) -> Problem | None:
        return self._find("endpoint", name)

    def makes_embeddings(self, name: str) -> bool:
        return name.startswith("Vectors")

    def context_window(self, name: str) -> int | None:
        return None

    def preset(self, name: str | None, endpoint: str) -> Problem | None:
        return self._find("preset", name, endpoint)

    def workflow(self, name: str, folder: str | None, parent: LoadedWorkflow) -> Problem | None:
        return self._find("workflow", name, folder, parent.folder)

    def child(self, name: str, folder: str | None, parent: LoadedWorkflow) -> LoadedWorkflow | None:
        found = workflow([], {"motto": ""}) if name == "Child" else self.children.get(name)
        return None if found is None else replace(found, name=name, display=f"Workflows/home/{name}.json")

    def workflow_folder(self, folder: str) -> Problem | None:
        return None

    def structured_output(self, name: str) -> Problem | None:
        return self._find("schema", name)

    def mcp_server(self, name: str) -> Problem | None:
        return self._find("server", name)

    def script(self, path: str) -> Problem | None:
        return self._find("script", path)

    def file_path(self, path: str, reading: bool = False) -> Problem | None:
        return Problem("the path leads out", "") if path.startswith("outside") else None

    def user_file(self) -> ConfigFile:
        return ConfigFile({}, "Users/fake.json")

    def user_name(self, key: str) -> str | Problem:
        return ""

    def user_variables(self) -> Mapping[str, Any]:
        return self._user

    def fills_partially(self) -> bool:
        return self._is_partial

    def source(self, path: str) -> JsonSource:
        return JsonSource(self._source)


def workflow(nodes: list[Any], variables: Mapping[str, Any] | None = None) -> LoadedWorkflow:
    return LoadedWorkflow("W", "home", "", "Workflows/home/W.json", nodes, dict(variables or {}))


def check(*nodes: Node, lookups: Lookups | None = None, **variables: Any) -> list[Finding]:
    """The findings about a workflow of these nodes, whose other top-level keys are ``variables``."""
    return check_workflow(workflow(list(nodes), variables), lookups or FakeLookups())


def brief(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.severity, finding.json_path) for finding in findings]


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, [str(finding) for finding in findings]
    return findings[0]


def static(text: Any = "x", **more: Any) -> Node:
    return {"type": "StaticResponse", "content": text, **more}


def llm(prompt: str = "", **more: Any) -> Node:
    return {"type": "Standard", "endpointName": "Main", "prompt": prompt, **more}


def without_excerpts(report: str) -> list[str]:
    """Return the lines of a report without the source lines and carets in it."""
    return [line for line in report.splitlines() if not re.match(r" +\d* \|", line)]
