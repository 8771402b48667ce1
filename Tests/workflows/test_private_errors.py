"""Configuration errors that may quote what a model wrote."""

from __future__ import annotations

from typing import Any

import pytest

from Middleware.exceptions import BackendStatusError, ConfigNotFoundError
from Middleware.workflows.processors.workflows_processor import mark_if_private


@pytest.mark.parametrize(
    ("node", "private"),
    [
        ({"endpointName": "Fast", "prompt": "{agent1Output}", "args": ["{x}"]}, False),
        ({}, False),
        ({"lateSystemPrompt": "{x}", "lateInstruction": "{x}", "exampleTurns": [{"user": "{x}"}]}, False),
        ({"endpointName": "{agent1Output}"}, True),
        ({"allowedHosts": ["{x}"]}, True),
        ({"preset": "{{ x }}"}, True),
        ({"conditionalWorkflows": {"Yes": "Poem", "No": {}}}, False),
        ({"conditionalWorkflows": {"Yes": "{x}"}}, True),
        ({"conditionalWorkflows": {"{x}": "Poem"}}, True),
        ({"steps": [{"name": "Poem"}]}, False),
        ({"steps": [{"name": ["{x}"]}]}, True),
    ],
)
def test_names_that_variables_make(node: dict[str, Any], private: bool) -> None:
    error = ConfigNotFoundError("endpoint 'x' does not exist")
    mark_if_private(error, node)
    assert error.private is private


def test_other_errors_stay_as_they_are() -> None:
    error = BackendStatusError("said")
    mark_if_private(error, {"endpointName": "{x}"})
    assert error.private is False
