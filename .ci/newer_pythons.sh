#!/usr/bin/env bash
# Runs tests under newer Pythons than that of venv-tests: those of processes, of HTML, of the start and of the lock files
# (each environment has the oldest pip of its Python) under the newest.
# With --deep, all quick tests under each, and the conformance cases under the newest on Waitress and Eventlet.
#
# ../shared/pythons/get.sh brings the newest patch releases, where it lies beside the repository and the system is
# Debian. Otherwise pythonVERSION on PATH is taken, or one of pyenv. What is nowhere is left out, with a line. All that
# this makes is in build-pythons: remove a version's folder there to get a newer patch release.
set -u
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." || exit 1
. Scripts/developer/environment.sh

versions=(3.12 3.13 3.14 3.15)
newest=3.15
folder=build-pythons
failed=()

# bring VERSION: bring this Python here, where that can be done and has not been done.
bring() {
    [ "$1" != 3.12 ] && [ -e ../shared/pythons/get.sh ] && [ -e /etc/debian_version ] || return 0
    "$folder/$1/python" -c '' 2> /dev/null || bash ../shared/pythons/get.sh "$1" "$folder/$1" >&2
}

# python_of VERSION: print the command of this Python; nothing without one.
python_of() {
    local candidate
    for candidate in "$folder/$1/python" "python$1" "$HOME/.pyenv/versions/$1".*/bin/python; do
        if "$candidate" -c "import sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2> /dev/null; then
            echo "$candidate"
            return
        fi
    done
}

# prepare VERSION: make its environment, with what requirements-test.lock names now.
prepare() {
    local venv=$folder/$1/venv python pip
    bring "$1" || return
    python=$(python_of "$1")
    [ -n "$python" ] || return 0
    # The Python of get.sh brings no pip, and venv fails without it.
    if ! "$venv/bin/python" -m pip --version > /dev/null 2>&1 && ! "$python" -m venv --clear "$venv" > /dev/null 2>&1; then
        "$python" -m venv --clear --without-pip "$venv" || return
        venv-tests/bin/python -m pip download --quiet --no-deps --dest "$folder/pip" pip || return
        pip=$(ls -t "$folder"/pip/pip-*.whl | head -n 1)
        "$venv/bin/python" "$pip/pip" install --quiet --no-compile "$pip" || return
    fi
    (prepare_environment "$venv" requirements-test.lock)
}

# under VERSION NAME ARGUMENT...: run the Python of this version's environment.
under() {
    local version=$1 name=$2
    shift 2
    if [ -z "$(python_of "$version")" ]; then
        echo "Left out: $name under Python $version, which is not installed here"
        return
    fi
    echo "== $name under $("$folder/$version/venv/bin/python" --version)"
    "$folder/$version/venv/bin/python" "$@" || failed+=("$name under Python $version")
}

tests=(-m pytest -n "$(nproc 2> /dev/null || echo 2)" --dist loadfile --no-loadscope-reorder -q -p no:cacheprovider)
mkdir -p "$folder"
case ${1-} in
    "")
        prepare "$newest" || failed+=("environment of Python $newest")
        under "$newest" "processes, HTML, the start and lock files" "${tests[@]}" Tests/workflows/tools/scripts \
            Tests/workflows/tools/web/test_html_text.py Tests/cli/test_prerequisites.py Tests/cli/test_launchers.py \
            Tests/cli/test_start_cost.py Tests/scripts/test_lock_installation.py
        ;;
    --deep)
        for version in "${versions[@]}"; do
            prepare "$version" || failed+=("environment of Python $version")
            under "$version" "quick tests" "${tests[@]}" --quick
            under "$version" "lock files" "${tests[@]}" Tests/scripts/test_lock_installation.py
        done
        under "$newest" "conformance on Waitress" .ci/run_conformance.py
        under "$newest" "conformance on Eventlet" .ci/run_conformance.py --launcher run_eventlet.py
        ;;
    *)
        echo "usage: .ci/newer_pythons.sh [--deep]" >&2
        exit 2
        ;;
esac
[ ${#failed[@]} -eq 0 ] || printf 'FAILED: %s\n' "${failed[@]}"
exit ${#failed[@]}
