#!/usr/bin/env bash
# Runs the tests that look at the run console in a browser. They get an environment of their own, venv-browser, installed
# anew when requirements-browser.txt has changed. The browser is the system's Chromium (WILMER_CHROMIUM names another).
# Without one the tests are left out; with CI or WILMER_ALL_BROWSERS=1 that is an error.
# All arguments go to pytest.
set -u
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." || exit 1

. Scripts/developer/environment.sh

browser=${WILMER_CHROMIUM:-$(command -v chromium || command -v chromium-browser)}
if [ -z "$browser" ]; then
    [ -z "${CI:-}${WILMER_ALL_BROWSERS:-}" ] || fail "Chromium is needed, and it was not found: apt-get install chromium"
    echo "Left out: the pages of the console. They need Chromium: apt-get install chromium"
    exit 0
fi
prepare_environment venv-browser requirements-browser.txt
exec env WILMER_CHROMIUM="$browser" venv-browser/bin/python -m pytest Tests/console --tb=short -n 2 --dist loadfile "$@"
