"""PythonModule nodes in workflows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import ConfigurationError
from Middleware.workflows.managers import workflow_manager
from Tests.stub_backend import StubBackend
from Tests.workflows.engine_lab import EngineLab, assistant, static, user

UNEXPECTED = "Error: An unexpected error occurred while processing your request. Please check system logs."


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        yield EngineLab(tmp_path, monkeypatch, backend)


def script(lab: EngineLab, code: str, name: str = "task.py", **more: Any) -> dict[str, Any]:
    """A node that runs ``code``."""
    (lab.root / name).write_text(code, encoding="utf-8")
    return {"type": "PythonModule", "module_path": str(lab.root / name), **more}


ECHO = "def Invoke(*args, **kwargs):\n    return repr((args, kwargs))\n"


def test_dict_result(lab: EngineLab) -> None:
    node = script(lab, "def Invoke():\n    return {'k': 1}\n")
    assert lab.run([node, static("{{ agent1Output.k }}", jinja2=True)]) == "1"
    assert lab.run([node, static("{agent1Output}")]) == "{'k': 1}"
    assert lab.run([node, static("{agent1Output[k]}")]) == "1"


def test_the_result_of_a_responder_is_unchanged(lab: EngineLab) -> None:
    node = script(lab, "def Invoke():\n    return {'k': [1, None]}\n")
    assert lab.run([node]) == {"k": [1, None]}
    assert lab.streamed([node]) == "{'k': [1, None]}"


def test_arguments_are_texts(lab: EngineLab) -> None:
    node = script(lab, ECHO, args=[5, None, True, "{agent1Output}", ["x"]], kwargs={"a": 1.5, "b": "{agent1Output}!"})
    assert lab.run([static("out {x}"), node]) == repr(
        (("5", "None", "True", "out {x}", "['x']"), {"a": "1.5", "b": "out {x}!"})
    )


@pytest.mark.parametrize("more", [{}, {"args": None, "kwargs": None}, {"args": [], "kwargs": {}}])
def test_no_arguments(lab: EngineLab, more: dict[str, Any]) -> None:
    assert lab.run([script(lab, ECHO, **more)]) == "((), {})"


def test_messages_arrive_with_their_braces(lab: EngineLab) -> None:
    node = script(
        lab, "import ast\ndef Invoke(text):\n    return ast.literal_eval(text)[0]['content']\n", args=["{messages}"]
    )
    assert lab.run([node], user("a {b} c"), assistant("d"), user("e")) == "a {b} c"


def test_the_path_takes_variables(lab: EngineLab) -> None:
    script(lab, ECHO, "chosen.py")
    assert (
        lab.run([static("chosen"), {"type": "PythonModule", "module_path": str(lab.root) + "/{agent1Output}.py"}])
        == "((), {})"
    )


def test_the_node_is_not_changed(lab: EngineLab) -> None:
    node = script(lab, ECHO, args=["{agent1Output}"])
    nodes = [static("one"), node]
    assert lab.run(nodes) == lab.run(nodes) == "(('one',), {})"


def test_failure_inside_invoke_lets_the_workflow_go_on(lab: EngineLab) -> None:
    node = script(lab, "def Invoke():\n    raise ValueError('x')\n")
    assert lab.run([node, static("<{agent1Output}>")]) == f"<{UNEXPECTED}>"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("", AttributeError),
        ("Invoke = 1", TypeError),
        ("raise KeyError('x')", KeyError),
        ("def Invoke():\n    open('/no/such/file')", FileNotFoundError),
    ],
)
def test_failures_of_the_workflow(lab: EngineLab, code: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        lab.run([script(lab, code), static("after")])


def test_missing_script_fails_the_workflow(lab: EngineLab) -> None:
    with pytest.raises(FileNotFoundError, match=r"'nope\.py' does not exist"):
        lab.run([{"type": "PythonModule", "module_path": str(lab.root / "nope.py")}])


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"module_path": None}, "module_path"),
        ({"module_path": ""}, "module_path"),
        ({"module_path": " "}, "module_path"),
        ({"module_path": 5}, "module_path"),
        ({"args": "x"}, "args"),
        ({"args": {"a": 1}}, "args"),
        ({"kwargs": ["x"]}, "kwargs"),
        ({"kwargs": "x"}, "kwargs"),
    ],
)
def test_bad_keys(lab: EngineLab, changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=f"'Mine'.*{key}") as caught:
        lab.run([{**script(lab, ECHO), "title": "Mine", **changes}])
    assert isinstance(caught.value, ConfigurationError)


@pytest.mark.parametrize(
    ("changes", "kind"), [({"args": "x"}, "str"), ({"args": {"a": 1}}, "dict"), ({"kwargs": ["x"]}, "list")]
)
def test_a_bad_key_is_named_as_people_write_it(lab: EngineLab, changes: dict[str, Any], kind: str) -> None:
    with pytest.raises(ValueError, match=f" cannot be {kind} "):
        lab.run([script(lab, ECHO, **changes)])


def test_a_file_that_is_no_python(lab: EngineLab) -> None:
    with pytest.raises(ConfigurationError, match=r"'task\.txt' is not a Python script.*\.py file") as caught:
        lab.run([script(lab, ECHO, "task.txt")])
    assert isinstance(caught.value, ValueError) and str(lab.root) not in str(caught.value)


def test_the_case_of_the_ending_does_not_count(lab: EngineLab) -> None:
    assert lab.run([script(lab, ECHO, "TASK.PY")]) == "((), {})"


def test_missing_path(lab: EngineLab) -> None:
    with pytest.raises(ValueError, match="module_path"):
        lab.run([{"type": "PythonModule"}])


GENERATOR = (
    "import time\ndef Invoke():\n    for word in ('one ', '{two} ', 'three'):\n"
    "        yield {'token': word, 'finish_reason': None}\n        time.sleep(0.2)\n"
)


def test_generator_is_streamed_as_it_comes(lab: EngineLab) -> None:
    arrivals: list[float] = []
    texts: list[str] = []
    lab.workflow("Main", [script(lab, GENERATOR)])
    for chunk in workflow_manager.WorkflowManager("Main").start(lab.request, [user("hi")], stream=True):
        if chunk["token"]:
            texts.append(chunk["token"])
            arrivals.append(time.monotonic())
    assert texts == ["one ", "{two} ", "three"]
    assert arrivals[1] - arrivals[0] > 0.15 and arrivals[2] - arrivals[1] > 0.15


def test_generator_as_a_variable_and_unstreamed(lab: EngineLab) -> None:
    assert lab.run([script(lab, GENERATOR)]) == "one {two} three"
    assert lab.run([script(lab, GENERATOR), static("<{agent1Output}>")]) == "<one {two} three>"


def test_stream_has_one_finish_reason(lab: EngineLab) -> None:
    chunks = lab.chunks([script(lab, GENERATOR)])
    assert [chunk["finish_reason"] for chunk in chunks if chunk.get("finish_reason")] == ["stop"]


def test_tool_calls_of_a_script(lab: EngineLab) -> None:
    node = script(
        lab,
        "def Invoke():\n    return {'content': 'c', 'tool_calls': [{'id': '1', 'type': 'function', "
        "'function': {'name': 'f', 'arguments': '{}'}}], 'finish_reason': 'tool_calls'}\n",
    )
    assert lab.run([node])["tool_calls"][0]["id"] == "1"
    chunks = lab.chunks([node])
    assert any(chunk.get("tool_calls") for chunk in chunks)


@pytest.mark.parametrize("chunk", ["{}", "{'token': ''}", "{'choices': []}", "{'token': '', 'end': True}"])
def test_a_chunk_that_says_nothing_yet(lab: EngineLab, chunk: str) -> None:
    node = script(lab, f"def Invoke():\n    yield {chunk}\n    yield 'words'\n")
    chunks = lab.chunks([node])
    assert "".join(chunk["token"] for chunk in chunks) == lab.run([node]) == "words"
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["stop"]


CALLING = """
def Invoke():
    yield {'token': 'wait', 'finish_reason': None}
    yield {'token': '', 'tool_calls': [{'index': 0, 'id': '1', 'function': {'name': 'f', 'arguments': '{"a"'}}, 5]}
    yield {'token': '', 'tool_calls': [{'index': 0, 'function': {'arguments': ': 1}'}}], 'finish_reason': 'tool_calls'}
"""


def test_tool_calls_of_a_generator(lab: EngineLab) -> None:
    node = script(lab, CALLING)
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert lab.run([node]) == {"content": "wait", "tool_calls": [call], "finish_reason": "tool_calls"}
    assert lab.run([node, static("<{agent1Output}>")]) == "<wait>"
    assert [chunk["finish_reason"] for chunk in lab.chunks([node]) if chunk["finish_reason"]] == ["tool_calls"]


@pytest.mark.parametrize("calls", ["'abc'", "True", "{'id': 1}", "[1, None]"])
def test_what_a_generator_says_of_tool_calls_that_are_none(lab: EngineLab, calls: str) -> None:
    node = script(lab, f"def Invoke():\n    yield {{'token': 'a', 'tool_calls': {calls}}}\n    yield 'b'\n")
    chunks = lab.chunks([node])
    assert "".join(chunk["token"] for chunk in chunks) == lab.run([node]) == "ab"
    assert not any(chunk.get("tool_calls") for chunk in chunks)
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["stop"]
