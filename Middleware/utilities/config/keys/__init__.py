"""The declarations of the keys of configuration files: one module for each kind of file."""
