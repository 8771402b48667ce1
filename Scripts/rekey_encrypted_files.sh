#!/usr/bin/env bash
# Runs rekey_encrypted_files.py in the first Python environment of the install folder: venv, .venv or .venv1. All
# arguments go to it; paths in them are relative to where it is called.
set -u
install=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd) || exit 1

for name in venv .venv .venv1; do
    if [ -f "$install/$name/bin/activate" ]; then
        . "$install/$name/bin/activate"
        exec python "$install/Scripts/rekey_encrypted_files.py" "$@"
    fi
done
echo "ERROR: there is no Python environment (venv, .venv or .venv1) in $install. Start WilmerAI once; that makes it." >&2
exit 1
