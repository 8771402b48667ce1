#!/usr/bin/env bash
# The short way to developer/run_browser_tests.sh. All arguments go on to pytest: "$@"
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/developer/run_browser_tests.sh" "$@"
