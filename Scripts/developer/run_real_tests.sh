#!/usr/bin/env bash
# Runs the tests against real LLM servers (llama.cpp's, LiteLLM's proxy) and a real embedding model in an environment of
# their own (venv-real). The first run downloads the model (84 MB) and builds llama.cpp's server, which takes some
# minutes; LLAMA_SERVER names one that is there already.
set -u
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." || exit 1

. Scripts/developer/environment.sh
prepare_environment venv-real requirements-real.txt
PATH="$PWD/venv-real/bin:$PATH" exec venv-real/bin/python -m pytest -m real Tests/real "$@"
