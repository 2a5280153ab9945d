"""What workers and ModelService say to each other: claims, completions, renewals, the policy."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from rock.modelservice.wire.base import Input, Version, Wire
from rock.modelservice.wire.messages import (
    CanonicalRequest,
    Choice,
    MessageTokens,
    ToolCall,
    Usage,
    VersionSpan,
)

PauseMode = Literal["hold", "drain", "requeue"]
PolicyState = Literal["running", "paused"]


class ClaimRequest(Input):
    worker_id: str
    max_leases: int = 1
    """0 takes nothing: the reply says only that there is something to claim, or that time is up."""
    lease_seconds: float = 60.0
    wait_seconds: float = 20.0
    """Long-poll: how long to wait for the first call before answering with none."""
    policy_version: Version | None = None
    delta: bool = False
    """Leave out of each lease what this worker has from the call it answered before: `omitted`."""


class Parent(Wire):
    """The call that this one continues: its answer is the last message both have in common."""

    call_id: str
    choice: int
    messages: int
    """How many leading messages of the request the parent's prompt and answer cover."""
    token_ids: list[int] | None = None
    """Exact prompt + answer ids of the parent, when the worker that answered it gave them."""


class Prefix(Wire):
    """What earlier deliveries of a call have said: the agent may have read it. The completion must
    begin with it, in text and in ids. A worker that cannot do that fails the call with the code
    `cannot_continue`."""

    spans: int
    """How many partials it came in: the `index` of the next one."""
    content: str = ""
    reasoning_content: str = ""
    tool_calls: list[ToolCall] | None = None
    """As far as they were said; the last one may be without its end."""
    token_ids: list[int] | None = None
    """Null if the spans came without ids."""
    logprobs: list[float] | None = None
    version_spans: list[VersionSpan] | None = None
    prompt_token_ids: list[int] | None = None
    """The prompt that the ids were sampled after, if the first worker gave it."""


class Omitted(Wire):
    """What a delta claim left out: the worker has it, because it answered the parent itself.

    A worker that lost it meanwhile asks `leases` for the whole.
    """

    messages: int = 0
    """The first so many messages of the parent's request come before those of this one."""
    tools: bool = False
    """The tools are the parent's."""
    token_ids: bool = False
    """The parent has ids: its prompt's and its answer's, as this worker gave them."""


class Lease(Wire):
    """A worker's claim on a call. Complete, renew or release it with `lease_id` before it expires."""

    lease_id: str
    call_id: str
    session_id: str
    delivery: int
    """1 for the first hand-out, one more for each further one."""
    expires_in_seconds: float
    request: CanonicalRequest
    parent: Parent | None = None
    labels: dict[str, str] = field(default_factory=dict[str, str])
    kind: str | None = None
    """What the call is for if it is no step of the task: `title`, `compaction`, `subagent`, …"""
    traceparent: str | None = None
    """The call's span, for a worker that goes on with the trace; null where none is recorded."""
    prefix: Prefix | None = None
    """What the answer must begin with, if an earlier delivery said something."""
    omitted: Omitted | None = None
    """Null in a whole lease."""
    streams: bool = False
    """An agent reads the answer as it comes, so that spans are worth sending."""


class ClaimReply(Wire):
    leases: list[Lease]
    policy_state: Literal["running", "paused"] = "running"


class LeasesRequest(Input):
    lease_ids: list[str]


class LeasesReply(Wire):
    """The leases asked for, whole; those that are over are missing."""

    leases: list[Lease]


class Completion(Input):
    """The answer to one lease: `request.n` choices."""

    lease_id: str
    choices: list[Choice]
    prompt_token_ids: list[int] | None = None
    """The whole prompt as the engine saw it, or with `continues_parent` its end."""
    continues_parent: bool = False
    """`prompt_token_ids` are those after the parent's prompt and answer, which come before them."""
    prompt_parts: list[MessageTokens] | None = None
    """Which of the last prompt ids are which message, if the worker knows: of the whole prompt, or of
    those after the parent's prompt and answer."""
    tokenizer: str | None = None
    """Name of one of the service's `tokenizers` that the ids are of: then the answer's text is held
    against them."""
    policy_version: Version | None = None
    """The weights that sampled; None takes the version given at claim."""
    usage: Usage | None = None
    """None is counted from the token ids, and unknown if there are none."""
    untrainable: str | None = None
    """Why the worker knows that its tokens are not what was sampled, such as an engine that lost some."""


class CompleteRequest(Input):
    completions: list[Completion]


class ItemError(Wire):
    status: int
    code: str
    message: str


class ItemResult(Wire):
    """One item of a batch. `error` is null when it counted; the others count whatever this says."""

    lease_id: str
    error: ItemError | None = None
    untrainable: str | None = None
    """Why the answer was stored but must not be trained on (missing or misaligned tokens)."""


class BatchReply(Wire):
    results: list[ItemResult]


class RenewRequest(Input):
    lease_ids: list[str]
    lease_seconds: float = 60.0


class ReleaseRequest(Input):
    lease_ids: list[str]


class Failure(Input):
    lease_id: str
    code: str = "call_failed"
    """`context_length_exceeded` becomes the 400 that agents understand. `cannot_continue`: this
    worker cannot begin with `Lease.prefix`."""
    message: str = "the worker could not answer"


class FailRequest(Input):
    failures: list[Failure]


class PolicyUpdate(Input):
    version: Version | None = None
    state: Literal["running", "paused"] | None = None
    mode: PauseMode = "hold"


class PolicyStatus(Wire):
    version: int | None
    state: Literal["running", "paused"]
    leased: int = 0
    """Leases of the trainer's queue that are out; 0 after a `drain` that was waited out."""
