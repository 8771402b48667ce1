# Makes Python environments for the start scripts and those in Scripts/developer, which source this file from the
# project's folder.

INTERRUPTED=130
# The folder of an environment's programs; Git for Windows has a bash.
programs=bin
[ "${OS-}" != Windows_NT ] || programs=Scripts

fail() { echo "ERROR: $*" >&2; exit 1; }

# A Python for which the lock files have packages, and that can make environments (Debian has a package of its own for
# that); else one that cannot, else a newer one. What follows then says what to do.
find_python() {
    local name test served="(3, 11) <= sys.version_info < (3, 16)"
    local names=(python3 python3.15 python3.14 python3.13 python3.12 python3.11 python)
    [ "$programs" = bin ] || names+=(py)
    for test in "import ensurepip, venv; sys.exit(not $served)" "sys.exit(not $served)" \
        "sys.exit(sys.version_info < (3, 11))"; do
        for name in "${names[@]}"; do
            # On Windows, python3 may be a link to the Microsoft Store, which says so and fails.
            if "$name" -c "import sys; $test" >/dev/null 2>&1; then
                echo "$name"
                return
            fi
        done
    done
}

# make_environment FOLDER: make it anew, or end with a sentence that says why that cannot be done.
make_environment() {
    local folder=$1 python said
    python=$(find_python)
    [ -n "$python" ] || fail "WilmerAI needs Python 3.11 or later, and none was found."
    echo "Creating the Python environment $folder ..."
    trap 'echo "Interrupted. The next start creates the environment anew." >&2; exit $INTERRUPTED' INT
    # Its own errors are shown in part: Ctrl-C would show a traceback.
    if ! said=$("$python" -m venv --clear "$folder" 2>&1); then
        "$python" -c 'import ensurepip, venv' 2>/dev/null \
            || fail "This Python cannot make environments. On Debian and Ubuntu: sudo apt install python3-venv"
        said=${said##*$'\n'}
        fail "The environment could not be made in $PWD/$folder (${said#Error: })." \
            "Put WilmerAI into a folder that you may write to, with 300 MB of free space."
    fi
    trap - INT
}

# prepare_environment FOLDER REQUIREMENTS: make the environment if there is none, and install what the file names if it
# has changed since. A .lock file names everything with hashes, and packages are not built; other files build on
# requirements.txt.
prepare_environment() {
    local folder=$1 requirements=$2 wanted=("$2") options=(--require-hashes --only-binary :all:)
    local stamp=$folder/installed-${requirements##*/}
    if [[ $requirements != *.lock ]]; then
        wanted=(requirements.txt "$requirements") options=()
    fi
    "$folder/$programs/python" -c '' 2>/dev/null && cat "${wanted[@]}" 2>/dev/null | cmp -s - "$stamp" && return
    # An environment without pip is what Ctrl-C leaves while one is made.
    "$folder/$programs/python" -m pip --version >/dev/null 2>&1 || make_environment "$folder"
    echo "Installing the packages of $requirements (only when it has changed) ..."
    "$folder/$programs/python" -m Middleware.cli.installing ${options[@]+"${options[@]}"} -r "$requirements"
    case $? in
        0) cat "${wanted[@]}" > "$stamp" ;;
        "$INTERRUPTED") exit "$INTERRUPTED" ;;  # it has said so
        *) fail "The installation failed; the lines above say why." ;;
    esac
}
