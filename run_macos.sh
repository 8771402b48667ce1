#!/usr/bin/env bash
# The same steps as on Linux: environment, installation, start. All arguments go to run_waitress.py.
WILMER_START_SCRIPT="bash run_macos.sh" exec bash "$(dirname -- "${BASH_SOURCE[0]}")/run_linux.sh" "$@"
