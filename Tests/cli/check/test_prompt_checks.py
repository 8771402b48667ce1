"""Prompts that a server reads again with each message, and models whose template needs ``alternateRoles``."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from Middleware.cli.commands import COMMANDS
from Middleware.utilities import config_utils
from Tests.cli.check.config_tree import (
    API_TYPE,
    ENDPOINT,
    GENERAL,
    SPARE,
    USER,
    Mistake,
    TreeLab,
    changed,
    llm,
    nodes,
    put,
    write_tree,
)
from Tests.stub_backend import Reply, StubBackend
from Tests.tables import table

Expected = tuple[str, str, str, str, str]
"""Severity, file, JSON path, part of the message, part of what is expected."""


def answer(**keys: Any) -> dict[str, Any]:
    return llm(endpointName="Main", **keys)


RELATIVE = {"addDiscussionIdTimestampsForLLM": True, "useRelativeTimestamps": True}
FOUND: dict[str, tuple[tuple[Mistake, ...], Expected]] = {
    "stand-in outside the group": (
        (changed(SPARE, swapGroup="gpu", swapStandIn="Main"),),
        ("error", SPARE, "swapStandIn", "endpoint 'Main' is not in the same group", "the 'swapGroup' 'gpu'")),
    "stand-in without a group": (
        (changed(SPARE, swapStandIn="Main"),),
        ("error", SPARE, "swapStandIn", "endpoint 'Main' is not in the same group", "which has none")),
    "stand-in of itself": (
        (changed(SPARE, swapGroup="gpu", swapStandIn="Spare"),),
        ("error", SPARE, "swapStandIn", "the endpoint names itself", "another endpoint with the 'swapGroup' 'gpu'")),
    "stand-ins in a circle": (
        (changed(ENDPOINT, swapGroup="gpu", swapStandIn="Spare"), changed(SPARE, swapGroup="gpu", swapStandIn="Main")),
        ("error", ENDPOINT, "swapStandIn", "stand in for each other: Main -> Spare -> Main", "a last endpoint")),
    "stand-in that makes embeddings": (
        (put("Endpoints/home/Vectors.json", {"endpoint": "http://127.0.0.1:5003", "apiTypeConfigFileName": "Vectors",
                                             "swapGroup": "gpu"}),
         changed(SPARE, swapGroup="gpu", swapStandIn="Vectors")),
        ("error", SPARE, "swapStandIn", "endpoint 'Vectors' makes embeddings", "endpoints that write text")),
    "stand-in that does not exist": (
        (changed(SPARE, swapGroup="gpu", swapStandIn="Mian"),),
        ("error", SPARE, "swapStandIn", "endpoint 'Mian' does not exist in Endpoints/home", "")),
    "relative times": (
        (nodes(answer(**RELATIVE)),),
        ("warning", GENERAL, "nodes[0].useRelativeTimestamps", "node 1 'Answer': the messages say how long ago",
         "without 'useRelativeTimestamps'")),
    "odd block size": (
        (nodes(answer(messageBlockSize=7)),),
        ("warning", GENERAL, "nodes[0].messageBlockSize", "node 1 'Answer': 'messageBlockSize' is 7, which is odd",
         "an even number, such as 8")),
    "odd block size as text": (
        (nodes(answer(messageBlockSize="11")),),
        ("warning", GENERAL, "nodes[0].messageBlockSize", "is 11, which is odd", "such as 12")),
    "odd block size of the user": (
        (changed(USER, messageBlockSize=9),),
        ("warning", USER, "messageBlockSize", "'messageBlockSize' is 9, which is odd", "such as 10")),
    "text before the newest message": (
        (changed(ENDPOINT, addTextToStartOfPrompt=True, textToAddToStartOfPrompt="/no_think "),),
        ("note", ENDPOINT, "addTextToStartOfPrompt", "before the newest message of the user only",
         "'lateInstruction'")),
    "a model of Gemma's": (
        (changed(ENDPOINT, modelNameToSendToAPI="Gemma-3-12b"),),
        ("note", ENDPOINT, "modelNameToSendToAPI", "accepts only users and assistants in turn",
         "'alternateRoles': true")),
    "a model of Mistral's": (
        (changed(ENDPOINT, modelNameToSendToAPI="mistral-small", alternateRoles=False),),
        ("note", ENDPOINT, "modelNameToSendToAPI", "two messages of the user in a row", "'alternateRoles': true")),
}

FINE: dict[str, tuple[Mistake, ...]] = {
    "a stand-in": (changed(ENDPOINT, swapGroup="gpu"), changed(SPARE, swapGroup="gpu", swapStandIn="Main")),
    "times that are not shown": (nodes(answer(useRelativeTimestamps=True)),),
    "relative times without messages": (nodes(answer(prompt="Hello", **RELATIVE)),),
    "even block size": (nodes(answer(messageBlockSize=10)), changed(USER, messageBlockSize=1)),
    "block size of a caller": (nodes(answer(messageBlockSize="{agent1Input}")),),
    "text before the prompt of a completion type": (
        changed(API_TYPE, type="openAIV1Completion"),
        changed(ENDPOINT, addTextToStartOfPrompt=True, textToAddToStartOfPrompt="/no_think ")),
    "no text before the newest message": (changed(ENDPOINT, addTextToStartOfPrompt=True),),
    "roles that alternate": (changed(ENDPOINT, modelNameToSendToAPI="gemma3:12b", alternateRoles=True),),
    "embeddings of Gemma's": (changed(SPARE, apiTypeConfigFileName="Vectors", modelNameToSendToAPI="embeddinggemma",
                                      presetSamplers={}),),
}


@table(("mistakes", "expected"), list(FOUND.values()), ids=list(FOUND))
def test_what_is_found(tree: TreeLab, mistakes: tuple[Mistake, ...], expected: Expected) -> None:
    found = tree.check(*mistakes)
    assert [(one.severity, one.file, one.json_path) for one in found] == [expected[:3]], found
    assert found[0].line is not None
    assert expected[3] in found[0].message and expected[4] in found[0].expected, found


@table("mistakes", list(FINE.values()), ids=list(FINE))
def test_what_is_fine(tree: TreeLab, mistakes: tuple[Mistake, ...]) -> None:
    assert [str(finding) for finding in tree.check(*mistakes)] == []


# -- what only a server knows ----------------------------------------------------------------------------------------

STRICT = "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"


@table(("type_", "props", "endpoint", "notes"), [
    ("openAIChatCompletion", {"chat_template": STRICT}, {}, 1),
    ("openAIV1Completion", {"chat_template": STRICT}, {}, 1),
    ("openAIChatCompletion", {"chat_template": STRICT}, {"apiKey": "hunter2"}, 1),
    ("openAIChatCompletion", {"chat_template": STRICT}, {"alternateRoles": True}, 0),
    ("openAIChatCompletion", {"chat_template": "{{ messages }}"}, {}, 0),
    ("openAIChatCompletion", {"chat_template": 5}, {}, 0), ("openAIChatCompletion", [STRICT], {}, 0),
    ("openAIChatCompletion", None, {}, 0), ("ollamaApiChat", {"chat_template": STRICT}, {}, 0),
    # The name of the model says so already, and that is one note.
    ("openAIChatCompletion", {"chat_template": STRICT}, {"modelNameToSendToAPI": "gemma"}, 1)])
def test_the_template_that_a_server_has_loaded(type_: str, props: Any, endpoint: dict[str, Any], notes: int,
                                               tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def respond(request: Any) -> Reply:
        if request.path != "/props" or props is None:
            return Reply(status=404)
        if "apiKey" in endpoint and request.headers.get("authorization") != "Bearer hunter2":
            return Reply(status=401, body=b"{}")
        return Reply(body=json.dumps(props).encode())

    with StubBackend() as server:
        server.responder = respond
        again = put("Endpoints/home/Again.json", {"endpoint": server.url, "apiTypeConfigFileName": "Chat", **endpoint})
        write_tree(tmp_path, changed(ENDPOINT, endpoint=server.url, **endpoint), changed(API_TYPE, type=type_), again)
        config_utils.reset_config_store()
        COMMANDS["check"].run(["--PublicDirectory", str(tmp_path), "--online", "--json"])
        found = [one for one in json.loads(capsys.readouterr().out)["findings"] if "in turn" in one["message"]]
        # Both files name the server, which is asked once, and once more with its key.
        asked = [request.headers.get("authorization") for request in server.requests if request.path == "/props"]
        assert len(asked) <= 1 or asked == [None, "Bearer hunter2"]
    assert [one["severity"] for one in found] == ["note"] * 2 * notes and "hunter2" not in str(found)
    assert all(one["expected"].startswith("'alternateRoles': true") and one["line"] for one in found)
