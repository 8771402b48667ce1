"""Bodies in a content coding, in whatever pieces they arrive."""

from __future__ import annotations

import gzip
import random
import zlib
from typing import Any

import pytest

from Middleware.utilities.http.inflater import PIECE_BYTES, Inflater
from Tests.tables import table

TEXT = b"a body " * 9
NOISE = random.Random(1).randbytes(300)


def bare(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def fed(inflater: Inflater, data: bytes, size: int) -> bytes:
    pieces = [piece for at in range(0, len(data), size) for piece in inflater.feed(data[at : at + size])]
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)
    return b"".join(pieces)


@table("size", [1, 2, 7, 10_000])
@table(
    ("coding", "packed", "body", "rest"),
    [
        ("gzip", gzip.compress(TEXT), TEXT, b""),
        ("x-gzip", gzip.compress(b""), b"", b""),
        ("gzip", gzip.compress(TEXT) + b"\0" * 9 + gzip.compress(NOISE) + b"\0", TEXT + NOISE, b""),
        ("gzip", gzip.compress(TEXT) + b"{}\0", TEXT, b"{}\0"),
        ("gzip", gzip.compress(TEXT) + b"\x1f", TEXT, b"\x1f"),
        ("deflate", zlib.compress(TEXT), TEXT, b""),
        ("deflate", zlib.compress(NOISE, 0), NOISE, b""),
        ("deflate", bare(NOISE), NOISE, b""),
        ("deflate", zlib.compress(TEXT) * 2, TEXT, zlib.compress(TEXT)),
        ("deflate", b"", b"", b""),
    ],
)
def test_bodies_in_pieces(coding: str, packed: bytes, body: bytes, rest: bytes, size: int) -> None:
    inflater = Inflater(coding)
    assert (fed(inflater, packed, size), inflater.rest) == (body, rest)
    assert inflater.is_whole is (rest == b"")


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, bare])
def test_large_bodies_come_in_small_pieces_and_cut_ones_are_not_whole(pack: Any) -> None:
    for size in (PIECE_BYTES, PIECE_BYTES + 1, 40 * PIECE_BYTES):
        packed = pack(bytes(size))
        inflater = Inflater("gzip" if pack is gzip.compress else "deflate")
        start = fed(inflater, packed[:-1], 10_000)
        assert not inflater.is_whole
        assert start + fed(inflater, packed[-1:], 1) == bytes(size) and inflater.is_whole


@table(("coding", "data"), [("gzip", b"{}"), ("deflate", b"plain text"), ("gzip", zlib.compress(TEXT))])
def test_other_data_is_an_error(coding: str, data: bytes) -> None:
    with pytest.raises(zlib.error):
        fed(Inflater(coding), data, 100)
