"""Which texts of the configuration reach the keys of nodes that act: that run, send, read or write something.

A text flows through variables of its file and of users, Jinja2, the outputs of nodes, the inputs of workflows that
nodes run, and the answers of these. What an LLM writes is not followed, but the texts among which it has to choose: a
node that acts on what it writes names its output.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from Middleware.addons.check.flow import messages_first, passed
from Middleware.addons.check.memory_check import HELPERS
from Middleware.addons.check.node_check import NodeView, child_folder, child_names, views_of
from Middleware.addons.check.text_check import variables_in
from Middleware.exceptions import ConfigurationError
from Middleware.services.llm_calls.answer_shape import CHOICES_KEY
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config.keys.node import NODE, WORKFLOW_FILE
from Middleware.utilities.config.keys.user import USER
from Middleware.utilities.config.store import FoundFile
from Middleware.utilities.config.workflows import LoadedWorkflow, workflow_in
from Middleware.utilities.files.path_utils import folded_name, split_name
from Middleware.utilities.json_data import strings_in
from Middleware.utilities.templates.substitution import Field, SubstitutionError, parse
from Middleware.workflows.handlers.registry import node_types
from Middleware.workflows.managers.variable_table import BUILT_IN_VARIABLES
from Middleware.workflows.processors.workflows_processor import find_responder

OUTPUT, INPUT = (re.compile(rf"agent([1-9][0-9]{{0,5}}){kind}") for kind in ("Output", "Input"))
# The built-in variables in which messages stand with the texts of a prompt template.
TEMPLATED = re.compile(r"templated_.+|chat_system_prompt|chat_user_prompt_without_system")
# For texts whose braces do not fit, of which the user may let a part be filled in.
_NAMES = re.compile(r"[^\W\d]\w*")
# More than any workflow has.
MOST_INPUTS = 1000
_HELPED = {node: key for key, nodes in HELPERS.items() for node in nodes}
PASSED, ANSWER = (
    ConfigKey("scoped_variables", "list", None, "", capability="gives a workflow that acts on it the input"),
    ConfigKey("", "any", None, "", capability="answers another workflow, which acts on it, with"),
)


@dataclass(frozen=True)
class Contents:
    """A file's content, as it is and without its secrets. Both have the same shape."""

    full: object
    shown: object

    def below(self, *keys: str | int) -> Contents:
        """Return what the keys lead to; None where they lead to nothing."""
        full, shown = self.full, self.shown
        for key in keys:
            full, shown = _entry(full, key), _entry(shown, key)
        return Contents(full, shown)


@dataclass
class Reached:
    """What flows into a text.

    Attributes:
        forms: by name what stands for a variable: equal if the same flows in.
        shown: by name the text that a variable of the file or a node gives.
        inputs: the numbers of the workflow's inputs.
        answers: the files of workflows whose answer it is.
        names: all other variables, among them those of users; those of a prompt template only where one is used.
    """

    forms: dict[str, str] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    inputs: set[int] = field(default_factory=set)
    answers: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    def add(self, other: Reached) -> None:
        """Add what flows into a part of the text."""
        self.shown = {**other.shown, **self.shown}
        self.inputs |= other.inputs
        self.answers |= other.answers
        self.names |= other.names


@dataclass(frozen=True)
class Feed:
    """One value that acts, of the node ``index``, with what flows into it. ``path``: the keys that lead to it."""

    index: int
    path: tuple[str | int, ...]
    key: ConfigKey
    value: Contents
    reached: Reached
    jinja: bool

    @property
    def form(self) -> str:
        """Equal if the same value acts."""
        return identity([self.value.full, self.jinja, self.reached.forms])

    @property
    def through(self) -> str:
        """The texts that flow in, as the end of a sentence."""
        return "".join(f", where {{{name}}} is {text}" for name, text in sorted(self.reached.shown.items()))


class WorkflowFlow:
    """The flow in one workflow. ``users`` are the user-wide variables of all users."""

    def __init__(
        self,
        loaded: LoadedWorkflow,
        contents: Callable[[], Contents],
        users: Mapping[str, Sequence[object]],
        children: Callable[[NodeView], list[str]],
    ) -> None:
        self.loaded, self.views, self.children = loaded, views_of(loaded), children
        self._contents, self._users = contents, users
        self._outputs: list[tuple[str, str, Reached]] = []

    @cached_property
    def contents(self) -> Contents:
        """The file."""
        return self._contents()

    def value(self, index: int, *keys: str | int) -> Contents:
        """Return a value of a node."""
        is_list = not isinstance(self.contents.full, Mapping)
        return self.contents.below(*(() if is_list else ("nodes",)), index, *keys)

    def own_feeds(self, view: NodeView) -> Iterator[Feed]:
        """Yield the values with which a node acts by itself, and its lists of what is allowed."""
        for key, value in () if view.is_misread else view.values():
            if key.capability and key.kind != "bool" and value not in ("", [], {}):
                yield self.feed(view, key, key.name)

    def feed(self, view: NodeView, key: ConfigKey, *path: str | int) -> Feed:
        """Return the feed of a value of a node."""
        value = self.value(view.index, *path)
        jinja = NODE.flag(view.node, "jinja2") and any("{" in text for _, text in strings_in(value.full))
        return Feed(view.index, path, key, value, self.reached(value.full, jinja, view.index), jinja)

    def answer(self) -> Feed | None:
        """Return the feed of what the workflow answers."""
        index = find_responder(self.loaded.nodes)
        if index < 0:
            return None
        form, shown, reached = self.output(index)
        return Feed(index, (), ANSWER, Contents(form, shown), reached, False)

    def reached(self, value: object, jinja: bool, index: int) -> Reached:
        """Return what flows into a value of the node ``index``."""
        found, filled = Reached(), list[str]()
        waiting = [*_names_in(value, jinja)]
        endpoint = NODE.value(self.loaded.nodes[index], "endpointName")
        while waiting:
            name = waiting.pop()
            if name in found.forms:
                continue
            own = self.loaded.variables.get(name)
            found.forms[name] = "" if own is None else identity(own)
            if own is not None:
                found.shown[name] = as_text(self.contents.below(name).shown)
            output, given = OUTPUT.fullmatch(name), INPUT.fullmatch(name)
            if output is not None and int(output[1]) <= index:
                form, shown, more = self.output(int(output[1]) - 1)
                found.forms[name] += form
                found.add(more)
                found.shown.update({name: shown} if shown else {})
            elif output is not None and WORKFLOW_FILE.flag(self.loaded.variables, "parallelNodes"):
                # A later node may be done first.
                self._add_everything(found)
            if given is not None:
                found.inputs.add(int(given[1]))
            is_templated = TEMPLATED.fullmatch(name) is not None
            if is_templated and endpoint:
                found.forms[name] += str(endpoint)
                waiting += _names_in(endpoint, jinja=False)
            texts = [own] if own is not None else self._users.get(name, ())
            # A node without an endpoint uses no prompt template.
            if endpoint if is_templated else own is None or name in BUILT_IN_VARIABLES:
                found.names.add(name)
            # Values of variables are filled in as plain texts, whatever the node says.
            waiting += [inner for text in texts for inner in _names_in(text, jinja=False)]
            filled += [part for text in texts for _, part in strings_in(text) if "{" in part or "}" in part]
        own_texts = [] if jinja else [text for _, text in strings_in(value)]
        known = {*self.loaded.variables, *self._users}
        if filled and not all(_inserts_whole_values(text, known) for text in (*own_texts, *filled)):
            # Placeholders are filled in twice, so that braces of two texts may become one.
            self._add_everything(found)
        return found

    def _add_everything(self, found: Reached) -> None:
        """Let the whole file count. Sound workflows have nothing that needs it, and the check reports most of it."""
        found.forms[""] = identity(self.contents.full)
        found.inputs.update(range(1, MOST_INPUTS))
        found.answers.update(child for view in self.views for child in self.children(view))
        found.names.update(self._users, BUILT_IN_VARIABLES)

    def output(self, index: int) -> tuple[str, str, Reached]:
        """Return the form of a node's output, the texts that it is made of, and what flows into it."""
        while len(self._outputs) <= index:
            self._outputs.append(self._output(self.views[len(self._outputs)]))
        return self._outputs[index]

    def _output(self, view: NodeView) -> tuple[str, str, Reached]:
        answers, keys = self.children(view), declared(view)
        # An LLM may write anything, whichever it is and whatever its prompt, unless it has to choose.
        if any(key.name == "prompt" for key in keys):
            used = [key.name for key in keys if key.name == CHOICES_KEY and view.node.get(CHOICES_KEY)]
        else:
            # What a child does with its inputs is followed in the child, and prompts for it are for its LLM.
            used = [key.name for key in keys if key.name in view.node and not key.name.endswith(_CHILDS)]
        found = self.reached({name: view.node[name] for name in used}, NODE.flag(view.node, "jinja2"), view.index)
        found.answers.update(answers)
        form = identity([bool(used) and view.runs_as, {name: view.node[name] for name in used}, found.forms, answers])
        shown = {name: self.value(view.index, name).shown for name in used}
        return form, " ".join(text for _, text in strings_in(shown)), found


_CHILDS = ("scoped_variables", "PromptOverride", "promptOverride", "routeOverrides")


def declared(view: NodeView) -> tuple[ConfigKey, ...]:
    """Return the keys of the type that runs, without those of all nodes."""
    return node_types()[view.runs_as].KEYS[view.runs_as]


class Flows:
    """The flow in all workflows of a configuration.

    Args:
        files: by name each file below Workflows and Users, whatever it is taken for: its content, and a function that
            returns this content together with the one without secrets.
    """

    def __init__(self, files: Mapping[str, tuple[object, Callable[[], Contents]]]) -> None:
        self._users = {
            display[len("Users/") : -len(".json")]: content
            for display, (content, _) in files.items()
            if display.startswith("Users/") and isinstance(content, Mapping)
        }
        variables: dict[str, list[object]] = {}
        for user in self._users.values():
            table = USER.value(user, "userWideWorkflowVariables")
            for name, value in table.items() if isinstance(table, Mapping) else ():
                variables.setdefault(name, []).append(value)
        self.workflows: dict[str, WorkflowFlow] = {}
        for display, (content, contents) in files.items():
            loaded = _loaded(display, content) if display.startswith("Workflows/") else None
            if loaded is not None:
                self.workflows[display] = WorkflowFlow(loaded, contents, variables, self._children)
        self._by_stem: dict[str, list[str]] = {}
        for display in self.workflows:
            self._by_stem.setdefault(_stem(display).removesuffix(".json"), []).append(display)
        self._folders = {user: _folders(user, settings) for user, settings in self._users.items()}
        self._lent = {
            _folded(NODE.value(view.node, "workflowUserFolderOverride"))
            for flow in self.workflows.values()
            for view in flow.views
        } | {_folded(USER.value(settings, "sharedWorkflowsSubDirectoryOverride")) for settings in self._users.values()}
        self.feeds, self.names = self._all_feeds()

    def _all_feeds(self) -> tuple[dict[str, list[Feed]], set[str]]:
        """Return the feeds of each file, and the names of all variables that flow into one."""
        found: dict[str, dict[tuple[object, ...], Feed]] = {display: {} for display in self.workflows}
        names: set[str] = set()
        seen: set[tuple[str, int]] = set()
        callers: dict[str, list[tuple[str, NodeView]]] = {}
        waiting: list[tuple[str, Feed]] = []
        for display, flow in self.workflows.items():
            for view in flow.views:
                waiting += [(display, feed) for feed in flow.own_feeds(view)]
                for child in self._children(view) if passed(view) else ():
                    callers.setdefault(child, []).append((display, view))
        while waiting:
            display, feed = waiting.pop()
            found[display][feed.index, feed.path] = feed
            names |= feed.reached.names
            for number in {*feed.reached.inputs} - {number for file, number in seen if file == display}:
                seen.add((display, number))
                waiting += [(caller, given) for caller, given in self._given(callers.get(display, ()), number)]
            for child in feed.reached.answers:
                answer = None if (child, 0) in seen else self.workflows[child].answer()
                seen.add((child, 0))
                waiting += [(child, answer)] if answer is not None else []
        return {display: [*feeds.values()] for display, feeds in found.items()}, names

    def _given(self, callers: Iterable[tuple[str, NodeView]], number: int) -> Iterator[tuple[str, Feed]]:
        """Yield what nodes give the workflows that they run as the input ``number``."""
        for display, view in callers:
            position = number - 1 - messages_first(view)
            if 0 <= position < len(passed(view)):
                is_list = isinstance(NODE.value(view.node, "scoped_variables"), (list, tuple))
                path = ("scoped_variables", position) if is_list else ("scoped_variables",)
                yield display, self.workflows[display].feed(view, PASSED, *path)

    def _children(self, view: NodeView) -> list[str]:
        """Return all workflows that a node may run, with the settings of any user who may run the node."""
        names = [name for _, name in child_names(view)]
        table = NODE.value(view.node, "conditionalWorkflows") if "conditionalWorkflows" in view.keys else None
        # Where a text is the default, the value may still be this word, and then the workflow for it runs.
        names += [str(name) for name in table.values() if name] if isinstance(table, Mapping) else []
        key = _HELPED.get(view.runs_as)
        if not names and key is None:
            return []
        users, folders = self._served(_folded(view.loaded.display))
        names += [str(USER.value(self._users[user], key)) for user in users] if key else []
        override = child_folder(view)
        if override:
            folders = [_folded(override)]
        places = {f"workflows/{folder}/{_folded(name)}.json" for folder in folders for name in names}
        return sorted(
            display
            for stem in {_stem(name) for name in names}
            for display in self._by_stem.get(stem, ())
            if override is None or _folded(display) in places
        )

    def _served(self, file: str) -> tuple[list[str], list[str]]:
        """Return the users who may run a workflow, and the folders in which its children are then looked for."""
        own = file.split("/")[1:-1]
        above = ["/".join(own[:length]) for length in range(1, len(own) + 1)]
        owners = [user for user, folders in self._folders.items() if not {*folders}.isdisjoint(above)]
        # What nodes of others run, and what is in no user's folder, runs with the settings of any user.
        users = [*self._folders] if not owners or not self._lent.isdisjoint(above) else owners
        return users, [*above, *(folder for user in users for folder in self._folders[user])]


def _loaded(display: str, content: object) -> LoadedWorkflow | None:
    folder, _, name = display[len("Workflows/") : -len(".json")].rpartition("/")
    try:
        return workflow_in(content, name, folder or ".", FoundFile(display, display))
    # Nothing runs it.
    except ConfigurationError:
        return None


def _folders(user: str, settings: Mapping[str, object]) -> list[str]:
    """Return the folders below Workflows in which a user's workflows are looked for."""
    override = USER.value(settings, "workflowConfigsSubDirectoryOverride")
    folder = _folded(override) if isinstance(override, str) and override.strip() else _folded(user)
    return [f"_overrides/{folder}", folder]


def _folded(path: object) -> str:
    """Return a path as a lookup on any file system may compare it; empty for what no file can be called."""
    try:
        return "/".join(map(folded_name, split_name(path.strip() if isinstance(path, str) else path)))
    except ConfigurationError:
        return ""


def _stem(path: str) -> str:
    return _folded(path).rpartition("/")[2]


# -- values ------------------------------------------------------------------------------------------------------------


def _names_in(value: object, jinja: bool) -> set[str]:
    """Return the names of all variables in the texts of a value."""
    names: set[str] = set()
    for text in [text for _, text in strings_in(value) if "{" in text]:
        found = variables_in(text, jinja)
        # What is in doubled braces is a placeholder when they are filled in for the second time.
        names.update(found, _NAMES.findall(text) if not found or (not jinja and "{{" in text) else ())
    return names


def _inserts_whole_values(text: str, names: Container[str]) -> bool:
    """Return whether the braces of a text fit, and it takes no part of the value of one of these variables."""
    try:
        fields = [part for part in parse(text).parts if isinstance(part, Field)]
    except SubstitutionError:
        return False
    return not any(part.name in names and (part.path or part.spec) for part in fields)


def _entry(value: object, key: str | int) -> object:
    if isinstance(value, Mapping):
        return value.get(key)
    if isinstance(value, (list, tuple)) and isinstance(key, int) and key < len(value):
        entry: object = value[key]
        return entry
    return None


def identity(value: object) -> str:
    """Return a short text that is equal for equal JSON data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def as_text(value: object) -> str:
    """Return a value as a message shows it."""
    if isinstance(value, (list, tuple)) and all(isinstance(entry, (str, int, float)) for entry in value):
        return " ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
