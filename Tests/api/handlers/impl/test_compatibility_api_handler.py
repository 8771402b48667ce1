"""The root page and the health check."""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from Middleware.api.app import create_app
from Middleware.api.handlers.impl.compatibility_api_handler import DOCUMENTATION
from Middleware.common import instance_global_variables as instance
from Middleware.common.constants import VERSION
from Tests.api.api_lab import Answer, ApiLab
from Tests.stub_backend import StubBackend
from Tests.tables import table


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlaskClient]:
    """An application whose configuration is missing altogether."""
    monkeypatch.setattr(instance, "CONFIG_DIRECTORY", str(tmp_path / "nowhere"))
    monkeypatch.setattr(instance, "USERS", ["nobody", "no one"])
    with create_app().test_client() as client:
        yield client


BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


class Page(HTMLParser):
    """The tags, links and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action", "style", "onclick")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    with StubBackend() as backend:
        yield ApiLab(tmp_path, monkeypatch, backend)


def test_a_browser_gets_models_and_addresses(lab: ApiLab) -> None:
    lab.user(allowSharedWorkflows=True)
    # Windows has no folder with an angle bracket in its name.
    names = ["fast", "R&amp;D", *(["R&D <b>"] if sys.platform != "win32" else [])]
    for name in names:
        lab.shared(name, "t")
    answer = Answer(lab.client.get("/", headers={**BROWSER, "Host": "10.0.0.7:5050"}))
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    page = Page(answer.data.decode("utf-8"))
    assert {
        *(f"tester:{name}" for name in names),
        "http://10.0.0.7:5050/v1",
        "http://10.0.0.7:5050",
        "Open WebUI",
        "SillyTavern",
    } <= set(page.texts)
    assert not page.tags & {"b", "script", "img", "iframe", "form"}
    for link in page.links:
        assert link == "data:," or Answer(lab.client.get(link)).data == (DOCUMENTATION / link[6:]).read_bytes()


def test_the_page_may_load_nothing_but_its_own_style(lab: ApiLab) -> None:
    answer = Answer(lab.client.get("/", headers=BROWSER))
    style = answer.data.decode("utf-8").partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode("utf-8")).digest()).decode("ascii")
    policy = answer.headers["Content-Security-Policy"]
    assert (answer.headers["Cache-Control"], answer.headers["Vary"]) == ("no-store", "Accept")
    assert "default-src 'none'" in policy and f"style-src 'sha256-{digest}'" in policy and "unsafe" not in policy
    assert "color-scheme: light dark" in style and "url(" not in style and "@import" not in style


@table(("host", "shown"), [("wilmer.lan", "http://wilmer.lan/v1"), ("[::1]:5000", "http://[::1]:5000/v1")])
def test_the_address_is_that_of_the_browser(lab: ApiLab, host: str, shown: str) -> None:
    assert shown in Page(Answer(lab.client.get("/", headers={**BROWSER, "Host": host})).data.decode()).texts
    secure = {**BROWSER, "Host": host, "X-Forwarded-Proto": "https"}
    assert shown.replace("http:", "https:") in Page(Answer(lab.client.get("/", headers=secure)).data.decode()).texts


def test_a_host_name_cannot_add_to_the_page(lab: ApiLab) -> None:
    answer = Answer(lab.client.get("/", headers={**BROWSER, "Host": "a<script>alert(1)</script>"}))
    assert b"<script" not in answer.data


def test_the_page_of_a_broken_configuration_says_what_is_wrong(lab: ApiLab, client: FlaskClient) -> None:
    lab.users("nobody")
    text = " ".join(Page(client.get("/", headers=BROWSER).text).texts)
    assert "is running" in text and str(lab.root) not in text


@table(("address", "said"), [("127.0.0.1", True), ("0.0.0.0", False)])
def test_who_can_connect(lab: ApiLab, monkeypatch: pytest.MonkeyPatch, address: str, said: bool) -> None:
    monkeypatch.setattr(instance, "LISTEN_ADDRESS", address)
    assert (b"--listen" in Answer(lab.client.get("/", headers=BROWSER)).data) is said


@table(
    "path",
    [
        "/docs/",
        "/docs/images/request.svg",
        "/docs/../server.py",
        "/docs/%2e%2e/README.md",
        "/docs/User",
        "/docs//etc/passwd.md",
        "/docs/nothing.md",
        "/docs/..%5c..%5cREADME.md",
    ],
)
def test_only_pages_of_the_documentation_are_served(client: FlaskClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_a_page_of_the_documentation_is_text(client: FlaskClient) -> None:
    response = client.get("/docs/User/open-webui.md")
    assert response.status_code == 200 and response.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert response.text.startswith("# Open WebUI")
    response.close()


JAVA = "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2"
CHROME = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
NAVIGATE = {"Sec-Fetch-Mode": "navigate"}


@table(
    ("headers", "page"),
    [
        ({}, False),
        *[
            ({"Accept": accept}, False)
            for accept in (
                "*/*",
                "application/json",
                "text/plain",
                JAVA,
                "text/html",
                "text/*",
                "",
                ",",
                "*/*, text/html, application/xhtml+xml",
                "application/xhtml+xml,text/html",
                "text/htmlx,application/xhtml+xml",
                "text/html,application/xhtml+xmlx",
            )
        ],
        # A script of a page is not a page that somebody looks at.
        ({"Accept": "text/html", "Sec-Fetch-Mode": "cors"}, False),
        ({"Accept": "*/*", **NAVIGATE}, False),
        ({"Accept": JAVA, **NAVIGATE}, True),
        ({"Accept": CHROME, **NAVIGATE}, True),
        ({"Accept": CHROME}, True),
        ({"Accept": "text/html", **NAVIGATE}, True),
        ({"Accept": " Text/HTML ; q=0.9 , Application/XHTML+XML ; q=0.8"}, True),
    ],
)
def test_only_browsers_get_the_page(lab: ApiLab, headers: dict[str, str], page: bool) -> None:
    answer, head = Answer(lab.client.get("/", headers=headers)), Answer(lab.client.head("/", headers=headers))
    assert answer.status == head.status == 200
    assert head.data == b"" and head.headers["Content-Length"] == str(len(answer.data))
    assert answer.headers["Content-Type"] == head.headers["Content-Type"]
    if page:
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    else:
        assert answer.data == b"Ollama is running" and len(answer.data) == 17
        assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert answer.headers["Server-Program"] == head.headers["Server-Program"] == f"WilmerAI/{VERSION}"


def test_health(client: FlaskClient) -> None:
    response = client.get("/health")
    assert (response.status_code, response.headers["Content-Type"]) == (200, "application/json")
    assert response.get_json() == {"status": "ok"}


@pytest.mark.parametrize("path", ["/", "/health", "/health/"])
def test_other_methods(client: FlaskClient, path: str) -> None:
    head = client.head(path)
    assert (head.status_code, head.data) == (200, b"")
    assert head.headers["Content-Length"] == client.get(path).headers["Content-Length"]
    options = client.options(path)
    assert options.status_code == 200 and "GET" in options.headers["Allow"]
    assert client.post(path).status_code == 405
