#!/usr/bin/env bash
# Make the virtual environment in $2 with the Python in $1: rock (editable), its extras and the test tools.
set -euo pipefail
python=$1 venv=$2
"$python" - <<'PY' || { echo "rock needs Python 3.11 or newer; set PYTHON=/path/to/python3.11 (now: $("$python" -V 2>&1))" >&2; exit 1; }
import sys
sys.exit(sys.version_info < (3, 11))
PY
echo "Setting up $venv; the first time this takes a minute or two." >&2
if [ ! -x "$venv/bin/python" ]; then
    "$python" -m venv "$venv" || {
        rm -rf "$venv"
        echo "Could not make a virtual environment. On Debian or Ubuntu: apt-get install python3-venv" >&2
        exit 1
    }
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
