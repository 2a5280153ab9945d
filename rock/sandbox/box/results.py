"""How a command ended: from what the helper said to what the contract says. No I/O."""

from __future__ import annotations

import signal

from rock.sandbox.channel import frames
from rock.sandbox.channel.execution import Executed
from rock.sandbox.channel.frames import EndKind, FrameType
from rock.sandbox.command import ExecResult, ExecStatus

_EXIT_CODE_OF_A_KILLED_CHILD = 128 + signal.SIGKILL


def result_of(executed: Executed, elapsed_seconds: float, was_killed: bool = False) -> ExecResult:
    """What the helper said, as the contract says it. `was_killed`: by whoever started the command."""
    status, exit_code, number = ExecStatus.SANDBOX_DIED, None, None
    if executed.reply is not None and executed.reply.type is FrameType.LOST:
        # The command killed its own supervisor; what it left was then killed by PID 1.
        status, number = ExecStatus.SIGNALED, int(signal.SIGKILL)
    elif executed.reply is not None and executed.reply.type is FrameType.RESULT:
        ended = frames.parse_result(executed.reply.body)
        elapsed_seconds = ended.duration_seconds
        status, exit_code, number = _status(ended, executed.over_limit, was_killed)
    return ExecResult(
        status=status,
        exit_code=exit_code,
        signal=number,
        duration_seconds=elapsed_seconds,
        **executed.output.fields(),
    )


def _status(
    ended: frames.Ended, over_limit: bool, was_killed: bool
) -> tuple[ExecStatus, int | None, int | None]:
    """An out-of-memory kill is told from the box's own counter, and from nothing else."""
    if over_limit:
        return ExecStatus.OUTPUT_LIMIT, None, None
    if ended.kind is EndKind.TIMED_OUT:
        return ExecStatus.TIMED_OUT, None, None
    if ended.kind is EndKind.SIGNALED:
        if ended.oom_kills and ended.value == signal.SIGKILL:
            return ExecStatus.OOM_KILLED, None, None
        return ExecStatus.SIGNALED, None, ended.value
    if ended.kind is EndKind.KILLED:
        # By us, or with the box, whose end ends every command.
        if was_killed:
            return ExecStatus.SIGNALED, None, int(signal.SIGKILL)
        return ExecStatus.SANDBOX_DIED, None, None
    if ended.oom_kills and ended.value == _EXIT_CODE_OF_A_KILLED_CHILD:
        return ExecStatus.OOM_KILLED, None, None
    return ExecStatus.EXITED, ended.value, None
