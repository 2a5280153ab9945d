"""Score what the agent left, trusting nothing that it could have written.

Grading begins when the agent and everything it started are gone. The grader's files come in only
then, into a directory made for this one grading under a name with 128 random bits, so nothing can
lie there waiting. What the command says is believed only as far as `Grader.reward` describes.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rock.errors import BadUser, BadWorkdir, CommandNotFound, SandboxFileError
from rock.rollout.evidence import describe
from rock.rollout.outcome import OutcomeClass
from rock.rollout.placeholders import fill, fill_all, fill_values
from rock.rollout.staging import upload_files
from rock.rollout.task import Grader
from rock.sandbox.base import ExecResult, ExecStatus, Sandbox

CANNOT_RUN = (126, 127)
"""What shells and `env` exit with when the program they should run is not there."""
MAX_REWARD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """A reward, or the class that says why there is none."""

    reward: float | None = None
    cls: OutcomeClass | None = None
    detail: str = ""
    result: ExecResult | None = None


def broken(detail: str, result: ExecResult | None = None) -> Grade:
    return Grade(cls=OutcomeClass.GRADER_BROKEN, detail=detail, result=result)


async def grade(
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
    tests = f"/tmp/rock-grade-{secrets.token_hex(16)}"
    nonce = secrets.token_hex(16)
    reward_file = f"{tests}/out/reward"
    values = {"tests": tests, "workdir": workdir, "reward_file": reward_file}
    await upload_files(sandbox, tests, grader.files, folder=folder, writable="out")
    try:
        result = await sandbox.exec(
            fill_all(grader.command, values),
            timeout_seconds=timeout_seconds or grader.timeout_seconds,
            cwd=fill(grader.cwd, values),
            env=fill_values(grader.env, values),
            user=grader.user,
            stdin=f"{nonce}\n{grader.stdin}".encode(),
        )
    except (CommandNotFound, BadWorkdir, BadUser) as exc:
        return broken(f"the grader cannot start: {exc.message}")
    if (early := _unusable(grader, result)) is not None:
        return early
    if grader.reward == "file":
        return await _from_file(sandbox, reward_file, result)
    if grader.reward == "verdict":
        return _from_verdict(nonce, result)
    return _score(1.0 if result.ok else 0.0, result)


def _score(reward: float, result: ExecResult, detail: str = "") -> Grade:
    return Grade(reward=reward, detail=detail or f"the grader {describe(result)}", result=result)


def _unusable(grader: Grader, result: ExecResult) -> Grade | None:
    """The grade of a run that says nothing about the work, None when it says something."""
    match result.status:
        case ExecStatus.SANDBOX_DIED:
            return Grade(
                cls=OutcomeClass.SANDBOX_DIED,
                detail="the sandbox died under the grader",
                result=result,
            )
        case ExecStatus.TIMED_OUT if grader.timeout_reward is not None:
            return _score(grader.timeout_reward, result)
        case ExecStatus.TIMED_OUT:
            detail = f"the grader {describe(result)}"
            return Grade(cls=OutcomeClass.GRADER_TIMEOUT, detail=detail, result=result)
        case ExecStatus.EXITED if result.exit_code in CANNOT_RUN:
            return broken(f"the grader {describe(result)}: a program it needs is missing", result)
        case _:
            return None


def _from_verdict(nonce: str, result: ExecResult) -> Grade:
    """The last line that begins with the nonce; without one the tests did not run to their end."""
    prefix = f"{nonce} ".encode()
    lines = [line for line in result.stdout.splitlines() if line.startswith(prefix)]
    if not lines:
        return _score(0.0, result, f"the grader gave no verdict and {describe(result)}")
    verdict = lines[-1][len(prefix) :].decode("utf-8", "replace").strip()
    if verdict.startswith("error"):
        return broken(f"the grader reported {verdict}", result)
    return _number(verdict, result, "verdict")


async def _from_file(sandbox: Sandbox, path: str, result: ExecResult) -> Grade:
    try:
        data = await sandbox.read_file(path, max_bytes=MAX_REWARD_BYTES)
    except SandboxFileError as exc:
        return broken(f"no reward file, and the grader {describe(result)}: {exc.message}", result)
    return _number(data.decode("utf-8", "replace").strip(), result, "reward file")


def _number(text: str, result: ExecResult, where: str) -> Grade:
    """A finite number, alone or as `reward` of a JSON object."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return broken(f"{where}: expected a number or a JSON object with 'reward'", result)
    if isinstance(value, dict):
        value = cast("Mapping[str, Any]", value).get("reward")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(value):
        return broken(f"{where}: expected a finite number as the reward", result)
    return _score(float(value), result)


def _finite(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _no_constant(name: str) -> Callable[[], None]:
    raise ValueError(f"{name} is not a number")
