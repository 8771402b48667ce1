"""A page that is left open sends its token to nothing but the server that has begun its session."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from Tests.console.conftest import Contexts
from Tests.console.scripted_server import TOKEN, ScriptedServer, World
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, json_reply, status_reply

# Of what is hashed: around the ends of the hash's blocks.
LENGTHS = (0, 1, 3, 55, 56, 63, 64, 65, 119, 120, 1000)
CHALLENGE = """async (lengths) => {
    const { challenge } = await import(document.querySelector("script[src]").src.replace("app.js", "proof.js"));
    window.made = lengths.map((length) => challenge(`${"x".repeat(length)}.${"0f".repeat(32)}`));
    return window.made.map(({ question }) => question);
}"""
JSON = {"Content-Type": "application/json"}


def test_a_proof_is_checked_without_a_library_of_the_browser(page: Page, console_url: str) -> None:
    page.goto(console_url)
    questions = page.evaluate(CHALLENGE, LENGTHS)
    assert [question["id"] for question in questions] == [
        hashlib.sha256(b"x" * length).hexdigest()[:16] for length in LENGTHS
    ]
    assert len({question["nonce"] for question in questions}) == len(LENGTHS)
    proofs = [hmac.digest(b"\x0f" * 32, question["nonce"].encode(), "sha256").hex() for question in questions]
    check = "(proofs) => window.made.map(({ isProof }, n) => isProof({ proof: proofs[n] }))"
    assert page.evaluate(check, proofs) == [True] * len(LENGTHS)
    assert page.evaluate(check, [*proofs[1:], proofs[0]]) == [False] * len(LENGTHS)


class Impostor(StubBackend):
    """Another program on the server's port, which answers a proof as ``answer`` does, and all else as an API might."""

    def __init__(self, port: int, answer: Callable[[RecordedRequest], Reply]) -> None:
        super().__init__(port=port)
        self._answer = answer
        self.seen: list[str] = []

    def respond(self, request: RecordedRequest) -> Reply:
        self.seen.append(f"{request.method} {request.path} {request.headers} {request.body!r}")
        if request.path.endswith("/session/proof"):
            return self._answer(request)
        return json_reply({"runs": [], "total": 0, "role": "operator"})


def echoed(request: RecordedRequest) -> Reply:
    return json_reply({"proof": request.json["nonce"]})


ANSWERS: dict[str, Callable[[RecordedRequest], Reply]] = {
    "nothing": lambda request: status_reply(404),
    "no JSON": lambda request: Reply(200, b"<html>", headers=JSON),
    "no proof": lambda request: json_reply({}),
    "null": lambda request: Reply(200, b"null", headers=JSON),
    "the nonce": echoed,
    "a proof with a key of its own": lambda request: json_reply(
        {"proof": hmac.digest(b"own", request.json["nonce"].encode(), "sha256").hex()}
    ),
    "an older proof": lambda request: json_reply({"proof": "0" * 64}),
    "somewhere else": lambda request: Reply(307, b"", headers={"Location": "/console/api/elsewhere"}),
    "no session": lambda request: status_reply(401),
}


@pytest.fixture
def world() -> World:
    return World(5)


@pytest.fixture
def moved(world: World) -> Iterator[Callable[[], ScriptedServer]]:
    """Return a server that can be begun again on the port of the first one."""
    servers: list[ScriptedServer] = []

    def begin() -> ScriptedServer:
        world.ended = False
        servers.append(ScriptedServer(world, servers[0].port if servers else 0))
        return servers[-1].start()  # type: ignore[return-value]

    yield begin
    servers[-1].stop()


def secrets_in(impostor: Impostor) -> list[str]:
    """Return what another program was sent that it should not be: anything but questions for a proof."""
    secrets = TOKEN.split(".")
    return [line for line in impostor.seen if "/session/proof" not in line or any(one in line for one in secrets)]


@pytest.mark.parametrize("kind", ANSWERS)
def test_another_program_on_the_port_gets_no_token(kind: str, page: Page, moved: Callable[[], ScriptedServer]) -> None:
    server = moved()
    page.goto(server.url)
    live = page.get_by_role("status", name="Live updates")
    expect(live).to_contain_text("live")
    server.stop()
    expect(live).to_contain_text("reconnecting")
    with Impostor(server.port, ANSWERS[kind]) as impostor:
        impostor.wait_requests(2)
    assert secrets_in(impostor) == []
    moved()
    # By itself.
    expect(live).to_contain_text("live")


def test_nothing_that_a_reader_does_sends_the_token(page: Page, moved: Callable[[], ScriptedServer]) -> None:
    server = moved()
    page.goto(server.url)
    live = page.get_by_role("status", name="Live updates")
    expect(live).to_contain_text("live")
    server.stop()
    with Impostor(server.port, ANSWERS["no proof"]) as impostor:
        # A view whose module was not loaded before the server ended.
        page.get_by_role("link", name="Backends").click()
        page.get_by_role("button", name="Try again").click()
        expect(page.get_by_role("alert").first).to_contain_text("does not know this session")
        page.get_by_role("link", name="Runs", exact=True).click()
        # Its module is there already.
        expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
        expect(page.get_by_role("alert").first).to_contain_text("does not know this session")
    assert secrets_in(impostor) == [] != impostor.seen
    moved()
    # By itself.
    expect(page.get_by_role("table", name="Runs")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(live).to_contain_text("live")
    page.get_by_role("link", name="Backends").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Backends")


# Each page that a reader may go to while no server is there: with a module of its own, or one that was loaded before.
@pytest.mark.parametrize("before", [True, False], ids=["loaded before", "not loaded before"])
@pytest.mark.parametrize("name", ["Workflows", "Memory", "Backends", "Settings"])
def test_a_page_that_was_opened_without_a_server_goes_on_by_itself(
    name: str, before: bool, page: Page, moved: Callable[[], ScriptedServer]
) -> None:
    server = moved()
    page.goto(server.url)
    live = page.get_by_role("status", name="Live updates")
    link, runs = (page.get_by_role("link", name=one, exact=True) for one in (name, "Runs"))
    heading = page.get_by_role("heading", level=1)
    expect(live).to_contain_text("live")
    if before:
        link.click()
        expect(heading).to_have_text(name)
        runs.click()
        expect(live).to_contain_text("live")
    server.stop()
    expect(live).to_contain_text("reconnecting")
    link.click()
    alert = page.get_by_role("alert").first
    expect(alert).to_contain_text("cannot be reached")
    expect(heading).to_have_count(int(before))
    moved()
    expect(heading).to_have_text(name)
    expect(page.get_by_role("alert").filter(has_text="cannot be reached")).to_have_count(0)
    runs.click()
    expect(live).to_contain_text("live")


# The first answer of a kind breaks off, as that of a server that ends.
BREAKS_OFF = """(() => {
    const broken = new ReadableStream({ start: (control) => control.error(new TypeError("network error")) });
    const ask = window.fetch;
    let cut = false;
    window.fetch = async (path, how) => {
        if (cut || !PATTERN.test(path)) return ask(path, how);
        cut = true;
        return new Response(broken);
    };
})()"""


@pytest.mark.parametrize("pattern", ["/^api.runs/", "/^api.session$/"], ids=["the runs", "the session"])
def test_a_page_whose_answer_broke_off_goes_on_by_itself(page: Page, console_url: str, pattern: str) -> None:
    page.add_init_script(BREAKS_OFF.replace("PATTERN", pattern))
    page.goto(console_url)
    expect(page.get_by_role("alert").first).to_contain_text("cannot be reached")
    expect(page.get_by_role("table", name="Runs")).to_be_visible()
    expect(page.get_by_role("alert").filter(has_text="cannot be reached")).to_have_count(0)


def test_a_page_is_loaded_anew_only_from_its_server(page: Page, moved: Callable[[], ScriptedServer]) -> None:
    """The page of another program could read the token."""
    server = moved()
    page.goto(server.url)
    live = page.get_by_role("status", name="Live updates")
    expect(live).to_contain_text("live")
    page.route("**/pages/backends.js", lambda route: route.abort())
    page.get_by_role("link", name="Backends").click()
    alert = page.get_by_role("alert").first
    expect(alert).to_contain_text("could not be loaded")
    server.stop()
    with Impostor(server.port, ANSWERS["no proof"]) as impostor:
        page.get_by_role("button", name="Try again").first.click()
        expect(alert).to_contain_text("does not know this session")
    assert secrets_in(impostor) == [] != impostor.seen
    moved()


# The tab has no session of its own, so that nothing else is sent.
LOST = """async ([token, kind]) => {
    localStorage.setItem("wilmer-console:/console/", token);
    const { api, stream } = await import(document.querySelector("script[src]").src.replace("app.js", "api.js"));
    const [ask, sent] = [window.fetch, []];
    let [held, proofs] = [null, 0];
    // One proof holds until the next is asked for.
    performance.now = () => proofs * 5000;
    const body = (start) => new Response(new ReadableStream({ start }));
    const reading = async () => { for await (const event of stream("held", undefined, new AbortController().signal)); };
    let ended = null;
    window.fetch = async (path, how) => {
        sent.push(path.replace("api/", ""));
        if (path === "api/cut") return body((control) => control.error(new TypeError("network error")));
        if (path === "api/held") return body((control) => { held = control; });
        if (path !== "api/session/proof") return new Response("{}");
        const answer = await ask(path, how);
        if (kind === "while it proves itself" && held) {
            held.close();
            held = null;
            await ended;
        }
        return answer;
    };
    if (kind === "in the middle of an answer") await api("GET", "cut").catch(() => {});
    else {
        ended = reading();
        while (!held) await new Promise((done) => setTimeout(done, 5));
        proofs += 1;
    }
    await api("GET", "next");
    return sent;
}"""


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("in the middle of an answer", ["session/proof", "cut", "session/proof", "next"]),
        ("while it proves itself", ["session/proof", "held", "session/proof", "session/proof", "next"]),
    ],
)
def test_a_lost_connection_needs_another_proof(
    contexts: Contexts, console_url: str, kind: str, sent: list[str]
) -> None:
    with contexts.tab(signed_in=False) as page:
        page.goto(console_url)
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
        assert page.evaluate(LOST, [TOKEN, kind]) == sent


def test_a_token_of_an_older_version_asks_to_sign_in(page: Page, console_url: str) -> None:
    page.add_init_script("if (location.host) localStorage.setItem('wilmer-console:/console/', 'token')")
    page.goto(console_url)
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    expect(page.get_by_role("alert")).to_contain_text("has ended")


def test_a_server_that_has_not_begun_the_session_asks_to_sign_in(page: Page, console_url: str) -> None:
    """A new installation on the port of the one before, or one whose console folder was deleted."""
    other = f"token.{'ff' * 32}"
    page.add_init_script(f"if (location.host) localStorage.setItem('wilmer-console:/console/', '{other}')")
    page.goto(console_url)
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    expect(page.get_by_role("alert")).to_contain_text("does not know this session")
    # The server that has begun it may come back.
    assert page.evaluate("localStorage.getItem('wilmer-console:/console/')") == other


def test_the_calls_of_a_view_share_a_proof(page: Page, console_url: str) -> None:
    proofs: list[str] = []
    # However long the page takes, the proof has not ended.
    page.add_init_script("performance.now = () => 0")
    page.on("request", lambda request: proofs.append(request.url) if request.url.endswith("/proof") else None)
    page.goto(console_url)
    expect(page.get_by_role("status", name="Live updates")).to_contain_text("live")
    expect(page.get_by_role("table", name="Runs")).to_be_visible()
    # The module of the view has one of its own.
    assert len(proofs) == 2
