"""The six rules of admission to the console, and its sessions. Which runs a session sees is tested with the archive."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import logging
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from Middleware.addons.console import application as console_module
from Middleware.addons.console.application import ConsoleApplication
from Middleware.addons.console.calls import Call, ConsoleError, Role
from Middleware.addons.console.sessions import FAILURES, FERNET_BEGINNING, OPERATOR_SECONDS, TOKEN_PREFIX
from Middleware.addons.console.sign_in import CODE_SECONDS, make_code, read_code
from Middleware.addons.console.static_files import StaticFiles
from Middleware.api.edge.access_keys import AccessKeys
from Middleware.api.edge.admission_middleware import BODY_LEFT_KEY, AdmissionMiddleware
from Middleware.api.edge.browser_safety import BrowserSafety
from Tests.addons.console.console_lab import API, HOST, SECRET, Browser, FakeRecords, accepted
from Tests.tables import table

PAGE = "/console/"
CLIENT_KEY = "the-key-of-a-client-program"
OWN_KEY = "the-key-of-anns-own-runs"
ALL_KEY = "the-key-of-all-runs-of-bob"
LINES = (CLIENT_KEY, f"{OWN_KEY} console=own user=ann  # Ann's phone", f"{ALL_KEY}  console=all user=bob")


class Lab:
    """The console, with a clock that tests move, before an application that says which path it was asked for."""

    def __init__(self, root: Path, keys: AccessKeys | None = None, mode: str = "on", **options: Any) -> None:
        self.now = time.time()
        self.records = FakeRecords(root, mode)
        self.static = root / "static"
        self.asked: list[dict[str, Any]] = []
        (self.static / "pages").mkdir(parents=True, exist_ok=True)
        (self.static / "index.html").write_text('<script nonce="{nonce}" src="static/{version}/app.js">', "utf-8")
        (self.static / "app.js").write_text("export default 1;", "utf-8")
        (self.static / "pages" / "one.mjs").write_text("export default 2;", "utf-8")
        browsers = BrowserSafety(options.pop("origins", ()), machine="mill")
        self.console_app = ConsoleApplication(
            self.records,
            keys,
            browsers,
            self.app,  # type: ignore[arg-type]
            modules=("session_routes",),
            static=StaticFiles(self.static),
            clock=lambda: self.now,
        )
        routes = self.console_app.routes
        routes.add("GET", "things/NAME", Role.OWN, self.thing, query=("kind",))
        routes.add("PUT", "things/NAME", Role.OPERATOR, self.thing, edit=True)
        routes.add("GET", "all", Role.ALL, self.thing)
        routes.add("POST", "things", Role.OWN, lambda call: call.body)
        self.application = AdmissionMiddleware(
            self.app, 1, keys, browsers, mounts={console_module.PREFIX: self.console_app}, **options
        )

    @staticmethod
    def thing(call: Call) -> object:
        return {"parts": call.parts, "query": call.query, "role": call.role.word}

    def app(self, environ: Any, start_response: Any) -> list[bytes]:
        self.asked.append(environ)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [environ["PATH_INFO"].encode()]

    def browser(self, host: str = HOST) -> Browser:
        return Browser(self.application, host)

    def operator(self) -> Browser:
        return self.browser().sign_in(self.now)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture
def locked(tmp_path: Path) -> Lab:
    """The same on a server with accepted keys."""
    return Lab(tmp_path, accepted(tmp_path / "keys.txt", *LINES))


# -- 1: the name by which the server is called -------------------------------------------------------------------------


@table(
    ("host", "status"),
    [
        ("127.0.0.1:5000", 200),
        ("localhost:5000", 200),
        ("[::1]:5000", 200),
        ("192.168.1.5", 200),
        ("mill", 200),
        ("mill.local:5000", 200),
        ("nas.lan", 200),
        ("chat.example.com", 200),
        ("evil.example.org:5000", 403),
        ("5000.evil.org", 403),
        ("", 403),
        ("a b", 403),
    ],
)
def test_only_a_name_without_a_foreign_owner_is_admitted(tmp_path: Path, host: str, status: int) -> None:
    lab = Lab(tmp_path, origins=("https://chat.example.com",))
    browser = lab.operator()
    browser.host = host
    page, call = browser.get(PAGE, Origin="-"), browser.get("session", Origin="-")
    assert (page.status, call.status) == (status, status)
    if host.startswith("evil"):
        assert "--allow-origin http://evil.example.org" in page.message


# -- 2: the page that calls --------------------------------------------------------------------------------------------


@table(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "-", "Sec-Fetch-Site": "-"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Origin": f"https://{HOST}"}, 200),
        ({"Origin": "http://127.0.0.1:3000"}, 403),
        ({"Origin": "http://localhost:5000"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://chat.example.com"}, 403),
        ({"Origin": "-", "Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "-", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "app://obsidian.md"}, 403),
    ],
)
@table("method", ["GET", "POST", "DELETE"])
def test_only_the_own_page_calls_the_api(tmp_path: Path, method: str, headers: dict[str, str], status: int) -> None:
    lab = Lab(tmp_path, origins=("https://chat.example.com",))
    path = {"GET": "things/a", "POST": "things", "DELETE": "session"}[method]
    answer = lab.operator().call(method, path, {} if method == "POST" else None, headers)
    assert answer.status == status
    assert not [name for name in answer.headers.keys() if name.lower().startswith("access-control")]


def test_preflights_are_refused_without_cors(lab: Lab) -> None:
    for path in (PAGE, API + "session", "/console/static/1/app.js", "/console"):
        answer = lab.browser().call(
            "OPTIONS", path, headers={"Origin": "http://127.0.0.1:3000", "Access-Control-Request-Method": "POST"}
        )
        assert answer.status == 403 and "Access-Control-Allow-Origin" not in answer.headers


@table(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("-", 415),
    ],
)
def test_bodies_are_json(lab: Lab, kind: str, status: int) -> None:
    assert lab.operator().post("things", {"a": 1}, Content_Type=kind).status == status


# -- 3: headers --------------------------------------------------------------------------------------------------------


def test_the_page_names_a_fresh_nonce_in_its_policy(lab: Lab) -> None:
    first, second = (lab.browser().get(PAGE, Sec_Fetch_Site="cross-site", Origin="-") for _ in range(2))
    assert first.status == 200 and first.data != second.data
    policy = first.headers["Content-Security-Policy"]
    nonce = first.data.decode().split('nonce="')[1].split('"')[0]
    assert policy == (
        f"default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'self' 'nonce-{nonce}'; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert len(nonce) >= 20


@table("path", [PAGE, "/console/static/1/app.js", API + "session", API + "nothing", "/console/nothing"])
def test_every_answer_has_the_headers_of_the_console(lab: Lab, path: str) -> None:
    headers = lab.operator().get(path).headers
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Opener-Policy"] == headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"


def test_files_under_their_version_are_kept_for_ever(lab: Lab) -> None:
    address = lab.browser().get(PAGE).data.decode().split('src="')[1].split('"')[0]
    answer = lab.browser().get(f"/console/{address}")
    assert answer.status == 200 and answer.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert "immutable" in answer.headers["Cache-Control"]
    module = lab.browser().get(f"/console/{address.replace('app.js', 'pages/one.mjs')}")
    assert module.headers["Content-Type"] == "text/javascript; charset=utf-8" and module.data == b"export default 2;"


@table(
    "name",
    [
        "../application.py",
        "..%2fapplication.py",
        "pages/../../application.py",
        "",
        "pages",
        "index.html",
        "/etc/passwd",
        "pages\\one.mjs",
        "app.js\0",
    ],
)
def test_nothing_outside_of_the_folder_is_served(lab: Lab, name: str) -> None:
    assert lab.browser().get(f"/console/static/1/{name}").status in (400, 404)


def test_the_address_without_a_slash_leads_to_the_page_below_any_path(lab: Lab) -> None:
    answer = lab.browser().get("/console")
    assert answer.status == 308 and answer.headers["Location"] == "console/"


# -- 4: sign-ins -------------------------------------------------------------------------------------------------------


def test_a_code_is_good_once(lab: Lab) -> None:
    code = make_code(SECRET, lab.now)
    assert lab.browser().post("session", {"code": code}).json["role"] == "operator"
    again = lab.browser().post("session", {"code": code})
    assert again.status == 401 and "server.py console" in again.message
    # Nor in another process on the same folder.
    assert Lab.browser(lab_of(lab)).post("session", {"code": code}).status == 401


def lab_of(lab: Lab) -> Lab:
    """Return a second server on the folder of the first."""
    copy = object.__new__(Lab)
    copy.console_app = ConsoleApplication(
        lab.records,
        None,
        BrowserSafety(),
        lab.app,  # type: ignore[arg-type]
        modules=("session_routes",),
        clock=lambda: lab.now,
    )
    copy.application = AdmissionMiddleware(lab.app, mounts={console_module.PREFIX: copy.console_app})
    return copy


@table("seconds", [-5, CODE_SECONDS + 5])
def test_a_code_is_good_for_ten_minutes(lab: Lab, seconds: int) -> None:
    code = make_code(SECRET, lab.now - seconds)
    assert lab.browser().post("session", {"code": code}).status == 401


def test_a_code_of_another_secret_or_with_a_changed_letter_is_refused() -> None:
    code = make_code(SECRET, 1000.0)
    assert read_code(SECRET, code, 1000.0) is not None and read_code(b"x" * 32, code, 1000.0) is None
    for place in range(len(code)):
        wrong = code[:place] + ("A" if code[place] != "A" else "B") + code[place + 1 :]
        assert read_code(SECRET, wrong, 1000.0) in (None, read_code(SECRET, code, 1000.0))
    others = [f"{code[:9]}{character}{code[9:]}" for character in "+/!= \n\u00e9"]
    for wrong in ("", "A", "====", "\u00e9", code + "AAAA", code[:-4], *others):
        assert read_code(SECRET, wrong, 1000.0) is None


def test_an_operator_stays_signed_in_for_thirty_days_of_no_use(lab: Lab) -> None:
    browser = lab.operator()
    for _ in range(3):
        lab.now += OPERATOR_SECONDS - 10
        assert browser.get("session").status == 200
    other = lab_of(lab).browser()
    other.token = browser.token
    assert other.get("session").json["role"] == "operator"
    lab.now += OPERATOR_SECONDS + 10
    assert browser.get("session").status == 401


def test_tokens_are_stored_as_hashes(lab: Lab) -> None:
    browser = lab.operator()
    assert browser.token.encode() not in lab.records.index_file.read_bytes()


def test_the_disk_is_not_needed_to_sign_in(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lab.console_app.sessions.operators, "_index", broken)
    browser = lab.operator()
    assert browser.get("session").status == 200
    assert browser.call("DELETE", "session").status == 200 and browser.get("session").status == 401


def test_a_session_outlives_a_disk_that_fails(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    browser, other = lab.operator(), lab.operator()
    assert browser.get("session").status == 200

    def broken() -> object:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(lab.console_app.sessions.operators, "_index", broken)
    other.token += "x"
    assert [browser.get("session").status for _ in range(3)] == [200] * 3 and other.get("session").status == 401
    assert len([record for record in caplog.records if "could not be read" in record.getMessage()]) == 1
    assert browser.call("DELETE", "session").status == 200 and browser.get("session").status == 401


def test_signing_out_holds_on_a_disk_that_takes_no_writes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there, other = (lab.operator() for _ in range(3))
    phone, desk = (lab.browser().sign_in_with(key) for key in "ab")
    of_other = next(line["id"] for line in other.get("sessions").json["sessions"] if line["current"])
    table = lab.console_app.sessions.operators
    index = table._index

    @contextlib.contextmanager
    def full() -> Iterator[sqlite3.Connection]:
        with index() as connection:
            connection.execute("PRAGMA query_only = ON")
            yield connection

    with monkeypatch.context() as patched:
        patched.setattr(table, "_index", full)
        for browser in (here, phone):
            assert browser.call("DELETE", "session").status == 200
        assert there.call("DELETE", f"sessions/{of_other}").status == 200
        statuses = [browser.get("session").status for browser in (here, other, phone, there, desk)]
        assert statuses == [401, 401, 401, 200, 200]
        assert [line["current"] for line in there.get("sessions").json["sessions"]] == [True, False]
    # It is written as soon as the disk takes it, so that a restart changes nothing.
    assert there.get("session").status == 200
    restarted = lab_of(lab)
    for browser, status in ((here, 401), (other, 401), (phone, 401), (there, 200), (desk, 200)):
        again = restarted.browser()
        again.token = browser.token
        assert again.get("session").status == status


def test_signing_out_and_ending_sessions(lab: Lab) -> None:
    here, there = lab.operator(), lab.operator()
    lines = here.get("sessions").json["sessions"]
    assert [line["current"] for line in lines].count(True) == 1 and len(lines) == 2
    other = next(line["id"] for line in lines if not line["current"])
    assert here.call("DELETE", f"sessions/{other}").status == 200
    assert (here.get("session").status, there.get("session").status) == (200, 401)
    assert here.call("DELETE", f"sessions/{other}").status == 404
    assert here.call("DELETE", "session").status == 200 and here.get("session").status == 401


def test_without_a_list_any_key_sees_its_own_runs(lab: Lab) -> None:
    facts = lab.browser().sign_in_with("sk-anything").get("session").json
    assert (facts["role"], facts["users"]) == ("own", None)
    assert lab.browser().post("session", {"key": "  "}).status == 400


@table(("key", "role", "users"), [(OWN_KEY, "own", ["ann"]), (ALL_KEY, "all", ["bob"])])
def test_a_key_opens_the_console_as_its_line_says(locked: Lab, key: str, role: str, users: list[str]) -> None:
    browser = locked.browser().sign_in_with(key)
    facts = browser.get("session").json
    assert (facts["role"], facts["users"], facts["mode"], facts["recording"]) == (role, users, "on", "facts")
    assert facts["expires"] == pytest.approx((locked.now + 12 * 3600) * 1e6, rel=1e-9)
    # Scripts may send the key itself.
    browser.token = key
    assert browser.get("session").json["role"] == role
    locked.now += 12 * 3600 + 5
    assert locked.browser().sign_in_with(key).get("session").status == 200


def test_a_key_session_ends_after_twelve_hours(locked: Lab) -> None:
    browser = locked.browser().sign_in_with(OWN_KEY)
    locked.now += 12 * 3600 + 5
    assert browser.get("session").status == 401


def test_an_accepted_key_without_the_word_is_told_how_its_line_would_read(locked: Lab) -> None:
    for answer in (
        locked.browser().post("session", {"key": CLIENT_KEY}),
        locked.browser().get("session", Authorization=f"Bearer {CLIENT_KEY}"),
    ):
        assert answer.status == 403 and "console=own" in answer.message and CLIENT_KEY not in answer.message


def test_a_session_ends_with_the_right_of_its_key(locked: Lab, tmp_path: Path) -> None:
    browsers = [locked.browser().sign_in_with(key) for key in (OWN_KEY, ALL_KEY)]
    (tmp_path / "keys.txt").write_text(f"{OWN_KEY} user=ann\n{CLIENT_KEY}\n", "utf-8")
    locked.console_app.keys._next_look = 0.0  # type: ignore[union-attr]
    assert [browser.get("session").status for browser in browsers] == [401, 401]


def test_a_key_is_signed_in_with_all_processes_on_one_folder(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    one, two = (Lab(tmp_path, accepted(path, *LINES)) for _ in range(2))
    browser = one.browser().sign_in_with(OWN_KEY)
    elsewhere, later, revoked = two.browser(), two.browser(), two.browser()
    elsewhere.token = later.token = browser.token
    answer = elsewhere.get("session")
    assert (answer.status, answer.json["role"], answer.json["users"]) == (200, "own", ["ann"])
    assert OWN_KEY not in browser.token and OWN_KEY not in str(base64.urlsafe_b64decode(browser.token[15:]))
    # Signed out of one is signed out of all, also where nobody has seen the token.
    assert elsewhere.call("DELETE", "session").status == 200
    third = Lab(tmp_path, accepted(path, *LINES))
    unseen = third.browser()
    unseen.token = browser.token
    assert [each.get("session").status for each in (browser, elsewhere, unseen)] == [401, 401, 401]
    # Its time is that of the sign-in, wherever it is used first.
    later.token = one.browser().sign_in_with(OWN_KEY).token
    two.now += 12 * 3600 + 5
    assert later.get("session").status == 401
    two.now = one.now
    # A key that was taken away once does not come back.
    revoked.token = one.browser().sign_in_with(ALL_KEY).token
    for lines, status in ((LINES[:1], 401), (LINES, 401)):
        path.write_text("\n".join(lines), "utf-8")
        two.console_app.keys._next_look = 0.0  # type: ignore[union-attr]
        assert revoked.get("session").status == status
    # Nor is a token of another folder one.
    other = Lab(tmp_path / "other", accepted(path, *LINES))
    other.console_app.sessions.keys._secret = lambda: b"x" * 32
    foreign = other.browser()
    foreign.token = one.browser().sign_in_with(OWN_KEY).token
    assert foreign.get("session").status == 401


def test_a_session_of_a_key_outlives_the_server(locked: Lab, tmp_path: Path) -> None:
    kept, ended = (locked.browser().sign_in_with(OWN_KEY) for _ in range(2))
    assert ended.call("DELETE", "session").status == 200
    restarted = Lab(tmp_path, locked.console_app.keys)
    browsers = [restarted.browser() for _ in range(2)]
    browsers[0].token, browsers[1].token = kept.token, ended.token
    assert [browser.get("session").status for browser in browsers] == [200, 401]
    # The operator sees it, with its role of today, and can end it.
    operator = restarted.operator()
    line = next(line for line in operator.get("sessions").json["sessions"] if line["role"] == "own")
    assert line["label"] == "Ann's phone"
    assert operator.call("DELETE", f"sessions/{line['id']}").status == 200
    assert kept.get("session").status == 401
    assert OWN_KEY.encode() not in b"".join(path.read_bytes() for path in tmp_path.glob("index.db*"))


def proof(browser: Browser, nonce: str) -> bool:
    """Whether the server shows that it has begun the session of a browser, which checks it with a part of its token."""
    opens, key = browser.token.split(".")
    digest = hashlib.sha256(opens.encode()).hexdigest()[:16]
    # The question opens nothing, and is sent without the token.
    question = Browser(browser.application).call("POST", "session/proof", {"id": digest, "nonce": nonce})
    return bool(question.json["proof"] == hmac.digest(bytes.fromhex(key), nonce.encode(), "sha256").hex())


def test_the_server_shows_that_it_has_begun_a_session(locked: Lab, tmp_path: Path) -> None:
    ended = locked.browser().sign_in_with(OWN_KEY)
    assert ended.call("DELETE", "session").status == 200
    browsers = [locked.operator(), locked.browser().sign_in_with(ALL_KEY), ended]
    assert [proof(browser, nonce) for browser in browsers for nonce in ("0f", "", "\u00e9")] == [True] * 9
    # After a restart, and from another process on the folder, but from no other folder.
    again, other = (Lab(tmp_path / name, locked.console_app.keys) for name in ("", "other"))
    other.console_app.sessions.keys._secret = lambda: b"x" * 32
    for server, shown in ((again, True), (other, False)):
        for browser in browsers:
            browser.application = server.application
            assert proof(browser, "0f") is shown
    # A token of an older version has no such part, and still opens the session of a script.
    script = locked.browser().sign_in_with(OWN_KEY)
    script.token = script.token.partition(".")[0]
    assert script.get("session").status == 200


@table(
    ("body", "status"),
    [
        ({}, 400),
        ({"id": "a"}, 400),
        ({"nonce": "a"}, 400),
        ({"id": 1, "nonce": "a"}, 400),
        ({"id": "a", "nonce": ["a"]}, 400),
        ({"id": "a", "nonce": "b", "token": "c"}, 400),
        ([], 400),
        ({"id": "\ud800", "nonce": "\ud800"}, 200),
        ({"id": "", "nonce": ""}, 200),
        ({"id": "a", "nonce": "x" * console_module.SIGN_IN_BYTES}, 413),
    ],
)
def test_questions_for_a_proof(lab: Lab, body: Any, status: int) -> None:
    assert lab.browser().call("POST", "session/proof", body).status == status


def sealed(key: bytes, content: bytes) -> str:
    return TOKEN_PREFIX + Fernet(base64.urlsafe_b64encode(key)).encrypt(content).decode("ascii")


ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def respelled(token: str) -> dict[str, str]:
    """Other spellings of what base64 reads as the same bytes."""
    letters = token.rstrip("=")
    # The last letter before the padding has bits that say nothing.
    last = [letters[:-1] + one + "=" * (len(token) - len(letters)) for one in ALPHABET if one != letters[-1]]
    plain = token.removeprefix(TOKEN_PREFIX)
    same = [one for one in last if decoded(one) == decoded(token)]
    return {
        **{f"the last letter is {one[len(letters) - 1]}": one for one in same},
        "without its beginning": plain,
        "with its beginning twice": TOKEN_PREFIX + token,
        "with a character that base64 passes over": f"{token[:40]}!{token[40:]}",
        "with more padding": f"{token}==",
        "without padding": letters,
        "in the other alphabet": token.replace("-", "+").replace("_", "/"),
    }


def decoded(token: str) -> bytes:
    return base64.urlsafe_b64decode(token.removeprefix(TOKEN_PREFIX))


@table("padding", ["", "=", "=="])
def test_an_ended_session_has_no_other_spelling(locked: Lab, padding: str) -> None:
    # Labels of several lengths, for each amount of padding.
    for length in range(40):
        browser = locked.browser()
        browser.token, _ = locked.console_app.sessions.keys.begin(OWN_KEY, "x" * length)
        if len(browser.token) - len(browser.token.rstrip("=")) == len(padding):
            break
    token, keys = browser.token, locked.console_app.sessions.keys
    others = {how: one for how, one in respelled(token).items() if one != token}
    assert len(others) >= 4 and browser.get("session").status == 200
    assert [how for how, other in others.items() if keys.find(other) is not None] == []
    assert browser.call("DELETE", "session").status in (200, 204)
    assert [how for how, other in {"itself": token, **others}.items() if keys.find(other) is not None] == []


def test_a_token_cannot_be_made_or_changed(locked: Lab) -> None:
    browser = locked.browser().sign_in_with(OWN_KEY)
    token, now = browser.token, int(locked.now * 1e6)
    content = json.dumps([ALL_KEY, now, ""]).encode()
    purpose = b"wilmer console key session"
    forged = {
        "sealed with the secret itself": sealed(SECRET, content),
        "sealed with a key that anybody can derive": sealed(hmac.digest(b"", purpose, "sha256"), content),
        "sealed with the secret of another folder": sealed(hmac.digest(b"x" * 32, purpose, "sha256"), content),
        "a sign-in code": TOKEN_PREFIX + make_code(SECRET, locked.now),
        "a session, not encrypted": TOKEN_PREFIX + FERNET_BEGINNING + base64.urlsafe_b64encode(content).decode(),
        "the id of a session": TOKEN_PREFIX + locked.console_app.sessions.keys.lines()[0]["id"],
        "its beginning": token[:-1],
        "no ASCII": TOKEN_PREFIX + FERNET_BEGINNING + "\u00e9",
        "nothing": TOKEN_PREFIX,
    }
    for place in range(len(TOKEN_PREFIX), len(token)):
        changed = "A" if token[place] != "A" else "B"
        forged[f"letter {place} changed"] = token[:place] + changed + token[place + 1 :]
    for how, wrong in forged.items():
        browser.token = wrong
        assert browser.get("session").status == 401, how
    browser.token = sealed(hmac.digest(SECRET, purpose, "sha256"), json.dumps([OWN_KEY, now, ""]).encode())
    assert browser.get("session").json["role"] == "own", "otherwise these rows would prove nothing"


def test_a_token_is_no_sign_in_code(lab: Lab) -> None:
    browser = lab.browser().sign_in_with("sk-anything")
    for code in (browser.token, browser.token.removeprefix(TOKEN_PREFIX), "\ud800", "\u00e9.A.A", "a.b.c", ".", ".."):
        assert lab.browser().post("session", {"code": code}).status == 401, code


def test_a_key_signs_in_on_a_disk_that_fails(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    before = lab.browser().sign_in_with("sk-anything")

    def broken() -> Any:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(lab.console_app.sessions.operators, "_index", broken)
    monkeypatch.setattr(lab.console_app.sessions.keys, "_secret", broken)
    after = lab.browser().sign_in_with("sk-anything")
    for browser in (before, after):
        assert browser.get("session").status == 200
        assert browser.call("DELETE", "session").status == 200 and browser.get("session").status == 401
    # A session that may have ended, and which this process has not seen, is none while nobody can look.
    other = lab_of(lab)
    ended, unseen = lab.browser(), other.browser()
    ended.token = unseen.token = before.token
    monkeypatch.setattr(other.console_app.sessions.operators, "_index", broken)
    assert (ended.get("session").status, unseen.get("session").status) == (401, 401)
    # Without a secret that was ever read, the process has one that nobody can guess.
    other = lab_of(lab)
    monkeypatch.setattr(other.console_app.sessions.keys, "_secret", broken)
    browser = other.browser().sign_in_with("sk-anything")
    assert browser.get("session").status == 200
    browser.token = sealed(hmac.digest(b"", b"wilmer console key session", "sha256"), b'["k", 9999999999999999, ""]')
    assert browser.get("session").status == 401


def test_ten_wrong_keys_slow_a_peer_down(locked: Lab) -> None:
    guesser, other = locked.browser(), locked.browser()
    other.address = "192.168.1.7"
    for number in range(FAILURES):
        answer = (
            guesser.post("session", {"key": f"guess {number}"})
            if number % 2
            else guesser.get("session", Authorization=f"Bearer guess-{number}")
        )
        assert answer.status == 401
    wrong = (
        guesser.post("session", {"key": "guess"}),
        guesser.get("session", Authorization="Bearer guess"),
        guesser.post("session", {"code": make_code(b"x" * 32, locked.now)}),
    )
    for slowed in wrong:
        assert slowed.status == 429 and 0 < int(slowed.headers["Retry-After"]) <= 60
    # Somebody behind the same proxy guesses; the correct ones of its address are not locked out.
    for sender in (guesser, other):
        assert sender.get("session", Authorization=f"Bearer {OWN_KEY}").status == 200
        assert sender.post("session", {"code": make_code(SECRET, locked.now)}).status == 200
        assert sender.sign_in_with(OWN_KEY).get("session").status == 200


def test_a_page_with_an_ended_session_does_not_lock_its_owner_out(locked: Lab) -> None:
    browser = locked.browser().sign_in_with(OWN_KEY)
    locked.now += 13 * 3600
    assert {browser.get("session").status for _ in range(2 * FAILURES)} == {401}
    assert browser.sign_in_with(OWN_KEY).get("session").status == 200


def test_no_key_code_or_token_reaches_the_log(locked: Lab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    code = make_code(SECRET, locked.now)
    browser = locked.browser()
    browser.post("session", {"code": code})
    browser.post("session", {"code": code})
    browser.post("session", {"key": "a wrong key"})
    token = browser.sign_in_with(OWN_KEY).token
    browser.get("session", Authorization="Bearer another-wrong-key")
    browser.get("session?" + token)
    for secret in (code, OWN_KEY, token, "a wrong key", "another-wrong-key", "signin"):
        assert secret not in caplog.text


# -- 6: the exception to 401, and the gate -----------------------------------------------------------------------------


def test_only_the_page_and_its_files_need_no_key(locked: Lab) -> None:
    browser = locked.browser()
    assert (browser.get(PAGE).status, browser.get("/console/static/1/app.js").status) == (200, 200)
    for path in (API + "session", API + "things/a", API + "nothing", "/", "/consoles", "/v1/models"):
        assert browser.get(path).status == 401, path
    assert not locked.asked


def test_calls_reach_neither_the_application_nor_the_requests(lab: Lab) -> None:
    assert lab.operator().post("things", {"a": 1}).json == {"a": 1}
    assert not lab.asked


def test_console_calls_are_decided_by_their_head(lab: Lab) -> None:
    head = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": API + "things",
        "HTTP_HOST": HOST,
        "CONTENT_LENGTH": "5",
        "CONTENT_TYPE": "application/json",
    }
    assert lab.application.refuses(dict(head))
    token = lab.operator().token
    assert not lab.application.refuses({**head, "HTTP_AUTHORIZATION": f"Bearer {token}"})
    sign_in = {**head, "PATH_INFO": API + "session"}
    assert not lab.application.refuses(dict(sign_in))
    assert lab.application.refuses({**sign_in, "CONTENT_LENGTH": str(console_module.SIGN_IN_BYTES + 1)})
    environ = {**head, "wsgi.input": None}
    b"".join(lab.application(environ, lambda status, headers: None))  # type: ignore[arg-type,return-value]
    assert environ[BODY_LEFT_KEY]  # type: ignore[comparison-overlap]


# -- calls -------------------------------------------------------------------------------------------------------------


def test_a_call_gets_its_parts_and_query(lab: Lab) -> None:
    answer = lab.operator().get("things/m%C3%BChle?kind=a%20b")
    assert answer.json == {"parts": {"NAME": "m\u00fchle"}, "query": {"kind": "a b"}, "role": "operator"}


@table(
    ("path", "parts"),
    [
        ("things/a%0Ab", {"NAME": "a\nb"}),
        ("things/%3CNAME%3E", {"NAME": "<NAME>"}),
        ("files/c", {"FOLDER": "", "NAME": "c"}),
        ("files//c", {"FOLDER": "", "NAME": "c"}),
        ("files/a/b%0A/c", {"FOLDER": "a/b\n", "NAME": "c"}),
        ("files/../all/c", {"FOLDER": "../all", "NAME": "c"}),
        ("things//edges", {"NAME": ""}),
        ("/console/api//all", None),
        ("things/a/b", None),
        ("things", {}),
        ("files", None),
        ("ALL", None),
        ("things/a/", {"NAME": "a"}),
    ],
)
def test_parts_of_a_path(lab: Lab, path: str, parts: dict[str, str] | None) -> None:
    routes = lab.console_app.routes
    routes.add("GET", "files/FOLDER/NAME", Role.OWN, lab.thing)
    routes.add("GET", "things/NAME/edges", Role.OWN, lab.thing)
    routes.add("GET", "things", Role.OWN, lab.thing)
    answer = lab.operator().get(path)
    assert (answer.json["parts"] if answer.status == 200 else None) == parts
    assert answer.status in (200, 404)


@table(
    ("method", "path", "status", "word"),
    [
        ("GET", "things/a?kin=1", 400, "Did you mean 'kind'?"),
        ("GET", "things/a?kind=1&kind=2", 400, "twice"),
        ("GET", "thing/a", 404, "console-api.md"),
        ("PATCH", "things/a", 405, "This call takes GET, PUT, not 'PATCH'."),
        ("DELETE", "things", 405, "This call takes POST, not 'DELETE'."),
        ("PUT", "things/a", 403, "--console edit"),
    ],
)
def test_a_wrong_call_is_told_what_is_wrong(lab: Lab, method: str, path: str, status: int, word: str) -> None:
    answer = lab.operator().call(method, path, {} if method == "PUT" else None)
    assert answer.status == status and word in answer.message
    assert set(answer.json["error"]) == {"message", "type", "where"}


def test_a_method_is_spelled_as_it_was_added(lab: Lab) -> None:
    with pytest.raises(ConsoleError) as refused:
        lab.console_app.routes.find("get", ("api", "things", "a"))
    assert (refused.value.status, refused.value.headers) == (405, (("Allow", "GET, PUT"),))


@table(("body", "word"), [("{", "valid JSON"), ("[]", "JSON object"), ("\udcff", "valid JSON")])
def test_a_body_must_be_a_json_object(lab: Lab, body: str, word: str) -> None:
    answer = lab.operator().post("things", body.encode("utf-8", "surrogateescape"))
    assert answer.status == 400 and word in answer.message


def test_a_role_may_call_what_its_own_needs(locked: Lab) -> None:
    own, wide = locked.browser().sign_in_with(OWN_KEY), locked.browser().sign_in_with(ALL_KEY)
    assert [own.get(path).status for path in ("things/a", "all", "sessions")] == [200, 403, 403]
    assert [wide.get(path).status for path in ("things/a", "all", "sessions")] == [200, 200, 403]
    assert "console=all" in own.get("all").message and "server.py console" in wide.get("sessions").message


def test_saving_needs_edit(tmp_path: Path) -> None:
    lab = Lab(tmp_path, mode="edit")
    assert lab.operator().call("PUT", "things/a", {}).status == 200
    assert lab.browser().sign_in_with("sk-anything").call("PUT", "things/a", {}).status == 403


def test_a_broken_route_answers_and_is_logged(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab.console_app.routes.add("GET", "broken", Role.OWN, lambda call: 1 / 0)
    answer = lab.operator().get("broken")
    assert answer.status == 500 and json.loads(answer.data)["error"]["type"] == "internal_server_error"
    assert "ZeroDivisionError" in caplog.text


def test_public_peers_are_refused_before_the_console(tmp_path: Path) -> None:
    browser = Lab(tmp_path, private_only=True).browser()
    browser.address = "8.8.8.8"
    assert browser.get(PAGE).status == 403
