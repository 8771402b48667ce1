"""Configuration files in the run console: read without secrets, checked while they are written, completed and saved."""
