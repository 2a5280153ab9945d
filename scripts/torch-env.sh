#!/usr/bin/env bash
# The environment with torch for the checks against a real model and a real learner, in $2 with the Python in $1.
# The CPU build will do; about a minute and 1 GB.
set -euo pipefail
python=$1 venv=$2
[ "$venv/.ready" -nt "$0" ] && exit 0
rm -rf "$venv"
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[tokenizers,gym]' torch==2.13.0 stable-baselines3==2.9.2
touch "$venv/.ready"
