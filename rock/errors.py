"""The error tree: one root, one branch per boundary, each class explains itself.

Every class carries `status` (the HTTP status a plane answers with), `code` (a stable machine word)
and a message that says what was wrong and what was expected. "The command failed" and "the episode
failed" are *results*, not errors; an error means that rock, its input or its surroundings failed.

    RockError
    ├── ConfigError                 a file, flag or field that a person wrote is unusable
    ├── ModelServiceError
    │   ├── BadRequest              the body or a parameter is not what the endpoint takes
    │   │   └── ContextLengthExceeded   the prompt does not fit; agents compact or stop on it
    │   ├── Unauthorized            no key, or one nobody issued
    │   ├── Forbidden               a valid key for something else
    │   ├── NotFound                no such call, session, lease or path
    │   ├── WorkAborted             a policy gives a lease back: the call is handed out again
    │   ├── LeaseLost               a lease that is over: expired, fenced, or already answered
    │   ├── SessionClosed           the session was revoked; the agent should stop
    │   ├── PayloadTooLarge         the body is over the configured size
    │   ├── BodyTimeout             the body did not arrive in time
    │   ├── QueueFull               admission refused; come back after `retry_after_seconds`
    │   ├── CallFailed              a worker or a bound ended the call without an answer
    │   │   └── DeadlineExceeded    nobody answered the call in time
    │   ├── UpstreamError           a hosted model or engine failed
    │   │   └── UpstreamUnauthorized    it refuses the key that it was given; trying again is no use
    │   ├── JournalError            the journal cannot be written, read or locked
    │   ├── ServiceUnavailable      the service does not answer, or is stopping
    │   └── InvalidTransition       a bug: an event the state table does not list
    ├── SandboxError
    │   ├── ProviderUnavailable     the engine or kernel feature is not there; says the remedy
    │   │   └── ProviderAway        the engine or server does not answer; it may come back
    │   ├── BuildFailed             an image could not be built; has the log
    │   ├── CapacityExceeded        this machine has no room for another sandbox
    │   ├── SandboxDied             the box is gone or its helper stopped answering
    │   ├── SandboxBusy             it is paused, changing its state, or running what must not run
    │   ├── NotSupported            this provider, or this machine, cannot do that
    │   ├── ShellEnded              a kept shell that a script has ended; open a new one
    │   ├── CommandNotFound         the program to run does not exist in the sandbox
    │   ├── CommandRefused          the program cannot be started: permission, format, size, limits
    │   ├── BadWorkdir              the working directory does not exist in the sandbox
    │   ├── BadUser                 the user does not exist in the sandbox
    │   ├── SandboxFileError        a path in the sandbox cannot be read or written
    │   └── UnsafeArchive           a tree tried to leave its directory, or is over the size cap
    └── RolloutError
        ├── TaskError               a task's data or grader is broken
        ├── LedgerError             a run directory cannot be used or does not fit the run
        ├── ExportError             an export directory cannot be used or does not fit the export
        ├── InstallFailed           an agent cannot be installed; has what the installer said last
        ├── EnvironmentFailed       an environment cannot start, does not answer, or raised
        │   └── EnvironmentLost     it crashed and its state cannot be brought back; reset it
        └── RunFailed               a run cannot succeed any more: infrastructure, key, trainer
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import ClassVar, Self, TypeVar

Error = TypeVar("Error", bound="RockError")

MAX_SHOWN = 80
MAX_MESSAGE = 8000
"""In characters."""


class RockError(Exception):
    """Something in rock failed."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__ or "")

    def again(self) -> Self:
        """The same error, for who raises one that is kept: an exception keeps the frames through which it was
        raised, each time more of them, and they often keep it."""
        one = copy(self)
        one.__cause__ = self.__cause__
        return one

    @property
    def message(self) -> str:
        """What was wrong. Whatever it quotes, it stays a message: it is cut at `MAX_MESSAGE`."""
        whole = str(self.args[0])
        if len(whole) <= MAX_MESSAGE:
            return whole
        return f"{whole[:MAX_MESSAGE]}… ({len(whole)} characters)"


class ConfigError(RockError):
    """A configuration value is unusable."""

    status = 400
    code = "config_error"


class ModelServiceError(RockError):
    """ModelService failed."""


class BadRequest(ModelServiceError):
    """The request is not what this endpoint takes."""

    status = 400
    code = "invalid_request"

    def __init__(self, message: str | None = None, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthExceeded(BadRequest):
    """The prompt does not fit the model's context."""

    code = "context_length_exceeded"


class Unauthorized(ModelServiceError):
    """The key is missing or was never issued."""

    status = 401
    code = "invalid_api_key"


class Forbidden(ModelServiceError):
    """The key is valid, but not for this."""

    status = 403
    code = "forbidden"


class NotFound(ModelServiceError):
    """There is no such thing here."""

    status = 404
    code = "not_found"


class LeaseLost(ModelServiceError):
    """The lease is over; its call went to another worker or has ended."""

    status = 409
    code = "lease_lost"


class WorkAborted(ModelServiceError):
    """The policy gives its lease back; its call is handed out again."""

    status = 503
    code = "work_aborted"


class SessionClosed(ModelServiceError):
    """The session is closed; no further call is answered."""

    status = 410
    code = "session_closed"


class PayloadTooLarge(ModelServiceError):
    """The body is larger than this service accepts."""

    status = 413
    code = "payload_too_large"


class BodyTimeout(ModelServiceError):
    """The body of the request did not arrive in time."""

    status = 408
    code = "request_timeout"


class QueueFull(ModelServiceError):
    """The queue is full."""

    status = 429
    code = "queue_full"

    def __init__(self, message: str | None = None, *, retry_after_seconds: int = 5) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class CallFailed(ModelServiceError):
    """The call ended without an answer."""

    status = 502
    code = "call_failed"


class DeadlineExceeded(CallFailed):
    """Nobody answered the call before its deadline."""

    status = 504
    code = "deadline_exceeded"


class UpstreamError(ModelServiceError):
    """The model behind ModelService failed."""

    status = 502
    code = "upstream_error"


class UpstreamUnauthorized(UpstreamError):
    """The model behind ModelService refuses the key it was given."""

    status = 401
    code = "upstream_unauthorized"


class JournalError(ModelServiceError):
    """The journal cannot be used."""

    status = 503
    code = "journal_error"


class ServiceUnavailable(ModelServiceError):
    """The service does not answer."""

    status = 503
    code = "service_unavailable"


class InvalidTransition(ModelServiceError):
    """An event that the state table does not list."""

    code = "invalid_transition"


class SandboxError(RockError):
    """A sandbox failed."""

    code = "sandbox_error"


class ProviderUnavailable(SandboxError):
    """The sandbox provider cannot work on this machine."""

    status = 503
    code = "provider_unavailable"


class ProviderAway(ProviderUnavailable):
    """The sandbox engine or server does not answer."""

    code = "provider_away"


class BuildFailed(SandboxError):
    """An image could not be built."""

    code = "build_failed"

    def __init__(self, message: str | None = None, *, log: str = "") -> None:
        super().__init__(message)
        self.log = log
        """All that the engine said, as far as it is kept."""


class SandboxDied(SandboxError):
    """The sandbox is gone."""

    code = "sandbox_died"

    def __init__(self, message: str | None = None, *, cause: str = "unknown") -> None:
        super().__init__(message)
        self.cause = cause
        """One of `rock.sandbox.command.DeathCause`."""


class ShellEnded(SandboxError):
    """The shell has ended."""

    status = 409
    code = "shell_ended"


class CapacityExceeded(SandboxError):
    """This machine has no room for another sandbox."""

    status = 503
    code = "capacity_exceeded"


class SandboxBusy(SandboxError):
    """The sandbox cannot do this in the state it is in."""

    status = 409
    code = "sandbox_busy"


class NotSupported(SandboxError):
    """The provider cannot do this here."""

    status = 501
    code = "not_supported"


class CommandNotFound(SandboxError):
    """The program does not exist in the sandbox."""

    status = 404
    code = "command_not_found"


class CommandRefused(SandboxError):
    """The sandbox does not start the program."""

    status = 400
    code = "command_refused"


class BadWorkdir(SandboxError):
    """The working directory does not exist in the sandbox."""

    status = 400
    code = "bad_workdir"


class BadUser(SandboxError):
    """The user does not exist in the sandbox."""

    status = 400
    code = "bad_user"


class SandboxFileError(SandboxError):
    """A path in the sandbox cannot be read or written."""

    status = 400
    code = "sandbox_file_error"


class UnsafeArchive(SandboxError):
    """A file tree tried to leave its directory or is too large."""

    status = 400
    code = "unsafe_archive"


class RolloutError(RockError):
    """A rollout failed."""

    code = "rollout_error"


class TaskError(RolloutError):
    """A task's data or grader is broken."""

    status = 400
    code = "task_error"


class LedgerError(RolloutError):
    """The run directory cannot be used."""

    code = "ledger_error"


class ExportError(RolloutError):
    """The export cannot be written or gone on with."""

    code = "export_error"


class InstallFailed(RolloutError):
    """An agent cannot be installed."""

    code = "install_failed"


class EnvironmentFailed(RolloutError):
    """An environment failed."""

    code = "environment_failed"


class EnvironmentLost(EnvironmentFailed):
    """The environment's state is lost; only a reset helps."""

    code = "environment_lost"


class RunFailed(RolloutError):
    """The run cannot succeed any more."""

    code = "run_failed"


def shown(given: str) -> str:
    """What somebody gave, quoted for a message and no longer than one can read."""
    return repr(given) if len(given) <= MAX_SHOWN else f"{given[:MAX_SHOWN]!r}… ({len(given)} long)"


def any_error_for(code: str, message: str) -> RockError:
    """The error of any part that a `code` from the wire stands for; else a RockError."""
    return _by_code(RockError).get(code, RockError)(message)


def error_for(code: str, message: str, *, param: str | None = None) -> ModelServiceError:
    """The error that a `code` from the wire stands for; one nobody knows is a ModelServiceError."""
    found = _by_code(ModelServiceError).get(code, ModelServiceError)
    if issubclass(found, BadRequest):
        return found(message, param=param)
    return found(message)


def _by_code(root: type[Error]) -> dict[str, type[Error]]:
    known = {root.code: root}
    for child in root.__subclasses__():
        known.update(_by_code(child))
    return known


def first_error(error: BaseException) -> BaseException:
    """The first error in a group of groups; the rest only followed from it."""
    nested: Sequence[BaseException] = getattr(error, "exceptions", ())
    return first_error(nested[0]) if nested else error
