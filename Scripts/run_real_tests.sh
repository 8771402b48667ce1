#!/usr/bin/env bash
# Runs the tests against real LLM servers (llama.cpp's, LiteLLM's proxy) in an environment of their own (venv-real).
# The first run builds llama.cpp's server, which takes some minutes; LLAMA_SERVER names one that is there already.
set -eu
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
[ -x venv-real/bin/python ] || python3 -m venv venv-real
venv-real/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-real.txt
PATH="$PWD/venv-real/bin:$PATH" exec venv-real/bin/python -m pytest -m real Tests/real "$@"
