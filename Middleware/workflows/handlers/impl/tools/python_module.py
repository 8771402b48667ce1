"""PythonModule: runs a script of the user's."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from Middleware.exceptions import ConfigValueError
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.json_data import type_name
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.dynamic_module_loader import run_dynamic_module


class PythonModuleHandler(BaseHandler):
    """What the script's ``Invoke`` returns, unchanged."""
    # A script may do anything.
    acts = "outside"
    reaches_outside = True

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {
        "PythonModule": (
            ConfigKey("module_path", "str", None, "The script: a .py file that defines Invoke.", "full", required=True,
                      names="script"),
            ConfigKey("args", "list", (), "Positional arguments of Invoke, each as text.", "full"),
            ConfigKey("kwargs", "object", {}, "Named arguments of Invoke, each value as text.", "full"))}

    def handle(self, context: ExecutionContext) -> object:
        args = self._container(context, "args", (list, tuple))
        kwargs = self._container(context, "kwargs", dict)
        return run_dynamic_module(
            self._path(context), *(context.substitute(value) for value in args),
            **{str(name): context.substitute(value) for name, value in kwargs.items()})

    def _path(self, context: ExecutionContext) -> str:
        written = self.value(context, "module_path")
        path = context.substitute(written) if isinstance(written, str) else ""
        if not path.strip():
            raise ConfigValueError(f"PythonModule node '{context.node_name}' needs a module_path",
                                   json_path="module_path", expected="the path of a .py file")
        return path

    def _container(self, context: ExecutionContext, key: str, kind: type | tuple[type, ...]) -> Any:
        value = self.value(context, key)
        if not isinstance(value, kind):
            raise ConfigValueError(
                f"PythonModule node '{context.node_name}': {key} cannot be {type_name(value)}", json_path=key,
                expected="a list" if key == "args" else "an object")
        return value
