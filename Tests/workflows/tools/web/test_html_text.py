"""The visible text of HTML pages."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from Middleware.workflows.tools.web.html_text import visible_text
from Tests.tables import table

PAGE = (
    "<html><head><title>T</title><style>p{}</style></head><body><h1>Ferry</h1><p>Leaves at <b>nine</b>.</p>"
    "<script>x('<p>no</p>')</script></body></html>"
)


@table(
    ("html", "text"),
    [
        (PAGE, "Ferry\nLeaves at\nnine\n."),
        ("plain text", "plain text"),
        ("", ""),
        ("  a  ", "a"),
        ("a\n b", "a\n b"),
        ("<p> a </p>\n<p></p><p>b</p>", "a\nb"),
        ("a &amp; b &lt;c&gt; &#233; &eacute;&nbsp;x &bogus; 5 < 6", "a & b <c> é é\xa0x &bogus; 5 < 6"),
        ("a<!-- hidden -->b", "a\nb"),
        ("<!DOCTYPE html><p>a", "a"),
        ("<?xml version='1.0'?><p>a", "a"),
        ("<style>s</style>a<noscript><p>n</p></noscript>b<iframe src=x>i</iframe>c", "a\nb\nc"),
        ("<SCRIPT>s</SCRIPT >a", "a"),
        ("<script src=x/>a</script>b", "b"),
        ("<head><title>T<body>a", "a"),
        ("<head><noscript>n</noscript><title>T</title></head>a", "a"),
        ("<noscript><noscript>a</noscript>b</noscript>c", "c"),
        ("</noscript>a", "a"),
        ("a<script>never closed", "a"),
        ("<header>h</header><p>a</p>", "h\na"),
        ("<![if IE]>a<![endif]>b", "a\nb"),
        ("<![odd x]>a", "a"),
        ("<a href='x'>link</a>", "link"),
        ("a <", "a <"),
        ("a &am", "a &am"),
    ],
)
def test_visible_text(html: str, text: str) -> None:
    assert visible_text(html) == text


LONG = "x" * 300_000


@table(
    ("html", "text"),
    [
        (f"a<img src='data:{LONG}'>b", "a\nb"),
        (f'a<img src="{LONG}" alt=">">b', "a\nb"),
        (f"a<img src={LONG}>b", "a\nb"),
        (f"a<!--{LONG}-->b", "a\nb"),
        (f"a<!--{LONG}--!>b", "a\nb"),
        (f"a<!{LONG}>b", "a\nb"),
        (f"a<?{LONG}?>b", "a\nb"),
        (f"a<![CDATA[{LONG}>c]]>b", "a\nb"),
        (f"a<script>{LONG}</p></script>b", "a\nb"),
        (f"a<{LONG} {LONG}>b", "a\nb"),
        (f"a</p {LONG}>b", "a\nb"),
        (f"a<p{' ' * 300_000}>b", "a\nb"),
        (f"a<p{' c' * 300_000}>b", "a\nb"),
        (f"a<textarea>{LONG}</textarea>b", f"a\n{LONG}\nb"),
        (f"a&{LONG};b", f"a&{LONG};b"),
        (f"a&#{'1' * 300_000};b", f"a&#{'1' * 300_000};b"),
    ],
)
def test_what_is_long_hides_nothing_behind_it(html: str, text: str) -> None:
    assert visible_text(html) == text


@table(
    ("html", "text"),
    [
        # As in browsers, these hide what follows.
        ("a<script>b<p>c", "a"),
        ("a<style>b<p>c", "a"),
        ("a<script>b</script", "a"),
        ("a<!-- b<p>c", "a"),
        ("a<! b", "a"),
        ("a<p b='c>d<p>e", "a"),
        ('a<p b="', "a"),
        # A page that is cut in the middle of a tag.
        ("a<p>b<i", "a\nb"),
        ("a<p>b<img src='c", "a\nb"),
        ("a<p>b</", "a\nb</"),
        ("a<p>b</p", "a\nb"),
        ("a<p>b<", "a\nb<"),
        # These hide nothing.
        ("<textarea>a<p>b", "a\nb"),
        ("<title>a<p>b", "a\nb"),
        ("<xmp>a<p>b", "a\nb"),
        ("a<![CDATA[b>c<p>d", "a\nc\nd"),
        ("<head><title>a</title><p>b", "a\nb"),
        ("a<plaintext>b<p>&amp;<!--c", "a\nb<p>&amp;<!--c"),
        ("<textarea>a<p>&lt;</textarea>b", "a<p><\nb"),
        ("<xmp>a<p>&lt;</xmp>b", "a<p>&lt;\nb"),
        ("a<!-->b<!--->c", "a\nb\nc"),
        ("a<script>'</scripts>'</ScripT\n>b", "a\nb"),
        ("a<script src='b' />c", "a\nc"),
        ("a<p b=c/>d", "a\nd"),
        ("a<p b='>' c = \">\" d=>e", "a\ne"),
        ("a</p b='>'>c", "a\nc"),
        ("a</>b</ c>d", "a\nb\nd"),
        ('a<p =">b', "a\nb"),
    ],
)
def test_what_never_ends(html: str, text: str) -> None:
    assert visible_text(html) == text


@given(st.text(alphabet="<>/!-[]&;='\" abscriptheadno?\n") | st.text())
def test_any_text_is_read(html: str) -> None:
    visible_text(html)


MANY = 50_000


# If one of a thousand is read to the end before the next one, it takes half a minute.
@table(
    "html",
    [
        "<" * MANY,
        "</" * MANY + ">",
        "<a " * MANY,
        "<a/" * MANY,
        "<a b=" * MANY,
        "<a b='" * MANY,
        "<a b=' " + "> " * MANY,
        "<!-- " * MANY,
        "<!--" * MANY,
        "<!--" + "-" * MANY,
        "<?" * MANY,
        "<![CDATA[>" * MANY,
        "<title>" * MANY,
        "<textarea>" * MANY,
        "<head>" * MANY,
        "<noscript>" * MANY,
        "<script>" * MANY,
        "<script>" + "</" * MANY,
        "<script>" + "</script" * MANY,
        "</a " * MANY,
        "<a" + "/" * MANY,
        "<a" + " " * MANY,
        "<a " + "b " * MANY,
        "<a b" + "=" * MANY,
        "&" * MANY,
        "&#" * MANY,
    ],
)
def test_the_time_is_linear(html: str) -> None:
    started = time.process_time()
    visible_text("a" + html)
    assert time.process_time() - started < 5


def test_stopping() -> None:
    calls = iter([False, True])
    assert visible_text("a<p>" * 100_000, lambda: next(calls)).count("a") < 40_000
