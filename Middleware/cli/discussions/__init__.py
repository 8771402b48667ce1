"""The command ``memory``."""
