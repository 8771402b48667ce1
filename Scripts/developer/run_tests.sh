#!/usr/bin/env bash
# Makes its own Python environment (venv-tests), installs what requirements-test.lock names when that has changed, and
# runs the tests, one file per process at a time. With --quick it runs only the unit tests that are fast. All arguments
# go to pytest. PostgreSQL, the proxies and the pooler that servers of one database stand behind, and the command that
# makes networks, are Debian's: tests of those that are missing are left out with a line. With CI set, they are
# installed where that is allowed.
set -u
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." || exit 1

. Scripts/developer/environment.sh
prepare_environment venv-tests requirements-test.lock
missing=()
for name in caddy haproxy nginx pgbouncer; do
    [ -n "$(PATH="$PATH:/usr/sbin" command -v "$name")" ] || missing+=("$name")
done
[ -n "$(PATH="$PATH:/usr/sbin:/sbin" command -v ip)" ] || missing+=(iproute2)
compgen -G "/usr/lib/postgresql/*/bin/initdb" > /dev/null || missing+=(postgresql)
[ ${#missing[@]} -eq 0 ] || install_in_ci "${missing[@]}"
[ "${1-}" = "--prepare-only" ] && exit 0
# The tests wait for servers and processes at least as long as they compute: two processes per core end sooner.
workers=$("venv-tests/$programs/python" -c 'import os; print(2 * (os.cpu_count() or 1), end="")')
exec "venv-tests/$programs/python" -m pytest -n "$workers" --dist loadfile --no-loadscope-reorder "$@"
