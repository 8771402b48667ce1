"""What the offline Wikipedia nodes ask a real server, and what they make of its answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.services.service_http import ServiceHttp
from Middleware.workflows.tools.offline_wikipedia_api_tool import OfflineWikiApiClient
from Tests.llmapis.lab import Lab
from Tests.stub_backend import BEFORE_STATUS, Reply, StubBackend, json_reply, status_reply

ASK: dict[str, Callable[[OfflineWikiApiClient], str]] = {
    "partial": lambda client: client.get_wiki_summary_by_prompt("owls & co"),
    "full": lambda client: client.get_full_wiki_article_by_prompt("owls & co"),
    "best": lambda client: client.get_top_full_wiki_article_by_prompt("owls & co"),
    "top n": lambda client: client.get_top_n_full_wiki_articles_by_prompt("owls & co"),
}
OFFLINE = "The information may not be available in the offline database."
APOLOGY = "I'm sorry, I couldn't find any Wikipedia information about 'owls & co'."


@pytest.fixture
def wiki() -> Iterator[StubBackend]:
    with StubBackend() as backend:
        yield backend


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wiki: StubBackend) -> Lab:
    lab = Lab(tmp_path, monkeypatch)
    lab.user(useOfflineWikiApi=True, offlineWikiApiPort=wiki.port)
    return lab


@pytest.fixture
def client(lab: Lab) -> OfflineWikiApiClient:
    return OfflineWikiApiClient(http=ServiceHttp())


@pytest.mark.parametrize(
    ("kind", "path", "more"),
    [
        ("partial", "/summaries", {"num_results": "1"}),
        ("full", "/articles", {"num_results": "1"}),
        ("best", "/top_article", {"num_results": "10"}),
        ("top n", "/top_n_articles", {"num_results": "10", "num_top_articles": "3"}),
    ],
)
def test_request(client: OfflineWikiApiClient, wiki: StubBackend, kind: str, path: str, more: dict[str, str]) -> None:
    wiki.default = json_reply([])
    ASK[kind](client)
    asked = urlsplit(wiki.requests[0].path)
    expected = {"prompt": "owls & co", "percentile": "0.5", **more}
    assert wiki.requests[0].method == "GET" and asked.path == path
    assert parse_qs(asked.query) == {name: [value] for name, value in expected.items()}


@pytest.mark.parametrize(
    ("kind", "answer", "text"),
    [
        ("partial", [{"title": "Owl", "text": "A bird."}], "Title: Owl\nA bird."),
        (
            "partial",
            [{"title": "A", "text": "1"}, {"title": "B", "text": "2"}],
            "Title: A\n1\n\n--- END SUMMARY ---\n\nTitle: B\n2",
        ),
        ("partial", [{}], "Title: Untitled Summary\nNo text available."),
        ("partial", [{"title": None, "text": None}], "Title: Untitled Summary\nNo text available."),
        ("partial", [], "No summary found for 'owls & co'."),
        ("partial", {"title": "Owl"}, APOLOGY),
        ("full", [{"title": "A", "text": "1"}, {"text": "2"}], "1"),
        ("full", [{"title": "A"}], "No text element found"),
        ("full", [], "No article found for 'owls & co'."),
        ("full", {}, APOLOGY),
        ("full", None, APOLOGY),
        ("best", {"title": "A", "text": "1"}, "1"),
        ("best", {"title": "A"}, "No text element found"),
        ("best", [], APOLOGY),
        ("best", None, APOLOGY),
        (
            "top n",
            [{"title": "A", "text": "1"}, {"title": "B", "text": "2"}],
            "Title: A\n1\n\n--- END ARTICLE ---\n\nTitle: B\n2",
        ),
        ("top n", [{}], "Title: Untitled Article\nNo text available."),
        ("top n", [], "No articles found for 'owls & co' in the offline database."),
        ("top n", ["text"], APOLOGY),
    ],
)
def test_answers(client: OfflineWikiApiClient, wiki: StubBackend, kind: str, answer: Any, text: str) -> None:
    wiki.default = json_reply(answer)
    assert ASK[kind](client) == text


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("partial", f"Title: Not Found\nNo summaries found for 'owls & co'. {OFFLINE}"),
        ("full", f"No articles found for 'owls & co'. {OFFLINE}"),
        ("best", f"No article found for 'owls & co'. {OFFLINE}"),
        ("top n", f"No articles found for 'owls & co'. {OFFLINE}"),
    ],
)
def test_nothing_found(client: OfflineWikiApiClient, wiki: StubBackend, kind: str, text: str) -> None:
    wiki.default = status_reply(404)
    assert ASK[kind](client) == text


@pytest.mark.parametrize("kind", ASK)
@pytest.mark.parametrize(
    "reply", [status_reply(500), status_reply(204), Reply(body=b"no json"), Reply(drop=BEFORE_STATUS)]
)
def test_any_failure_is_an_apology(client: OfflineWikiApiClient, wiki: StubBackend, kind: str, reply: Reply) -> None:
    wiki.default = reply
    assert ASK[kind](client) == APOLOGY


def test_nobody_there_is_an_apology(lab: Lab, client: OfflineWikiApiClient) -> None:
    lab.user(useOfflineWikiApi=True, offlineWikiApiPort=1)
    assert ASK["best"](client) == APOLOGY


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("partial", "Title: Offline Wiki Disabled\nNo additional information provided"),
        ("full", "No additional information provided"),
        ("best", "No additional information provided"),
        ("top n", "No additional information provided"),
    ],
)
@pytest.mark.parametrize("settings", [{}, {"useOfflineWikiApi": False}, {"useOfflineWikiApi": "false"}])
def test_disabled_asks_nobody(
    lab: Lab, client: OfflineWikiApiClient, wiki: StubBackend, kind: str, text: str, settings: dict[str, Any]
) -> None:
    lab.user(offlineWikiApiPort=wiki.port, **settings)
    assert ASK[kind](client) == text
    assert wiki.connections == 0


@pytest.mark.parametrize("host", [None, "", "127.0.0.1", "localhost"])
def test_address_is_read_at_each_call(lab: Lab, client: OfflineWikiApiClient, wiki: StubBackend, host: Any) -> None:
    with StubBackend(json_reply({"text": "other"})) as other:
        wiki.default = json_reply({"text": "one"})
        assert ASK["best"](client) == "one"
        lab.user(useOfflineWikiApi="true", offlineWikiApiHost=host, offlineWikiApiPort=str(other.port))
        assert ASK["best"](client) == "other"


def test_a_lost_connection_is_made_up_for(client: OfflineWikiApiClient, wiki: StubBackend) -> None:
    wiki.script(Reply(drop=BEFORE_STATUS), json_reply({"text": "found"}))
    assert ASK["best"](client) == "found"


def test_connections_are_kept(client: OfflineWikiApiClient, wiki: StubBackend) -> None:
    wiki.default = json_reply([])
    for ask in ASK.values():
        ask(client)
    assert wiki.connections == 1


def test_cancel(lab: Lab, wiki: StubBackend) -> None:
    wiki.default = Reply(never=True)
    scope = CancelScope()
    threading.Thread(target=lambda: (wiki.wait_requests(), scope.cancel())).start()
    with pytest.raises(EarlyTerminationException):
        ASK["best"](OfflineWikiApiClient(scope))
    assert wiki.requests[0].wait_ended()
    assert (wiki.requests[0].ended_at or time.monotonic()) - wiki.requests[0].received_at < 60
