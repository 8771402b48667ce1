"""A tool script that reports a problem of its own."""

from Middleware.workflows.tools.dynamic_module_loader import DynamicModuleError


def Invoke(*args, **kwargs):
    raise DynamicModuleError("no key", "Tool", {"a": 1})
