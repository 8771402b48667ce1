#!/usr/bin/env bash
# Makes its own Python environment (venv-tests), installs what requirements-test.txt names when that has changed, and
# runs the tests, one file per process at a time. All arguments go to pytest.
set -u
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." || exit 1

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

if ! venv-tests/bin/python -c '' 2>/dev/null; then
    python=$(find_python)
    [ -n "$python" ] || fail "The tests need Python 3.11 or later, and none was found."
    echo "Making the test environment ..."
    "$python" -m venv --clear venv-tests || fail "The environment could not be made."
fi
stamp=venv-tests/installed-requirements.txt
if ! cat requirements.txt requirements-test.txt | cmp -s - "$stamp"; then
    echo "Installing what requirements-test.txt names ..."
    venv-tests/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-test.txt \
        || fail "The installation failed; the lines above say why."
    cat requirements.txt requirements-test.txt > "$stamp"
fi
[ "${1-}" = "--prepare-only" ] && exit 0
exec venv-tests/bin/python -m pytest -n auto --dist loadfile "$@"
