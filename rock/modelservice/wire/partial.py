"""What passes between a worker and the service while a lease is out: spans of an answer that is
still being sampled, and news of leases that are over.

A span is sent once per `index`, which counts from 0 over all deliveries of the call; sending the
same span again is harmless, so that a broken connection can be tried again.
"""

from __future__ import annotations

from rock.modelservice.wire.base import Input, Version, Wire
from rock.modelservice.wire.leases import ItemResult, PolicyState


class ToolCallDelta(Input):
    """More of one tool call. The first delta of a call names the function; calls come one after the
    other, so a delta goes on with the last call or begins the next."""

    index: int
    """Place of the call in the answer, from 0."""
    arguments: str = ""
    """More of the JSON text, exactly as the model wrote it."""
    name: str | None = None
    id: str | None = None
    """Minted by ModelService when the worker gives none with the first delta."""


class Partial(Input):
    """The next span of a lease's answer. Give ids and log-probabilities always or never.

    Text and calls may lag behind the tokens (half a character, a tool call that is not to be shown
    yet); what it never did say comes with the completion, which repeats everything.
    """

    lease_id: str
    index: int
    """How many spans the call has already: 0, or `Lease.prefix.spans` and up."""
    content: str = ""
    reasoning_content: str = ""
    tool_calls: list[ToolCallDelta] | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    policy_version: Version | None = None
    """The weights that sampled this span; null takes the version given at claim."""
    prompt_token_ids: list[int] | None = None
    """With the first span, if known: a later delivery is then bound to the same prompt."""


class PartialRequest(Input):
    partials: list[Partial]
    worker_id: str | None = None
    """Whose cancelled leases to report."""


class PartialReply(Wire):
    results: list[ItemResult]
    """An item with `lease_lost` is over: stop sampling for it."""
    cancelled: list[str]
    """Leases of `worker_id` that nobody wants an answer to any more."""
    policy_state: PolicyState = "running"


class CancelledRequest(Input):
    """Long-poll for leases of `worker_id` that ended without its doing."""

    worker_id: str
    after: int = 0
    """`cursor` of the last reply; 0 at first."""
    wait_seconds: float = 20.0


class CancelledReply(Wire):
    lease_ids: list[str]
    """Stop sampling for these: the agent left, the session closed, the deadline came, or a pause
    took the lease back. Some may have been told before."""
    cursor: int
