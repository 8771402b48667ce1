#!/usr/bin/env bash
# Runs the tests that have real client packages talk to the server. They get an environment of their own
# (venv-clients) for the Python packages and Tests/clients/npm/node_modules for those of npm, each installed anew when
# what it is made from has changed. All arguments go to pytest.
set -u
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." || exit 1

. Scripts/developer/environment.sh

node -e 'process.exit(Number.parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null \
    && npm --version >/dev/null 2>&1 \
    || fail "The client tests need Node.js 20 or later with npm, for the npm packages among the clients."

prepare_environment venv-clients requirements-clients.txt

npm=Tests/clients/npm
stamp=$npm/node_modules/installed-lock.json
if ! cmp -s "$npm/package-lock.json" "$stamp"; then
    echo "Installing the npm packages of $npm ..."
    (cd "$npm" && npm ci --silent --no-audit --no-fund) \
        || fail "npm could not install them; 'npm ci' in that folder says why."
    cp "$npm/package-lock.json" "$stamp"
fi
exec venv-clients/bin/python -m pytest -m clients Tests/clients --tb=short "$@"
