"""Looking up files, replacing them in one step, and locking them.

No file is changed in place: the new content is written to a file next to it, which is then renamed. A reader sees the
old or the new content, and after a full disk or a crash the old content is still there. A killed process may leave a
file named ``.<random>.tmp``, which is never read, and which the next write in its folder removes.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import re
import secrets
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar
from weakref import WeakValueDictionary

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.models.request_context import report

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

logger = logging.getLogger(__name__)

T = TypeVar("T")

# In seconds: Windows refuses to replace a file while another program, such as a virus scanner, has it open, and to open
# it while it is replaced.
REPLACE_TIMEOUT = 1.0 if os.name == "nt" else 0.0
_PAUSE = 0.02
# The longest time, in seconds, in which a cancelled request is not noticed.
_SLICE = 0.2
# In seconds, far longer than REPLACE_TIMEOUT.
_SURELY_RENAMED = 60.0
# A user's folder may have any number of files, and each write lists it.
_MOST_ENTRIES = 1000
LEFT_OVER = re.compile(r"\.[0-9a-f]{16}\.tmp")
_SEPARATORS = tuple(filter(None, (os.sep, os.altsep)))


# -- lookup -----------------------------------------------------------------------------------------------------------


def resolve_file_path(path: str) -> str:
    """Return ``path`` with a leading ``~`` expanded; relative paths stay relative to the working directory."""
    return os.path.expanduser(path)


def find_file_ignoring_case(path: str) -> str | None:
    """Return the file at ``path``, else one in the same folder whose name differs only in case, or None.

    Of several files the first in alphabetical order is returned.
    """
    if os.path.isfile(path):
        return path
    folder, name = os.path.split(path)
    try:
        names = sorted(other for other in os.listdir(folder or os.curdir) if other.lower() == name.lower())
    # OSError: the folder does not exist. ValueError: no folder can have this name.
    except (OSError, ValueError):
        return None
    return next((found for found in (os.path.join(folder, other) for other in names) if os.path.isfile(found)), None)


def listed_name(path: str) -> str:
    """Return the name of a file as its folder lists it, where the file system finds it under other spellings, too."""
    folder, name = os.path.split(path)
    try:
        names = os.listdir(folder or os.curdir)
    except OSError:
        return name
    return name if name in names else next((other for other in names if other.casefold() == name.casefold()), name)


def open_to_read(path: str) -> BinaryIO:
    """Open a file whose content another thread or process may replace. Raises OSError."""
    # Windows refuses it for the moment in which the new file gets its name.
    return retry_while_in_use(lambda: open(path, "rb"), REPLACE_TIMEOUT)


def ordinary_file(path: str) -> os.stat_result | None:
    """Return the status of the file at ``path``, or None. Raises OSError for anything but a file."""
    # Opening a pipe or a device may wait forever, and replacing it destroys it.
    try:
        known = os.stat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(known.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(known.st_mode):
        raise OSError(errno.EINVAL, "Not an ordinary file", path)
    return known


Signature = tuple[int, ...]


def file_signature(path: str, is_wanted: Callable[[int], bool] = stat.S_ISREG) -> Signature | None:
    """Return a value that changes with the file; None if there is no file, or folder, of the wanted mode."""
    try:
        status = os.stat(path)
    # ValueError: no file can have this name, as it contains a NUL.
    except (OSError, ValueError):
        return None
    if not is_wanted(status.st_mode):
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns


def why_unreadable(error: OSError) -> str:
    """Return a clause about why a file that exists cannot be read."""
    if isinstance(error, PermissionError):
        return "no permission to read the file"
    return f"the file cannot be read: {error.strerror or type(error).__name__}"


def is_forbidden(folder: str) -> bool:
    """Return whether there is no permission to list a folder, or to open the files in it, or in a folder above it."""
    try:
        # Files in a folder can be opened only by those who may look inside it, whether or not they may list it.
        os.stat(os.path.join(folder, os.curdir))
        with os.scandir(folder):
            return False
    except PermissionError:
        return True
    # There is no such folder, or none can have this name.
    except (OSError, ValueError):
        return False


def is_unsettled(signature: Signature | None) -> bool:
    """Return whether a second change might leave the same signature, so that the file must be checked again."""
    if signature is None:
        return False
    # Time stamps advance in steps: a few milliseconds, or two seconds if only whole seconds are stored.
    step = 2.0 if signature[0] % 1_000_000_000 == 0 else 0.05
    return abs(time.time() - signature[0] / 1e9) < step


# -- writing -----------------------------------------------------------------------------------------------------------


def atomic_write(path: str, data: bytes, mode: int | None = None) -> None:
    """Write ``data`` to the file at ``path`` in one step, and create its folders.

    Links are followed. An existing file keeps its permission bits and, if allowed, its owner; a new one gets ``mode``,
    or the bits that the umask leaves. Raises OSError, about ``path``, without any change.
    """
    try:
        target = _link_target(path)
        known = ordinary_file(target)
        # A rename needs no permission for the file itself, but a read-only file must not be replaced.
        if known is not None and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _write_next_to(target, data, known, mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), path) from error


def _link_target(path: str) -> str:
    target = os.path.realpath(path)
    # ``realpath`` returns a link only if the links form a circle.
    if os.path.islink(target):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if path.endswith(_SEPARATORS):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return target


def _write_next_to(target: str, data: bytes, known: os.stat_result | None, mode: int | None) -> None:
    folder = os.path.dirname(target)
    # Until the file has the permission bits of the old one, it must not be readable by others.
    temporary, descriptor = _temporary_file(folder, 0o600 if known is not None else 0o666 if mode is None else mode)
    try:
        with open(descriptor, "wb") as file:
            if known is not None:
                _keep_access(file.fileno(), known)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            # Windows does not rename an open file. Elsewhere it stays locked until it has its name.
            if sys.platform == "win32":
                file.close()
            retry_while_in_use(lambda: os.replace(temporary, target), REPLACE_TIMEOUT)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _remove_left_over(folder)


def _temporary_file(folder: str, bits: int) -> tuple[str, int]:
    """Create a file in the folder, with a lock that shows other processes that its writer is alive."""
    while True:
        path = os.path.join(folder, f".{secrets.token_hex(8)}.tmp")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), bits)
        if sys.platform == "win32" or (_try_lock(descriptor) and os.fstat(descriptor).st_nlink):
            return path, descriptor
        # Before the lock was taken, another process took the file for one that was left over.
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(path)


def _remove_left_over(folder: str) -> None:
    """Remove the temporary files of processes that were killed."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in itertools.islice(entries, _MOST_ENTRIES):
            if LEFT_OVER.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(entry.path)


if sys.platform == "win32":

    def _remove_if_abandoned(path: str) -> None:
        # Windows does not remove an open file, and a closed one is renamed within REPLACE_TIMEOUT.
        if time.time() - os.stat(path).st_mtime > _SURELY_RENAMED:
            os.unlink(path)
else:

    def _remove_if_abandoned(path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            # Its writer holds this lock. On a file system without locks this cannot be known, and the file stays.
            _lock(descriptor)
            os.unlink(path)
        finally:
            os.close(descriptor)


def _keep_access(descriptor: int, known: os.stat_result) -> None:
    """Copy owner and permission bits of the old file, as far as the user and the file system allow."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            os.fchown(descriptor, known.st_uid, known.st_gid)
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, stat.S_IMODE(known.st_mode))


def retry_while_in_use(act: Callable[[], T], seconds: float) -> T:
    """Call ``act``, and retry it for some seconds while Windows refuses it, as others use the file. Raises OSError."""
    end = time.monotonic() + seconds
    while True:
        try:
            return act()
        except PermissionError:
            if time.monotonic() >= end:
                raise
        time.sleep(_PAUSE)


# -- locks -------------------------------------------------------------------------------------------------------------


class PathLocks:
    """One lock for each file, however its path is spelled. Locks belong to no thread and are not reentrant."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._locks)

    def held(
        self, path: str, scope: CancelScope | None = None, timeout: float | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Return the lock of a file.

        Raises EarlyTerminationException if ``scope`` is cancelled first, TimeoutError after ``timeout`` seconds.
        """
        # On a file system that respects case, two different files may share a lock, which does no harm.
        return self.named(os.path.realpath(path).casefold(), scope, timeout)

    @contextlib.contextmanager
    def named(self, key: str, scope: CancelScope | None = None, timeout: float | None = None) -> Iterator[None]:
        """Hold the lock of something that is not a file. Raises like ``held``."""
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        pause = _SLICE if timeout is None else max(0.0, min(_SLICE, timeout))
        wait_until(lambda: lock.acquire(timeout=pause), scope, timeout)
        try:
            yield
        finally:
            lock.release()


def path_lock(path: str, scope: CancelScope | None = None) -> contextlib.AbstractContextManager[None]:
    """Return the lock between the threads of this process on the file at ``path``."""
    return process().one(PathLocks).held(path, scope)


@contextlib.contextmanager
def process_lock(
    lock_file: str,
    scope: CancelScope | None = None,
    timeout: float | None = None,
    mode: int = 0o666,
    flags: int = os.O_RDWR | os.O_CREAT,
) -> Iterator[None]:
    """Hold a lock between threads and processes on ``lock_file``, which is created and stays.

    On a file system without locks it works only between the threads of this process. A process that ends frees its
    locks. Raises OSError if the file cannot be created, EarlyTerminationException if ``scope`` is cancelled first, and
    TimeoutError after ``timeout`` seconds (0: one attempt). ``mode`` is for a new file.
    """
    started = time.monotonic()
    with process().one(PathLocks).held(lock_file, scope, timeout):
        descriptor = os.open(lock_file, flags, mode)
        try:
            rest = None if timeout is None else max(0.0, timeout - (time.monotonic() - started))
            wait_until(lambda: _try_lock(descriptor), scope, rest, pause=_PAUSE)
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    _unlock(descriptor)
        finally:
            os.close(descriptor)


def folder_lock(folder: str, scope: CancelScope | None = None) -> contextlib.AbstractContextManager[None]:
    """Return a lock between threads and processes on the files in a folder. Raises what ``process_lock`` raises.

    The folder is a user's, so no file is left in it, except on Windows, where folders cannot be locked.
    """
    if sys.platform == "win32":
        return process_lock(os.path.join(folder, ".wilmer.lock"), scope)
    return process_lock(folder, scope, flags=os.O_RDONLY)


def wait_until(
    attempt: Callable[[], bool], scope: CancelScope | None, timeout: float | None = None, pause: float = 0.0
) -> None:
    """Call ``attempt`` until it returns True, and report the wait for a lock, if there is any.

    Raises EarlyTerminationException if ``scope`` is cancelled first, TimeoutError after ``timeout`` seconds.
    """
    end, outcome = None if timeout is None else time.monotonic() + timeout, ""
    try:
        while not attempt():
            if scope is not None and scope.cancelled:
                raise EarlyTerminationException("The request was cancelled while it waited for a file")
            if end is not None and time.monotonic() >= end:
                raise TimeoutError("another request or process holds the lock")
            if not outcome:
                outcome = "late"
                report("wait_started", "lock", 0)
            time.sleep(pause)
        outcome = outcome and "got"
    finally:
        if outcome:
            report("wait_ended", "lock", outcome)


if sys.platform == "win32":

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

    def _unlock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
else:

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _try_lock(descriptor: int) -> bool:
    try:
        _lock(descriptor)
    # Windows, and some network file systems, report a lock of another process as a lack of permission.
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        logger.debug("The file system knows no locks: %s", error.strerror)
    return True
