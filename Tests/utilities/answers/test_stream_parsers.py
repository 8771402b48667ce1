"""Stream framing: any byte split gives the same events."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.utilities.answers import stream_parsers
from Middleware.utilities.answers.stream_parsers import NDJSONParser, SSEParser
from Tests.properties import examples


def blocks_of(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


def sse(blocks: list[bytes]) -> list[tuple[str | None, str]]:
    parser = SSEParser()
    return [tuple(event) for block in blocks for event in parser.feed(block)] + [tuple(e) for e in parser.finish()]


def ndjson(blocks: list[bytes]) -> list[str]:
    parser = NDJSONParser()
    return [line for block in blocks for line in parser.feed(block)] + parser.finish()


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b'data: {"a":1}\n\ndata: [DONE]\n\n', [(None, '{"a":1}'), (None, "[DONE]")]),
        (b"data:x\r\n\r\ndata:  y \r\n\r\n", [(None, "x"), (None, "y")]),
        (b"data: x\r\rdata: y\r\r", [(None, "x"), (None, "y")]),
        (b": comment\nid: 3\nretry: 9\nnonsense\ndata\ndata:\n\ndata: z", [(None, "z")]),
        (
            b"event: start\ndata: 1\n\ndata: 2\n\nevent: stop\ndata: 3\n\n",
            [("start", "1"), ("start", "2"), ("stop", "3")],
        ),
        (b"event: a\ndata: 1\ndata: 2\n\nevent:\ndata: 3\n", [("a", "1"), ("a", "2"), (None, "3")]),
        (b"\xef\xbb\xbfdata: x\n\n", [(None, "x")]),
        ("data: \u4f60\u2028\U0001f600\n\n".encode(), [(None, "\u4f60\u2028\U0001f600")]),
        (b"data: \xff\xc3\n\ndata: ok\n\n", [(None, "\ufffd\ufffd"), (None, "ok")]),
        (b"  data: x\n", [(None, "x")]),
        (b'data: 1\n\nerror: {"code":500}\n\ndata: 2\n\n', [(None, "1"), ("error", '{"code":500}'), (None, "2")]),
        (b"event: a\nerror: {}\ndata: 1\n", [("error", "{}"), ("a", "1")]),
        (b"event: ERROR\ndata: x\n\nevent: Error\ndata: y\n", [("error", "x"), ("error", "y")]),
        (b"error: none\nerror:\nerror\nerrors: {}\n", []),
        (b"", []),
    ],
)
def test_sse(data: bytes, events: list[tuple[str | None, str]]) -> None:
    assert sse([data]) == events
    assert sse([data[i : i + 1] for i in range(len(data))]) == events
    for middle in range(len(data)):
        assert sse([data[:middle], b"", data[middle:]]) == events


def test_ready_events_are_handed_over_at_once() -> None:
    parser = SSEParser()
    assert [data for _, data in parser.feed(b"data: 1\n\ndata: 2\n\ndata: 3")] == ["1", "2"]
    assert [data for _, data in parser.feed(b"\n")] == ["3"]
    assert parser.finish() == []


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b'{"a":1}\n{"b":2}\r\n\n \n{"c":3}', ['{"a":1}', '{"b":2}', '{"c":3}']),
        (b'\xef\xbb\xbf{"a":"\xe4\xbd\xa0\xc2\x85"}\n', ['{"a":"\u4f60\u0085"}']),
        (b"", []),
    ],
)
def test_ndjson(data: bytes, lines: list[str]) -> None:
    assert ndjson([data]) == lines
    assert ndjson([data[i : i + 1] for i in range(len(data))]) == lines


LINES = st.lists(
    st.sampled_from(
        [
            b"data: ",
            b"data:",
            b"event: e\n",
            b"x",
            b"\n",
            b"\r\n",
            b"\r",
            b": c\n",
            "\u4f60".encode(),
            b"\xf0\x9f",
            b"\xff",
            b"\xef\xbb\xbf",
            b" ",
            b"{}",
        ]
    ),
    max_size=20,
)


@examples(500)
@given(LINES.map(b"".join), st.lists(st.integers(0, 200), max_size=10))
def test_splits_do_not_matter(data: bytes, cuts: list[int]) -> None:
    assert sse(blocks_of(data, cuts)) == sse([data])
    assert ndjson(blocks_of(data, cuts)) == ndjson([data])


def test_a_line_of_a_megabyte_takes_linear_time() -> None:
    line = b"data: " + b"x" * 1_000_000 + b"\n"
    started = time.process_time()
    events = sse([line[i : i + 16] for i in range(0, len(line), 16)])
    assert len(events[0][1]) == 1_000_000
    assert time.process_time() - started < 3


@pytest.mark.parametrize("parser", [SSEParser, NDJSONParser])
def test_a_line_that_does_not_end_is_held_up_to_a_limit(
    parser: type[SSEParser] | type[NDJSONParser], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_parsers, "MAX_LINE_BYTES", 1 << 20)
    fed, block = parser(), b"data:" + b"x" * (400_000 - 5)
    for _ in range(5):
        fed.feed(block)
        fed.feed(block + b"\n")
        fed.feed(b"y\n" + block)
        fed.feed(b"\n")
    fed.feed(block)
    fed.feed(block)
    with pytest.raises(stream_parsers.LineTooLongError, match="a line of more than 1 MB"):
        fed.feed(block)
