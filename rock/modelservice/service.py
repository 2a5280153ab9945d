"""ModelService's use cases: ask, intercept, answer. Asynchronous, knows no HTTP.

Everything the two planes and the built-in workers do goes through `ModelService`. Three promises
hold for every method here: what it returns is on disk; it never waits without a bound; a caller
that is cancelled halfway leaves nothing behind that its later retry could not pick up.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rock.modelservice import wire
from rock.modelservice.answer import Answer
from rock.modelservice.settings import ServiceConfig
from rock.types import CallId, Clock, Labels, SessionId, SessionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """A session just opened. The key exists here and nowhere else: the journal keeps its hash."""

    session_id: SessionId
    key: SessionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """One request of an agent, parsed by its dialect."""

    dialect: str
    request: wire.CanonicalRequest
    body: bytes
    """The request as it was sent; not kept once `submit` has returned."""
    idempotency_key: str | None = None
    retry_count: int = 0
    """What the client says: 0 for a first try."""
    stream: bool = False


class Session:
    """One agent's right to call the model."""

    id: SessionId
    spec: wire.SessionSpec
    close_reason: wire.CloseReason | None

    @property
    def open(self) -> bool:
        return self.close_reason is None

    @property
    def labels(self) -> Labels:
        return self.spec.labels


class Call:
    """One request for a completion. Several connections can wait for the same call."""

    id: CallId
    session: Session

    async def answer(self) -> Answer:
        """The answer, once it is on disk.

        Raises the `RockError` that ended the call: `DeadlineExceeded`, `CallFailed`,
        `ContextLengthExceeded`, `SessionClosed`, … Bounded by the call's deadline.
        """
        raise NotImplementedError

    async def ended_within(self, seconds: float) -> bool:
        """Wait at most `seconds` for the call to end; whether it has (then `answer` is immediate)."""
        raise NotImplementedError


class ModelService:
    """The service. Make it with `open`; one per state directory."""

    config: ServiceConfig

    @classmethod
    @asynccontextmanager
    async def open(
        cls, config: ServiceConfig, *, clock: Clock = time.monotonic
    ) -> AsyncGenerator[ModelService]:
        """Recover from the journal, serve, and on the way out flush and unlock it.

        Raises `JournalError` if the journal is locked, newer than this code, corrupt or unwritable.
        """
        raise NotImplementedError
        yield

    def tick(self) -> None:
        """Do what is due now: expire leases, end calls and sessions. Runs by itself several times a
        second; tests that move the clock by hand call it."""
        raise NotImplementedError

    # --- sessions ---

    async def create_session(self, spec: wire.SessionSpec) -> NewSession:
        raise NotImplementedError

    async def close_session(
        self, session_id: SessionId, reason: wire.CloseReason = "finished"
    ) -> wire.SessionInfo:
        """Revoke the session and cancel its open calls at once. Closing twice keeps the first
        reason. Raises `NotFound`."""
        raise NotImplementedError

    def session(self, session_id: SessionId) -> Session:
        """Raises `NotFound`. A closed session is still found; `submit` refuses it."""
        raise NotImplementedError

    def session_info(self, session_id: SessionId) -> wire.SessionInfo:
        """Raises `NotFound`."""
        raise NotImplementedError

    def authenticate(self, key: str) -> Session:
        """The session a key opens, closed or not. Raises `Unauthorized`."""
        raise NotImplementedError

    def on_session_closed(self, callback: Callable[[SessionId], None]) -> None:
        """Call `callback` whenever a session closes, for whatever reason."""
        raise NotImplementedError

    # --- agent side ---

    async def submit(self, session: Session, incoming: Incoming) -> Call:
        """Queue a request, or re-attach a retry to the call it repeats; returns once on disk.

        Every `submit` that returns is followed by exactly one of `sent` or `agent_left`, unless
        `answer` raised. If `submit` itself is cancelled, the service counts that as the agent
        leaving. Raises `SessionClosed`, `QueueFull`, `ContextLengthExceeded` (a limit of the
        session), `BadRequest`, `JournalError`.
        """
        raise NotImplementedError

    def sent(self, call: Call) -> None:
        """The whole answer was written to a connection of the call."""
        raise NotImplementedError

    def agent_left(self, call: Call) -> None:
        """A connection of the call closed before the answer was written to it."""
        raise NotImplementedError

    # --- trainer side ---

    async def claim(self, request: wire.ClaimRequest, *, backend: str = "queue") -> wire.ClaimReply:
        """Lease up to `max_leases` waiting calls, waiting up to `wait_seconds` for the first.

        Built-in workers claim the calls of sessions with their `backend` name; a pause of the
        policy holds back the backend `queue` only.
        """
        raise NotImplementedError

    async def complete(self, request: wire.CompleteRequest) -> wire.BatchReply:
        """Store answers; each item counts or fails on its own (409 `lease_lost`, 404 `not_found`,
        400 `invalid_request`). The same completion twice is accepted twice and stored once."""
        raise NotImplementedError

    async def fail(self, request: wire.FailRequest) -> wire.BatchReply:
        """End calls without an answer; the agent sees the error that `code` names."""
        raise NotImplementedError

    def renew(self, request: wire.RenewRequest) -> wire.BatchReply:
        """Prolong leases; an item error tells the worker to stop sampling."""
        raise NotImplementedError

    def release(self, request: wire.ReleaseRequest) -> wire.BatchReply:
        """Give leases back: their calls are handed out again, before all others."""
        raise NotImplementedError

    async def policy(self, update: wire.PolicyUpdate | None = None) -> wire.PolicyStatus:
        """Read or change policy version and state.

        Pausing stops claims of the trainer's queue. `hold` leaves leases as they are; `drain` also
        waits (bounded, like a long-poll) until none is left; `requeue` takes them back at once.
        """
        raise NotImplementedError

    def stats(self) -> wire.Stats:
        raise NotImplementedError

    # --- rollouts ---

    async def publish_group(self, group: wire.Group) -> wire.PublishReply:
        """Put a finished group up for the trainer; the first group of an id stands."""
        raise NotImplementedError

    async def claim_groups(self, request: wire.RolloutClaimRequest) -> wire.RolloutClaimReply:
        """Lease published groups, waiting up to `wait_seconds` for the first."""
        raise NotImplementedError

    async def ack_groups(self, request: wire.RolloutAckRequest) -> wire.BatchReply:
        """The trainer has consumed these groups; they are not handed out again."""
        raise NotImplementedError

    def group_status(self, group_id: str) -> wire.GroupStatus:
        """Raises `NotFound`."""
        raise NotImplementedError

    # --- export ---

    def trajectory(self, session_id: SessionId) -> wire.Trajectory:
        """Every call of a session and the token rows they make. Raises `NotFound`."""
        raise NotImplementedError
