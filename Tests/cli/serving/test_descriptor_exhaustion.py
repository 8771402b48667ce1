"""Running out of descriptors, as the log tells it."""

from __future__ import annotations

import errno

import pytest

from Middleware.cli.serving.listening import DescriptorExhaustion


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_each_occurrence_is_logged_once(code: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    exhaustion = DescriptorExhaustion(quiet_seconds=0)
    for _ in range(2):
        for _ in range(3):
            assert exhaustion.begins(OSError(code, "Too many open files"))
        for _ in range(3):
            exhaustion.ends()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 2
    assert "Too many open files" in caplog.text


@pytest.mark.parametrize("error", [BlockingIOError(errno.EAGAIN, ""), ConnectionAbortedError(), OSError("no number")])
def test_other_failures_are_none(error: OSError, caplog: pytest.LogCaptureFixture) -> None:
    exhaustion = DescriptorExhaustion()
    assert not exhaustion.begins(error)
    exhaustion.ends()
    assert caplog.records == []


def test_one_that_comes_right_after_another_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    exhaustion = DescriptorExhaustion()
    for _ in range(5):
        assert exhaustion.begins(OSError(errno.EMFILE, "Too many open files"))
        exhaustion.ends()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
