"""The visible text of HTML pages."""
from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.workflows.tools.web import output as html_text
from Middleware.workflows.tools.web.output import visible_text
from Tests.tables import table

PAGE = ("<html><head><title>T</title><style>p{}</style></head><body><h1>Ferry</h1><p>Leaves at <b>nine</b>.</p>"
        "<script>x('<p>no</p>')</script></body></html>")


@table(("html", "text"), [
    (PAGE, "Ferry\nLeaves at\nnine\n."),
    ("plain text", "plain text"), ("", ""), ("  a  ", "a"), ("a\n b", "a\n b"),
    ("<p> a </p>\n<p></p><p>b</p>", "a\nb"),
    ("a &amp; b &lt;c&gt; &#233; &eacute;&nbsp;x &bogus; 5 < 6", "a & b <c> é é\xa0x &bogus; 5 < 6"),
    ("a<!-- hidden -->b", "a\nb"), ("<!DOCTYPE html><p>a", "a"), ("<?xml version='1.0'?><p>a", "a"),
    ("<style>s</style>a<noscript><p>n</p></noscript>b<iframe src=x>i</iframe>c", "a\nb\nc"),
    ("<SCRIPT>s</SCRIPT >a", "a"), ("<script src=x/>a</script>b", "b"),
    ("<head><title>T<body>a", "a"), ("<head><noscript>n</noscript><title>T</title></head>a", "a"),
    ("<noscript><noscript>a</noscript>b</noscript>c", "c"), ("</noscript>a", "a"), ("a<script>never closed", "a"),
    ("<header>h</header><p>a</p>", "h\na"), ("<![if IE]>a<![endif]>b", "a\nb"), ("<![odd x]>a", "a"),
    ("<a href='x'>link</a>", "link"), ("a <", "a <"), ("a &am", "a &am")])
def test_visible_text(html: str, text: str) -> None:
    assert visible_text(html) == text


@given(st.text(alphabet="<>/!-[]&;='\" abscriptheadno?\n") | st.text())
def test_any_text_is_read(html: str) -> None:
    visible_text(html)


@pytest.mark.parametrize("size", [1, 2, 7, 50])
def test_the_size_of_the_pieces_does_not_matter(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    html = PAGE + "a &amp; b &eacute; <!-- c --> d <p class='x y'>e</p>" * 3
    whole = visible_text(html)
    monkeypatch.setattr(html_text, "PIECE_CHARACTERS", size)
    assert visible_text(html) == whole


def test_a_large_attribute_hides_nothing() -> None:
    assert visible_text(f"a<img src='data:{'x' * 1_000_000}'>b") == "a\nb"


def test_what_is_never_closed_is_hidden_in_linear_time() -> None:
    assert visible_text("a" + "<!--" * 1_000_000) == "a"
    assert visible_text("a" + "<a b='" * 100_000) == "a"


@pytest.mark.parametrize("unclosed", ["<a ", "<a/", "<a b=", "<!-- "])
def test_an_end_of_unclosed_tags_takes_no_time(unclosed: str) -> None:
    started = time.process_time()
    assert visible_text("a" + unclosed * 20_000) == "a"
    assert time.process_time() - started < 5  # some 30 s if each is read to the end before the next one


def test_stopping() -> None:
    calls = iter([False, True])
    assert visible_text("a<p>" * 100_000, lambda: next(calls)).count("a") < 20_000
