"""The command ``test``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from Middleware.addons.check.addon import TestFiles
from Middleware.cli.addon import AddOn, Command

if TYPE_CHECKING:
    from Middleware.addons.check.findings import Finding

T = TypeVar("T")


class WorkflowTests(AddOn):
    def commands(self) -> Mapping[str, Command]:
        return {"test": Command("run the tests of workflows against a scripted LLM", _test)}

    def find(self, kind: type[T]) -> T | None:
        files = _TestFiles() if kind is TestFiles else None
        return files if isinstance(files, kind) else None


class _TestFiles(TestFiles):
    def check(self, paths: Iterable[str]) -> list[Finding]:
        from Middleware.addons.workflow_tests.suite_reader import check_test_files

        return check_test_files(paths)


def _test(words: Sequence[str]) -> int:
    from Middleware.addons.workflow_tests.tests_command import main

    return main(words)


ADDON = WorkflowTests
