#!/usr/bin/env bash
# The same steps as on Linux: environment, installation, start. All arguments go to run_waitress.py.
script=${BASH_SOURCE[0]}
while [ -L "$script" ]; do # it may be called by a link to it
    target=$(readlink "$script")
    case $target in
        /*) script=$target ;;
        *) script=$(dirname -- "$script")/$target ;;
    esac
done
WILMER_START_SCRIPT="bash run_macos.sh" exec bash "$(dirname -- "$script")/run_linux.sh" "$@"
