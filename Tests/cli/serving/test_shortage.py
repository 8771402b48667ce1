"""Running out of descriptors, as the log tells it."""
from __future__ import annotations

import errno

import pytest

from Middleware.cli.serving.shortage import Shortage


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_each_shortage_is_told_once(code: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    shortage = Shortage(quiet_seconds=0)
    for _ in range(2):
        for _ in range(3):
            assert shortage.begins(OSError(code, "Too many open files"))
        for _ in range(3):
            shortage.ends()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 2
    assert "Too many open files" in caplog.text


@pytest.mark.parametrize("error", [BlockingIOError(errno.EAGAIN, ""), ConnectionAbortedError(), OSError("no number")])
def test_other_failures_are_none(error: OSError, caplog: pytest.LogCaptureFixture) -> None:
    shortage = Shortage()
    assert not shortage.begins(error)
    shortage.ends()
    assert caplog.records == []


def test_one_that_comes_right_after_another_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    shortage = Shortage()
    for _ in range(5):
        assert shortage.begins(OSError(errno.EMFILE, "Too many open files"))
        shortage.ends()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
