"""Checks of one text of a node: its placeholders, its braces, its Jinja2, and the condition of a Conditional."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from Middleware.addons.check.findings import Finding
from Middleware.addons.check.lookups import Lookups
from Middleware.addons.check.node_check import NodeView
from Middleware.utilities.config.check import Severity, quoted, shortened
from Middleware.utilities.config.declarations import as_flag
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.templates.substitution import Field, SubstitutionError, Template, has_braces, parse
from Middleware.utilities.text_utils import nearest
from Middleware.workflows.handlers.base.operands import OPERAND, VALUE_SAFE
from Middleware.workflows.handlers.impl.specialized.conditional import (
    ConditionSyntaxError,
    parse_condition,
    skipped_characters,
)
from Middleware.workflows.managers.variable_table import BUILT_IN_VARIABLES

EARLY_BUILT_IN = frozenset({"Discussion_Id"})
# Names that published examples use although they were never variables, and the closest existing one.
NOT_VARIABLES: Mapping[str, str] = {
    "current_chat_summary": "",
    "userInput": "chat_user_prompt_last_one",
    "lastUserMessage": "chat_user_prompt_last_one",
    "userName": "",
    "currentDate": "todays_date_pretty",
    "current_username": "",
    "llm_responder_output": "",
}
_NUMBERED = re.compile(r"agent([1-9][0-9]{0,5})(Input|Output)")


@dataclass(frozen=True)
class Names:
    """The names that the texts of one node may use.

    Attributes:
        custom: the top-level keys of the workflow file with their values.
        user_wide: names of the user's own variables.
        number: the number of the node, from 1.
        count: the number of all nodes.
    """

    custom: Mapping[str, object]
    user_wide: frozenset[str]
    number: int
    count: int

    def knows(self, name: str, early: bool = False) -> bool:
        """Return whether such a variable exists when the node runs; ``early``: before its endpoint is known."""
        if name in (EARLY_BUILT_IN if early else BUILT_IN_VARIABLES) or name in self.custom or name in self.user_wide:
            return True
        numbered = _NUMBERED.fullmatch(name)
        return numbered is not None and (numbered[2] == "Input" or int(numbered[1]) < self.number)

    def never_comes(self, name: str) -> str:
        """Return why no such output exists when this node runs; empty if ``name`` is not the name of an output."""
        numbered = _NUMBERED.fullmatch(name)
        if numbered is None or numbered[2] != "Output" or self.knows(name):
            return ""
        number = int(numbered[1])
        if number > self.count:
            return f"there is no node {number}, the last one is node {self.count}"
        return (
            "that is the output of this node itself"
            if number == self.number
            else (f"node {number} runs after this node")
        )

    def nearest(self, name: str, early: bool = False) -> str:
        """Return the known name most like ``name``; empty if none is near."""
        if name in NOT_VARIABLES:
            return NOT_VARIABLES[name]
        numbered = [f"agent{number}{kind}" for number in range(1, min(self.number, 10)) for kind in ("Output", "Input")]
        built_in = EARLY_BUILT_IN if early else BUILT_IN_VARIABLES
        return nearest(name, [*built_in, *self.custom, *self.user_wide, *numbered])


def is_numbered(name: str) -> bool:
    """Return whether a variable is an input of a workflow or the output of a node."""
    return _NUMBERED.fullmatch(name) is not None


_IDENTIFIER = re.compile(r"[^\W\d]\w{0,99}")
_SIMPLE = re.compile(r"(?<!\{)\{([^\W\d]\w{0,99})\}(?!\})")
_JINJA = re.compile(r"\{\{\s+([^\W\d]\w{0,99})\b[^{}]*\}\}|\{%")
# Raw blocks, expressions, statements and comments.
_JINJA_PARTS = re.compile(
    r"\{%[-+]?\s*raw\s*[-+]?%\}.*?\{%[-+]?\s*endraw\s*[-+]?%\}|\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL
)
# A text with many unknown names should not push the other findings off the screen.
MAX_NAMED = 5
# The longest part of a Jinja2 message to show: such messages end with a list of the expected tags.
MAX_QUOTED = 200


@dataclass(frozen=True)
class TextProblem:
    """A mistake in a text, with the parts of the ``Finding`` that it becomes.

    Attributes:
        offset: the index in the text to which the position belongs; None: the whole text.
    """

    severity: Severity
    message: str
    expected: str = ""
    suggestion: str = ""
    offset: int | None = None


@dataclass(frozen=True)
class TextRules:
    """The rules by which the texts of a node are filled in.

    Attributes:
        partly: an unknown placeholder leaves the others of its text unaffected.
        show: placeholders may be shown; not so in values of secret-like keys.
        children: the variables of the workflows that fill the text in again; None: not known.
    """

    names: Names
    partly: bool = False
    show: bool = True
    children: Collection[str] | None = None

    @property
    def rest(self) -> str:
        return "it is left as written" if self.partly else "nothing in this text is filled in"


def variables_in(text: str, jinja: bool) -> Collection[str]:
    """Return the names of all variables in a text of a node; none if it cannot be read."""
    if "{" not in text:
        return ()
    if not jinja:
        fields, valid = _fields(text)
        return fields if valid else ()
    # The parser may raise anything for a text that is not a template, which is reported with the text.
    try:
        return _jinja_names(text)
    except Exception:
        return ()


def check_text(text: str, rules: TextRules) -> Iterator[TextProblem]:
    """Yield problems of a text that takes all variables as ``{name}``."""
    if not has_braces(text):
        return
    fields, valid = _fields(text)
    unknown = [name for name in fields if not rules.names.knows(name)]
    missing = [name for name in unknown if rules.names.never_comes(name)]
    misspelt = _misspelt(fields, rules)
    if missing:
        yield _missing_outputs(missing, rules, "error", rules.rest)
    if misspelt:
        yield from misspelt
    elif not valid or len(unknown) > len(missing):
        yield _stray_braces(text, rules)
    elif _is_jinja(text, rules.names):
        yield TextProblem(
            "warning", 'this looks like Jinja2, but the node does not set "jinja2": true; it stays as written'
        )


def check_names(text: str, rules: TextRules) -> Iterator[TextProblem]:
    """Yield unknown placeholders alone, for texts that may be inserted into any others."""
    yield from _misspelt(_fields(text)[0], rules)


def check_early_text(text: str, rules: TextRules) -> Iterator[TextProblem]:
    """Yield problems of a text that takes only what is known before the endpoint is."""
    if "{" not in text:
        return
    fields, valid = _fields(text)
    if not valid:
        yield TextProblem("warning", "the braces are not valid placeholders; nothing in this text is filled in")
    unknown = [name for name in fields if not rules.names.knows(name, early=True)]
    missing = [name for name in unknown if rules.names.never_comes(name)]
    others = [name for name in unknown if name not in missing]
    if missing:
        yield _missing_outputs(missing, rules, "error", "it stays as written")
    for name in others[:MAX_NAMED]:
        yield TextProblem(
            "warning",
            f"{_listed([name], rules)} cannot be filled in here and stays as written",
            "a key of this file, agentNInput, agentNOutput of an earlier node, Discussion_Id or a user-wide variable",
            _suggestion(name, rules, early=True),
        )


def check_handed_down_text(text: str, rules: TextRules) -> Iterator[TextProblem]:
    """Yield problems of a prompt for a child, which fills in what this workflow does not know."""
    if not has_braces(text):
        return
    fields, valid = _fields(text)
    unknown = [name for name in fields if not rules.names.knows(name)]
    misspelt = {name: near for name in unknown if (near := _meant_for_child(name, rules))}
    for name, near in list(misspelt.items())[:MAX_NAMED]:
        yield TextProblem(
            "warning",
            f"{_listed([name], rules)} is not a variable, neither here nor of the child "
            "workflow; nothing in this text is filled in",
            "",
            near if rules.show else "",
        )
    if not valid:
        yield _stray_braces(text, rules)
    elif unknown and not misspelt:
        yield TextProblem(
            "note",
            f"{_listed(unknown, rules)} is unknown here, so the text is left to the child "
            "workflow, where it must be known",
        )


def _meant_for_child(name: str, rules: TextRules) -> str:
    """Return the likely meaning of a name that means nothing to the child either; empty if it may mean something.

    The outputs and inputs of the child's nodes are not checked here.
    """
    if rules.children is None or name in rules.children or is_numbered(name):
        return ""
    return nearest(name, rules.children) or rules.names.nearest(name)


def check_jinja(text: str, rules: TextRules, is_filled_again: bool = False) -> Iterator[TextProblem]:
    """Yield problems of a Jinja2 template. ``is_filled_again``: what it leaves as written may mean something later."""
    if "{" not in text:
        return
    # Imported here because most workflows have no templates.
    from jinja2 import TemplateSyntaxError

    try:
        used = _jinja_names(text)
    except TemplateSyntaxError as error:
        said = f": {shortened(error.message or '', MAX_QUOTED)}" if rules.show else ""
        yield TextProblem(
            "error", f"line {error.lineno} of this text is not valid Jinja2{said}; nothing in it is filled in"
        )
        return
    # The parser of another package may raise anything for long numbers or deep nesting.
    except Exception:
        yield TextProblem("warning", "this text cannot be read as a Jinja2 template")
        return
    yield from _check_jinja_names([name for name in used if not rules.names.knows(name)], rules)
    yield from () if is_filled_again else _single_braces(text, rules)


def _single_braces(text: str, rules: TextRules) -> Iterator[TextProblem]:
    """Yield one problem if a template has variables in single braces, at the first of them."""
    # As long as the text, so that the positions in it are those in the text.
    literal = _JINJA_PARTS.sub(lambda part: " " * len(part[0]), text)
    found = [name for name in _SIMPLE.finditer(literal) if rules.names.knows(name[1])]
    if found:
        names = [*dict.fromkeys(name[1] for name in found)]
        yield TextProblem(
            "warning",
            f'{_listed(names, rules)} stays as written: with "jinja2": true the text is a '
            "Jinja2 template, where variables have two braces",
            "",
            f"{{{{{names[0]}}}}}" if rules.show else "",
            found[0].start(),
        )


def check_plain_value(text: str, rules: TextRules) -> Iterator[TextProblem]:
    """Yield placeholders in a text that takes no variables at all."""
    known = [name for name in dict.fromkeys(_SIMPLE.findall(text)) if rules.names.knows(name)]
    if known:
        yield TextProblem("warning", f"variables do not work here; {_listed(known, rules)} is used as written")


# Built on first use, as most workflows have no templates, and then kept for all of them.
@lru_cache(maxsize=1)
def jinja_environment() -> Any:
    """Return an environment that parses templates with the usual filters and tests."""
    from jinja2 import Environment

    return Environment()


# Users who start from the same example have the same templates, and reading one takes milliseconds.
@lru_cache(maxsize=512)
def parsed_template(text: str) -> Any:
    """Return the syntax tree of a template, which must not be changed. Raises TemplateSyntaxError."""
    return jinja_environment().parse(text)


@lru_cache(maxsize=512)
def _jinja_names(text: str) -> list[str]:
    """Return the variables of a template. Raises TemplateSyntaxError also for unknown filters and tests.

    It is only parsed: compiling would compute its constants, which may be large.
    """
    from jinja2 import TemplateAssertionError, nodes
    from jinja2.meta import find_undeclared_variables

    environment = jinja_environment()
    tree = parsed_template(text)
    for node_type, kind, known in (
        (nodes.Filter, "filter", environment.filters),
        (nodes.Test, "test", environment.tests),
    ):
        unknown = next((node for node in tree.find_all(node_type) if node.name not in known), None)
        if unknown is not None:
            raise TemplateAssertionError(f"no {kind} named '{unknown.name}'", unknown.lineno)
    return sorted(find_undeclared_variables(tree) - environment.globals.keys())


def _check_jinja_names(unknown: list[str], rules: TextRules) -> Iterator[TextProblem]:
    missing = [name for name in unknown if rules.names.never_comes(name)]
    if missing:
        yield _missing_outputs(missing, rules, "warning", "it is empty")
    near = [name for name in unknown if name in NOT_VARIABLES or rules.names.nearest(name)]
    misspelt = [name for name in near if name not in missing]
    for name in misspelt[:MAX_NAMED]:
        yield TextProblem(
            "warning", f"{_listed([name], rules)} is unknown, and so empty", suggestion=_suggestion(name, rules)
        )


def _missing_outputs(names: list[str], rules: TextRules, severity: Severity, effect: str) -> TextProblem:
    reasons = "; ".join(f"{{{name}}}: {rules.names.never_comes(name)}" for name in names[:MAX_NAMED])
    return TextProblem(severity, f"{reasons}; {effect}", "the output of an earlier node")


def _misspelt(fields: Mapping[str, str], rules: TextRules) -> list[TextProblem]:
    """Yield a problem for each placeholder that is not a variable and was probably meant to be one."""
    names = [
        name
        for name, spec in fields.items()
        if not rules.names.knows(name) and not rules.names.never_comes(name) and _is_placeholder(name, spec)
    ]
    return [_unknown(name, rules) for name in names[:MAX_NAMED]]


def _unknown(name: str, rules: TextRules) -> TextProblem:
    known_mistake = ", although examples use it" if name in NOT_VARIABLES else ""
    return TextProblem(
        "warning",
        f"{_listed([name], rules)} is not a variable{known_mistake}; {rules.rest} (braces "
        "meant as text are written twice)",
        suggestion=_suggestion(name, rules),
    )


def _stray_braces(text: str, rules: TextRules) -> TextProblem:
    lost = [] if rules.partly else [name for name in dict.fromkeys(_SIMPLE.findall(text)) if rules.names.knows(name)]
    jinja = ', or set "jinja2": true for a Jinja2 template' if "{%" in text else ""
    if lost or jinja:
        also = f", not even {_listed(lost, rules)}" if lost else ""
        return TextProblem(
            "warning",
            "there are braces that are not placeholders, so nothing in this text is filled "
            f"in{also}; write braces meant as text twice{jinja}",
        )
    return TextProblem("note", "there are braces that are not placeholders; nothing in this text is filled in")


def _fields(text: str) -> tuple[dict[str, str], bool]:
    """Return the names of a text's placeholders with the start of their format, and whether the braces fit."""
    try:
        template = parse(text)
    except SubstitutionError:
        return {}, False
    found: dict[str, str] = {}
    waiting = [template]
    while waiting:
        for part in waiting.pop().parts:
            if isinstance(part, Field):
                found.setdefault(part.name, _start(part.spec))
                if part.spec is not None:
                    waiting.append(part.spec)
    return found, True


def _start(spec: Template | None) -> str:
    return spec.parts[0] if spec is not None and spec.parts and isinstance(spec.parts[0], str) else ""


def _is_placeholder(name: str, spec: str) -> bool:
    """Return whether braces around ``name`` were meant as a placeholder; ``{"a": 1}`` and ``{color: red}`` were not."""
    return _IDENTIFIER.fullmatch(name.strip()) is not None and not spec[:1].isspace()


def _is_jinja(text: str, names: Names) -> bool:
    return any(not name or names.knows(name) for name in _JINJA.findall(text))


def _listed(names: list[str], rules: TextRules) -> str:
    if not rules.show:
        return "a placeholder"
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(f"{{{shortened(name)}}}" for name in names[:MAX_NAMED]) + more


def _suggestion(name: str, rules: TextRules, early: bool = False) -> str:
    return rules.names.nearest(name.strip(), early) if rules.show else ""


# -- conditions --------------------------------------------------------------------------------------------------------

_PLACEHOLDER = re.compile(r"\{[^\W\d][^{}]*\}")
_STRING = re.compile(r"'[^']*'|\"[^\"]*\"")
_NOT = re.compile(r"\bNOT\b", re.IGNORECASE)
# What other languages have in place of the signs and words of a condition.
_FOREIGN = {"=": "==", "===": "==", "=>": ">=", "=<": "<=", "<>": "!=", "&": "AND", "&&": "AND", "|": "OR", "||": "OR"}
GRAMMAR = "comparisons with ==, !=, >, <, >= or <=, joined by AND or OR, with parentheses"


def check_condition(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield a finding if the condition of a node cannot be read, or not as it is written."""
    text = view.node.get("condition")
    if view.runs_as != "Conditional" or not isinstance(text, str) or not text.strip():
        return
    # What a template gives is known only when the node runs.
    if NODE.flag(view.node, "jinja2") and ("{{" in text or "{%" in text):
        return
    # A word of the same length stands for the text that will be filled in.
    safe = as_flag(view.node.get(VALUE_SAFE.name))
    word = str.ljust if safe else lambda start, length: "x" * length
    expression = _PLACEHOLDER.sub(lambda found: word(OPERAND, len(found.group())), text)
    skipped = [(start, signs) for start, signs in skipped_characters(expression) if "{" not in signs]
    try:
        parse_condition(expression, ["x"] * expression.count(OPERAND) if safe else None)
    except ConditionSyntaxError as error:
        yield _unreadable(view, expression, skipped, error)
        return
    for start, signs in skipped[:1]:
        yield _at(
            view,
            start,
            view.finding(
                "warning",
                "condition",
                f"{quoted(signs)} is not part of a condition and is left out",
                expected=GRAMMAR,
                suggestion=_FOREIGN.get(signs, ""),
            ),
        )


def _unreadable(
    view: NodeView, expression: str, skipped: list[tuple[int, str]], error: ConditionSyntaxError
) -> Finding:
    always = "the condition cannot be read and counts as FALSE"
    negation = _NOT.search(_STRING.sub(lambda found: " " * len(found.group()), expression))
    # A character that fits nowhere explains what goes wrong after it, and what seems to be unfinished.
    if skipped:
        start, signs = skipped[0]
        cause = "there is no NOT" if signs == "!" else f"{quoted(signs)} is not part of a condition"
        return _at(
            view,
            start,
            view.finding(
                "error", "condition", f"{always}: {cause}", expected=GRAMMAR, suggestion=_FOREIGN.get(signs, "")
            ),
        )
    cause, start = str(error), error.position
    if negation is not None:
        cause, start = "there is no NOT; write the opposite comparison", negation.start()
    elif cause.startswith("something is left over") and expression[start] == ")":
        cause = "this parenthesis closes nothing"
    elif cause.startswith("something is left over"):
        cause = "a comparison, AND or OR is missing before this"
    return _at(view, start, view.finding("error", "condition", f"{always}: {cause}", expected=GRAMMAR))


def _at(view: NodeView, offset: int, finding: Finding) -> Finding:
    return replace(finding, offset=offset)
