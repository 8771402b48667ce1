#!/usr/bin/env bash
# Runs CPython for Windows under Wine (Debian: sudo apt install wine): black-box cases of starts, stops, stored data, locks,
# front-ends and back-ends, then the quick tests. --only PART runs those cases alone, --tests ARGUMENT... runs pytest
# there. The first run makes the folder build-windows, which takes a minute and 400 MB; it is brought up to date when
# requirements-test.lock changes. What Wine cannot tell stands in Docs/User/windows.md, and which tests are left out there,
# and why, in Tests/README.md.
set -u
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." || exit 1

. Scripts/developer/environment.sh
prepare_environment venv-tests requirements-test.lock
command -v wine > /dev/null || install_in_ci wine
if ! command -v wine > /dev/null; then
    echo "Left out: the tests on Windows need wine, which is not installed here (Debian: sudo apt install wine)"
    exit 0
fi
lab=build-windows
venv-tests/bin/python Scripts/developer/windows_lab.py "$lab" --test || exit

# tests ARGUMENT...: run pytest there, in two processes.
tests() {
    "$lab/winpy" -m pytest -p no:cacheprovider -n 2 --dist loadfile --no-loadscope-reorder "$@"
}

# cases ARGUMENT...: run conformance cases. Wine has no curl.exe (Tests/README.md). A start takes 5 to 20 s there.
cases() {
    local skip=(--skip nodes/curl)
    [ ! -e "$lab/python/curl.exe" ] || skip=()
    "$lab/winpy" -m compileall -q Middleware run_waitress.py
    WINE_GRACEFUL=1 venv-tests/bin/python .ci/run_conformance.py --python "$PWD/$lab/winpy" -j 2 --start-timeout 120 \
        --timeout 180 ${skip[@]+"${skip[@]}"} "$@"
}

case ${1-} in
    --tests)
        shift
        tests "$@"
        exit
        ;;
    ?*)
        cases "$@"
        exit
        ;;
esac
parts=()
for part in launch cancel memory persistence locks frontend backends; do parts+=(--only "$part/"); done
cases "${parts[@]}"
failed=$?
tests -q --quick || failed=1
exit "$failed"
