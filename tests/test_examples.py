"""Every file in `examples/` runs, in a process of its own, and shows what it says it shows."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SHOWN: dict[str, list[str]] = {
    "interceptors.py": [
        "no rules:         I may use: bash, web_search",
        "tools changed:    I may use: bash\n",
        "blocked:          refused (403): ",
        "downloads are not allowed here",
        "other requests:   I may use: bash\n",
        "rules removed:    I may use: bash, web_search",
        "asked with 2 tools, answered with 1 (['offline']); forbidden (['no-downloads'])",
    ],
}


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
async def test_the_example_runs_and_shows_what_it_says(name: str, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / name),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 55)
    text = output.decode()
    assert process.returncode == 0, text
    assert SHOWN[name], "say what this example shows"
    for line in SHOWN[name]:
        assert line in text
