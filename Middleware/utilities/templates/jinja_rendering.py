"""Jinja2 templates in a sandbox that also limits the time they take and the texts they make.

The sandbox alone limits neither. This module subclasses the sandbox, its formatters and the node transformer,
of which Jinja promises no stable interface: that is why ``requirements.txt`` pins the exact version. Run
``Tests/utilities/templates`` before you raise it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from Middleware.utilities.templates.jinja_limits import (
    CONTAINERS,
    LIMITED_FILTERS,
    RenderLimitError,
    check_call,
    check_operator,
    current_budget,
    limited,
    weight,
)
from Middleware.utilities.templates.substitution import LONG_NUMBER, MAX_CACHED_LENGTH, mark
from Middleware.utilities.text_utils import escape_braces

# So many small steps between two looks at the clock, which costs as much as one of them.
_BATCH = 16
_ITERATION_SIZE = 16

_METHODS = (MethodType, BuiltinMethodType)

# Objects of other types, such as those of users' scripts, may have methods with the same names.
_MEASURED = (str, bytes, int, *CONTAINERS, dict, type)

# Filters and methods that empty a lazy value: what it yields is counted before it is given to them.
_CONSUMING_FILTERS = frozenset({"batch", "join", "slice", "sum"})
_CONSUMING_METHODS = frozenset({"extend", "fromkeys", "join", "update"})


def render_template(
    text: str, find: Callable[[Iterable[str]], Mapping[str, object]], escaped: bool = False, marked: bool = False
) -> str:
    """Return ``text`` rendered with the values that ``find`` gives for the names it uses.

    With ``escaped`` the braces of values come out as sentinels, those of the template's own text as they are. With
    ``marked``, what each expression gives stands between the two marks of ``substitution``.
    Raises what the template or its values raise, jinja2.TemplateError and RenderLimitError among them.
    """
    # Constants are worked out while compiling.
    with limited():
        compile_template = _compile_cached if len(text) <= MAX_CACHED_LENGTH else _compile
        template, names = compile_template(text, _marked_output if marked else _escaped_output if escaped else _output)
    values = find(names)
    with limited(weight(values)):
        return str(template.render(values))


@lru_cache(maxsize=3)
def _environment(output: Callable[[object], object]) -> LimitedEnvironment:
    return LimitedEnvironment(finalize=output)


def _compile(text: str, output: Callable[[object], object]) -> tuple[Any, tuple[str, ...]]:
    """Return the compiled template and the names it may read."""
    environment = _environment(output)
    names = {node.name for node in environment.parse(text).find_all(nodes.Name) if node.ctx == "load"}
    return environment.from_string(text), tuple(sorted(names))


_compile_cached = lru_cache(maxsize=256)(_compile)


# --- output ---


def _output(value: object) -> object:
    if isinstance(value, (dict, *CONTAINERS)):
        budget = current_budget()
        budget.make(budget.length(value))
    return value


def _escaped_output(value: object) -> str:
    return escape_braces(str(_output(value)))


def _marked_output(value: object) -> str:
    return mark(str(_output(value)))


def _join(pieces: Iterable[str]) -> str:
    """Join the pieces like ``"".join``, but stop when the text gets too long."""
    budget = current_budget()
    size, taken = 0, []
    source = iter(pieces)
    while chunk := list(islice(source, _BATCH)):
        size += sum(map(len, chunk))
        if size > budget.text:
            budget.make(size)
        budget.tick()
        taken += chunk
    budget.spend(size)
    return "".join(taken)


# --- what compiled templates call ---


@pass_context
def _iterated(_context: Context, iterable: Iterable[object]) -> Iterator[object]:
    """Yield the items of a loop, and look at the clock every so often."""
    budget = current_budget()
    for count, item in enumerate(iterable):
        if not count % _BATCH:
            budget.spend(_ITERATION_SIZE * _BATCH)
        yield item


@pass_context
def _concatenated(_context: Context, values: list[object]) -> str:
    """Return what the ``~`` operator makes."""
    budget = current_budget()
    budget.make(sum(map(budget.length, values)))
    return "".join(map(str, values))


@pass_context
def _counted(_context: Context, value: object) -> object:
    """Count a list written in the template, or a slice."""
    budget = current_budget()
    if isinstance(value, (str, dict, list, tuple)):
        budget.spend(budget.length(value))
    return value


def _watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return Jinja's filter ``name``, held to the budget."""
    wanted = getattr(getattr(function, "jinja_pass_arg", None), "name", "")

    # Being passed the context also keeps the compiler from running the filter while it folds constants.
    @pass_context
    @functools.wraps(function)
    def watched(context: Context, value: object = "", *args: object, **kwargs: object) -> object:
        budget = current_budget()
        if name in _CONSUMING_FILTERS and isinstance(value, Iterator):
            value = list(value)
        check_call(budget, name, value, args, kwargs)
        first: list[object] = (
            [{"context": context, "environment": context.environment, "eval_context": context.eval_ctx}[wanted]]
            if wanted
            else []
        )
        result = function(*first, value, *args, **kwargs)
        if isinstance(result, str):
            budget.make(len(result))
        return result

    return watched


_HOOKS = {"wilmer_iterated": _iterated, "wilmer_concatenated": _concatenated, "wilmer_counted": _counted}


class _Watch(NodeTransformer):
    """Sends loops, concatenations, slices and written lists through the functions above."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _through("wilmer_iterated", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _through("wilmer_concatenated", nodes.List(node.nodes, lineno=node.lineno, environment=node.environment))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _through("wilmer_counted", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Expr:
        self.generic_visit(node)
        stored = getattr(node, "ctx", "load") != "load"
        return node if stored or node.find(nodes.Name) is None else _through("wilmer_counted", node)

    visit_Tuple = visit_Dict = visit_List


def _through(name: str, node: Any) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=node.environment)


class LimitedEnvironment(SandboxedEnvironment):
    """A sandbox whose templates keep to the current budget."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.concat = _join  # type: ignore[method-assign]
        limited_ones = {name: _watched(name, self.filters[name]) for name in LIMITED_FILTERS & self.filters.keys()}
        self.filters = {**self.filters, **limited_ones, **_HOOKS}

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Watch().visit(source), *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        check_operator(current_budget(), operator, left, right)
        return self.binop_table[operator](left, right)

    def call(__self, __context: Context, __obj: object, *args: object, **kwargs: object) -> object:
        budget = current_budget()
        owner, name = getattr(__obj, "__self__", ""), getattr(__obj, "__name__", "")
        if name in _CONSUMING_METHODS and args and isinstance(args[0], Iterator):
            args = (list(args[0]), *args[1:])
        if name == "join" and args:
            check_call(budget, name, args[0], (owner,), {})
        elif isinstance(owner, _MEASURED):
            check_call(budget, name, owner, args, kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, (str, bytes)):
            budget.make(len(result))
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return ``str.format`` whose fields keep to the budget, too."""
        if not isinstance(value, _METHODS) or super().wrap_str_format(value) is None:
            return None
        text: Any = value.__self__
        by_map = value.__name__ == "format_map"
        formatter: SandboxedFormatter = (
            _LimitedEscapeFormatter(self, escape=text.escape) if isinstance(text, Markup) else _LimitedFormatter(self)
        )
        kind: Callable[[str], str] = type(text)

        def wrapper(*args: Any, **kwargs: Any) -> str:
            if by_map:
                (kwargs,), args = args, ()
            return kind(formatter.vformat(text, args, kwargs))

        return functools.update_wrapper(wrapper, value)


class _LimitedFields:
    def format_field(self, value: object, format_spec: str) -> str:
        budget = current_budget()
        if LONG_NUMBER.search(format_spec):
            raise RenderLimitError("it asks for too large a width")
        budget.make(budget.length(value))
        text: str = super().format_field(value, format_spec)  # type: ignore[misc]
        budget.make(len(text))
        return text


class _LimitedFormatter(_LimitedFields, SandboxedFormatter):
    pass


class _LimitedEscapeFormatter(_LimitedFields, SandboxedEscapeFormatter):
    pass
