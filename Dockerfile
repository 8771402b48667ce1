# WilmerAI in a container. Docs/User/container.md says how to use it; .ci/container_image.sh builds and tries it.
# The digest is that of the index of all platforms, so that every build begins with the same files.
FROM python:3.13-slim-trixie@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6

# MALLOC_ARENA_MAX: the C library sets memory aside for each of many threads, of which Python runs one at a time.
ENV PYTHONUNBUFFERED=1 \
    PYTHONUTF8=1 \
    MALLOC_ARENA_MAX=2 \
    HOME=/tmp \
    WILMER_CONTAINER=1 \
    WILMER_PORT=5000
WORKDIR /app

COPY requirements.lock requirements-database.lock ./
RUN pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
        --require-hashes -r requirements.lock -r requirements-database.lock

# What nodes may need beyond that: "curl" for CurlCommand, "nodejs npm" for MCP servers that npx starts, packages that
# Python scripts import.
ARG APT_PACKAGES=""
ARG PIP_PACKAGES=""
RUN if [ -n "$APT_PACKAGES" ]; then \
        apt-get update && apt-get install -y --no-install-recommends $APT_PACKAGES && rm -rf /var/lib/apt/lists/*; \
    fi; \
    if [ -n "$PIP_PACKAGES" ]; then pip install --no-cache-dir --root-user-action=ignore $PIP_PACKAGES; fi

COPY LICENSE run_waitress.py server.py ./
COPY Docs Docs
COPY Middleware Middleware
COPY Scripts Scripts
COPY deploy/container deploy/container
# What an empty Public folder is filled with on the first start: a volume that is mounted there hides what was in it.
COPY Public Defaults
# Compiled now, because the user that the program runs as cannot write here.
RUN python -m compileall -q Middleware Scripts deploy run_waitress.py && mkdir Public && chown 1000:1000 Public

# The number of most people's account on Linux, so that a folder of theirs can be mounted as it is.
USER 1000:1000
VOLUME /app/Public
EXPOSE 5000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 CMD ["python", "-m", "deploy.container.health"]
ENTRYPOINT ["python", "-m", "deploy.container.start"]
CMD []
