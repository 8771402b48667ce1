"""Standard input and output, whatever is behind them: a terminal, a pipe whose reader goes, a full disk, or nothing.

It needs nothing but Python, because it also serves what runs before the packages are installed.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from Middleware.cli.signals import INTERRUPTED, interrupt_on_signals

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# Exit status of a command whose reader has gone, as shells report the signal SIGPIPE.
READER_GONE = 141


class _Output(io.FileIO):
    """The file below an output stream. What it does not take, as when its reader has gone, is discarded.

    Attributes:
        ends_command: the first failure on the main thread raises SystemExit. Other threads may serve a request, which
            an exception would leave half done.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream.fileno(), "w", closefd=False)
        # It would close the file.
        self._replaced = stream
        # By its number, which holds under Eventlet, too. The main thread prepares the streams.
        self._main_thread = threading.get_ident()
        self.ends_command = False

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if self.ends_command and threading.get_ident() == self._main_thread:
                # Once: what cleans up on the way out may print, too.
                self.ends_command = False
                raise SystemExit(
                    READER_GONE if _has_no_reader(error) else f"ERROR: The output cannot be written: {error.strerror}."
                ) from None
            return memoryview(data).nbytes


def _has_no_reader(error: OSError) -> bool:
    # Windows has no error of its own for it.
    return isinstance(error, ConnectionError) or (os.name == "nt" and error.errno == errno.EINVAL)


def prepare_streams() -> None:
    """Make standard input and output safe to use, whatever they are.

    A stream that was closed before the start is empty. Pipes and files are UTF-8, whatever the code page or locale is;
    bytes of an input that are not UTF-8 become lone surrogates (see ``read_text``). Characters that a terminal lacks
    are written as escapes. Writing to an output never fails: what cannot be written is discarded.
    """
    # In this order, so that no other file takes the place of a standard stream.
    sys.stdin = sys.stdin or _nothing("r")
    if isinstance(sys.stdin, io.TextIOWrapper) and not sys.stdin.isatty():
        # Lines may come from another system. Without the argument, only Windows reads "\r\n" as the end of one.
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="surrogateescape", newline=None)
    sys.stdout = _safe(sys.stdout) if sys.stdout else _nothing("w")
    sys.stderr = _safe(sys.stderr) if sys.stderr else _nothing("w")


def _nothing(mode: str) -> TextIO:
    """Return what takes the place of a stream for as long as the process lives."""
    return io.TextIOWrapper(open(os.devnull, f"{mode}b"), encoding="utf-8")


def _safe(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="backslashreplace")
    # A terminal has no other reader; that of Windows is not a plain file either.
    if type(_file_below(stream)) is not io.FileIO or stream.isatty():
        return stream
    stream.flush()
    file: Any = _Output(stream)
    return io.TextIOWrapper(
        io.BufferedWriter(file) if isinstance(stream.buffer, io.BufferedWriter) else file,
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _file_below(stream: TextIO) -> object:
    # With PYTHONUNBUFFERED there is no buffer in between.
    buffer = getattr(stream, "buffer", None)
    return getattr(buffer, "raw", buffer)


def read_text() -> str:
    """Return all of standard input. Raises UnicodeError if it is not UTF-8, or UTF-16 with its mark."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        # A conversion of line ends would change UTF-16.
        sys.stdin.reconfigure(newline="")
    data = sys.stdin.read().encode("utf-8", "surrogateescape")
    # Windows PowerShell writes such files; no UTF-8 text has this mark.
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if is_utf16 else "utf-8").replace("\r\n", "\n")


def read_line(prompt: str) -> str:
    """Return the next line, without its end. Raises UnicodeError if it is not UTF-8, EOFError."""
    line = input(prompt)
    line.encode("utf-8")
    return line


def run_command(command: Callable[[], int]) -> int:
    """Run a command and return its exit status.

    An interrupted one does not count as successful. One whose reader goes (``check | head``) ends without a word at
    the next line that it prints, by SystemExit; one whose output cannot be written, with a sentence.
    """
    prepare_streams()
    interrupt_on_signals()
    try:
        with _ending_with_reader():
            return command()
    except KeyboardInterrupt:
        return INTERRUPTED


@contextmanager
def _ending_with_reader() -> Iterator[None]:
    file = _file_below(sys.stdout)
    if not isinstance(file, _Output):
        yield
        return
    file.ends_command = True
    try:
        yield
    finally:
        # Here, because Python would print an error about what it cannot write when it ends.
        try:
            sys.stdout.flush()
        finally:
            file.ends_command = False
