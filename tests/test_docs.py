"""What the README and the docs tell people to type really works, block by block.

A section's `bash` and `python` blocks run in order in one shell, in a directory that the page's
sections share, with `rock` on the PATH and `examples` beside it; a block whose info string says `file=NAME` is written there
instead. Blocks that only call `make` are checked against the Makefile (its targets have tests of
their own). A local server stands in for the hosted model.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from rock.testing import fake_openai_server

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


def sections_of(page: Path) -> list[str]:
    return re.split(r"^(?=## )", page.read_text(), flags=re.MULTILINE)


def blocks_of(text: str) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(text)]


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


async def run_script(script: Path, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Exit code and output of a section. What it left in the background is ended with it."""
    log = script.with_suffix(".log")
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            "bash",
            str(script),
            cwd=folder,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = await asyncio.wait_for(process.wait(), 120)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
    return code, log.read_text(errors="replace")


@pytest.mark.userns
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
async def test_every_block_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "examples").symlink_to(ROOT / "examples")
    async with fake_openai_server(["It is 42."]) as hosted:
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "LANG": "C.UTF-8",
            "ROCK_STATE_DIR": str(tmp_path / "state"),
            # The "hosted model" of the pages.
            "OPENAI_BASE_URL": hosted.url,
            "OPENAI_API_KEY": "sk-docs",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        for number, section in enumerate(sections_of(page)):
            script = tmp_path / f"section_{number}.sh"
            script.write_text(script_of(blocks_of(section)))
            code, output = await run_script(script, folder, environment)
            title = section.splitlines()[0]
            assert code == 0, f"{page.name}, {title}: exit code {code}\n{output[-4000:]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_that_the_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        target
        for block in blocks_of(page.read_text())
        if block.language == "bash"
        for target in re.findall(r"^make ([a-z-]+)", block.text, re.MULTILINE)
    }
    assert named <= targets
