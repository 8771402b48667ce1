"""Read the values of a test file, with a finding for every mistake."""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from Middleware.cli.check.findings import Finding
from Middleware.cli.workflow_tests.patterns import Condition, Pattern
from Middleware.utilities.config.check import KeyCheck, Severity, is_remark, quoted
from Middleware.utilities.config.declarations import DESCRIPTION_KEY, SCHEMA_KEY, ConfigKey, KeyTable
from Middleware.utilities.config.json_source import JsonSource, child
from Middleware.utilities.config.keys.workflow_test import OPERATIONS, PATTERN, PATTERN_KEYS

NOTHING_DEMANDED = "the pattern demands nothing"


class Values:
    """The values of one file.

    Attributes:
        findings: the mistakes, in the order in which they were found.
    """

    def __init__(self, source: JsonSource) -> None:
        self.findings: list[Finding] = []
        self._source = source

    def wrong(self, path: str, message: str, expected: str = "", suggestion: str = "") -> None:
        """Report that the value at ``path`` cannot be used."""
        self.findings.append(self._at("error", path, message, expected, suggestion))

    # -- objects -------------------------------------------------------------------------------------------------
    def entries(self, value: object, path: str, keys: Sequence[ConfigKey], is_open: bool = False) -> dict[str, Any]:
        """Return the entries of an object, with defaults for missing entries and those of the wrong type."""
        if not isinstance(value, Mapping):
            self.wrong(path, f"must be an object, not {quoted(value)}",
                       expected=f"an object with {', '.join(key.name for key in keys)}")
            return {key.name: key.default for key in keys}
        table = KeyTable(keys if path else (SCHEMA_KEY, DESCRIPTION_KEY, *keys))
        check = KeyCheck(self._at, strict=True)
        self.findings += check.findings(value, table, path, is_open)
        usable = {name: value[name] for name, key in table.items()
                  if value.get(name) is not None and not any(check.value(key, value[name], path))}
        return {name: table.number(usable, name) if key.kind == "int" else table.read(usable, name)
                for name, key in table.items()}

    def _at(self, severity: Severity, path: str, message: str, expected: str, suggestion: str) -> Finding:
        return Finding(severity, self._source.display, path, None, message, expected, suggestion).located(
            self._source)

    # -- patterns ------------------------------------------------------------------------------------------------
    def patterns(self, value: Mapping[str, Any], path: str) -> dict[str, Pattern]:
        """Return the patterns of an object."""
        return {name: self.pattern(entry, child(path, name)) for name, entry in value.items()}

    def optional_pattern(self, value: object, path: str) -> Pattern | None:
        return None if value is None else self.pattern(value, path)

    def pattern(self, value: object, path: str) -> Pattern:
        """Return the conditions in a string, an object or a list of these."""
        if isinstance(value, str):
            return (self._condition("contains", value, path),)
        if isinstance(value, Mapping):
            return self._conditions(value, path)
        if not isinstance(value, list):
            self.wrong(path, f"{quoted(value)} is not a pattern", expected=PATTERN)
            return ()
        if not value:
            self.wrong(path, NOTHING_DEMANDED, expected=PATTERN)
        found: list[Condition] = []
        for index, entry in enumerate(value):
            if isinstance(entry, list):
                self.wrong(child(path, index), "a list in a list is not a pattern", expected=PATTERN)
            else:
                found += self.pattern(entry, child(path, index))
        return tuple(found)

    def _conditions(self, value: Mapping[str, object], path: str) -> Pattern:
        entries = self.entries(value, path, PATTERN_KEYS)
        if all(name not in OPERATIONS and is_remark(name) for name in value):
            self.wrong(path, NOTHING_DEMANDED, expected=PATTERN)
        return tuple(self._condition(name, entries[name], child(path, name)) for name in OPERATIONS
                     if entries[name] is not None)

    def _condition(self, operation: str, text: str, path: str) -> Condition:
        if not text and operation != "equals":
            self.wrong(path, "an empty text is found in every text", expected='{"equals": ""} if it is to be empty')
        if operation == "matches":
            try:
                re.compile(text)
            except (re.error, RecursionError, OverflowError) as error:
                self.wrong(path, f"'matches' is not a regular expression: {error}")
        return Condition(operation, text)
