#!/bin/bash
set -e
[ "$STYLE" = sorted ]
cat > /app/build.py <<'END'
"""Join parts into one file."""

import hashlib
import pathlib
import sys


def build(source, out):
    data = b""
    for part in sorted(pathlib.Path(source).glob("*.part"), key=lambda path: path.name):
        data += part.read_bytes()
        if not data.endswith(b"\n"):
            data += b"\n"
    pathlib.Path(out).write_bytes(data)
    pathlib.Path(out + ".sum").write_text(hashlib.sha256(data).hexdigest() + "\n")


if __name__ == "__main__":
    build(sys.argv[1], sys.argv[2])
END
