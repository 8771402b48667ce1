# What the scripts next to it share; they source this file from the project's folder.

. Scripts/environment.sh

# Container images often set this. The tests start hundreds of processes, and each would compile all modules anew.
unset PYTHONDONTWRITEBYTECODE

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
