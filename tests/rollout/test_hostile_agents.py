"""Agents that go for their reward instead of their task: none scores, none escapes being counted, and
the page on rewards lists exactly what is tried."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rock.sandbox.local import LocalProvider
from tests.rollout.exams import Graded, exam, pytest_mount
from tests.rollout.hostile import FILES, FORGED, GRADER, LEFT, NO_SOLUTION, PREPARED, SCORE
from tests.rollout.live import new_provider

pytestmark = pytest.mark.userns

PAGE = Path(__file__).parents[2] / "docs" / "rewards.md"


@pytest.fixture
async def provider() -> AsyncIterator[LocalProvider]:
    async with new_provider() as made:
        yield made


async def prepared(provider: LocalProvider, folder: Path, script: str, **grader: Any) -> Graded:
    seen = await exam(
        provider,
        folder,
        script,
        grader={**GRADER, **grader},
        mounts=[pytest_mount()],
        files=FILES,
    )
    msgspec.json.encode(seen.integrity)  # its record can be written
    return seen


async def left(
    provider: LocalProvider, folder: Path, grader: dict[str, Any], name: str, content: str
) -> Graded:
    (folder / "score.py").write_text(SCORE)
    script = {"|": f"mkfifo {name}", "/dev/zero": f"ln -s /dev/zero {name}"}.get(
        content, f"cat > {name} <<'END'\n{content}\nEND"
    )
    return await exam(provider, folder, script, grader=grader, files={"work.py": NO_SOLUTION})


@pytest.mark.parametrize("name", PREPARED)
async def test_what_an_agent_prepares_scores_nothing_and_counts(
    provider: LocalProvider, tmp_path: Path, name: str
) -> None:
    seen = await prepared(provider, tmp_path, PREPARED[name])
    assert (seen.grade.reward, seen.grade.cls) == (0.0, None), seen.grade
    assert seen.grade.result is None or b"trapped" not in seen.grade.result.stdout


@pytest.mark.parametrize("name", LEFT)
async def test_what_an_agent_leaves_to_spoil_its_grading_scores_nothing_and_counts(
    provider: LocalProvider, tmp_path: Path, name: str
) -> None:
    grader, file, content = LEFT[name]
    seen = await left(provider, tmp_path, grader, file, content)
    assert (seen.grade.reward, seen.grade.cls) == (0.0, None), seen.grade


@pytest.mark.parametrize("name", FORGED)
async def test_what_is_documented_as_not_stopped_does_work(
    provider: LocalProvider, tmp_path: Path, name: str
) -> None:
    grader, content = FORGED[name]
    seen = await left(provider, tmp_path, grader, "work.py", content)
    assert seen.grade.reward == 1.0, seen.grade
