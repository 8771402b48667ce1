"""Configuration files without their secrets, as the console shows them, and with them again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.addons.records.kept_secrets import KeptSecretError, masked, put_back, versions_named

SECRET = "sk-Canary-77"

ENDPOINT = """{
    "endpoint": "https://me:SECRET@llm.example:8080/?token=SECRET&n=1",
    "apiKey": "SECRET",
    "maxContextTokenSize": 8192
}
""".replace("SECRET", SECRET)

# Each text holds the secret in a place that must not be shown.
HIDDEN = {
    "value": ("Endpoints/Main.json", '{"apiKey": "sk-Canary-77"}'),
    "number": ("Endpoints/Main.json", '{"apiKey": 7700770077}'),
    "address": ("Endpoints/Main.json", '{"endpoint": "http://sk-Canary-77@host"}'),
    "password with at sign": ("Endpoints/Main.json", '{"endpoint": "http://me:a@sk-Canary-77@host"}'),
    "parameter": ("Endpoints/Main.json", '{"endpoint": "http://host/x?API_KEY=sk-Canary-77"}'),
    "object": ("Workflows/me/A.json", '{"nodes": [{"kwargs": {"secret": {"a": ["sk-Canary-77"]}}}]}'),
    "variable": ("Workflows/me/A.json", '{"serviceToken": "sk-Canary-77", "nodes": []}'),
    "environment": ("MCPServers/files.json", '{"env": {"HOME_DIR": "sk-Canary-77"}}'),
    "headers": ("MCPServers/files.json", '{"headers": {"X-Whatever": "sk-Canary-77"}}'),
    "header of a node": ("Workflows/me/A.json", '{"nodes": [{"headers": {"Cookie": "sk-Canary-77"}}]}'),
    "curl header": ("Workflows/me/A.json", '{"args": ["-H", "Authorization: Bearer sk-Canary-77", "http://host"]}'),
    "curl user": ("Workflows/me/A.json", '{"args": ["-u", "sk-Canary-77", "http://host"]}'),
    "option": ("MCPServers/files.json", '{"args": ["--api-key=sk-Canary-77"]}'),
    "option and value": ("MCPServers/files.json", '{"args": ["--api-key", "sk-Canary-77"]}'),
    "no colon": ("Endpoints/Main.json", '{"apiKey" "sk-Canary-77"}'),
    "no quotation marks": ("Endpoints/Main.json", "{apiKey: sk-Canary-77}"),
    "no space either": ("Endpoints/Main.json", "{apiKey:sk-Canary-77}"),
    "bare value with marks": ("Endpoints/Main.json", '{"apiKey": a=b:sk-Canary-77}'),
    "other quotation marks": ("Endpoints/Main.json", "{'apiKey': 'sk-Canary-77'}"),
    "key not closed": ("Endpoints/Main.json", '{"apiKey: "sk-Canary-77"}'),
    "value not closed": ("Endpoints/Main.json", '{"apiKey": "sk-Canary-77\n}'),
    "bracket too many": ("Endpoints/Main.json", '}}{"apiKey": "sk-Canary-77"}'),
    "comment": ("Endpoints/Main.json", '{\n// "apiKey": "sk-Canary-77"\n}'),
    "escaped key": ("Endpoints/Main.json", '{"api\\u004bey": "sk-Canary-77"}'),
}

SHOWN = [
    '{"apiKey": ""}',
    '{"apiKey": "env:OPENAI_KEY"}',
    '{"apiKey": "file:~/key"}',
    '{"password": "{my_password}"}',
    '{"promptTemplateEndToken": "<s>"}',
    '{"conditionalKey": "{agent1Output}"}',
    '{"encryptUsingApiKey": true}',
    '{"prompt": "The key: value pairs and tokens"}',
    '{"endpoint": "http://127.0.0.1:5001"}',
    '{"args": ["-H", "Authorization: Bearer {my_token}"]}',
]


@pytest.mark.parametrize("name", HIDDEN)
def test_a_secret_is_not_shown_and_comes_back(name: str) -> None:
    display, text = HIDDEN[name]
    hidden = masked(text, display)
    assert "sk-Canary" not in hidden.text and "77007" not in hidden.text
    assert "<kept secret 1>" in hidden.text
    assert put_back(hidden.text, display, {None: hidden.secrets}) == text


@pytest.mark.parametrize("text", SHOWN)
def test_what_only_looks_like_a_secret_is_shown(text: str) -> None:
    assert masked(text, "Workflows/me/A.json").text == text


def test_the_text_stays_the_same_around_the_secrets() -> None:
    hidden = masked(ENDPOINT, "Endpoints/Main.json")
    assert (
        hidden.text
        == """{
    "endpoint": "https://<kept secret 1>@llm.example:8080/?token=<kept secret 2>&n=1",
    "apiKey": "<kept secret 3>",
    "maxContextTokenSize": 8192
}
"""
    )
    assert hidden.secrets == [f"me:{SECRET}", SECRET, f'"{SECRET}"']


def test_an_edited_text_gets_its_secrets_back() -> None:
    hidden = masked(ENDPOINT, "Endpoints/Main.json")
    edited = hidden.text.replace("llm.example:8080", "other.example").replace("8192", "4096")
    assert put_back(edited, "Endpoints/Main.json", {None: hidden.secrets}) == ENDPOINT.replace(
        "llm.example:8080", "other.example"
    ).replace("8192", "4096")


def test_a_secret_of_an_older_version_has_its_number() -> None:
    old = masked('{"apiKey": "old"}', "Endpoints/Main.json", version=7)
    assert old.text == '{"apiKey": "<kept secret 1 of version 7>"}' and versions_named(old.text) == {7}
    assert put_back(old.text, "Endpoints/Main.json", {None: ['"new"'], 7: old.secrets}) == '{"apiKey": "old"}'


@pytest.mark.parametrize(
    "text",
    [
        '{"description": "<kept secret 1>", "apiKey": ""}',
        '{"apiKey": "x", "endpoint": "http://<kept secret 1>/"}',
        '{"apiKey": "<kept secret 2>"}',
        '{"apiKey": "<kept secret 0>"}',
        '{"apiKey": "<kept secret 1 of version 3>"}',
        '{"<kept secret 1>": "apiKey"}',
    ],
)
def test_a_secret_is_put_only_where_it_is_hidden_again(text: str) -> None:
    with pytest.raises(KeptSecretError) as raised:
        put_back(text, "Endpoints/Main.json", {None: [f'"{SECRET}"']})
    assert raised.value.position == text.index("<kept") - (text[text.index("<kept") - 1] == '"')
    assert SECRET not in str(raised.value)


SCALARS = st.text(max_size=8) | st.integers() | st.booleans() | st.none()
DATA = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["apiKey", "headers", "args", "env", "url", "a"]) | st.text(max_size=5), inner, max_size=4
        )
    ),
)


@given(data=DATA, ascii_only=st.booleans(), indent=st.sampled_from([None, 2]))
def test_any_json_comes_back_and_stays_json(data: object, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(data, ensure_ascii=ascii_only, indent=indent)
    for display in ("MCPServers/x.json", "Workflows/a/x.json"):
        hidden = masked(text, display)
        json.loads(hidden.text)
        if "<kept" not in text:
            assert put_back(hidden.text, display, {None: hidden.secrets}) == text


@given(text=st.text(alphabet='{}[],:="\\ \nab-H1/@?key', max_size=60))
def test_any_text_comes_back(text: str) -> None:
    hidden = masked(text, "Workflows/a/x.json")
    assert put_back(hidden.text, "Workflows/a/x.json", {None: hidden.secrets}) == text
