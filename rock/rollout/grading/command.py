"""The grader that is a command in the sandbox.

Its files come in only now, into a directory made for this one grading under a name with 128 random
bits, so nothing can lie there waiting. It has a home and a temporary directory of its own there:
start-up files, user packages and compiled modules that the agent left are not looked at. What it
says is believed only as far as `Grader.reward` describes.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from rock.errors import BadUser, BadWorkdir, CommandNotFound, SandboxFileError
from rock.rollout.grading.clearing import remove_paths
from rock.rollout.grading.scores import (
    Grade,
    broken,
    from_junit,
    from_pytest,
    from_text,
    from_verdict,
    scored,
    unusable,
)
from rock.rollout.inputs.graders import Grader
from rock.rollout.placeholders import fill, fill_all, fill_values
from rock.rollout.records.evidence import describe
from rock.rollout.staging import make_writable, upload_files
from rock.sandbox.base import ExecResult, ExecStatus, Sandbox

MAX_REWARD_BYTES = 64 * 1024
MAX_JUNIT_BYTES = 16 * 1024 * 1024
OWN_PLACES = ("out", "home", "tmp")


async def grade_by_command(
    sandbox: Sandbox,
    grader: Grader,
    *,
    workdir: str,
    folder: Path,
    timeout_seconds: float | None = None,
) -> Grade:
    """Run the grader over `workdir`. `folder` is what the grader's `source` files are relative to.

    Raises `SandboxDied` and what else is the box's own failure; everything else is a `Grade`.
    """
    own = f"/tmp/rock-grade-{secrets.token_hex(16)}"
    nonce = secrets.token_hex(16)
    reward_file = f"{own}/out/reward"
    tests = grader.tests_at or own
    values = {"tests": tests, "workdir": workdir, "reward_file": reward_file}
    if grader.tests_at is not None:
        await remove_paths(sandbox, [grader.tests_at, *grader.stale])
        await upload_files(sandbox, tests, grader.files, folder=folder)
        await upload_files(sandbox, own, {}, folder=folder, writable=OWN_PLACES)
    else:
        await remove_paths(sandbox, grader.stale)
        await upload_files(sandbox, own, grader.files, folder=folder, writable=OWN_PLACES)
    for place in grader.stale:
        await make_writable(sandbox, place)
    try:
        result = await sandbox.exec(
            fill_all(grader.command, values),
            timeout_seconds=timeout_seconds or grader.timeout_seconds,
            cwd=fill(grader.cwd, values),
            env=clean_environment(own) | fill_values(grader.env, values),
            user=grader.user,
            stdin=f"{nonce}\n{grader.stdin}".encode(),
        )
    except (CommandNotFound, BadWorkdir, BadUser) as exc:
        return broken(f"the grader cannot start: {exc.message}")
    return unusable(grader, result) or await _read(sandbox, grader, nonce, reward_file, result)


def clean_environment(own: str) -> dict[str, str]:
    """Variables that keep programs from looking at what the agent may have prepared for them."""
    return {
        "HOME": f"{own}/home",
        "TMPDIR": f"{own}/tmp",
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
    }


async def _read(
    sandbox: Sandbox, grader: Grader, nonce: str, reward_file: str, result: ExecResult
) -> Grade:
    match grader.reward:
        case "file":
            return await _from_file(sandbox, [reward_file, *grader.reward_files], result)
        case "verdict":
            return from_verdict(nonce, result)
        case "junit":
            return from_junit(grader, await _junit(sandbox, reward_file), result)
        case "pytest":
            return from_pytest(grader, result)
        case "exit_code":
            return scored(1.0 if result.ok else 0.0, result)


async def _junit(sandbox: Sandbox, path: str) -> bytes | None:
    try:
        return await sandbox.read_file(path, max_bytes=MAX_JUNIT_BYTES)
    except SandboxFileError:
        return None


async def _from_file(sandbox: Sandbox, paths: list[str], result: ExecResult) -> Grade:
    if result.status is not ExecStatus.EXITED:
        # The work may have written the reward and then killed the one that would have written another.
        return broken(f"the grader {describe(result)}, so what it wrote does not count", result)
    reason = ""
    for path in paths:
        try:
            data = await sandbox.read_file(path, max_bytes=MAX_REWARD_BYTES)
        except SandboxFileError as exc:
            reason = reason or exc.message
            continue
        return from_text(data.decode("utf-8", "replace").strip(), result, "reward file")
    return broken(f"no reward file, and the grader {describe(result)}: {reason}", result)
