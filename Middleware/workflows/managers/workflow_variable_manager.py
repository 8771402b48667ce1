"""Fills in the variables of texts in workflow files: plain placeholders or Jinja2 templates."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from Middleware.exceptions import WilmerError
from Middleware.utilities import config_utils
from Middleware.utilities.config.json_source import child
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.json_data import strings_in
from Middleware.utilities.templates.jinja_limits import RenderLimitError
from Middleware.utilities.templates.substitution import (
    SubstitutionError,
    UnknownVariableError,
    substitute,
    substitute_wherever_possible,
)
from Middleware.utilities.text_utils import nearest, restore_braces
from Middleware.workflows.managers.variable_table import AuthoredValues, Values, readable
from Middleware.workflows.models.execution_context import ExecutionContext

logger = logging.getLogger(__name__)

# What stands in braces may be text of a conversation, which the log must not show; a name looks like this.
_HARMLESS_NAME = re.compile(r"[\w .\[\]'\"-]{1,80}")
_JINJA = NODE.lookup("jinja2")
_OUTPUT_NAME = re.compile(r"agent(\d+)Output")


class WorkflowVariableManager:
    """Fills in the variables of one text at a time. It holds no request state, so that one serves all requests."""

    def apply_variables(
        self,
        text: str,
        context: ExecutionContext,
        *,
        restore: bool = True,
        marked: bool = False,
        authored: bool = False,
    ) -> str:
        """Return ``text`` with the variables of this node filled in.

        A text that cannot be filled in is returned as written, with a warning. ``restore=False`` leaves the braces
        of inserted values as sentinels: for text that is going to be substituted again, in a child. ``marked`` puts
        each value between two marks, as ``substitution`` says. ``authored`` puts a stand-in in place of each value that
        is not from the configuration.

        Raises ConfigurationError if a variable needs a file (a prompt template) that is missing or broken.
        """
        if not isinstance(text, str):
            text = "" if text is None else str(text)
        # Nearly all nodes leave the key out; every text of theirs passes here.
        if context.config.get(*_JINJA) is not False and NODE.flag(context.config, "jinja2"):
            result = self._apply_jinja(text, _values(context, authored), escaped=not restore, marked=marked)
        elif "{" in text or "}" in text:
            result = self._apply_format(text, _values(context, authored), marked)
        else:
            result = text
        return restore_braces(result) if restore else result

    def apply_early_variables(
        self,
        text: str,
        agent_inputs: Mapping[str, object] | None = None,
        workflow_config: Mapping[str, object] | None = None,
        agent_outputs: Mapping[str, object] | None = None,
        discussion_id: str | None = None,
        user_wide: Mapping[str, object] | None = None,
    ) -> str:
        """Fill in what is known before the node's endpoint is: workflow keys, inputs, finished outputs, ids.

        Unknown names stay as written, and so does a text whose braces are not valid placeholders. Jinja is not used.
        """
        if not isinstance(text, str) or "{" not in text:
            return text
        tables: tuple[tuple[Mapping[str, object], bool], ...] = (
            (agent_inputs or {}, False),
            (agent_outputs or {}, False),
            ({"Discussion_Id": discussion_id or ""}, False),
            (_custom(workflow_config), True),
            (user_wide or {}, True),
        )

        def find(name: str) -> tuple[Any, bool]:
            for table, from_config in tables:
                if name in table:
                    return readable(table[name]), from_config
            raise UnknownVariableError(name)

        try:
            return restore_braces(substitute(text, find, keep_unknown=True))
        except SubstitutionError as problem:
            logger.warning("Left a setting as written, its variables cannot be filled in: %s", _describe(problem))
            return text

    def fill_early(self, text: str, context: ExecutionContext) -> str:
        """Call ``apply_early_variables`` with the values that a node knows."""
        # Asked for first, as nearly all of these texts have no variables.
        if "{" not in text:
            return text
        return self.apply_early_variables(
            text,
            context.agent_inputs,
            context.workflow_config,
            context.agent_outputs,
            context.discussion_id,
            config_utils.user_wide_variables(),
        )

    def _apply_format(self, text: str, values: Values, marked: bool) -> str:
        try:
            return substitute(text, values.find_text, marked=marked)
        except SubstitutionError as problem:
            partial = config_utils.user_flag("partialVariableSubstitution")
            _warn(problem, text, values, "filled in where possible" if partial else "left as written")
        return substitute_wherever_possible(text, values.find_text, marked) if partial else text

    def _apply_jinja(self, text: str, values: Values, escaped: bool, marked: bool) -> str:
        # Jinja changes line breaks, too: it makes all of them line feeds and drops the last one.
        if "{" not in text and "\n" not in text and "\r" not in text:
            return text
        # Imported here because most workflows have no templates, and Jinja2 is slow to load.
        from Middleware.utilities.templates.jinja_rendering import render_template

        try:
            return render_template(text, values.for_jinja, escaped, marked)
        # A template may call methods of objects from other packages, which may raise anything.
        except Exception as problem:
            # A missing prompt template is a mistake in the configuration, not in this text.
            if isinstance(problem, WilmerError) and not isinstance(problem, (SubstitutionError, RenderLimitError)):
                raise
            _warn(problem, text, values)
            return text


# --- helpers ---


def _values(context: ExecutionContext, authored: bool) -> Values:
    return AuthoredValues(context) if authored else Values(context)


def _custom(workflow_config: Mapping[str, object] | None) -> Mapping[str, object]:
    return {key: value for key, value in (workflow_config or {}).items() if key != "nodes"}


def _describe(problem: Exception, values: Values | None = None) -> str:
    # Without any text that may come from a conversation: the log may not hold it.
    if isinstance(problem, UnknownVariableError):
        if not _HARMLESS_NAME.fullmatch(problem.name):
            return "an unknown variable, or braces meant as text"
        return f"unknown variable '{{{problem.name}}}'{_hint(problem.name, values)}"
    if isinstance(problem, SubstitutionError):
        return "a placeholder cannot be used, or braces are meant as text (write those twice: '{{')"
    if isinstance(problem, RenderLimitError):
        return f"the template was stopped because {problem}"
    return f"{type(problem).__name__} at line {getattr(problem, 'lineno', '?')}"


def _hint(name: str, values: Values | None) -> str:
    """Return what an unknown name may have meant, or why it is unknown."""
    if values is None:
        return ""
    if _OUTPUT_NAME.fullmatch(name):
        return " (no node with that number has run before this one)"
    near = nearest(name, values.names(), 0.6)
    return f" (did you mean '{{{near}}}'?)" if near else ""


def _warn(problem: Exception, text: str, values: Values, outcome: str = "left as written") -> None:
    config = values.context.config
    field = next((child("", *keys) for keys, found in strings_in(config) if found == text), "a text")
    logger.warning("Node '%s': '%s' was %s: %s", values.context.node_name, field, outcome, _describe(problem, values))
