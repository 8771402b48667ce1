"""Keys, model names and the chunk of the current dialect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.ctx import RequestContext as RequestContextOfFlask

from Middleware.api import api_helpers
from Middleware.api.edge.access_keys import PERMITTED_USERS_KEY, api_key_in, idempotency_key_in
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ClientError
from Middleware.models.request_context import RequestContext, request_scope
from Tests.llmapis.lab import Lab
from Tests.tables import table


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    lab = Lab(tmp_path, monkeypatch)
    for folder in ("_shared/fast", "_shared/a b", "_ann/greet"):
        lab.write(f"Workflows/{folder}/_DefaultWorkflow", [])
    lab.write("Workflows/_shared/single", [])
    lab.write("Users/ann", {"sharedWorkflowsSubDirectoryOverride": "_ann"})
    lab.write("Users/bob", {})
    with request_scope(RequestContext()):
        yield lab


@pytest.fixture
def two_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "USERS", ["ann", "bob"])


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("Bearer k", "k"),
        ("Bearer   k  ", "k"),
        ("Bearer a b", "a b"),
        ("Bearer ", None),
        ("Bearer    ", None),
        ("bearer k", None),
        ("BEARER k", None),
        ("Basic x", None),
        ("Bearerk", None),
        ("", None),
        (None, None),
        ("Bearer\tk", None),
    ],
)
def test_api_key(header: str | None, key: str | None) -> None:
    assert api_key_in(header) == key


@pytest.mark.parametrize(("headers", "key"), [({"Authorization": "Bearer k "}, "k"), ({}, None)])
def test_api_key_of_the_current_request(headers: dict[str, str], key: str | None) -> None:
    with Flask("test").test_request_context(headers=headers):
        assert api_helpers.extract_api_key() == key
    assert api_helpers.extract_api_key() is None


@table(
    ("model", "workflow"),
    [
        ("fast", "fast"),
        ("fast:latest", "fast"),
        ("bob:fast", "fast"),
        ("bob:fast:latest", "fast"),
        (":fast", "fast"),
        ("single", "single"),
        ("a b", "a b"),
        ("fast:latest:latest", None),
        ("gpt-4", None),
        ("", None),
        (None, None),
        ("bob:../fast", None),
        ("../fast", None),
        ("bob:", None),
        (":", None),
        ("bob:x:fast", None),
        ("bob:.", None),
        ("FAST", None),
        ("_shared", None),
        ("fast/", None),
        ("fast\x00", None),
        ("latest", None),
        (":latest", None),
        ("x" * 5000, None),
    ],
)
def test_model_of_a_single_user(model: Any, workflow: str | None) -> None:
    assert api_helpers.parse_model_field(model) == (None, workflow)


@table(
    ("model", "result"),
    [
        ("ann", ("ann", None)),
        ("ann:latest", ("ann", None)),
        ("ann:greet", ("ann", "greet")),
        ("ann:greet:latest", ("ann", "greet")),
        ("ann:fast", ("ann", None)),
        ("bob:fast", ("bob", "fast")),
        ("bob:greet", ("bob", None)),
        ("bob:nope", ("bob", None)),
        ("bob:", ("bob", None)),
        ("bob:../fast", ("bob", None)),
        ("fast", (None, None)),
        ("Ann", (None, None)),
        ("Ann:greet", (None, None)),
        ("carol:fast", (None, None)),
        ("", (None, None)),
        (None, (None, None)),
    ],
)
@pytest.mark.usefixtures("two_users")
def test_model_of_two_users(model: Any, result: tuple[str | None, str | None]) -> None:
    assert api_helpers.parse_model_field(model) == result


@pytest.mark.parametrize("model", [5, 1.5, True, False, ["fast"], {"id": "fast"}])
def test_model_of_another_kind(model: Any) -> None:
    with pytest.raises(ClientError, match="'model'") as caught:
        api_helpers.parse_model_field(model)
    assert caught.value.status == 400


@pytest.mark.usefixtures("two_users")
def test_setting_the_context_clears_what_was_there() -> None:
    api_helpers.set_request_context_from_model("ann:greet")
    assert (instance.get_request_user(), api_helpers.get_active_workflow_override()) == ("ann", "greet")
    assert api_helpers.get_model_name() == "ann:greet"
    api_helpers.set_request_context_from_model("bob")
    assert (instance.get_request_user(), api_helpers.get_active_workflow_override()) == ("bob", None)
    assert api_helpers.get_model_name() == "bob"
    api_helpers.set_request_context_from_model(None)
    assert instance.get_request_user() is None


@pytest.mark.usefixtures("two_users")
def test_several_users_need_a_name() -> None:
    for peer in ("127.0.0.1", "::1"):
        with pytest.raises(ClientError, match="Multi-user mode is active.*ann, bob"):
            api_helpers.require_identified_user(peer)
    with pytest.raises(ClientError, match="Multi-user mode is active") as caught:
        api_helpers.require_identified_user("192.168.1.7")
    assert "ann" not in str(caught.value)
    instance.set_request_user("bob")
    api_helpers.require_identified_user()


def asked_by(**fields: Any) -> RequestContextOfFlask:
    """A request in progress, with these fields in its WSGI environ."""
    return Flask("test").test_request_context(environ_overrides={"HTTP_HOST": "127.0.0.1:5000", **fields})


@pytest.mark.usefixtures("two_users")
@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, True),
        ({"HTTP_HOST": "localhost:5000"}, True),
        ({"HTTP_HOST": "llm.example.com"}, False),
        ({"HTTP_HOST": ""}, False),
        ({"HTTP_X_FORWARDED_FOR": "127.0.0.1"}, False),
        ({"HTTP_FORWARDED": "for=_x"}, False),
        ({"HTTP_VIA": "1.1 Caddy"}, False),
        ({"HTTP_X_REAL_IP": "127.0.0.1"}, False),
    ],
)
def test_what_a_proxy_passes_on_is_not_local(fields: dict[str, str], told: bool) -> None:
    with asked_by(**fields), pytest.raises(ClientError) as caught:
        api_helpers.require_identified_user("127.0.0.1")
    assert ("ann" in str(caught.value)) == told


@pytest.mark.usefixtures("two_users")
@pytest.mark.parametrize("peer", ["192.168.1.7", "::ffff:192.168.1.7", "", "127.0.0.1, 192.168.1.7"])
def test_a_client_elsewhere_cannot_claim_to_be_local(peer: str) -> None:
    with (
        asked_by(HTTP_X_FORWARDED_FOR="127.0.0.1", HTTP_FORWARDED="for=127.0.0.1"),
        pytest.raises(ClientError) as caught,
    ):
        api_helpers.require_identified_user(peer)
    assert "ann" not in str(caught.value)


@pytest.mark.usefixtures("two_users")
def test_a_key_for_one_user_opens_that_one_alone() -> None:
    with asked_by(**{PERMITTED_USERS_KEY: frozenset({"ann"})}):
        api_helpers.set_request_context_from_model("ann:greet")
        api_helpers.require_identified_user("127.0.0.1")
        api_helpers.set_request_context_from_model("bob:fast")
        with pytest.raises(ClientError, match="key") as caught:
            api_helpers.require_identified_user("127.0.0.1")
        assert caught.value.status == 403 and "bob" not in str(caught.value)
        api_helpers.set_request_context_from_model("nobody")
        with pytest.raises(ClientError, match="Multi-user mode is active.*: ann$"):
            api_helpers.require_identified_user("127.0.0.1")


@pytest.mark.usefixtures("two_users")
@pytest.mark.parametrize("model", [None, ""])
def test_a_key_for_one_user_says_who_is_meant(model: str | None) -> None:
    with asked_by(**{PERMITTED_USERS_KEY: frozenset({"bob", "gone"})}):
        api_helpers.set_request_context_from_model(model)
        api_helpers.require_identified_user("127.0.0.1")
        assert (instance.get_request_user(), api_helpers.get_active_workflow_override()) == ("bob", None)


@pytest.mark.usefixtures("two_users")
@pytest.mark.parametrize(
    ("permitted", "model"),
    [(frozenset({"ann", "bob"}), None), (None, None), (frozenset({"gone"}), None), (frozenset({"bob"}), "greet")],
)
def test_nobody_is_guessed(permitted: frozenset[str] | None, model: str | None) -> None:
    with asked_by(**{PERMITTED_USERS_KEY: permitted}):
        api_helpers.set_request_context_from_model(model)
        assert instance.get_request_user() is None
        with pytest.raises(ClientError, match="Multi-user mode is active"):
            api_helpers.require_identified_user("127.0.0.1")


@pytest.mark.usefixtures("two_users")
def test_a_key_shows_the_models_of_its_users(lab: Lab) -> None:
    lab.write("Users/ann", {"sharedWorkflowsSubDirectoryOverride": "_ann", "allowSharedWorkflows": True})
    everything = ["ann:greet", "bob"]
    assert api_helpers.visible_model_ids() == everything
    for permitted, visible in ((None, everything), ({"ann"}, ["ann:greet"]), ({"bob"}, ["bob"]), ({"an"}, [])):
        with asked_by(**{PERMITTED_USERS_KEY: None if permitted is None else frozenset(permitted)}):
            assert api_helpers.visible_model_ids() == visible


def test_a_key_for_a_user_who_is_not_served_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The current user changes while the server runs."""
    for users in (None, ["tester"]):
        monkeypatch.setattr(instance, "USERS", users)
        with asked_by(**{PERMITTED_USERS_KEY: frozenset({"tester"})}):
            api_helpers.require_identified_user()
        with asked_by(**{PERMITTED_USERS_KEY: frozenset({"ann"})}), pytest.raises(ClientError) as caught:
            api_helpers.require_identified_user()
        assert caught.value.status == 403


@pytest.mark.parametrize(
    ("messages", "refused"),
    [
        ([{}] * api_helpers.MAX_MESSAGES, ""),
        ([{}] * (api_helpers.MAX_MESSAGES + 1), "100001 messages; 100000"),
        ([{"images": ["x"] * 500}] * 2, ""),
        ([{"images": ["x"] * 500}] * 2 + [{"images": ["x"]}], "1001 images; 1000"),
    ],
    ids=["messages", "too many messages", "images", "too many images"],
)
def test_counts(messages: list[dict[str, Any]], refused: str) -> None:
    if not refused:
        api_helpers.check_counts(messages)
        return
    with pytest.raises(ClientError, match=refused) as caught:
        api_helpers.check_counts(messages)
    assert caught.value.status == 413


def test_a_single_user_needs_no_name() -> None:
    api_helpers.require_identified_user()
    assert api_helpers.get_model_name() == "tester"
    api_helpers.set_workflow_override("fast")
    assert api_helpers.get_model_name() == "tester:fast"
    api_helpers.clear_workflow_override()
    assert api_helpers.get_active_workflow_override() is None


def test_clear_request_context() -> None:
    context = RequestContext(user="ann", workflow_override="x", redact=True)
    with request_scope(context):
        api_helpers.clear_request_context()
    assert (context.user, context.workflow_override, context.redact) == (None, None, False)


def test_legacy_mode_has_the_current_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "USERS", None)
    assert api_helpers.configured_users() == []
    assert api_helpers.get_model_name() == "tester"


def test_build_response_json() -> None:
    chunk = json.loads(api_helpers.build_response_json("ü", additional_fields={"model": "x", "extra": 1}))
    assert chunk["choices"][0]["delta"] == {"content": "ü"}
    assert (chunk["model"], chunk["extra"]) == ("x", 1)
    assert "ü" in api_helpers.build_response_json("ü")
    final = json.loads(api_helpers.build_response_json("", "stop"))
    assert final["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}


def test_build_response_json_of_an_unknown_type() -> None:
    instance.set_api_type("carrierpigeon")
    with pytest.raises(ValueError, match="carrierpigeon"):
        api_helpers.build_response_json("x")


def test_sse_format() -> None:
    assert api_helpers.sse_format("{}", "openai") == "data: {}\n\n"
    assert api_helpers.sse_format("{}", "openaichatcompletion") == "data: {}\n\n"
    assert api_helpers.sse_format("{}", "ollamaapichat") == "{}\n"


@pytest.mark.parametrize(
    ("sent", "key"),
    [
        ("k", "k"),
        ("  a b ", "a b"),
        ("x" * 128, "x" * 128),
        ("x" * 129, None),
        ("", None),
        ("  ", None),
        (None, None),
        ("a:b", "a:b"),
    ],
)
def test_idempotency_key(sent: str | None, key: str | None) -> None:
    environ = {} if sent is None else {"HTTP_X_IDEMPOTENCY_KEY": sent}
    assert idempotency_key_in(environ) == (key and f"anon:{key}")


@pytest.mark.parametrize(
    ("authorization", "scope"),
    [
        ("Bearer secret", "2bb80d537b1da3e3"),
        ("Bearer  secret ", "2bb80d537b1da3e3"),
        ("Bearer ", "anon"),
        ("bearer secret", "anon"),
        ("Basic secret", "anon"),
    ],
)
def test_idempotency_keys_are_kept_apart_by_the_bearer_key(authorization: str, scope: str) -> None:
    environ = {"HTTP_X_IDEMPOTENCY_KEY": "k", "HTTP_AUTHORIZATION": authorization}
    assert idempotency_key_in(environ) == f"{scope}:k"


def test_idempotency_key_of_the_current_request() -> None:
    with Flask("test").test_request_context(headers={"X-Idempotency-Key": "k", "Authorization": "Bearer secret"}):
        assert api_helpers.extract_idempotency_key() == "2bb80d537b1da3e3:k"
