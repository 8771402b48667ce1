"""Permissions of files that count for root too, as tests often run as root."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Version 3 of the kernel's interface for capabilities.
_VERSION = 0x20080522
# CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, with which root ignores permissions.
_IGNORE_PERMISSIONS = (1 << 1) | (1 << 2)

_Header, _Data = ctypes.c_uint32 * 2, ctypes.c_uint32 * 6


@contextmanager
def without_root_rights() -> Iterator[None]:
    """Let permissions count in this thread, and in threads that it starts, although it may be root's.

    Only Linux has capabilities of threads; elsewhere tests do not run as root.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, before = _Header(_VERSION, 0), _Data()
    _call(libc.capget, header, before)
    # Effective, permitted and inheritable rights, of the first 32 capabilities and of the others.
    during = _Data(*before)
    during[0] &= ~_IGNORE_PERMISSIONS
    _call(libc.capset, header, during)
    try:
        yield
    finally:
        _call(libc.capset, header, before)


def _call(function: ctypes._NamedFuncPointer, *arguments: ctypes.Array[ctypes.c_uint32]) -> None:
    if function(*(ctypes.byref(argument) for argument in arguments)) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be changed")
