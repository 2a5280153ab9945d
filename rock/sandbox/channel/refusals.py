"""What a helper refuses, and what keeps us from asking it, as errors of the contract. No I/O."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from rock.errors import (
    BadUser,
    BadWorkdir,
    CommandNotFound,
    CommandRefused,
    SandboxDied,
    SandboxError,
    SandboxFileError,
)
from rock.sandbox.capacity import is_own_trouble, own_trouble
from rock.sandbox.channel import frames
from rock.sandbox.channel.frames import ExecRequest, Refusal, Stage

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def lost(exc: OSError, what: str) -> SandboxError:
    """A sandbox that does not answer is gone, unless it is this process that cannot ask."""
    if is_own_trouble(exc):
        return own_trouble(exc, what)
    return SandboxDied(f"{what}: the sandbox is gone ({exc.strerror or exc})")


def refused(refusal: Refusal, what: str) -> SandboxError:
    """The error for a request about `what` that the helper could not carry out."""
    reason = os.strerror(refusal.errno)
    match refusal.stage:
        case Stage.USER:
            return BadUser(f"{what}: {refusal.text} ({reason})")
        case Stage.CWD:
            return BadWorkdir(f"{what}: {reason}")
        case Stage.PROGRAM if refusal.errno in _NOT_THERE:
            return CommandNotFound(f"{what}: no such program in the sandbox ({reason})")
        case Stage.PROGRAM if refusal.errno == errno.E2BIG:
            bound = frames.MAX_ARGUMENT_BYTES // 1024
            return CommandRefused(
                f"{what}: arguments and environment are too large for the kernel (one may have "
                f"{bound} KiB); pass large text as stdin or as a file"
            )
        case Stage.PROGRAM | Stage.PROCESS:
            return CommandRefused(f"{what}: {refusal.text} ({reason})")
        case Stage.FILE:
            return SandboxFileError(f"{what}: {reason}")
        case Stage.REQUEST | Stage.LISTEN | Stage.LAYER:
            return SandboxError(f"{what}: {refusal.text} ({reason})")


def program_of(request: ExecRequest) -> str:
    return os.fsdecode(request.argv[0]) if request.argv else "(empty command)"


def refused_command(request: ExecRequest, body: bytes) -> SandboxError:
    refusal = frames.parse_refusal(body)
    what = program_of(request)
    if refusal.stage is Stage.CWD:
        what = f"working directory {os.fsdecode(request.cwd)}"
    if refusal.stage is Stage.USER:
        what = f"user {os.fsdecode(request.user)}"
    return refused(refusal, what)


def refusing(what: str) -> Callable[[bytes], SandboxError]:
    """From the body of a refusal to its error, for whoever meets one in another thread."""
    return lambda body: refused(frames.parse_refusal(body), what)
