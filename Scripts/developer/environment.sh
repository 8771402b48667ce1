# Makes Python environments for the scripts beside it, which source this file from the project's folder.

# Container images often set this. The tests start hundreds of processes, and each would compile all modules anew.
unset PYTHONDONTWRITEBYTECODE

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

# prepare_environment FOLDER REQUIREMENTS: make the environment if there is none, and install what the file names if it
# has changed since. A .lock file names everything with hashes; other files build on requirements.txt.
prepare_environment() {
    local folder=$1 requirements=$2 python wanted options=()
    local stamp=$folder/installed-requirements.txt
    if ! "$folder/bin/python" -c '' 2>/dev/null; then
        python=$(find_python)
        [ -n "$python" ] || fail "Python 3.11 or later is needed, and none was found."
        echo "Making the environment $folder ..."
        "$python" -m venv --clear "$folder" || fail "The environment could not be made."
    fi
    case $requirements in
        *.lock) wanted=("$requirements") options=(--require-hashes) ;;
        *) wanted=(requirements.txt "$requirements") ;;
    esac
    if ! cat "${wanted[@]}" | cmp -s - "$stamp"; then
        echo "Installing what $requirements names ..."
        "$folder/bin/python" -m Middleware.cli.installing ${options[@]+"${options[@]}"} \
            -r "$requirements" || fail "The installation failed; the lines above say why."
        cat "${wanted[@]}" > "$stamp"
    fi
}

# install_in_ci PACKAGE...: install packages of Debian, where that is allowed. Nothing is installed on a developer's
# system: only where everything is thrown away afterwards.
install_in_ci() {
    [ -n "${CI:-}" ] && [ "$(id -u)" = 0 ] && [ -e /etc/debian_version ] || return
    echo "Installing $* ..."
    # .ci/run has several scripts install at once, and "apt-get update" waits for no other.
    (
        flock 9
        export DEBIAN_FRONTEND=noninteractive
        apt-get -qq update
        apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"
    ) 9> "${TMPDIR:-/tmp}/wilmerai-apt-get.lock" > /dev/null
}
