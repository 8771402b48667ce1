"""ConversationChunkProcessor."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import BackendError, ConfigNotFoundError, ConfigValueError, EarlyTerminationException
from Middleware.models.request_context import request_scope
from Middleware.utilities.discussions.folder_names import own_name
from Middleware.workflows.handlers.impl.sub_workflow_handler import ChunkCursor
from Middleware.workflows.models.execution_context import ExecutionContext
from Tests.folding_file_systems import RULES, OtherFileSystem, used
from Tests.stub_backend import Reply, StubBackend, status_reply
from Tests.tables import table
from Tests.windows import LOCK_FILES
from Tests.workflows.engine_lab import EngineLab, Probe, assistant, last_text, llm, reply_to, start, static, user


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        lab = EngineLab(tmp_path, monkeypatch, backend)
        lab.workflow("Each", [llm("<{agent1Input}>")])
        yield lab


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "new" / "cursors"


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def node(folder: Path, **keys: Any) -> dict[str, Any]:
    return {
        "type": "ConversationChunkProcessor",
        "title": "Log",
        "id": "events",
        "workflowName": "Each",
        "chunkSize": 3,
        "lookbackMessages": 2,
        "cursorDirectory": str(folder),
        **keys,
    }


def talk(count: int) -> list[dict[str, Any]]:
    return [assistant(f"m{number}") if number % 2 else user(f"m{number}") for number in range(count)]


def run(
    lab: EngineLab,
    chunk_node: dict[str, Any],
    messages: list[dict[str, Any]] | int,
    discussion_id: str = "d1",
    nodes: tuple[dict[str, Any], ...] = (),
    **fields: Any,
) -> Any:
    lab.workflow("Main", [chunk_node, *nodes], **fields.pop("variables", {}))
    with request_scope(lab.request):
        return list(
            start(
                lab,
                "Main",
                *(talk(messages) if isinstance(messages, int) else messages),
                discussion_id=discussion_id,
                **fields,
            )
        )[-1]


def processed(count: int) -> str:
    return f"ConversationChunkProcessor 'events' processed {count} chunk(s)."


def cursor(folder: Path, name: str = "events_d1") -> list[str]:
    return (folder / f"chunk_cursor_{name}.txt").read_text(encoding="utf-8").split("\n")


# -- which blocks ------------------------------------------------------------------------------------------------------


def test_blocks_of_a_growing_conversation(lab: EngineLab, folder: Path) -> None:
    blocks: list[str] = []
    for count, new in ((4, []), (5, ["m0\nm1\nm2"]), (9, ["m3\nm4\nm5"]), (9, []), (12, ["m6\nm7\nm8"]), (8, [])):
        assert run(lab, node(folder), count) == processed(len(new))
        blocks += [f"<{block}>" for block in new]
        assert lab.prompts == blocks
    assert cursor(folder) == [sha("m2"), sha("m5"), sha("m8"), ""]


@pytest.mark.parametrize(
    ("keys", "count", "blocks"),
    [
        ({}, 15, ["m0\nm1\nm2", "m3\nm4\nm5", "m6\nm7\nm8", "m9\nm10\nm11"]),
        ({"chunkSize": None, "lookbackMessages": None}, 14, ["\n".join(f"m{number}" for number in range(10))]),
        ({"chunkSize": None, "lookbackMessages": None}, 13, []),
        ({"chunkSize": 1, "lookbackMessages": 0}, 2, ["m0", "m1"]),
        ({"chunkSize": "{size}", "lookbackMessages": "{agent1Input}"}, 4, ["m0\nm1"]),
        ({"lookbackMessages": 50}, 9, []),
    ],
)
def test_sizes(lab: EngineLab, folder: Path, keys: dict[str, Any], count: int, blocks: list[str]) -> None:
    result = run(lab, node(folder, **keys), count, variables={"size": 2}, scoped_inputs=("2",))
    assert result == processed(len(blocks))
    assert lab.prompts == [f"<{block}>" for block in blocks]


def test_a_conversation_without_the_known_messages_begins_anew(lab: EngineLab, folder: Path) -> None:
    run(lab, node(folder), 5)
    assert run(lab, node(folder), [user(f"n{number}") for number in range(5)]) == processed(1)
    assert cursor(folder) == [sha("m2"), sha("n2"), ""]


@pytest.mark.parametrize(
    ("content", "count"), [(f"\n\n{sha('m2')}\r\n  \n", 1), ("", 2), (f" {sha('m5')} ", 0), (b"\xff\xfe\x00", 2)]
)
def test_a_cursor_file_from_elsewhere(lab: EngineLab, folder: Path, content: Any, count: int) -> None:
    folder.mkdir(parents=True)
    data = content if isinstance(content, bytes) else content.encode()
    (folder / "chunk_cursor_events_d1.txt").write_bytes(data)
    assert run(lab, node(folder), 8) == processed(count)


def test_a_cursor_file_that_cannot_be_used(lab: EngineLab, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "chunk_cursor_events_d1.txt").mkdir(parents=True)
    assert run(lab, node(folder), 8) == processed(2)
    assert [record.levelname for record in caplog.records if "cursor" in record.message].count("ERROR") == 2


def test_progress_has_a_name_and_a_discussion(lab: EngineLab, folder: Path) -> None:
    run(lab, node(folder, id=" a.b_c-1 "), 5)
    run(lab, node(folder), 5, "d 2")
    assert sorted(path.name for path in folder.iterdir()) == [
        *LOCK_FILES,
        "chunk_cursor_a.b_c-1_d1.txt",
        "chunk_cursor_events_d 2.txt",
    ]
    assert len(lab.prompts) == 2


def test_discussions_that_a_file_system_takes_for_each_other(lab: EngineLab, folder: Path) -> None:
    with used(OtherFileSystem(RULES["NTFS"])):
        for _ in range(2):
            for discussion_id, count in (("mill", 5), ("Mill", 8), ("MILL", 5)):
                run(lab, node(folder), count, discussion_id)
    assert len(lab.prompts) == 1 + 2 + 1
    assert sorted(path.name for path in folder.glob("*.txt")) == sorted(
        f"chunk_cursor_events_{name}.txt" for name in ("mill", own_name("Mill"), own_name("MILL"))
    )
    # Copied to a file system that tells names apart.
    run(lab, node(folder), 8, "Mill")
    assert len(lab.prompts) == 4


def test_home_directory(lab: EngineLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    run(lab, node(tmp_path, cursorDirectory="~/{Discussion_Id}"), 5)
    assert cursor(tmp_path / "d1") == [sha("m2"), ""]


# -- the child ---------------------------------------------------------------------------------------------------------


def test_the_child_sees_its_block_only(lab: EngineLab, folder: Path) -> None:
    lab.workflow("Each", [llm("{chat_user_prompt_last_twenty}|{agent1Input}|{agent2Input}|{agent3Input}"), llm("last")])
    run(lab, node(folder, scoped_variables=["{chat_user_prompt_last_one}", 5]), 5)
    assert lab.prompts == ["m0\nm1\nm2|m0\nm1\nm2|m4|5", "last"]
    assert not any(request.json["stream"] for request in lab.backend.requests)


def test_notes_on_images_are_no_messages(lab: EngineLab, folder: Path) -> None:
    describe = {
        "type": "ImageProcessor",
        "endpointName": "Main",
        "prompt": "What?",
        "addAsUserMessage": True,
        "message": "[note]",
    }
    messages = [{**user("m0"), "images": ["aGk="]}, *talk(5)[1:]]
    lab.workflow("Main", [describe, node(folder, lookbackMessages=0, chunkSize=1), static("{agent2Output}")])
    for count in (5, 0):  # later requests find the last message, and nothing new
        with request_scope(lab.request):
            assert list(start(lab, "Main", *messages, discussion_id="d1"))[-1] == processed(count)
    assert cursor(folder) == [*(sha(f"m{number}" if number else "m0") for number in range(5)), ""]


def test_a_child_from_another_folder(lab: EngineLab, folder: Path) -> None:
    lab.workflow("Each", [llm("common <{agent1Input}>")], folder="_common")
    run(lab, node(folder, workflowUserFolderOverride="_common"), 5)
    assert lab.prompts == ["common <m0\nm1\nm2>"]


def test_the_child_gets_copies_and_no_tools(lab: EngineLab, folder: Path) -> None:
    def spoil(context: ExecutionContext) -> str:
        for message in context.messages:
            message["content"] = "spoilt"
        context.messages.clear()
        return "done"

    probe = Probe(spoil)
    lab.workflow("Each", [{"type": "Probe"}])
    lab.workflow("Main", [node(folder), static("{chat_user_prompt_last_twenty}")])
    with request_scope(lab.request):
        items = start(
            lab,
            "Main",
            *talk(5),
            discussion_id="d1",
            probes={"Probe": probe},
            tool_choice="auto",
            tools=[{"type": "function", "function": {"name": "f"}}],
        )
        assert list(items)[-1] == "m0\nm1\nm2\nm3\nm4"
    assert cursor(folder) == [sha("m2"), ""]
    context = probe.contexts[0]
    assert (context.tools, context.tool_choice, context.discussion_id) == (None, None, "d1")
    assert context.run is not None and context.run.non_responder is True


def test_braces(lab: EngineLab, folder: Path) -> None:
    escaped = "__WILMER_L_CURLY__agent2Input__WILMER_R_CURLY__"
    run(lab, node(folder, chunkSize=1, lookbackMessages=0), [user(escaped)])
    assert lab.prompts == ["<{agent2Input}>"]
    assert cursor(folder) == [sha(escaped), ""]


def test_a_message_of_images(lab: EngineLab, folder: Path) -> None:
    message = {"role": "user", "content": "", "images": ["b", "a"]}
    run(lab, node(folder, chunkSize=1, lookbackMessages=0), [message])
    assert cursor(folder) == [sha("ab"), ""]


@pytest.mark.parametrize("responds", [True, False])
def test_streaming(lab: EngineLab, folder: Path, responds: bool) -> None:
    nodes = [node(folder)] if responds else [node(folder), static("<{agent1Output}>")]
    lab.workflow("Main", nodes)
    with request_scope(lab.request):
        chunks = list(start(lab, "Main", *talk(5), discussion_id="d1", stream=True))
    text = processed(1)
    assert "".join(chunk["token"] for chunk in chunks) == (text if responds else f"<{text}>")
    assert len([chunk for chunk in chunks if "end" in chunk]) == 1


def test_a_failing_child_ends_the_node_and_keeps_the_progress(lab: EngineLab, folder: Path) -> None:
    lab.backend.responder = lambda request: status_reply(400) if "m3" in last_text(request) else reply_to(request, "ok")
    with pytest.raises(BackendError):
        run(lab, node(folder), 11, nodes=(static("never"),))
    assert cursor(folder) == [sha("m2"), ""]
    lab.backend.responder = lambda request: reply_to(request, "ok")
    assert run(lab, node(folder), 11) == processed(2)


def test_a_missing_child(lab: EngineLab, folder: Path) -> None:
    with pytest.raises(ConfigNotFoundError, match="Nope"):
        run(lab, node(folder, workflowName="Nope"), 5)
    assert not folder.exists()


def test_cancel_in_a_block(lab: EngineLab, folder: Path) -> None:
    lab.backend.responder = lambda request: Reply(never=True) if "m3" in last_text(request) else reply_to(request, "ok")
    moment: list[float] = []

    def cancel() -> None:
        lab.backend.wait_requests(2)
        moment.append(time.monotonic())
        lab.request.cancel_scope.cancel()

    threading.Thread(target=cancel).start()
    with pytest.raises(EarlyTerminationException) as caught:
        run(lab, node(folder), 20)
    assert caught.value.is_cancellation and time.monotonic() - moment[0] < 60
    assert cursor(folder) == [sha("m2"), ""] and len(lab.prompts) == 2


def test_cancel_between_blocks(lab: EngineLab, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the child has nothing in it that would notice."""
    lab.workflow("Each", [])
    add = ChunkCursor.add

    def add_and_cancel(self: ChunkCursor, message_hash: str) -> None:
        add(self, message_hash)
        lab.request.cancel_scope.cancel()

    monkeypatch.setattr(ChunkCursor, "add", add_and_cancel)
    with pytest.raises(EarlyTerminationException) as caught:
        run(lab, node(folder), 20)
    assert caught.value.is_cancellation
    assert cursor(folder) == [sha("m2"), ""]


# -- output ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discussion_id", ["d1", ""])
@pytest.mark.parametrize(
    ("content", "output"), [(None, ""), (b"", "No additional information added"), ("\ufeffé\r\n{x}".encode(), "é\n{x}")]
)
def test_return_file(
    lab: EngineLab, folder: Path, tmp_path: Path, discussion_id: str, content: bytes | None, output: str
) -> None:
    if content is not None:
        (tmp_path / f"ev_{discussion_id}.md").write_bytes(content)
    chunk_node = node(folder, returnFile="{dir}/ev_{Discussion_Id}.md")
    result = run(lab, chunk_node, 5, discussion_id, nodes=(static("{agent1Output}"),), variables={"dir": str(tmp_path)})
    assert result == output
    assert len(lab.prompts) == (1 if discussion_id else 0)


def test_without_a_discussion_nothing_is_processed(lab: EngineLab, folder: Path) -> None:
    assert run(lab, node(folder), 20, "") == processed(0)
    assert run(lab, node(folder, workflowName=None, chunkSize=0, cursorDirectory=""), 20, "") == processed(0)
    assert lab.prompts == [] and not folder.exists()


@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_missing_id_is_an_error_without_a_discussion_too(lab: EngineLab, folder: Path, value: Any) -> None:
    with pytest.raises(ConfigValueError, match="node 'Log' .*'id'"):
        run(lab, node(folder, id=value), 5, "")


@table(
    ("key", "value"),
    [
        ("id", "a b"),
        ("id", "a/b"),
        ("id", "é"),
        ("id", "{Discussion_Id}"),
        ("id", "a\nb"),
        ("workflowName", None),
        ("workflowName", " "),
        ("workflowName", 5),
        ("chunkSize", 0),
        ("chunkSize", -1),
        ("chunkSize", True),
        ("chunkSize", 2.0),
        ("chunkSize", "3"),
        ("chunkSize", "{Discussion_Id}"),
        ("chunkSize", []),
        ("lookbackMessages", -1),
        ("lookbackMessages", False),
        ("lookbackMessages", "2"),
        ("cursorDirectory", None),
        ("cursorDirectory", ""),
        ("cursorDirectory", "{empty}"),
        ("cursorDirectory", " "),
    ],
)
def test_bad_keys(lab: EngineLab, folder: Path, key: str, value: Any) -> None:
    with pytest.raises(ConfigValueError, match=f"node 'Log' .*'{key}'"):
        run(lab, node(folder, **{key: value}), 20, variables={"empty": ""})
    assert lab.prompts == [] and not folder.exists()
