#!/usr/bin/env bash
# Install what the benchmarks compare with, each in an environment of its own, at fixed versions: all, or
# those that are named. What cannot be installed is skipped by the benchmark, which says so.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
wanted=("$@")
install() {
    local name=$1 program=$2
    shift 2
    [ "${#wanted[@]}" -eq 0 ] || [[ " ${wanted[*]} " == *" $name "* ]] || return
    [ -x ".bench/$name/bin/$program" ] && return
    "${PYTHON:-python3}" -m venv ".bench/$name" &&
        ".bench/$name/bin/python" -m pip install --quiet --disable-pip-version-check "$@" ||
        echo "peers: $1 could not be installed" >&2
}
install litellm litellm 'litellm[proxy]==1.80.0'
install rllm rllm-model-gateway 'rllm-model-gateway==0.1.0'
install swerex swerex-remote 'swe-rex==1.4.0' 'aiohttp>=3,<4'
