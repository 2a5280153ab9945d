"""What the README and the docs tell people to type really works, block by block.

A page's `bash` and `python` blocks run in order in one shell, in an empty directory, with `rock` on
the PATH; a block whose info string says `file=NAME` is written there first. Blocks that only call
`make` are checked against the Makefile (its targets have tests of their own).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    info: str
    text: str

    @property
    def file(self) -> str | None:
        found = re.search(r"file=(\S+)", self.info)
        return found[1] if found else None

    @property
    def only_make(self) -> bool:
        lines = [line for line in self.text.splitlines() if line.strip()]
        return self.language == "bash" and all(line.startswith("make ") for line in lines)


def blocks_of(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text())]


def script_of(blocks: list[Block]) -> str:
    """One shell script: files are written where they stand, python blocks run from a file."""
    parts = ["set -euo pipefail"]
    for number, block in enumerate(blocks):
        name = block.file or (f"block_{number}.py" if block.language == "python" else None)
        if name:
            parts.append(f"cat > {name} <<'ROCK_DOCS_END'\n{block.text}ROCK_DOCS_END")
        if block.language == "python" and not block.file:
            parts.append(f"python {name}")
        if block.language == "bash" and not block.file and not block.only_make:
            parts.append(block.text)
    return "\n".join(parts) + "\n"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    blocks = [
        block
        for block in blocks_of(page)
        if block.file or block.language == "python" or block.language == "bash"
    ]
    script = tmp_path / "page.sh"
    script.write_text(script_of(blocks))
    folder = tmp_path / "work"
    folder.mkdir()
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "ROCK_STATE_DIR": str(tmp_path / "state"),
    }
    with (tmp_path / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            ["bash", str(script)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=150)
        finally:
            # Services that a page starts with `&` are in the shell's process group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        output.seek(0)
        assert code == 0, f"{page.name} stopped with {code}:\n{output.read()[-4000:]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_that_the_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        target
        for block in blocks_of(page)
        if block.language == "bash"
        for target in re.findall(r"^make ([a-z-]+)", block.text, re.MULTILINE)
    }
    assert named <= targets
