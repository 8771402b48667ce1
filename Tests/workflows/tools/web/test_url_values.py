"""The encoding of values in URLs, beyond what the nodes' own tests send to servers."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from hypothesis import given
from hypothesis import strategies as st

from Middleware.utilities.templates.substitution import mark, without_marks
from Middleware.workflows.tools.web.url_values import encoded, with_encoded_values
from Tests.tables import table


@table(
    ("url", "expected"),
    [
        ("", ""),
        (mark(""), ""),
        (mark("a b"), "a b"),
        (f"https://{mark('a.b/c d')}", "https://a.b/c d"),
        (f"https://u:{mark('p&=')}@h/{mark('&')}", "https://u:p&=@h/%26"),
        (f"h:{mark('80')}/{mark('x y')}", "h:80/x%20y"),
        (f"https://h/#{mark('a b')}", "https://h/#a b"),
        (f"{mark('https://h')}/{mark('a b')}", "https://h/a%20b"),
        (f"{mark('https://h/?q=')}{mark('a&b')}", "https://h/?q=a%26b"),
        (f"//h/{mark('a b')}", "//h/a%20b"),
        (f"https://h/?{mark('a=1')}&{mark('b=2')}", "https://h/?a=1&b=2"),
        (f"https://h/?{mark('a=1')}{mark('&b')}", "https://h/?a%3D1%26b"),
        # Marks without their other half.
        ("https://h/?q=\ufdd0a b", "https://h/?q=a%20b"),
        ("https://h/?q=a b\ufdd1&c", "https://h/?q=a b&c"),
    ],
)
def test_places(url: str, expected: str) -> None:
    assert with_encoded_values(url) == expected


def test_half_of_a_pair_is_replaced() -> None:
    assert encoded("a\ud83db") == "a%EF%BF%BDb"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_server_reads_what_was_inserted(value: str) -> None:
    """Whatever it is, it stays one part and adds no parameter; if it holds no escapes, it is read as it was written."""
    path = urlsplit("https://h/a/" + encoded(value) + "/z?q=" + encoded(value) + "&z=1#f")
    assert (path.path, path.query, path.fragment) == (f"/a/{encoded(value)}/z", f"q={encoded(value)}&z=1", "f")
    assert encoded(value).isascii() and encoded(encoded(value)) == encoded(value)
    if "%" not in value:
        assert unquote(encoded(value)) == value


@given(st.text(alphabet="a&=#?/%4\ufdd0\ufdd1 "), st.text(alphabet="ab&=?#/:"))
def test_any_url(value: str, text: str) -> None:
    """No mark is left, and what the author wrote stays as it is."""
    url = with_encoded_values(f"{text}{mark(value)}{text}")
    assert without_marks(url) == url
    assert url.startswith(text) and url.endswith(text)
