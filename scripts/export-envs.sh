#!/usr/bin/env bash
# Environments with the real packages that exports are made for, under $1 (default .venv-export):
# each apart, since their Pythons and dependencies do not fit together. About two minutes and 2 GB.
# What cannot be made here is named, and its test is skipped.
set -uo pipefail
root=${1:-.venv-export}

say() { echo "export-envs: $*"; }

# The first Python of at least 3.$1 that really starts; the system's own where it will do, because
# prebuilt packages (torch for the CPU) are most likely there for that one.
python_from() {
    local candidate
    for candidate in python3 python3.11 "${PYTHON312:-}" python3.12 python3.13 "$HOME"/.pyenv/versions/3.1[23]*/bin/python; do
        [ -n "$candidate" ] && "$candidate" -c "import sys; sys.exit(sys.version_info < (3, $1))" 2>/dev/null &&
            echo "$candidate" && return
    done
    return 1
}

# build NAME MINOR PIP-ARGUMENTS...: an environment, once.
build() {
    local name=$1 minor=$2 python
    shift 2
    [ -e "$root/$name/.ready" ] && { say "$name is there"; return; }
    python=$(python_from "$minor") || { say "$name: no Python 3.$minor here (set PYTHON312)"; return; }
    rm -rf "${root:?}/$name"
    if "$python" -m venv "$root/$name" && "$root/$name/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; then
        touch "$root/$name/.ready"
        say "$name: ready ($("$root/$name/bin/python" -V))"
    else
        say "$name: could not be installed"
    fi
}

build harbor 12 harbor==0.26.0
build hf 11 datasets==5.2.0
# verl asks for a whole GPU stack; its data protocol needs only these. torch: the CPU build will do.
build verl 11 torch==2.13.0 numpy==2.4.6 tensordict==0.15.3 pandas==3.1.1 ray==2.60.0 \
    omegaconf==2.4.0 transformers==5.24.0 codetiming==1.4.0 packaging
[ -e "$root/verl/.ready" ] && "$root/verl/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps verl==0.9.1
exit 0
