#!/usr/bin/env bash
# The older place of developer/run_tests.sh, for those who call it here. All arguments go on to pytest: "$@"
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/developer/run_tests.sh" "$@"
