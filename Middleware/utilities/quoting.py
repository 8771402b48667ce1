"""How the words of a command line are quoted where messages show one for users to copy.

Old Pythons must be able to parse this file, as ``Middleware/cli/prerequisites.py`` imports it.
"""

import os
import re
import shlex
import subprocess

# cmd or PowerShell gives a meaning to other characters, unless they are in quotation marks.
_PLAIN = re.compile(r"[\w.:/\\+=-]+")
_FIRST_FOLDER = re.compile(r"[\w.:+=-]*[/\\]+")


def quoted_word(word: str) -> str:
    """Return an argument, quoted for the shell of this computer: on Windows, for cmd and for PowerShell."""
    if os.name != "nt":
        return shlex.quote(word)
    if _PLAIN.fullmatch(word):
        return word
    if '"' in word:
        return subprocess.list2cmdline([word])
    # A program takes a backslash before a quotation mark for a part of the text.
    ends = len(word) - len(word.rstrip("\\"))
    return '"' + word + "\\" * ends + '"'


def quoted_program(path: str) -> str:
    """Return the first word of a command line, quoted for the shell of this computer.

    PowerShell takes a line that begins with a quotation mark for a text, and cmd does not know its ``&``. So on
    Windows the marks begin after the first backslash, which both understand: ``C:\\"My Programs\\python.exe"``.
    PowerShell gives a meaning to ``$`` in it, too; cmd has no way to prevent that.
    """
    if os.name != "nt" or _PLAIN.fullmatch(path):
        return quoted_word(path)
    begin = _FIRST_FOLDER.match(path)
    first = begin.group() if begin else ".\\"
    return first + '"' + path[len(first) if begin else 0 :] + '"'
