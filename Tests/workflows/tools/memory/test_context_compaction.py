"""How a conversation is cut into sections, and what a run of the compactor does with them."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given
from hypothesis import strategies as st

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import DataKeyError, EarlyTerminationException, GateTimeoutError
from Middleware.llmapis.llm_api import LlmApiService
from Middleware.models.messages import VisionNote
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.memory import compactor_store
from Middleware.services.memory.compactor_settings import load_compactor_settings
from Middleware.services.memory.compactor_store import Boundary, CompactorState
from Middleware.utilities.discussion_state import COMPACTOR
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.encryption_utils import derive_encryption_key
from Middleware.utilities.hashing_utils import hash_content
from Middleware.utilities.text_utils import escape_braces, rough_estimate_token_length, tagged_text
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.memory.context_compaction import (
    ContextCompaction,
    Sections,
    cut_sections,
    folded_up_to,
    is_run_needed,
    message_lines,
    tagged_summaries,
)
from Tests.properties import examples
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_reply, status_reply
from Tests.workflows.engine_lab import EngineLab, last_text, until

FILES = ("context_compactor_old.json", "context_compactor_oldest.json")
FOLDED = "context_compactor_folded.json"
Message = dict[str, Any]


def said(number: int) -> Message:
    """A message of seven estimated tokens."""
    return {"role": "user" if number % 2 else "assistant", "content": f"m{number} two three four f"}


def chat(count: int) -> list[Message]:
    return [said(number) for number in range(count)]


def stored(number: int) -> str:
    return hash_content(said(number)["content"])


def test_the_size_of_a_test_message() -> None:
    assert rough_estimate_token_length(said(3)["content"]) == 7


# -- sections ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "lookback", "budgets", "sections"),
    [
        (3, 1, (14, 14), Sections(0, 0, 2)),
        (4, 1, (14, 14), Sections(0, 1, 3)),
        (6, 1, (14, 14), Sections(1, 3, 5)),
        (9, 1, (14, 14), Sections(4, 6, 8)),
        (9, 0, (14, 14), Sections(5, 7, 9)),
        (9, -3, (14, 14), Sections(5, 7, 9)),
        (2, 2, (7, 7), Sections(0, 1, 2)),  # no more messages than the look-back takes: all count
        (4, 0, (6, 14), Sections(2, 4, 4)),  # not even the last fits
        (4, 0, (14, 6), Sections(1, 2, 4)),  # one message larger than the budget is a section
        (4, 0, (14, 0), Sections(1, 2, 4)),
        (4, 0, (0, 0), Sections(3, 4, 4)),
        (3, 0, (100, 100), Sections(0, 0, 3)),
        (0, 5, (1, 1), Sections(0, 0, 0)),
    ],
)
def test_sections(count: int, lookback: int, budgets: tuple[int, int], sections: Sections) -> None:
    assert cut_sections(chat(count), lookback, *budgets) == sections


def test_a_message_that_does_not_fit_ends_a_section() -> None:
    long = {"role": "user", "content": "word " * 200}
    assert cut_sections([said(0), long, said(2), said(3)], 0, 20, 300) == Sections(1, 2, 4)
    assert cut_sections([said(0), said(1), long, said(3)], 0, 20, 30) == Sections(2, 3, 4)


def test_lines() -> None:
    messages = [
        {"role": "user", "content": escape_braces("a {b}")},
        {"role": "tool", "content": "[RECENT_MESSAGES]"},
        {"role": "assistant", "content": None},
    ]
    assert message_lines(messages) == "user: a {b}\ntool: [RECENT_MESSAGES]\nassistant: "


# -- where the last run stopped ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("boundary", "start"),
    [
        (None, 0),
        (Boundary(stored(4), 4), 4),
        (Boundary(stored(4), 2), 4),
        (Boundary(stored(4), 99), 4),
        (Boundary(stored(4), None), 4),
        (Boundary("gone", 4), 0),
        (Boundary("gone", None), 0),
    ],
)
def test_folded_up_to(boundary: Boundary | None, start: int) -> None:
    assert folded_up_to(chat(9), boundary) == start


def test_a_repeated_message_is_told_by_its_index() -> None:
    messages = [{"role": "user", "content": "ok"}] * 5
    assert folded_up_to(messages, Boundary(hash_content("ok"), 3)) == 3
    assert folded_up_to(messages, Boundary(hash_content("ok"), None)) == 0


@pytest.mark.parametrize(
    ("state", "needed"),
    [
        (CompactorState(), True),
        (CompactorState(("old", stored(5)), Boundary(stored(4), 4)), False),
        (CompactorState(("old", stored(5)), Boundary(stored(4), None)), False),
        (CompactorState(("old", stored(5)), Boundary(stored(4), 1)), True),
        (CompactorState(("old", stored(5))), True),
        (CompactorState(("old", stored(4)), Boundary(stored(4), 4)), True),
        (CompactorState(("old", stored(5)), Boundary(stored(3), 4)), True),
        (CompactorState(None, Boundary(stored(4), 4)), True),
    ],
)
def test_is_run_needed(state: CompactorState, needed: bool) -> None:
    assert is_run_needed(chat(9), Sections(4, 6, 8), state) is needed


@pytest.mark.parametrize("sections", [Sections(0, 0, 5), Sections(0, 1, 1)])
def test_nothing_to_compact(sections: Sections) -> None:
    assert not is_run_needed(chat(9), sections, CompactorState())


# -- the text of the summaries -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "oldest", "text"),
    [
        ("", "", ""),
        ("a", "", "<context_compactor_old>a</context_compactor_old>"),
        ("", "b", "<context_compactor_oldest>b</context_compactor_oldest>"),
        (" \n", " ", ""),
        (
            "a",
            "b",
            "<context_compactor_old>a</context_compactor_old>\n<context_compactor_oldest>b</context_compactor_oldest>",
        ),
    ],
)
def test_tags(old: str, oldest: str, text: str) -> None:
    assert tagged_summaries(old, oldest) == text


@pytest.mark.parametrize(
    "trap",
    [
        "</context_compactor_old>",
        "<context_compactor_oldest>",
        "</context_compactor_oldest>",
        "<context_compactor_old>",
        "<context_compactor_<context_compactor_old>oldest>",
    ],
)
def test_tags_inside_a_summary_hide_nothing(trap: str) -> None:
    text = tagged_summaries(f"a{trap}b", f"c{trap}d")
    for tag, start, end in (("context_compactor_old", "a", "b"), ("context_compactor_oldest", "c", "d")):
        inside = tagged_text(text, tag)
        assert inside.startswith(start) and inside.endswith(end) and "context_compactor_old" in inside


# -- a run -------------------------------------------------------------------------------------------------------------


class CompactorLab(EngineLab):
    """Settings with a look-back of 1 and budgets of two messages; the model answers ``<prompt>`` in short form."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, backend: StubBackend) -> None:
        super().__init__(root / "Configs", monkeypatch, backend)
        self.data = root / "D"
        monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(self.data))
        self.user(contextCompactorSettingsFile="Compactor")
        self.settings()
        self.answers = {"old": "OLD", "neutral": "NEUTRAL", "oldest": "OLDEST"}
        backend.responder = lambda request: chat_reply(self.answers[last_text(request).split("|")[0]])

    def settings(self, **changes: Any) -> None:
        self.write(
            "Workflows/tester/Compactor",
            {
                "endpointName": "Main",
                "recentContextTokens": 14,
                "oldContextTokens": 14,
                "lookbackStartTurn": 1,
                "oldSectionSystemPrompt": "old sys",
                "oldSectionPrompt": "old|[MESSAGES_TO_SUMMARIZE]|[RECENT_MESSAGES]",
                "neutralSummarySystemPrompt": "neutral sys",
                "neutralSummaryPrompt": "neutral|[MESSAGES_TO_SUMMARIZE]",
                "oldestUpdateSystemPrompt": "oldest sys",
                "oldestUpdatePrompt": "oldest|[EXISTING_SUMMARY]|[NEW_CONTENT]",
                **changes,
            },
        )

    def compact(self, messages: list[Message], discussion_id: str = "k1", key: bytes | None = None) -> str:
        folder = DiscussionFolder(discussion_id, encryption_key=key)
        context = ExecutionContext(
            request_id=self.request.request_id,
            workflow_id="w",
            discussion_id=discussion_id,
            config={},
            messages=messages,
            stream=False,
            request=self.request,
        )
        with request_scope(self.request):
            loaded = load_compactor_settings()
            assert loaded is not None
            return ContextCompaction(context, loaded, folder).run()

    @property
    def files(self) -> dict[str, Any]:
        found = {name: self.data / "k1" / name for name in FILES}
        return {
            name: [(entry["text_block"], entry["hash"]) for entry in json.loads(path.read_bytes())]
            for name, path in found.items()
            if path.exists()
        }

    @property
    def calls(self) -> list[str]:
        return [prompt.split("|")[0] for prompt in self.prompts]

    @property
    def folds(self) -> list[str]:
        """The messages that went into Oldest, run by run."""
        return [prompt.partition("|")[2] for prompt in self.prompts if prompt.startswith("neutral|")]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CompactorLab]:
    with StubBackend() as backend:
        yield CompactorLab(tmp_path, monkeypatch, backend)


def both(old: str = "OLD", oldest: str = "OLDEST") -> str:
    return tagged_summaries(old, oldest)


def test_growing_conversation(lab: CompactorLab) -> None:
    assert lab.compact(chat(3)) == "" and lab.prompts == [] and not lab.data.exists()
    assert lab.compact(chat(4)) == "<context_compactor_old>OLD</context_compactor_old>"
    assert lab.calls == ["old"]
    assert lab.files == {FILES[0]: [("OLD", stored(0)), ("__boundary__", f"0:{stored(0)}")]}
    assert lab.compact(chat(6)) == both()
    assert lab.calls == ["old", "old", "neutral", "oldest"]
    assert lab.files == {
        FILES[0]: [("OLD", stored(2)), ("__boundary__", f"1:{stored(1)}")],
        FILES[1]: [("OLDEST", stored(0))],
    }
    assert lab.compact(chat(6)) == both() and len(lab.calls) == 4


def test_first_run_on_a_long_conversation(lab: CompactorLab) -> None:
    assert lab.compact(chat(9)) == both()
    lines = [f"{said(number)['role']}: {said(number)['content']}" for number in range(9)]
    assert lab.prompts == [
        "old|" + "\n".join(lines[4:6]) + "|" + "\n".join(lines[6:8]),
        "neutral|" + "\n".join(lines[:4]),
        "oldest||NEUTRAL",
    ]
    assert [request.json["messages"][0] for request in lab.backend.requests] == [
        {"role": "system", "content": f"{name} sys"} for name in ("old", "neutral", "oldest")
    ]


def test_only_what_left_old_is_folded(lab: CompactorLab) -> None:
    lab.compact(chat(9))
    lab.answers["oldest"] = "OLDEST 2"
    assert lab.compact(chat(11)) == both(oldest="OLDEST 2")
    assert lab.prompts[4:] == [f"neutral|{message_lines(chat(9)[4:6])}", "oldest|OLDEST|NEUTRAL"]


def test_a_boundary_without_index(lab: CompactorLab) -> None:
    lab.compact(chat(9))
    path = lab.data / "k1" / FILES[0]
    path.write_text(path.read_text(encoding="utf-8").replace("4:", ""), encoding="utf-8")
    assert lab.compact(chat(9)) == both() and len(lab.calls) == 3
    lab.compact(chat(11))
    assert lab.prompts[4].startswith(f"neutral|{message_lines([said(4)])}")


@pytest.mark.parametrize("noted", [False, True])
def test_a_lost_boundary_folds_all_again_unless_it_is_noted_what_was_folded(lab: CompactorLab, noted: bool) -> None:
    lab.compact(chat(9))
    if not noted:
        (lab.data / "k1" / FOLDED).unlink()
    edited = [*chat(4), {"role": "assistant", "content": "x4 two three four f"}, *chat(11)[5:]]
    lab.compact(edited)
    assert lab.prompts[4:] == [f"neutral|{message_lines(edited[4 * noted : 6])}", "oldest|OLDEST|NEUTRAL"]


def test_where_folding_stopped_is_lost_altogether(lab: CompactorLab) -> None:
    lab.compact(chat(9))
    edited = [
        {**message, "content": message["content"].replace("m", "x")} if index in (3, 4) else message
        for index, message in enumerate(chat(11))
    ]
    lab.compact(edited)
    assert lab.folds[1:] == [message_lines(edited[:6])]


def test_a_shortened_history_folds_nothing(lab: CompactorLab) -> None:
    lab.compact(chat(11))
    before = lab.files[FILES[1]]
    assert lab.compact(chat(7)) == both()  # message 6, the boundary, is left alone now
    assert lab.calls == ["old", "neutral", "oldest", "old"]
    assert lab.files == {FILES[0]: [("OLD", stored(3)), ("__boundary__", f"2:{stored(2)}")], FILES[1]: before}


def test_a_history_cut_at_its_head(lab: CompactorLab) -> None:
    lab.compact(chat(9))
    lab.compact(chat(11)[3:])
    assert lab.prompts[4] == f"neutral|{message_lines(chat(6)[4:])}"


def test_a_history_cut_at_its_head_alone_costs_one_call(lab: CompactorLab) -> None:
    lab.compact(chat(9))
    before = lab.files
    for _ in range(2):
        assert lab.compact(chat(9)[3:]) == both() and lab.calls[3:] == ["old"]
    assert lab.files == {**before, FILES[0]: [("OLD", stored(5)), ("__boundary__", f"1:{stored(4)}")]}


def test_a_repeated_message_at_the_boundary_is_known_where_all_have_moved(lab: CompactorLab) -> None:
    """As when a client puts a message before all others, or drops the first ones."""
    history = [*chat(4), said(0), *chat(9)[5:]]
    lab.compact(history)
    lab.compact([said(99), *history, said(9)])
    assert lab.folds == [message_lines(chat(4)), message_lines([said(0)])]
    lab.compact([*history[1:], *chat(13)[9:]])
    assert lab.folds[2:] == [message_lines([said(5), said(6), said(7)])]


def test_a_later_message_like_the_one_at_the_boundary_hides_nothing(lab: CompactorLab) -> None:
    """All that was folded has left the window of the client since."""
    lab.compact(chat(9))
    later = [*chat(17)[10:], said(4), said(18)]
    lab.compact(later)
    assert lab.folds[1:] == [message_lines(later[:4])]
    lab.compact([*later, said(19), said(20)])
    assert lab.folds[2:] == [message_lines(later[4:6])]


def test_a_message_like_the_one_at_the_boundary_that_moves_into_its_place_hides_nothing(lab: CompactorLab) -> None:
    """As when two short replies are the same, and the client drops as many messages as have come."""
    history = [*chat(6), said(4), *chat(15)[7:]]
    lab.compact(history[:9])
    lab.compact(history[2:11])
    lab.compact(history[4:13])
    assert lab.folds == [message_lines(chat(4)), message_lines(chat(6)[4:]), message_lines([said(4), said(7)])]


def test_a_client_that_drops_the_first_messages_may_ask_for_an_answer_again(lab: CompactorLab) -> None:
    """Then the boundary moves back behind what was folded."""
    lab.compact(chat(12))
    lab.compact(chat(9)[2:])
    lab.compact(chat(13)[3:])
    assert lab.folds == [message_lines(chat(7)), message_lines([said(7)])]


def test_equal_messages_are_folded_like_others(lab: CompactorLab) -> None:
    for count in (9, 11, 11, 13):
        lab.compact([said(0)] * count)
    assert lab.folds == [message_lines([said(0)] * 4), *[message_lines([said(0)] * 2)] * 2]
    assert lab.files[FILES[0]][1][1] == f"8:{stored(0)}"


# -- what Oldest tells already -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fewer", [10, 9, 8, 7, 6])
def test_messages_that_come_back_are_not_folded_again(lab: CompactorLab, fewer: int) -> None:
    lab.compact(chat(11))
    lab.compact(chat(fewer))
    lab.compact(chat(11))
    assert lab.folds == [message_lines(chat(6))]
    lab.compact(chat(13))
    assert lab.folds[1:] == [message_lines(chat(8)[6:])]


def test_a_late_run_of_an_older_request(lab: CompactorLab) -> None:
    for count in (9, 11, 9, 13, 11, 13):
        lab.compact(chat(count))
    assert lab.folds == [message_lines(chat(4)), message_lines(chat(6)[4:]), message_lines(chat(8)[6:])]


def test_a_new_message_in_place_of_the_boundary(lab: CompactorLab) -> None:
    lab.compact(chat(11))
    lab.compact([*chat(6), {"role": "user", "content": "x6 two three four f"}, *chat(11)[7:]])
    assert lab.folds == [message_lines(chat(6))]


def test_summaries_of_older_versions(lab: CompactorLab) -> None:
    lab.compact(chat(11))
    (lab.data / "k1" / FOLDED).unlink()
    lab.compact(chat(9))
    lab.compact(chat(11))
    assert lab.folds == [message_lines(chat(6))]


def test_an_edited_message_is_folded(lab: CompactorLab) -> None:
    lab.compact(chat(11))
    lab.compact(chat(9))
    edited = [*chat(5), {"role": "user", "content": "x5 two three four f"}, *chat(11)[6:]]
    lab.compact(edited)
    assert lab.folds[1:] == [message_lines(edited[4:6])]


def test_repeated_messages_do_not_hide_new_ones(lab: CompactorLab) -> None:
    history = chat(13)
    history[1::2] = [{"role": "user", "content": "go two three four f"}] * 6
    lab.compact(history[:11])
    lab.compact(history[2:])  # cut at its head: another "go" is where the last folded one was
    assert lab.folds[1:] == [message_lines(history[6:8])]


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: [(folder / name).unlink() for name in FILES],
        lambda folder: (folder / FILES[1]).write_text('[{"text_block": "begun anew", "hash": "h"}]', encoding="utf-8"),
    ],
)
def test_another_oldest_summary_is_not_what_was_folded(lab: CompactorLab, change: Any) -> None:
    lab.compact(chat(11))
    lab.compact(chat(9))
    change(lab.data / "k1")
    lab.compact(chat(11))
    assert lab.folds[1].endswith(message_lines(chat(6)[4:]))


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b"gAAAAA-token"])
def test_an_unusable_note_of_what_was_folded(lab: CompactorLab, content: bytes) -> None:
    lab.compact(chat(11))
    (lab.data / "k1" / FOLDED).write_bytes(content)
    assert lab.compact(chat(9)) == both()
    (lab.data / "k1" / FOLDED).write_bytes(content)
    assert lab.compact(chat(11)) == both()
    assert lab.folds[1:] == [message_lines(chat(6)[4:])]


def test_an_interrupted_run_folds_nothing_twice(lab: CompactorLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.compact(chat(9))
    with monkeypatch.context() as patch:
        write = compactor_store.write_content

        def die(folder: DiscussionFolder, name: str, content: object) -> None:
            if name == FILES[0]:
                raise KeyboardInterrupt
            write(folder, name, content)

        patch.setattr(compactor_store, "write_content", die)
        with pytest.raises(KeyboardInterrupt):
            lab.compact(chat(11))
    lab.compact(chat(11))
    assert lab.folds == [message_lines(chat(4)), message_lines(chat(6)[4:])]


# -- what the model is asked and says ----------------------------------------------------------------------------------


def test_nothing_is_substituted_or_replaced_twice(lab: CompactorLab) -> None:
    lab.settings(
        oldSectionPrompt="old|{agent1Output} {{x}} [MESSAGES_TO_SUMMARIZE]",
        oldSectionSystemPrompt="{Discussion_Id} [MESSAGES_TO_SUMMARIZE]",
    )
    text = escape_braces("{agent1Output} [RECENT_MESSAGES] f")
    lab.compact([{"role": "user", "content": text}, *chat(4)[1:]])
    assert [message["content"] for message in lab.backend.requests[0].json["messages"]] == [
        "{Discussion_Id} [MESSAGES_TO_SUMMARIZE]",
        "old|{agent1Output} {{x}} user: {agent1Output} [RECENT_MESSAGES] f",
    ]
    assert lab.files[FILES[0]][0][1] == hash_content(text)


def test_notes_on_images_are_no_part_of_the_conversation(lab: CompactorLab) -> None:
    messages: list[Message] = chat(6)
    messages.insert(2, VisionNote({"role": "user", "content": "a note"}))
    lab.compact(messages)
    assert "a note" not in "".join(lab.prompts) and lab.files[FILES[0]][1][1] == f"1:{stored(1)}"


def test_answers_are_cleaned(lab: CompactorLab) -> None:
    lab.endpoint(
        "Main", {"removeThinking": True, "startThinkTag": "<think>", "endThinkTag": "</think>"}, lab.backend.url
    )
    lab.answers = {name: f"<think>no</think>  {text}" for name, text in lab.answers.items()}
    assert lab.compact(chat(9)) == both()


def test_the_settings_say_what_to_cut_from_answers(lab: CompactorLab) -> None:
    lab.settings(removeCustomTextFromResponseStart=True, responseStartTextToRemove=["Summary:"])
    lab.answers["old"] = "Summary: OLD"
    assert lab.compact(chat(4)) == both("OLD", "")


def test_completion_endpoints_get_the_prompt_template(lab: CompactorLab) -> None:
    lab.write(
        "ApiTypes/Text",
        {"type": "koboldCppGenerate", "presetType": "KoboldCpp", "maxNewTokensPropertyName": "max_length"},
    )
    lab.endpoint("Main", {"apiTypeConfigFileName": "Text", "promptTemplate": "chatml"}, lab.backend.url)
    lab.backend.responder = lambda request: Reply(body={"results": [{"text": "T"}]})
    assert lab.compact(chat(4)) == both("T", "")
    body = lab.backend.requests[0].json
    assert body["prompt"].startswith("<|im_start|>system\nold sys<|im_end|>\n<|im_start|>user\nold|")
    assert body["max_length"] == 750


@pytest.mark.parametrize("answer", [" \n", "<think>Let me see"])
@pytest.mark.parametrize(
    ("empty", "expected"), [("old", (message_lines(chat(9)[4:6]), "OLDEST")), ("neutral", ("OLD", "OLDEST"))]
)
def test_raw_text_stands_in_for_an_empty_summary(
    lab: CompactorLab, empty: str, expected: tuple[str, str], answer: str
) -> None:
    lab.answers[empty] = answer
    assert lab.compact(chat(9)) == both(*expected)
    if empty == "neutral":
        assert lab.prompts[-1] == f"oldest||{message_lines(chat(4))}"
    assert lab.files[FILES[0]][0] == (expected[0], stored(5))


def test_an_empty_third_answer_writes_nothing(lab: CompactorLab) -> None:
    lab.compact(chat(9))
    before = lab.files
    lab.answers |= {"oldest": "", "old": "OLD 2"}
    assert lab.compact(chat(11)) == both("OLD 2", "OLDEST") and lab.files == before
    lab.answers["oldest"] = "OLDEST 2"
    assert lab.compact(chat(11)) == both("OLD 2", "OLDEST 2")
    assert lab.prompts[-2] == f"neutral|{message_lines(chat(6)[4:])}"


def fail_at(lab: CompactorLab, name: str, reply: Reply) -> None:
    answer = lab.backend.responder
    assert answer is not None

    def respond(request: RecordedRequest) -> Any:
        return reply if last_text(request).startswith(f"{name}|") else answer(request)

    lab.backend.responder = respond


@pytest.mark.parametrize(("call", "old"), [("old", "OLD"), ("neutral", "OLD 2"), ("oldest", "OLD 2")])
def test_a_failing_call_leaves_the_chat_with_what_there_is(
    lab: CompactorLab, caplog: pytest.LogCaptureFixture, call: str, old: str
) -> None:
    lab.compact(chat(9))
    before = lab.files
    lab.answers["old"] = "OLD 2"
    fail_at(lab, call, status_reply(400, "no"))
    assert lab.compact(chat(11)) == both(old) and lab.files == before
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1 and "Workflows/tester/Compactor.json" in errors[0] and "Main" in errors[0]


def test_a_summary_of_old_outlives_a_failure_of_the_first_fold(lab: CompactorLab) -> None:
    fail_at(lab, "neutral", status_reply(500, "no"))
    assert lab.compact(chat(9)) == both("OLD", "") and lab.files == {}


@pytest.mark.parametrize("redact", [False, True])
@pytest.mark.parametrize("call", ["old", "neutral"])
def test_a_redacted_log_tells_nothing_of_what_a_back_end_echoes(
    lab: CompactorLab, caplog: pytest.LogCaptureFixture, call: str, redact: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    lab.request = RequestContext(request_id="r-1", redact=redact)
    fail_at(lab, call, status_reply(400, "cannot take 'm4 two three'"))
    lab.compact(chat(9))
    [error] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "Main" in error and "400" in error and "Workflows/tester/Compactor.json" in error
    assert ("two three" in error) is not redact and ("cannot take" in caplog.text) is not redact


@pytest.mark.parametrize(
    ("changes", "clue"),
    [
        ({"endpointName": ""}, "endpointName"),
        ({"endpointName": None}, "endpointName"),
        ({"endpointName": "Mian"}, "Main"),
        ({"preset": "Gone"}, "Gone"),
    ],
)
def test_wrong_names(lab: CompactorLab, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], clue: str) -> None:
    lab.compact(chat(9))
    before = lab.files
    lab.settings(**changes)
    assert lab.compact(chat(11)) == both() and lab.files == before
    assert clue in caplog.text and "Workflows/tester/Compactor.json" in caplog.text


def test_no_slot_at_the_gate_is_not_passed_over(lab: CompactorLab, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise GateTimeoutError("busy")

    monkeypatch.setattr(LlmApiService, "get_response_from_llm", full)
    with pytest.raises(GateTimeoutError):
        lab.compact(chat(9))
    assert lab.files == {}


# -- files that cannot be used -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("broken", "shown"), [(FILES[0], both("", "OLDEST")), (FILES[1], both("OLD", ""))])
def test_unreadable_files(lab: CompactorLab, broken: str, shown: str) -> None:
    lab.compact(chat(9))
    (lab.data / "k1" / broken).write_text("[{oops", encoding="utf-8")
    before = {path.name: path.read_bytes() for path in (lab.data / "k1").iterdir()}
    assert lab.compact(chat(11)) == shown and len(lab.calls) == 3
    assert {path.name: path.read_bytes() for path in (lab.data / "k1").iterdir()} == before


def test_data_of_another_key(lab: CompactorLab) -> None:
    (lab.data / "k1").mkdir(parents=True)
    (lab.data / "k1" / FILES[0]).write_bytes(b"gAAAAA-token")
    with pytest.raises(DataKeyError):
        lab.compact(chat(9))
    assert lab.prompts == []


def test_summaries_are_encrypted(lab: CompactorLab) -> None:
    key = derive_encryption_key("secret", "tester")
    assert lab.compact(chat(9), key=key) == both() == lab.compact(chat(9), key=key)
    assert len(lab.calls) == 3
    written = {path.name: path.read_bytes() for path in (lab.data / "k1").iterdir()}
    assert written.keys() > {*FILES, FOLDED}
    assert all(written[name].startswith(b"gAAAA") for name in (*FILES, FOLDED))
    assert not any(b"OLD" in data for data in written.values())


def test_a_disk_that_takes_nothing(
    lab: CompactorLab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "/secret/path")

    monkeypatch.setattr(compactor_store, "write_content", full)
    assert lab.compact(chat(9)) == both() and lab.files == {}
    assert "No space left on device" in caplog.text and "/secret/path" not in caplog.text


def test_a_folder_that_cannot_be_made(lab: CompactorLab, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(DiscussionFolder, "create", refuse)
    assert lab.compact(chat(9)) == "" and lab.prompts == []


def test_oldest_is_written_before_old(lab: CompactorLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.compact(chat(9))
    before = lab.files
    write = compactor_store.write_content

    def fail_on_old(folder: DiscussionFolder, name: str, content: object) -> None:
        if name == FILES[0]:
            raise OSError(28, "No space left on device")
        write(folder, name, content)

    monkeypatch.setattr(compactor_store, "write_content", fail_on_old)
    lab.answers["oldest"] = "OLDEST 2"
    lab.compact(chat(11))
    assert lab.files == {FILES[0]: before[FILES[0]], FILES[1]: [("OLDEST 2", stored(0))]}


# -- turns and cancellation --------------------------------------------------------------------------------------------


def test_a_held_lock_means_the_text_so_far(lab: CompactorLab) -> None:
    lab.compact(chat(9))
    with DiscussionFolder("k1").lock(COMPACTOR):
        assert lab.compact(chat(11)) == both() and len(lab.calls) == 3
    lab.compact(chat(11))
    assert len(lab.calls) == 6


def test_two_requests_at_once_make_one_run(lab: CompactorLab) -> None:
    at_work, go_on = threading.Event(), threading.Event()
    answer = lab.backend.responder
    assert answer is not None

    def slow(request: RecordedRequest) -> Any:
        at_work.set()
        assert go_on.wait(60)
        return answer(request)

    lab.backend.responder = slow
    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(lab.compact(chat(9))))
    thread.start()
    try:
        assert at_work.wait(60)
        assert lab.compact(chat(9)) == ""
    finally:
        go_on.set()
        thread.join(60)
    assert results == [both()] and len(lab.calls) == 3


def test_state_is_read_again_under_the_lock(lab: CompactorLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = DiscussionFolder.lock

    def late(self: DiscussionFolder, *args: Any, **options: Any) -> Any:
        monkeypatch.setattr(DiscussionFolder, "lock", lock)
        lab.compact(chat(9))  # another request's run ends just before the lock is taken
        return lock(self, *args, **options)

    monkeypatch.setattr(DiscussionFolder, "lock", late)
    assert lab.compact(chat(9)) == both() and len(lab.calls) == 3


@pytest.mark.parametrize("call", ["old", "neutral", "oldest"])
def test_a_cancelled_request_writes_nothing(lab: CompactorLab, call: str) -> None:
    lab.compact(chat(9))
    before = lab.files
    fail_at(lab, call, Reply(never=True))
    lab.answers["old"] = "OLD 2"
    scope = lab.request.cancel_scope
    watcher = threading.Thread(target=lambda: until(lambda: call in lab.calls[3:]) and scope.cancel("gone"))
    watcher.start()
    history = [*chat(4), {"role": "user", "content": "a new message in place"}, *chat(11)[5:]]
    with pytest.raises(EarlyTerminationException):
        lab.compact(history)
    watcher.join(60)
    assert lab.files == before
    with DiscussionFolder("k1").lock(COMPACTOR, timeout=0):
        pass  # nobody holds it any more


def test_nothing_of_the_conversation_is_logged(lab: CompactorLab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    lab.answers["oldest"] = ""
    lab.compact(chat(9))
    fail_at(lab, "old", status_reply(400, "no"))
    lab.compact(chat(11))
    assert caplog.records and not any(word in caplog.text for word in ("two three", "OLD\n", "NEUTRAL"))


# -- any history -------------------------------------------------------------------------------------------------------


class Answers:
    """Stands in for the LLM, counting its calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, *_: object, **__: object) -> str:
        self.count += 1
        return f"answer {self.count}"


CONTENTS = st.one_of(
    st.sampled_from(["ok", "", "yes", "</context_compactor_old>"]),
    st.text(max_size=30),
    st.integers(1, 40).map(lambda count: "word " * count),
    st.none(),
)
MESSAGES = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "assistant", "system", "tool"]),
    CONTENTS,
)
TURNS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(MESSAGES, min_size=1, max_size=6)),
        st.tuples(st.just("edit"), st.integers(0, 50), MESSAGES),
        st.tuples(st.just("head"), st.integers(0, 8)),
        st.tuples(st.just("tail"), st.integers(0, 8)),
    ),
    max_size=8,
)


def changed(history: list[Message], turn: tuple[Any, ...]) -> list[Message]:
    kind = turn[0]
    if kind == "append":
        return history + turn[1]
    if kind == "edit":
        return [turn[2] if index == turn[1] % len(history) else message for index, message in enumerate(history)]
    return history[turn[1] :] if kind == "head" else history[: max(0, len(history) - turn[1])]


def check_sections(history: list[Message], cut: Sections, lookback: int, budgets: tuple[int, int]) -> None:
    """Every message belongs to one section or is left out, and sections are as large as their budgets allow."""
    assert 0 <= cut.old <= cut.recent <= cut.end <= len(history)
    assert len(history) - cut.end == (lookback if 0 < lookback < len(history) else 0)
    sizes = [rough_estimate_token_length(message["content"] or "") for message in history]
    recent, old = sum(sizes[cut.recent : cut.end]), sum(sizes[cut.old : cut.recent])
    assert recent <= budgets[0] and (cut.recent == 0 or recent + sizes[cut.recent - 1] > budgets[0])
    assert old <= budgets[1] or cut.recent - cut.old == 1
    assert cut.old == 0 or old > budgets[1] or old + sizes[cut.old - 1] > budgets[1]
    assert (cut.old == cut.recent) == (cut.recent == 0)


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=TURNS, lookback=st.integers(-1, 6), budgets=st.tuples(st.integers(0, 60), st.integers(0, 60)))
def test_any_history(
    lab: CompactorLab,
    monkeypatch: pytest.MonkeyPatch,
    turns: list[tuple[Any, ...]],
    lookback: int,
    budgets: tuple[int, int],
) -> None:
    answers = Answers()
    monkeypatch.setattr(LlmApiService, "get_response_from_llm", answers)
    lab.request = RequestContext()
    lab.settings(lookbackStartTurn=lookback, recentContextTokens=budgets[0], oldContextTokens=budgets[1])
    for path in (lab.data / "k1").glob("*.json"):
        path.unlink()
    history: list[Message] = []
    for turn in turns:
        history = changed(history, turn)
        sections = cut_sections(history, lookback, *budgets)
        check_sections(history, sections, lookback, budgets)
        text = lab.compact(history)
        calls = answers.count
        assert lab.compact(history) == text and answers.count == calls
    event("calls: " + ("many" if answers.count > 3 else str(answers.count)))
