"""Join parts into one file."""

import hashlib
import os
import sys


def build(source, out):
    text = ""
    for name in os.listdir(source):
        if name.endswith(".part"):
            with open(os.path.join(source, name)) as part:
                text += part.read().strip("\n")
    checksum = hashlib.sha256(text.encode()).hexdigest()
    with open(out, "w") as file:
        file.write(text + "\n")
    with open(out + ".sum", "w") as file:
        file.write(checksum + "\n")


if __name__ == "__main__":
    build(sys.argv[1], sys.argv[2])
