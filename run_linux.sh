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

fail() { echo "ERROR: $*" >&2; exit 1; }

find_python() {
    local name
    for name in python3 python3.14 python3.13 python3.12 python3.11 python; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
}

if ! venv/bin/python -c '' 2>/dev/null; then
    python=$(find_python)
    [ -n "$python" ] || fail "WilmerAI needs Python 3.11 or later, and none was found."
    echo "Creating the Python environment (first start only) ..."
    "$python" -m venv --clear venv \
        || fail "The environment could not be made. On Debian and Ubuntu: sudo apt install python3-venv"
fi
if ! cmp -s requirements.lock venv/installed-requirements.lock; then
    echo "Installing the packages listed in requirements.lock (only when it has changed) ..."
    venv/bin/python -m Middleware.cli.installing --require-hashes -r requirements.lock \
        || fail "The installation failed; the lines above say why."
    cp requirements.lock venv/installed-requirements.lock
fi
# The C library sets memory aside for each of many threads, of which Python runs one at a time.
export MALLOC_ARENA_MAX=${MALLOC_ARENA_MAX:-2}
WILMER_START_SCRIPT=${WILMER_START_SCRIPT:-bash run_linux.sh} exec venv/bin/python run_waitress.py "$@"
