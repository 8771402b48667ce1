"""Runs users' Python scripts: loads the file afresh on every call and calls its function ``Invoke``."""

from __future__ import annotations

import itertools
import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from importlib.machinery import SOURCE_SUFFIXES, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isgenerator
from types import ModuleType
from typing import Any

from Middleware.exceptions import (
    ConfigNotFoundError,
    ConfigurationError,
    ConfigValueError,
    EarlyTerminationException,
    WilmerError,
)
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.request_context import current_request
from Middleware.utilities.answers.tool_calls import calls_among
from Middleware.utilities.config.paths import (
    below_install_directory,
    get_project_root_directory_path,
    get_root_public_directory,
    is_package,
)
from Middleware.utilities.sensitive_logging_utils import is_encryption_active, sensitive_log
from Middleware.workflows.tools.scripts.thread import ScriptThread

logger = logging.getLogger(__name__)

SETUP_ERROR = "Error: Module '{}' setup issue. Please check logs."
OWN_ERROR = "Error processing request in module '{}'. "
UNEXPECTED_ERROR = "Error: An unexpected error occurred while processing your request. Please check system logs."
# Keys of chunks that only the engine sets: a script that set them could end the answer of its workflow.
ENGINE_KEYS = frozenset({"end", "more"})
_numbers = itertools.count(1)
_path_lock = threading.Lock()


class DynamicModuleError(WilmerError):
    """Raised by a script to answer with a message of its own instead of a result."""

    private = True

    def __init__(self, message: str, module_name: str | None = None, details: object = None) -> None:
        super().__init__(message)
        self.message, self.module_name, self.details = message, module_name, details


class MissingInvokeError(ConfigurationError, AttributeError):
    """A script defines no ``Invoke``."""


class InvokeNotCallableError(ConfigurationError, TypeError):
    """A script's ``Invoke`` is not a function."""


# Both bases have a text of their own, which mypy rejects.
class ScriptSyntaxError(ConfigurationError, SyntaxError):  # type: ignore[misc]
    """A script, or a file that it imports, is not Python."""


class ScriptImportError(ConfigurationError, ModuleNotFoundError):
    """A script imports a module that is not installed."""


def run_dynamic_module(module_path: str, /, *args: object, **kwargs: object) -> object:
    """Load the script at ``module_path`` and return ``Invoke(*args, **kwargs)`` unchanged.

    A failure inside ``Invoke`` becomes a fixed text and a traceback in the log; a generator's failure ends its stream
    with that text. Errors while the file is loaded, a missing file (also one that ``Invoke`` misses) and cancellation
    are raised, those that are the file's own mistake as ScriptSyntaxError or ScriptImportError. Raises
    ConfigNotFoundError, MissingInvokeError or InvokeNotCallableError for a file that is not a script.

    All of the script runs on one thread of its own. When the current request is cancelled, its processes are killed
    and the script is left alone, see ``ScriptThread``.
    """
    path = find_script(module_path)
    add_import_paths()
    sensitive_log(logger, logging.INFO, "Running the script %s", path)
    request = current_request()
    script = ScriptThread(_run(path, args, kwargs), path, request.cancel_scope if request else CancelScope())
    try:
        next(script)
    except StopIteration as end:
        return end.value
    return _chunks(script)


def find_script(module_path: str) -> str:
    """The absolute path of a script: ``~`` expanded; a relative one below the working, else the install directory.

    Raises ConfigNotFoundError, and ConfigValueError for a file that is not a .py file.
    """
    expanded = os.path.expanduser(module_path)
    places = [expanded] if os.path.isabs(expanded) else [os.path.abspath(expanded), below_install_directory(expanded)]
    for place in places:
        if os.path.isfile(place):
            return _checked(place)
    sensitive_log(logger, logging.ERROR, "There is no script at %s", " or ".join(dict.fromkeys(places)))
    shown = os.path.basename(expanded) if os.path.isabs(expanded) else module_path
    where = "" if os.path.isabs(expanded) else " in the working directory or the install directory"
    raise ConfigNotFoundError(f"the Python script '{shown}' does not exist{where}")


def add_import_paths() -> None:
    """Make ``Middleware.x`` and ``Public.x`` importable, and ``utilities.x`` as old scripts write it."""
    root = get_project_root_directory_path()
    short_names = os.path.join(root, "Middleware")
    with _path_lock:
        # The public root of an installed wheel has another name, and is not next to Middleware.
        if is_package() and "Public" not in sys.modules:
            sys.modules["Public"] = public = ModuleType("Public")
            public.__path__ = [get_root_public_directory()]
        if root not in sys.path:
            sys.path.insert(0, root)
        if short_names not in sys.path:
            sys.path.insert(sys.path.index(root) + 1, short_names)


def is_script_name(path: str) -> bool:
    """Return whether files of such a name contain Python source; case does not count."""
    return path.lower().endswith(tuple(SOURCE_SUFFIXES))


def _checked(path: str) -> str:
    if not is_script_name(path):
        raise ConfigValueError(
            f"'{os.path.basename(path)}' is not a Python script",
            json_path="module_path",
            expected="the path of a .py file",
        )
    return path


def _run(path: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Generator[Any, None, Any]:
    """Load the script, call it and return the result of ``Invoke``, all on the script's thread.

    If that is a generator, yields None and then the script's chunk dicts; whatever else it yields becomes one.
    """
    started = time.perf_counter()
    module = _load(path)
    try:
        invoke = _invoke_of(module, path)
        try:
            result = invoke(*args, **kwargs)
        except _failures() as error:
            return _failure_text(error, path)
        if not isgenerator(result):
            return result
        try:
            yield None
            for chunk in result:
                yield _chunk_of(chunk)
        except _failures() as error:
            yield {"token": _failure_text(error, path), "finish_reason": None}
        finally:
            result.close()
    finally:
        sys.modules.pop(module.__name__, None)
        sensitive_log(logger, logging.INFO, "The script %s took %.2f s", path, time.perf_counter() - started)


def _failures() -> tuple[type[BaseException], ...]:
    """Return what ends a script only, also if it calls sys.exit or ends its own event loop."""
    # Imported here because it is large, and a script that does not fail may not need it.
    import asyncio

    return Exception, SystemExit, asyncio.CancelledError


def _load(path: str) -> ModuleType:
    # A name of its own, so that scripts of the same file name never meet.
    stem = re.sub(r"\W", "_", os.path.splitext(os.path.basename(path))[0])
    name = f"_wilmer_script_{next(_numbers)}_{stem}"
    # The loader is named because Python chooses one by the case of the suffix. It is Any because mypy wants
    # load_module of a loader, which Python 3.15 has removed.
    loader: Any = SourceFileLoader(name, path)
    spec = spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    # Type hints and dataclasses look their module up there.
    sys.modules[name] = module
    try:
        # Compiled from its text: byte code kept by Python could be older than an edit within the same second.
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, module.__dict__)
    except BaseException as error:
        sys.modules.pop(name, None)
        _raise_explained(error, path)
        raise
    return module


def _raise_explained(error: BaseException, path: str) -> None:
    """Raise an error that names the author's mistake, if ``error`` while the script was loaded is a usual one."""
    if isinstance(error, SystemExit):
        raise RuntimeError("the script ended itself while it was loaded") from error
    if isinstance(error, SyntaxError):
        file = "" if error.filename in (path, None) else f"{os.path.basename(error.filename)}, "
        raise ScriptSyntaxError(_not_loaded(path, f"{file}{text_of(error)}")) from error
    if isinstance(error, ImportError):
        _log_failure(error, path, "while it was loaded")
        hint = ". Is its package installed in WilmerAI's environment?" if isinstance(error, ModuleNotFoundError) else ""
        raise ScriptImportError(_not_loaded(path, f"{error}{hint}")) from error


def text_of(error: SyntaxError) -> str:
    """Return the line, if it is known (an unknown encoding has none), and what is wrong there."""
    return f"line {error.lineno}: {error.msg}" if error.lineno else error.msg


def _not_loaded(path: str, reason: str) -> str:
    return f"the Python script '{os.path.basename(path)}' cannot be loaded: {reason}"


def _invoke_of(module: ModuleType, path: str) -> Callable[..., Any]:
    name = os.path.basename(path)
    if not hasattr(module, "Invoke"):
        raise MissingInvokeError(f"the Python script '{name}' defines no function Invoke")
    if not callable(module.Invoke):
        raise InvokeNotCallableError(f"Invoke in the Python script '{name}' is not a function")
    return module.Invoke  # type: ignore[no-any-return]


def _chunks(script: ScriptThread) -> Generator[dict[str, object], None, None]:
    try:
        yield from script
    finally:
        script.close()


def _chunk_of(value: object) -> dict[str, object]:
    """Return what a script yields as a chunk dict whose token, tool calls and finish reason are of their types.

    None counts as an empty token. Unknown keys stay, but for those with which the engine itself marks the end.
    """
    given = value if isinstance(value, dict) else {"token": value}
    chunk = {key: item for key, item in given.items() if key not in ENGINE_KEYS}
    token, reason = given.get("token"), given.get("finish_reason")
    chunk["token"] = token if isinstance(token, str) else "" if token is None else str(token)
    chunk["finish_reason"] = reason if isinstance(reason, str) else None
    if "tool_calls" in given:
        chunk["tool_calls"] = calls_among(given["tool_calls"])
    return chunk


def reports_failure(text: str) -> bool:
    """Return whether this is the output of a node whose script failed, which must not be kept like an answer."""
    return text.startswith((UNEXPECTED_ERROR, SETUP_ERROR.partition("{")[0], OWN_ERROR.partition("{")[0]))


def _failure_text(error: BaseException, path: str) -> str:
    """Return the output of the node for a failure inside ``Invoke``; raise ``error`` if the workflow must see it."""
    request = current_request()
    # Any error after a stop may come from the script's processes, which were killed.
    if request is not None and request.cancel_scope.cancelled:
        raise EarlyTerminationException(f"Request {request.request_id} was cancelled") from error
    if isinstance(error, (FileNotFoundError, EarlyTerminationException)):
        raise error
    _log_failure(error, path)
    name = os.path.basename(path)
    if _is_own_error(error):
        text = f"{OWN_ERROR.format(getattr(error, 'module_name', None) or name)}{getattr(error, 'message', error)}"
        details = getattr(error, "details", None)
        return f"{text}. Details: {details}" if details else text
    if isinstance(error, (AttributeError, TypeError)):
        return SETUP_ERROR.format(name)
    return UNEXPECTED_ERROR


def _is_own_error(error: BaseException) -> bool:
    # By name, since a script that imports it as ``workflows.tools...`` has a second class.
    return any(kind.__name__ == DynamicModuleError.__name__ for kind in type(error).__mro__)


def _log_failure(error: BaseException, path: str, when: str = "in Invoke") -> None:
    if not is_encryption_active():
        logger.error("The script %s failed %s", path, when, exc_info=error)
        return
    # Without the message, which may quote the conversation.
    places = "".join(traceback.format_tb(error.__traceback__))
    logger.error("A script failed %s with %s:\n%s", when, type(error).__name__, places)
