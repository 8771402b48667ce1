"""The one error of the launchers."""
from __future__ import annotations


class StartError(Exception):
    """The server cannot start. The text is one sentence that tells the operator why, and what to do."""
