#!/usr/bin/env bash
# Runs black-box cases on CPython for Windows, under Wine (Debian: sudo apt install wine): starts, stops, stored data, locks,
# front-ends and back-ends, or those that are named (--only PART). The first run makes the folder build-windows, which takes
# a minute and 400 MB; it is brought up to date when requirements-test.lock changes. --tests ARGUMENT... runs pytest there.
# What Wine cannot tell stands in Docs/User/windows.md.
set -u
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." || exit 1

. Scripts/developer/environment.sh
prepare_environment venv-tests requirements-test.lock
command -v wine > /dev/null || install_in_ci wine
if ! command -v wine > /dev/null; then
    echo "Left out: there is no wine here"
    exit 0
fi
lab=build-windows
venv-tests/bin/python Scripts/developer/windows_lab.py "$lab" --test || exit
if [ "${1-}" = "--tests" ]; then
    shift
    exec "$lab/winpy" -m pytest -p no:cacheprovider "$@"
fi
"$lab/winpy" -m compileall -q Middleware run_waitress.py
cases=("$@")
if [ $# -eq 0 ]; then
    for part in launch cancel memory persistence locks frontend backends; do cases+=(--only "$part/"); done
fi
# Wine has no curl.exe. A start takes 5 to 20 s there.
WINE_GRACEFUL=1 exec venv-tests/bin/python .ci/run_conformance.py --python "$PWD/$lab/winpy" -j 2 --start-timeout 120 \
    --timeout 180 --skip nodes/curl "${cases[@]}"
