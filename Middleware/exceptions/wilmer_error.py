"""The root of the exception tree (drawn in the package's docstring)."""


class WilmerError(Exception):
    """Any error that WilmerAI raises on purpose."""
