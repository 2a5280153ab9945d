"""What travels between ModelService, trainers and harnesses, as typed JSON values.

Everything is a msgspec struct: decoding validates in one pass and names the wrong field
("Expected `int`, got `str` - at `$.leases[0]`"). Agents never see these shapes; they speak a
dialect (`rock.modelservice.dialects`). Messages and tools stay raw JSON, byte for byte as the agent
sent them, and are parsed only by whoever needs to look inside.

Token ids are JSON integers (int32 range, >= 0); log-probabilities are natural logarithms (<= 0) of
the sampling distribution, one per token id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct, UnsetType, field

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
if TYPE_CHECKING:
    OptionalRaw = Raw | None
else:
    # msgspec decodes `Raw | None` as null only; with UnsetType, which no JSON is, it takes any JSON.
    OptionalRaw = Raw | UnsetType

ChainClass = Literal["main", "subagent", "compaction", "auxiliary"]
"""Whose work a chain is: the agent's, a sub-agent's, the shortening of a history, another side job."""
TRAINED: tuple[ChainClass, ...] = ("main", "subagent")
"""The classes that training takes unless told otherwise."""
CloseReason = Literal["finished", "revoked", "limit", "stale", "expired"]
LimitName = Literal["max_calls", "max_prompt_tokens", "max_completion_tokens", "max_wall_seconds"]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
PauseMode = Literal["hold", "drain", "requeue"]
PolicyState = Literal["running", "paused"]


class Wire(Struct, kw_only=True, omit_defaults=True):
    """Base of what the service sends; a newer service may add fields."""


class Input(Wire, forbid_unknown_fields=True):
    """Base of what clients send: an unknown field is an error, not a shrug."""


# --- a call, in canonical form -------------------------------------------------------------


class CanonicalRequest(Wire):
    """One request for a completion, whatever dialect it came in: OpenAI chat, sampling made explicit."""

    model: str
    messages: list[Raw]
    tools: list[Raw] | None = None
    tool_choice: OptionalRaw = None
    parallel_tool_calls: bool | None = None
    response_format: OptionalRaw = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    seed: int | None = None
    n: int = 1
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    reasoning_effort: str | None = None
    extra: dict[str, Raw] = field(default_factory=dict[str, Raw])
    """Top-level fields of the dialect that have no place above, as sent."""


class ToolFunction(Input):
    name: str
    arguments: str
    """JSON text exactly as the model wrote it, valid or not."""


class ToolCall(Input):
    function: ToolFunction
    id: str | None = None
    """Minted by ModelService when the worker gives none; unique in the session."""
    type: Literal["function"] = "function"


class AssistantMessage(Input):
    """What the model said."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class VersionSpan(Input):
    """A run of sampled tokens that the same weights sampled."""

    tokens: int
    policy_version: int | None = None


class Choice(Input):
    """One sampled answer. `token_ids` and `logprobs` (same length) are what was really sampled."""

    message: AssistantMessage
    finish_reason: FinishReason = "stop"
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    version_spans: list[VersionSpan] | None = None
    """Which weights sampled which tokens, in order, if not one version sampled all."""


class Usage(Input):
    """Tokens as the sampling engine counted them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    cost_usd: float | None = None


# --- trainer API: /trainer/v1 ---------------------------------------------------------------


class ClaimRequest(Input):
    worker_id: str
    max_leases: int = 1
    """0 takes nothing: the reply says only that there is something to claim, or that time is up."""
    lease_seconds: float = 60.0
    wait_seconds: float = 20.0
    """Long-poll: how long to wait for the first call before answering with none."""
    policy_version: int | None = None
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
    policy_version: int | None = None
    """The weights that sampled; None takes the version given at claim."""
    usage: Usage | None = None
    """None is counted from the token ids, and unknown if there are none."""


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
    version: int | None = None
    state: Literal["running", "paused"] | None = None
    mode: PauseMode = "hold"


class PolicyStatus(Wire):
    version: int | None
    state: Literal["running", "paused"]
    leased: int = 0
    """Leases of the trainer's queue that are out; 0 after a `drain` that was waited out."""


class ShardPorts(Wire):
    """Control planes of the shards of one service, by number; empty for a service of one process."""

    control_ports: list[int] = field(default_factory=list[int])


class Stats(Wire):
    queued: int
    leased: int
    waiting_workers: int
    open_sessions: int
    answered: int
    failed: int
    cancelled: int
    redelivered: int
    policy: PolicyStatus


# --- rollouts: groups of episodes with rewards and token rows -------------------------------


class Span(Input):
    """Tokens `start:end` of a row and what they are."""

    start: int
    end: int
    kind: Literal["prompt", "sampled"]
    call_id: str
    policy_version: int | None = None


class TokenRow(Input):
    """One training sequence: a chain of calls, each sampled token owned by exactly one row.

    `mask` is 1 where this row owns a sampled token; `logprobs` is 0.0 where it does not apply
    (mask 0). All three lists have one entry per token id.
    """

    chain: str
    token_ids: list[int]
    mask: list[int]
    logprobs: list[float]
    spans: list[Span]
    chain_class: ChainClass = "main"
    branch: str | None = None
    """Why this chain is one of its own (docs/tokens.md lists the reasons); null for the first."""


class TrajectoryCall(Wire):
    """One call of a session, for people and for checks."""

    call_id: str
    state: str
    request: CanonicalRequest
    """As the worker got it: interceptors and the session's pins applied."""
    choices: list[Choice]
    original: CanonicalRequest | None = None
    """As the agent asked it, where interceptors edited it."""
    sampled: list[Choice] = field(default_factory=list[Choice])
    """What the worker had said, where interceptors put `choices` in its place."""
    edited_by: list[str] = field(default_factory=list[str])
    """The interceptors that edited or ended the call."""
    pinned: dict[str, Any] = field(default_factory=dict[str, Any])
    """Values of `request` that a pin or a limit put in place of the agent's."""
    requested: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the agent had asked for in their place."""
    parent: str | None = None
    branch: str | None = None
    """Why this call does not continue the one before it; null if it does."""
    kind: str | None = None
    """What the call is for if it is no step of the task; null if it is one."""
    chain_class: ChainClass = "main"
    untrainable: str | None = None
    policy_version: int | None = None
    usage: Usage | None = None
    deliveries: int = 1
    error: str | None = None
    error_code: str | None = None
    """The code of `rock.errors` that `error` came with."""
    cut_off: bool = False
    """A restart of the service ended the connection on which the agent waited for it."""


class Trajectory(Wire):
    """What one session exports."""

    session_id: str
    labels: dict[str, str]
    calls: list[TrajectoryCall]
    rows: list[TokenRow]
    untrainable: dict[str, int] = field(default_factory=dict[str, int])
    """Reason -> number of calls that no row contains."""
    close_reason: CloseReason | None = None
    limit: LimitName | None = None
    """Which limit closed the session, if one did."""
    limits: SessionLimits | None = None
    pins: Pins | None = None


# --- admin API: /admin/v1 -------------------------------------------------------------------


class SessionLimits(Input):
    """Bounds on one session; null is no bound.

    Those whose names are a `LimitName` end the session with reason `limit`: the agent is told that
    its context is used up, which makes it stop by itself.
    """

    max_calls: Count | None = None
    """Calls, repeated ones that re-attached not counted."""
    max_prompt_tokens: Count | None = None
    """Prompt tokens of all answers together, as their `usage` has them."""
    max_completion_tokens: Count | None = None
    """The same for completion tokens; what is left is also the most that one answer may have."""
    max_wall_seconds: Seconds | None = None
    """From the opening of the session on; calls that wait then end with the same error."""
    max_parked: Count | None = None
    """Calls waiting at the same time; one more is told to come back (429)."""
    call_deadline_seconds: Seconds | None = None
    session_deadline_seconds: Seconds | None = None
    """The session is closed as `expired` after this; its agent hears `session_closed`."""
    max_staleness: Count | None = None
    """Null takes the service's."""


class Pins(Input):
    """Sampling values that override whatever the agent asks for."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    seed: int | None = None


class SessionSpec(Input):
    labels: dict[str, str] = field(default_factory=dict[str, str])
    limits: SessionLimits = field(default_factory=SessionLimits)
    pins: Pins = field(default_factory=Pins)
    backend: str = "queue"
    """Who answers: `queue` is any external trainer; another name is a worker of this service."""


class SessionCreated(Wire):
    session_id: str
    key: str
    base_url: str
    """For `OPENAI_BASE_URL`, with the key in the path."""
    attach_path: str | None = None
    """Where the host's harness lends listeners to this session (`attach`)."""


class SessionClose(Input):
    reason: CloseReason = "finished"


class SessionInfo(Wire):
    session_id: str
    state: Literal["open", "closed"]
    labels: dict[str, str]
    calls: int
    queued: int
    leased: int
    answered: int
    undelivered: int
    failed: int
    cancelled: int
    close_reason: str | None = None
    limit: LimitName | None = None
    """Which limit closed the session, if one did."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    last_call_age_seconds: float | None = None


class Health(Wire):
    """The service answers. `backends` are its own workers: name -> null, or why it cannot work."""

    status: Literal["ok"] = "ok"
    backends: dict[str, str | None] = field(default_factory=dict[str, str | None])


class ErrorBody(Wire):
    code: str
    message: str
    param: str | None = None


class ErrorReply(Wire):
    error: ErrorBody


def encode(value: Struct) -> bytes:
    return msgspec.json.encode(value)
