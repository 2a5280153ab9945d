"""Stable-Baselines3 learns from a served environment, unchanged. `make test-torch` installs it."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-torch" / "bin" / "python"


@pytest.mark.torch
@pytest.mark.userns
@pytest.mark.timeout(300)
def test_stable_baselines_checks_and_learns_and_sees_every_final_observation() -> None:
    program = Path(__file__).parent / "real" / "learn.py"
    done = subprocess.run(
        [PYTHON, program], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout)
    assert figures["steps"] == 512
    assert figures["ends"] > 0
