"""What an attempt asks for: its sandbox, its session, and the time of its grading. No I/O."""

from __future__ import annotations

import hashlib

from rock.modelservice import wire
from rock.rollout.inputs.runfile import RunFile
from rock.rollout.inputs.task import Task
from rock.rollout.records.record import Plan
from rock.sandbox.base import SandboxSpec

SLACK_SECONDS = 30.0
"""On top of a bound that the other side keeps: if it is exceeded, the other side is gone."""


def grade_seconds(task: Task, run: RunFile) -> float:
    """All that grading may take, a fresh sandbox aside."""
    grader = task.grader or run.grader
    own = grader.whole_seconds() if grader else 0.0
    return task.timeouts.grade_seconds or own


def sandbox_spec(plan: Plan, task: Task, run: RunFile, *, agent: bool = True) -> SandboxSpec:
    """What an attempt runs in, or with `agent` unset only its grading. Its lifetime is longer than all
    phases together, for whatever becomes of the harness."""
    limits = run.limits
    seconds = grade_seconds(task, run) + 2 * limits.setup_seconds
    if agent:
        seconds += run.agent.timeout_seconds + (task.timeouts.agent_seconds or 0.0)
        seconds += limits.setup_seconds + 2 * limits.export_seconds
    return SandboxSpec(
        image=task.image or run.image,
        mounts=run.mounts(),
        workdir=task.workdir,
        env=task.env,
        user=task.user,
        limits=run.sandbox_limits(),
        labels={**plan.labels()},
        lifetime_seconds=seconds + 300.0,
    )


def session_spec(
    plan: Plan, run: RunFile, *, backend: str, agent_seconds: float
) -> wire.SessionSpec:
    """The session ends by itself soon after the agent's time."""
    limits, sampling = run.limits, run.sampling
    return wire.SessionSpec(
        labels=plan.labels(),
        limits=wire.SessionLimits(
            max_calls=limits.max_calls,
            max_prompt_tokens=limits.max_prompt_tokens,
            max_completion_tokens=limits.max_completion_tokens,
            max_wall_seconds=limits.max_wall_seconds,
            call_deadline_seconds=limits.call_deadline_seconds,
            session_deadline_seconds=agent_seconds + limits.setup_seconds + SLACK_SECONDS,
            max_staleness=run.schedule.max_staleness,
        ),
        pins=wire.Pins(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            stop=sampling.stop,
            seed=None if run.seed is None else _episode_seed(run.seed, plan),
        ),
        backend=backend,
        tokenizer=run.tokenizer,
    )


def _episode_seed(seed: int, plan: Plan) -> int:
    """One sampling seed per episode, the same in every run of the same seed."""
    text = f"{seed}/{plan.task_id}/{plan.index}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") >> 1
