#!/usr/bin/env bash
# Creates the Python environment on the first start, installs the packages of requirements.lock when that file has
# changed, and starts WilmerAI. All arguments go to run_waitress.py.
set -u
script=${BASH_SOURCE[0]}
while [ -L "$script" ]; do # it may be called by a link to it
    target=$(readlink "$script")
    case $target in
        /*) script=$target ;;
        *) script=$(dirname -- "$script")/$target ;;
    esac
done
CDPATH='' cd -- "$(dirname -- "$script")" || exit 1

. Scripts/environment.sh
prepare_environment venv requirements.lock
# The C library sets memory aside for each of many threads, of which Python runs one at a time.
export MALLOC_ARENA_MAX=${MALLOC_ARENA_MAX:-2}
WILMER_START_SCRIPT=${WILMER_START_SCRIPT:-bash run_linux.sh} exec venv/bin/python run_waitress.py "$@"
