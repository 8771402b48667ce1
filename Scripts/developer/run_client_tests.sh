#!/usr/bin/env bash
# Runs the tests that have real client packages and coding agents talk to the server. They get environments of their
# own, each installed anew when what it is made from has changed: venv-clients for the Python packages, venv-agents for
# the agent among them, Tests/clients/npm/node_modules and Tests/clients/agents/node_modules for those of npm.
# Without Node.js the tests that need npm are left out; with WILMER_ALL_CLIENTS=1 that is an error.
# With --python as the first argument, only the Python packages are tested, whose environment is small. All other
# arguments go to pytest.
set -u
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." || exit 1

. Scripts/developer/environment.sh

others=1 chosen=() processes=2
if [ "${1-}" = --python ]; then
    shift
    # A second process would import all of the packages once more, which takes as long as half of their tests.
    others='' processes=0 chosen=(--ignore=Tests/clients/test_coding_agents.py --ignore=Tests/clients/test_npm_clients.py)
fi

# left_out WHAT WHY: say what is not tested, which .ci/run does not accept.
left_out() {
    [ "${WILMER_ALL_CLIENTS:-}" != 1 ] || fail "$1 cannot be tested: $2"
    echo "Left out: $1. $2"
}

# prepare_npm FOLDER COMMAND: install what its lock file names.
prepare_npm() {
    local stamp=$1/node_modules/installed-lock.json
    cmp -s "$1/package-lock.json" "$stamp" && return
    echo "Installing the npm packages of $1 ..."
    (cd "$1" && npm $2 --silent --no-audit --no-fund) \
        || fail "npm could not install them; 'npm $2' in that folder says why."
    cp "$1/package-lock.json" "$stamp"
}

prepare_aider() {
    if "$(find_python)" -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then
        prepare_environment venv-agents requirements-agents.lock
    else
        left_out "the agent aider" "It needs Python 3.11 or 3.12."
    fi
}

# Few of the thousands of modules are ever imported, so nothing is compiled ahead.
export PIP_NO_COMPILE=1

# The registries are slow and the installers wait for them, so all of them run at once.
waiting=()
prepare_environment venv-clients requirements-clients.txt & waiting+=($!)
if [ -n "$others" ]; then
    prepare_aider & waiting+=($!)
    if node -e 'process.exit(Number.parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null \
        && npm --version >/dev/null 2>&1; then
        prepare_npm Tests/clients/npm ci & waiting+=($!)
        # Not "ci": some registries lack the programs for other systems, and it would insist on them.
        prepare_npm Tests/clients/agents "install --no-save" & waiting+=($!)
    else
        left_out "the clients and agents of npm" "They need Node.js 20 or later with npm."
    fi
fi
for job in "${waiting[@]}"; do
    wait "$job" || exit 1
done
# Agents and packages wait most of the time, so they run side by side; the agents, which take longest, begin first.
exec venv-clients/bin/python -m pytest -m clients Tests/clients --tb=short -n "$processes" --dist loadfile \
    --no-loadscope-reorder ${chosen[@]+"${chosen[@]}"} "$@"
