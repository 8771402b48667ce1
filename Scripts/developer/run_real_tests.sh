#!/usr/bin/env bash
# Runs the tests against real LLM servers (llama.cpp's, LiteLLM's proxy), a real embedding model and a real small LLM in
# an environment of their own (venv-real). The first run downloads the models (84 MB and 93 MB) and builds llama.cpp's
# server, which takes some minutes. What cannot be downloaded is left out, with a line that says so.
#   LLAMA_SERVER  llama.cpp's server, where there is one already
#   LLAMA_MODEL   a larger GGUF model, which is asked as well, and for more
set -u
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." || exit 1

. Scripts/developer/environment.sh
prepare_environment venv-real requirements-real.txt
PATH="$PWD/venv-real/bin:$PATH" exec venv-real/bin/python -m pytest -m real Tests/real "$@"
