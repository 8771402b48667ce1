#!/usr/bin/env bash
# Runs the tests that have real client packages talk to the launchers. They get an environment of their own
# (venv-clients) for the Python packages and Tests/clients/npm/node_modules for those of npm, each installed anew when
# what it is made from has changed. All arguments go to pytest.
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

node -e 'process.exit(Number.parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null \
    && npm --version >/dev/null 2>&1 \
    || fail "The client tests need Node.js 20 or later with npm, for the npm packages among the clients."

if ! venv-clients/bin/python -c '' 2>/dev/null; then
    python=$(find_python)
    [ -n "$python" ] || fail "The client tests need Python 3.11 or later, and none was found."
    echo "Making the environment for the client tests ..."
    "$python" -m venv --clear venv-clients || fail "The environment could not be made."
fi
stamp=venv-clients/installed-requirements.txt
if ! cat requirements.txt requirements-clients.txt | cmp -s - "$stamp"; then
    echo "Installing what requirements-clients.txt names ..."
    venv-clients/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-clients.txt \
        || fail "The installation failed; the lines above say why."
    cat requirements.txt requirements-clients.txt > "$stamp"
fi

npm=Tests/clients/npm
stamp=$npm/node_modules/installed-lock.json
if ! cmp -s "$npm/package-lock.json" "$stamp"; then
    echo "Installing the npm packages of $npm ..."
    (cd "$npm" && npm ci --silent --no-audit --no-fund) \
        || fail "npm could not install them; 'npm ci' in that folder says why."
    cp "$npm/package-lock.json" "$stamp"
fi
exec venv-clients/bin/python -m pytest -m clients Tests/clients --tb=short "$@"
