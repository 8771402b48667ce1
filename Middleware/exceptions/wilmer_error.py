"""The root of the exception tree (drawn in the package's docstring)."""


class WilmerError(Exception):
    """Any error that WilmerAI raises on purpose.

    Attributes:
        private: the text may hold words of a conversation, so that the log of a redacted request goes without it.
    """

    private = False
