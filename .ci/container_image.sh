#!/usr/bin/env bash
# Builds the container image and tries it, where podman or buildah is installed and the base image can be had.
set -u
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." || exit 1

image=wilmerai-check
engine=$(command -v podman || command -v buildah) || {
    echo "Left out: neither podman nor buildah is installed."
    exit 0
}
base=$(sed -n 's/^FROM //p' Dockerfile)
"$engine" inspect --type image "$base" > /dev/null 2>&1 || "$engine" pull --quiet "docker.io/library/$base" || {
    echo "Left out: the base image $base is not here and cannot be pulled."
    exit 0
}
"$engine" build --tag "$image" . || exit 1

if [ "$(basename "$engine")" = podman ]; then
    podman run --rm --interactive --read-only --tmpfs /tmp --volume /app/Public --cap-drop ALL --entrypoint python \
        "$image" - < .ci/container_check.py
    status=$?
else
    container=$(buildah from "$image") || exit 1
    buildah run "$container" python - < .ci/container_check.py
    status=$?
    buildah rm "$container" > /dev/null
fi
"$engine" rmi "$image" > /dev/null
exit $status
