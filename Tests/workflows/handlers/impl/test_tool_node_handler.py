"""The nodes that ask local services, and keyword search, run by the engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigValueError, EarlyTerminationException
from Middleware.models.request_context import request_scope
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.workflows.handlers.impl.tool_node_handler import NO_KEYWORDS
from Tests.stub_backend import Reply, StubBackend, json_reply
from Tests.tables import table
from Tests.workflows.engine_lab import EngineLab, assistant, start, static, user

WIKI_TYPES = [
    "OfflineWikiApiPartialArticle",
    "OfflineWikiApiFullArticle",
    "OfflineWikiApiBestFullArticle",
    "OfflineWikiApiTopNFullArticles",
]
RESEARCHER_TYPES = ["OfflineResearcherApiQuickSearch", "OfflineResearcherApiDeepResearch"]
SEARCH_TYPES = ["ConversationalKeywordSearchPerformerTool", "MemoryKeywordSearchPerformerTool"]
NO_MEMORIES = "There are no memories. This conversation has not gone long enough for there to be memories."


@pytest.fixture
def service() -> Iterator[StubBackend]:
    with StubBackend() as backend:
        yield backend


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: StubBackend) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        lab = EngineLab(tmp_path, monkeypatch, backend)
        lab.user(
            useOfflineWikiApi=True,
            offlineWikiApiPort=service.port,
            useOfflineResearcherApi=True,
            offlineResearcherApiPort=service.port,
        )
        yield lab


def run(lab: EngineLab, nodes: list[dict[str, Any]], *messages: dict[str, Any], **fields: Any) -> Any:
    """The result of these nodes, not streamed; ``variables`` are keys of the workflow file."""
    lab.workflow("Main", nodes, **fields.pop("variables", {}))
    with request_scope(lab.request):
        return list(start(lab, "Main", *messages, **fields))[-1]


def query(service: StubBackend, number: int = -1) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(service.requests[number].path).query).items()}


# -- Wikipedia ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node_type", "keys", "asked"),
    [
        ("OfflineWikiApiPartialArticle", {}, {"percentile": "0.5", "num_results": "1"}),
        (
            "OfflineWikiApiPartialArticle",
            {"percentile": "0.7", "num_results": "{n}"},
            {"percentile": "0.7", "num_results": "4"},
        ),
        (
            "OfflineWikiApiPartialArticle",
            {"percentile": "x", "num_results": "x"},
            {"percentile": "0.5", "num_results": "10"},
        ),
        (
            "OfflineWikiApiPartialArticle",
            {"percentile": None, "num_results": None},
            {"percentile": "0.5", "num_results": "1"},
        ),
        ("OfflineWikiApiFullArticle", {"percentile": 0.9, "num_results": 7}, {"percentile": "0.5", "num_results": "1"}),
        (
            "OfflineWikiApiBestFullArticle",
            {"percentile": 0.9, "num_results": 7},
            {"percentile": "0.5", "num_results": "10"},
        ),
        ("OfflineWikiApiTopNFullArticles", {}, {"percentile": "0.5", "num_results": "10", "num_top_articles": "3"}),
        (
            "OfflineWikiApiTopNFullArticles",
            {"percentile": 1, "num_results": 12, "top_n_articles": "-2"},
            {"percentile": "1", "num_results": "12", "num_top_articles": "-2"},
        ),
    ],
)
def test_wiki_parameters(
    lab: EngineLab, service: StubBackend, node_type: str, keys: dict[str, Any], asked: dict[str, str]
) -> None:
    service.default = json_reply([])
    run(lab, [{"type": node_type, "promptToSearch": "owls", **keys}], variables={"n": 4})
    assert query(service) == {"prompt": "owls", **asked}


def test_wiki_text_goes_on_literally(lab: EngineLab, service: StubBackend) -> None:
    service.default = json_reply({"text": "{agent1Output} {x}"})
    nodes = [
        {"type": "OfflineWikiApiBestFullArticle", "promptToSearch": "{chat_user_prompt_last_one}"},
        static("<{agent1Output}>"),
    ]
    assert run(lab, nodes, user("a __WILMER_L_CURLY__b__WILMER_R_CURLY__")) == "<{agent1Output} {x}>"
    assert query(service)["prompt"] == "a {b}"


def test_wiki_answers_a_streaming_client(lab: EngineLab, service: StubBackend) -> None:
    service.default = json_reply({"text": "An owl."})
    assert lab.streamed([{"type": "OfflineWikiApiBestFullArticle", "promptToSearch": "owls"}]) == "An owl."


@table("node_type", WIKI_TYPES + RESEARCHER_TYPES)
@table("keys", [{}, {"promptToSearch": None}, {"promptToSearch": ""}])
def test_prompt_to_search_is_required(
    lab: EngineLab, service: StubBackend, node_type: str, keys: dict[str, Any]
) -> None:
    with pytest.raises(ConfigValueError, match=f"{node_type} node 'Look up' needs a promptToSearch"):
        run(lab, [{"type": node_type, "title": "Look up", **keys}])
    assert service.requests == []


@pytest.mark.parametrize(
    "node", [{"type": "OfflineWikiApiBestFullArticle"}, {"type": "OfflineResearcherApiDeepResearch"}]
)
def test_cancel_ends_the_call_and_the_run(lab: EngineLab, service: StubBackend, node: dict[str, Any]) -> None:
    service.default = Reply(never=True)
    moment: list[float] = []

    def cancel() -> None:
        service.wait_requests()
        moment.append(time.monotonic())
        lab.request.cancel_scope.cancel()

    threading.Thread(target=cancel).start()
    with pytest.raises(EarlyTerminationException) as caught:
        run(lab, [{"promptToSearch": "owls", **node}, static("never")])
    assert caught.value.is_cancellation
    assert time.monotonic() - moment[0] < 60
    assert service.requests[0].wait_ended()


# -- researcher --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node_type", "keys", "body"),
    [
        ("OfflineResearcherApiQuickSearch", {}, {"query": "ice", "mode": "quick"}),
        (
            "OfflineResearcherApiDeepResearch",
            {"maxIterations": 3},
            {"query": "ice", "mode": "deep", "max_iterations": 3},
        ),
        (
            "OfflineResearcherApiDeepResearch",
            {"maxIterations": "3"},
            {"query": "ice", "mode": "deep", "max_iterations": 3},
        ),
        ("OfflineResearcherApiDeepResearch", {"maxIterations": "x"}, {"query": "ice", "mode": "deep"}),
        ("OfflineResearcherApiDeepResearch", {"maxIterations": True}, {"query": "ice", "mode": "deep"}),
    ],
)
def test_researcher_request(
    lab: EngineLab, service: StubBackend, node_type: str, keys: dict[str, Any], body: dict[str, Any]
) -> None:
    run(lab, [{"type": node_type, "promptToSearch": "ice", **keys}])
    assert service.requests[0].json == body


@pytest.mark.parametrize(
    ("flag", "text"), [(True, "Cold.\n\nSources:\n- Ice :: Flow"), ("false", "Cold."), (None, "Cold.")]
)
def test_researcher_sources(lab: EngineLab, service: StubBackend, flag: Any, text: str) -> None:
    service.default = json_reply({"answer": "Cold.", "sources": [{"book": "Ice", "title": "Flow"}]})
    node = {"type": "OfflineResearcherApiQuickSearch", "promptToSearch": "ice", "includeSources": flag}
    assert run(lab, [node]) == text


@pytest.mark.parametrize("seconds", [0.2, "0.2"])
def test_researcher_time_out(lab: EngineLab, service: StubBackend, seconds: Any) -> None:
    service.default = Reply(never=True)
    node = {"type": "OfflineResearcherApiQuickSearch", "promptToSearch": "ice", "timeoutSeconds": seconds}
    assert "(timeout)" in run(lab, [node])


def test_researcher_with_more_patience_than_a_socket_can_have(lab: EngineLab, service: StubBackend) -> None:
    service.default = json_reply({"answer": "cold"})
    assert (
        run(lab, [{"type": "OfflineResearcherApiQuickSearch", "promptToSearch": "ice", "timeoutSeconds": 1e12}])
        == "cold"
    )


@table(("node_type", "default"), [("OfflineResearcherApiQuickSearch", 240), ("OfflineResearcherApiDeepResearch", 600)])
@table("seconds", ["absent", 0, -1, "x", True, [], "nan", "inf"])
def test_researcher_time_out_that_is_none(
    lab: EngineLab, monkeypatch: pytest.MonkeyPatch, node_type: str, default: int, seconds: Any
) -> None:
    asked: list[float] = []
    monkeypatch.setattr(
        "Middleware.workflows.tools.offline_researcher_api_tool.OfflineResearcherApiClient.search",
        lambda self, query, mode, *, timeout, **_: asked.append(timeout) or "",
    )
    keys = {} if seconds == "absent" else {"timeoutSeconds": seconds}
    run(lab, [{"type": node_type, "promptToSearch": "ice", **keys}])
    assert asked == [default]


# -- keyword search ----------------------------------------------------------------------------------------------------

CONVERSATION = [user("We left the red canoe by the old pier"), assistant("Noted."), user("Where was it?")]
FOUND = "We left the red canoe by the old pier\nNoted."


@table("node_type", SEARCH_TYPES)
@table(
    ("keys", "result"),
    [
        ({"keywords": "canoe AND pier"}, FOUND),
        ({"keywords": "{agent1Output}"}, FOUND),
        ({"keywords": "where"}, ""),
        ({"keywords": ""}, ""),
        ({}, NO_KEYWORDS),
        ({"keywords": None}, NO_KEYWORDS),
        ({"keywords": "canoe", "lookbackStartTurn": 2}, ""),
        ({"keywords": "where", "lookbackStartTurn": "{two}"}, "Noted.\nWhere was it?"),
        ({"keywords": "where", "lookbackStartTurn": 3}, NO_MEMORIES),
        ({"keywords": "where", "lookbackStartTurn": "9"}, NO_MEMORIES),
        ({"keywords": "canoe", "searchTarget": None}, FOUND),
        ({"keywords": "canoe", "searchTarget": "currentconversation"}, ""),
        ({"keywords": "canoe", "searchTarget": "RecentMemories"}, ""),
    ],
)
def test_conversation_search(lab: EngineLab, node_type: str, keys: dict[str, Any], result: str) -> None:
    nodes = [static("canoe"), {"type": node_type, **keys}]
    assert run(lab, nodes, *CONVERSATION, variables={"two": 2}) == result


def test_conversation_search_restores_braces(lab: EngineLab) -> None:
    messages = [user("__WILMER_L_CURLY__owl__WILMER_R_CURLY__"), user("newest")]
    assert run(lab, [{"type": SEARCH_TYPES[0], "keywords": "owl"}, static("<{agent1Output}>")], *messages) == "<{owl}>"


@pytest.mark.parametrize("node_type", SEARCH_TYPES)
def test_memory_search(lab: EngineLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, node_type: str) -> None:
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path / "D"))
    texts = ["owl {1}", "cat", "owl 2", "owl 3", "owl 4", "owl 5"]
    MemoryStore(DiscussionFolder("d1")).replace_memories([(text, "h") for text in texts])
    node = {"type": node_type, "keywords": "Owls OR owl", "searchTarget": "RecentMemories"}
    assert run(lab, [node], discussion_id="d1") == "owl {1}\n\nowl 2"
    assert run(lab, [node]) == ""


def test_memory_search_without_memories(lab: EngineLab) -> None:
    node = {"type": SEARCH_TYPES[1], "keywords": "owl", "searchTarget": "RecentMemories"}
    assert run(lab, [node], discussion_id="d1") == ""
