#!/usr/bin/env bash
# Runs the tests that look at the run console in a browser. They get an environment of their own, venv-browser, installed
# anew when requirements-browser.txt has changed. The browser is the system's Chromium or Chrome (WILMER_CHROMIUM names
# another). Without one the tests are left out. With CI set, Debian's Chromium is installed where that is allowed, and
# that there is no browser is an error.
# All arguments go to pytest.
set -u
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." || exit 1

. Scripts/developer/environment.sh

find_browser() {
    local name
    for name in "${WILMER_CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable \
        "/Applications/Chromium.app/Contents/MacOS/Chromium" \
        "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"; do
        [ -n "$name" ] && command -v "$name" && return
    done
}

browser=$(find_browser)
if [ -z "$browser" ]; then
    install_in_ci chromium
    browser=$(find_browser)
fi
if [ -z "$browser" ]; then
    [ -z "${CI:-}" ] || fail "The console is tested in Chromium, and there is none: apt-get install chromium," \
        "or name one with WILMER_CHROMIUM."
    echo "Left out: the pages of the console. They need Chromium: apt-get install chromium"
    exit 0
fi
prepare_environment venv-browser requirements-browser.txt
exec env WILMER_CHROMIUM="$browser" venv-browser/bin/python -m pytest Tests/console --tb=short "$@"
