"""The workflows that the engine's own tests run: what runs well is called an error only where it is a mistake."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from Tests.amounts import amount

ROOT = Path(__file__).parents[3]
CORPUS = (
    "Tests/workflows/managers",
    "Tests/workflows/handlers/impl/specialized",
    "Tests/workflows/handlers/impl/test_sub_workflow_node_handler.py",
    *amount(
        (),
        (
            "Tests/workflows/processors",
            "Tests/workflows/handlers/impl/test_standard_node_handler.py",
            "Tests/workflows/handlers/impl/test_specialized_node_handler.py",
        ),
    ),
)
MISTAKES = re.compile(
    r"the key '\w+' is missing|does not exist|is the output of this node itself|there is no node \d+|"
    r"node \d+ runs after this node|is not valid Jinja2|"
    r"the condition cannot be read and counts as FALSE"
)
"""Mistakes with which a run may end well: nodes that answer with a complaint, routes not taken, texts left alone."""


@pytest.mark.amounts
@pytest.mark.slow
def test_what_runs_is_no_error_unless_it_is_a_mistake(tmp_path: Path) -> None:
    file = tmp_path / "runs"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "Tests.addons.check.corpus_plugin",
            "-p",
            "no:cacheprovider",
            *CORPUS,
        ],
        cwd=ROOT,
        env={**os.environ, "WILMER_CORPUS": str(file)},
        capture_output=True,
        timeout=300,
    )
    runs = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    good = [run["errors"] for run in runs if run["well"]]
    assert len(good) > amount(100, 300)
    assert [error for errors in good for error in errors if not MISTAKES.search(error)] == []
    assert sum(map(bool, good)) < len(good) / 10
