#!/usr/bin/env bash
# Install what the loop benchmark compares with, each in an environment of its own, at fixed versions.
# What cannot be installed is skipped by the benchmark, which says so.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
install() {
    local name=$1 package=$2 program=$3
    [ -x ".bench/$name/bin/$program" ] && return
    "${PYTHON:-python3}" -m venv ".bench/$name" &&
        ".bench/$name/bin/python" -m pip install --quiet --disable-pip-version-check "$package" ||
        echo "peers: $package could not be installed" >&2
}
install litellm 'litellm[proxy]==1.80.0' litellm
install rllm 'rllm-model-gateway==0.1.0' rllm-model-gateway
