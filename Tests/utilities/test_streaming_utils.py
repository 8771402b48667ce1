"""Think removal, cleaning of whole answers and streams of fixed texts."""

from __future__ import annotations

import pytest

from Middleware.exceptions import ConfigNotFoundError
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils, streaming_utils
from Middleware.utilities.streaming_utils import (
    StreamingThinkRemover,
    lowercase_tool_call_names,
    post_process_llm_output,
    remove_thinking_from_text,
    stream_static_content,
    stream_text,
)

THINK = {"removeThinking": True, "startThinkTag": "<think>", "endThinkTag": "</think>"}
FINAL = {"token": "", "finish_reason": "stop"}


@pytest.fixture
def assistant_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming_utils, "strip_assistant_prefix_enabled", lambda: True)


@pytest.fixture
def no_assistant_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming_utils, "strip_assistant_prefix_enabled", lambda: False)


def test_think_remover_touches_nothing_else() -> None:
    remover = StreamingThinkRemover(THINK)
    out = [remover.process_delta(piece) for piece in ("  a<thi", "nk>b</think", "> c  ")]
    assert (out, remover.finalize()) == (["  a", "", " c  "], "")


def test_think_remover_delivers_an_unterminated_block() -> None:
    remover = StreamingThinkRemover(THINK)
    assert remover.process_delta("A<think>b") == "A"
    assert remover.finalize() == "<think>b"


def test_remove_thinking_from_text() -> None:
    assert remove_thinking_from_text(" <THINK>q</Think> r ", THINK) == "  r "
    assert remove_thinking_from_text("<think>q</think>r", {}) == "<think>q</think>r"
    assert remove_thinking_from_text("<think>q</think>r", None) == "<think>q</think>r"


@pytest.mark.usefixtures("no_assistant_options")
def test_post_processing() -> None:
    endpoint = {**THINK, "trimBeginningAndEndLineBreaks": True}
    assert post_process_llm_output("<think>p</think>\n\nYes ", endpoint, {}) == "Yes"
    assert post_process_llm_output("  Assistant: x ", {}, {}) == "Assistant: x "
    assert post_process_llm_output("", {}, None) == ""
    assert post_process_llm_output("hi", {}, {}, "Tom:") == "Tom: hi"


@pytest.mark.usefixtures("assistant_options")
def test_post_processing_with_both_assistant_options() -> None:
    assert post_process_llm_output("  Assistant: x ", {}, {}) == "x "


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_the_assistant_prefix_goes_only_with_both_options(
    monkeypatch: pytest.MonkeyPatch, first: bool, second: bool
) -> None:
    flags = {"chatCompleteAddUserAssistant": first, "chatCompletionAddMissingAssistantGenerator": second}
    monkeypatch.setattr(config_utils, "user_flag", lambda key, *_: flags[key])
    assert streaming_utils.strip_assistant_prefix_enabled() == (first and second)


def test_cleaning_works_without_user_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(key: str) -> bool:
        raise ConfigNotFoundError("no user file")

    monkeypatch.setattr(config_utils, "user_flag", missing)
    assert post_process_llm_output(" Assistant: x", {}, {}) == "Assistant: x"


def test_lowercase_names_copies() -> None:
    calls = [{"index": 0, "function": {"name": "GetIt", "arguments": '{"A":1}'}}, {"function": {}}, {"id": "X"}]
    lowered = lowercase_tool_call_names(calls)
    assert lowered[0]["function"] == {"name": "getit", "arguments": '{"A":1}'}
    assert lowered[1:] == calls[1:]
    assert calls[0]["function"]["name"] == "GetIt"


def test_static_text_is_paced_by_word(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(streaming_utils.time, "sleep", pauses.append)
    chunks = list(stream_static_content(" one two\n three"))
    assert pauses == [0.02, 0.02]
    assert [chunk["token"] for chunk in chunks] == [" ", "one", " ", "two", "\n ", "three", ""]
    assert [bool(chunk.get("more")) for chunk in chunks] == [True, True, False, True, False, True, False]
    assert chunks[-1] == FINAL


def test_static_text_is_paced_for_five_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = []
    monkeypatch.setattr(streaming_utils, "_pause", lambda scope: pauses.append(streaming_utils.SECONDS_PER_WORD))
    text = "w " * 5000
    assert "".join(chunk["token"] for chunk in stream_static_content(text)) == text
    assert sum(pauses) == pytest.approx(5, abs=0.05)


def test_cancelling_ends_static_text() -> None:
    scope = CancelScope()
    stream = stream_static_content("w " * 200, scope)
    assert [next(stream)["token"] for _ in range(4)] == ["w", " ", "w", " "]
    scope.cancel()
    assert list(stream) == [FINAL]


def test_static_text_finds_the_scope_of_its_request() -> None:
    request = RequestContext()
    request.cancel_scope.cancel()
    with request_scope(request):
        assert list(stream_static_content("a b c")) == [FINAL]


@pytest.mark.parametrize("text", ["", None, "a", " a  b\n", 12])
def test_unpaced_text(text: object) -> None:
    chunks = list(stream_text(text))
    assert "".join(chunk["token"] for chunk in chunks) == ("" if text is None else str(text))
    assert chunks[-1] == FINAL
    assert all(chunk["more"] and chunk["finish_reason"] is None for chunk in chunks[:-1])
    assert list(stream_static_content(text))[-1] == FINAL
