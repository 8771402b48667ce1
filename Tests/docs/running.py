"""Runs whole workflows of pages as a client would: one server, one request after the other."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from Middleware.utilities.config.store import REVALIDATE_SECONDS
from Tests.docs.blocks import Block, blocks, whole_files
from Tests.docs.checking import rounds
from Tests.docs.fake_services import RESEARCH, FakeServices
from Tests.docs.markdown import Page
from Tests.docs.sandbox import USER, Sandbox, scripts
from Tests.integration.launcher import PROJECT, Launcher, streamed_text
from Tests.workflows.engine_lab import until

HELLO = [{"role": "user", "content": "Hello"}]
_MODEL = re.compile(rf"Workflows/{USER}/(.+?)(?:/_DefaultWorkflow)?\.json")
_COMPLAINT = re.compile(r"^.*(?:WARNING|ERROR|CRITICAL|Traceback|to look at).*$", re.MULTILINE)
_RAN = re.compile(r"=== Workflow Node Execution Summary: (?:.+/)?(.+)\.json \(request .+\) ===")
_HOSTS = re.compile(r'("allowedHosts"\s*:\s*)\[[^\]]*\]')
_PRIVATE = re.compile(r'("blockPrivateAddresses"\s*:\s*)true')
_DISCUSSION = re.compile(r"\[DiscussionId\](.*?)\[/DiscussionId\]")


@dataclass(frozen=True)
class Example:
    """A workflow that is tried. ``page``: the page's files that are there meanwhile; ``python``: its scripts."""

    block: Block
    page: tuple[Block, ...] = field(repr=False)
    python: tuple[Block, ...] = field(repr=False)

    @property
    def how(self) -> Mapping[str, Any]:
        return self.block.how or {}

    def of_page(self, key: str) -> dict[str, Any]:
        """What all comments of the page say under a key, as its files are there together."""
        return {name: value for block in self.page for name, value in (block.how or {}).get(key, {}).items()}


def examples(page: Page) -> list[Example]:
    """The workflows of a page that are tried: those with a comment, and those that no other of them uses."""
    found: dict[str, Example] = {}
    files, python = whole_files(page), tuple(blocks(page, "python"))
    for group in rounds(files):
        for block in group:
            if block.is_workflow and (block.how is not None or not _is_used(block, files)):
                found.setdefault(block.place, Example(block, tuple(group), python))
    return list(found.values())


def helpers(page: Page) -> list[Block]:
    """The workflows of a page that are tried through another one: a node of one of its files names them."""
    files = whole_files(page)
    tried = {example.block.place for example in examples(page)}
    return [block for block in files if block.is_workflow and block.place not in tried and _is_used(block, files)]


def name_of(block: Block) -> str:
    """The name that a node calls a workflow by."""
    return block.value.removesuffix(".json").rpartition("/")[2]


def _is_used(block: Block, page: Iterable[Block]) -> bool:
    """Whether another block of the page names the workflow, so that trying that one tries this one."""
    name = name_of(block)
    if name == "_DefaultWorkflow":
        return False
    return any(f'"{name}"' in other.fence.text for other in page if other.value != block.value)


class Runner:
    """Tries examples in a sandbox whose server runs.

    Attributes:
        results: what is wrong with each example that was tried, by its place.
        ran: the names of the workflows that ran meanwhile, by page.
    """

    def __init__(self, sandbox: Sandbox, services: FakeServices, server: Launcher) -> None:
        self._sandbox, self._services, self._server = sandbox, services, server
        self.results: dict[str, list[str]] = {}
        self.ran: dict[str, set[str]] = {}
        self._discussions: dict[str, str] = {}  # id -> place of the example that has it

    def run(self, wanted: Sequence[Example]) -> None:
        """Try the examples."""
        for group in _together(wanted, self._sandbox.base):
            try:
                for example in group.members:
                    self._safely(example, self._install)
                self._sandbox.change_user(group.user)
                time.sleep(REVALIDATE_SECONDS + 0.1)  # the server looks at its files once in this time
                for example in group.members:
                    if not self.results[example.block.place]:
                        self._safely(example, self._try)
            finally:
                self._sandbox.restore()

    def _safely(self, example: Example, step: Callable[[Example], Iterable[str]]) -> None:
        """Note what a step has to say. A comment that nobody can follow spoils no other example."""
        try:
            self.results[example.block.place] = list(step(example))
        except Exception as error:
            self.results[example.block.place] = [f"{example.block.place}: {type(error).__name__}: {error}"]

    # -- files -------------------------------------------------------------------------------------------------------
    def _install(self, example: Example) -> Iterable[str]:
        sandbox, paths = self._sandbox, scripts(example.python)
        for path, text in paths.items():
            sandbox.put(sandbox.place(path), text)
        for block in example.page:
            text = sandbox.moved(block.fence.text, [*paths, *example.of_page("files"), *example.of_page("writes")])
            sandbox.put_config(block.value, self._as_it_runs(example, block, text))
        return ()

    def _as_it_runs(self, example: Example, block: Block, text: str) -> str:
        """A file in which every server is the fake one."""
        folder, _, name = block.value.partition("/")
        if folder == "Endpoints":
            return json.dumps({**json.loads(text), "endpoint": self._services.url})
        if folder == "MCPServers":
            server = name.removesuffix(".json")
            tools = {
                tool.partition(".")[2]: text
                for tool, text in example.of_page("mcp").items()
                if tool.partition(".")[0] == server
            }
            return json.dumps(
                {
                    "transport": "stdio",
                    "command": sys.executable,
                    "args": [str(PROJECT / "Tests" / "docs" / "mcp_server.py"), json.dumps(tools)],
                }
            )
        web = text
        for address in sorted(example.of_page("web"), reverse=True):
            web = web.replace(address, self._services.web_page(address))
        return text if web == text else _PRIVATE.sub(r"\1false", _HOSTS.sub(r'\1["127.0.0.1"]', web))

    # -- requests ----------------------------------------------------------------------------------------------------
    def _try(self, example: Example) -> Iterator[str]:
        how, logged = example.how, self._server.output_size()
        self._services.begin(how.get("replies", {}), how.get("web", {}), how.get("researcher", RESEARCH))
        self._before(example)
        requests = how.get("requests") or [how]
        for number, request in enumerate(requests, 1):
            which = f"request {number}: " if len(requests) > 1 else ""
            self._services.add_replies(request.get("replies", {}) if request is not how else {})
            yield from (f"{example.block.place}: {which}{text}" for text in self._ask(example, {**how, **request}))
        for path, text in how.get("writes", {}).items():
            file = self._sandbox.place(path)
            content = file.read_text(encoding="utf-8") if file.is_file() else None
            if content is None or text not in content:
                yield f"{example.block.place}: {path} has {content!r}, in which there is no {text!r}"
        yield from (f"{example.block.place}: {text}" for text in self._log(logged, how.get("log")))
        self.ran.setdefault(example.block.page.name, set()).update(_RAN.findall(self._server.output(logged)))

    def _before(self, example: Example) -> None:
        for path, text in example.how.get("files", {}).items():
            file = self._sandbox.place(path)
            if path.startswith("WorkflowFiles/"):
                file = self._sandbox.public / path
            if text is None:
                file.unlink(missing_ok=True)
            else:
                self._sandbox.put(file, text)
        for name, text in example.how.get("discussion", {}).items():
            found = _DISCUSSION.search(json.dumps(example.how))
            assert found, f"{example.block.place}: 'discussion' without [DiscussionId] in the messages"
            folder = self._sandbox.public / "DiscussionIds" / self._discussion(example, found[1])
            self._sandbox.put(folder / name, text)

    def _ask(self, example: Example, request: Mapping[str, Any]) -> Iterator[str]:
        """One request; what is wrong with its answer."""
        prompts = len(self._services.prompts)
        logged = self._server.output_size()
        status, answer = self._answer(self._body(example, request), bool(request.get("stream")))
        if status != 200:
            yield f"the answer is an error ({status}): {answer}"
            return
        if not until(lambda: "done after" in self._server.output(logged)):
            yield "it does not end"
        sent = self._services.prompts[prompts:]
        for text in _list(request.get("expect")):
            if text not in answer:
                yield f"the answer lacks {text!r}: {answer!r}\n    prompts: {sent}"
        yield from (f"the answer has {text!r}: {answer!r}" for text in _list(request.get("lacks")) if text in answer)
        for text in _list(request.get("sent")):
            if not any(text in prompt for prompt in sent):
                yield f"no prompt has {text!r}: {sent}"

    def _body(self, example: Example, request: Mapping[str, Any]) -> dict[str, Any]:
        model = _MODEL.fullmatch(example.block.value)
        body = {
            "model": model[1] if model else "",
            "messages": HELLO,
            **{key: request[key] for key in ("model", "messages", "tools", "stream") if key in request},
            **request.get("body", {}),
        }
        own = _DISCUSSION.sub(
            lambda found: f"[DiscussionId]{self._discussion(example, found[1])}[/DiscussionId]", json.dumps(body)
        )
        return dict(json.loads(own))

    def _discussion(self, example: Example, name: str) -> str:
        """The discussion id, or another one if an earlier example has it."""
        place = example.block.place
        if self._discussions.setdefault(name, place) == place:
            return name
        return f"{name}-{re.sub(r'[^a-zA-Z0-9]+', '-', place)}"

    def _answer(self, body: Mapping[str, Any], stream: bool) -> tuple[int, str]:
        response = self._server.request("POST", "/v1/chat/completions", body)
        if response.status != 200 or stream:
            return response.status, streamed_text(response.body) if response.status == 200 else response.body.decode()
        message = response.json["choices"][0]["message"]
        calls = json.dumps(message["tool_calls"]) if message.get("tool_calls") else ""
        return 200, f"{message.get('content') or ''}{calls}"

    def _log(self, since: int, expected: str | None) -> Iterator[str]:
        """Complaints in the log that nobody expects, or the lack of those that somebody does."""
        found = _COMPLAINT.findall(self._server.output(since))
        if expected is not None and not any(expected in line for line in found):
            yield f"the log does not warn of {expected!r}"
        yield from (f"the log: {line}" for line in found if expected is None)


@dataclass
class _Group:
    """Examples that are there at the same time.

    Attributes:
        user: keys for the user's file, of all its examples.
        files: everything that the examples bring.
    """

    user: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    members: list[Example] = field(default_factory=list)

    def takes(self, example: Example, base: Mapping[str, str]) -> bool:
        """Whether the example would find all files as it brings them, and those of ``init`` as it wants them."""
        files, user = _files(example), example.of_page("user")
        changed = [{path: text for path, text in every.items() if path in base} for every in (files, self.files)]
        alike = user == self.user or bool(
            user and self.user and all(value is True for value in (*user.values(), *self.user.values()))
        )  # more switches that are on do no harm
        return (
            alike
            and changed[0] == changed[1]
            and all(self.files.get(path, text) == text for path, text in files.items())
        )


def _together(wanted: Sequence[Example], base: Mapping[str, str]) -> list[_Group]:
    """Examples that can be installed side by side. What changes the files of ``init`` is only with its like."""
    groups: list[_Group] = []
    for example in wanted:
        group = next((group for group in groups if group.takes(example, base)), None)
        if group is None:
            group = _Group()
            groups.append(group)
        group.files.update(_files(example))
        group.user.update(example.of_page("user"))
        group.members.append(example)
    return groups


def _files(example: Example) -> dict[str, str]:
    return {block.value: block.fence.text for block in example.page}


def _list(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(entry) for entry in value] if isinstance(value, list) else [str(value)]
