#!/usr/bin/env bash
# The environment with torch for the check against a real model, in $2 with the Python in $1.
# The CPU build will do; about a minute and 1 GB.
set -euo pipefail
python=$1 venv=$2
[ -e "$venv/.ready" ] && exit 0
rm -rf "$venv"
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[tokenizers]' torch==2.13.0
touch "$venv/.ready"
