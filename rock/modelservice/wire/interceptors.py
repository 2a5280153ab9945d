"""Interceptors as they travel: `/admin/v1/interceptors`. What they do is in `rules` and `hooks`.

An interceptor is rules, or the name of a hook that the service was started with. No code travels.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Raw, field

from rock.modelservice.wire.base import Count, Input, Wire

On = Literal["request", "response"]
BlockCode = Literal["forbidden", "invalid_request", "context_length_exceeded"]
"""`forbidden` (403) and `invalid_request` (400) are the agent's to deal with; on
`context_length_exceeded` (400) real agents stop or compact."""
Text = Annotated[str, Meta(min_length=1, max_length=100_000)]
Names = Annotated[list[str], Meta(min_length=1)]


class When(Input):
    """All that is given must hold; nothing given always holds."""

    contains: Text | None = None
    """Text of the last message (of a request) or of any choice (of a response)."""
    anywhere_contains: Text | None = None
    """Text of any message of the request."""
    tool: str | None = None
    """The request offers a tool of this name; the response calls it."""
    kind: str | None = None
    dialect: str | None = None
    model: str | None = None
    """As the agent asked for it."""
    turn_at_least: Count | None = None
    """Calls that the session has made before."""


class Rule(Input, tag_field="do", kw_only=True):
    when: When | None = None


class SetField(Rule, tag="set"):
    """Put a sampling parameter, or `extra.NAME`, in place of what was asked."""

    field: str
    value: Raw


class ReplaceField(Rule, tag="replace"):
    """The same, only where the agent gave one."""

    field: str
    value: Raw


class RemoveField(Rule, tag="remove"):
    field: str


class AddTool(Rule, tag="add_tool"):
    """Offer one more tool, in place of any of the same name."""

    tool: Raw


class DropTools(Rule, tag="drop_tools"):
    names: Names


class KeepTools(Rule, tag="keep_tools"):
    """Drop every tool but these."""

    names: Names


class System(Rule, tag="system"):
    """Rewrite the system prompt."""

    text: Text
    place: Literal["replace", "prepend", "append"] = "replace"


class ReplaceText(Rule, tag="replace_text"):
    """In the text of the answer."""

    find: Text
    put: str


class DropToolCalls(Rule, tag="drop_tool_calls"):
    names: Names


class Block(Rule, tag="block"):
    """End the call: the agent gets the error and the message."""

    message: Text
    code: BlockCode = "forbidden"


AnyRule = (
    SetField
    | ReplaceField
    | RemoveField
    | AddTool
    | DropTools
    | KeepTools
    | System
    | ReplaceText
    | DropToolCalls
    | Block
)


class Interceptor(Input):
    """One named hook on requests or on responses. Exactly one of `rules` and `hook`."""

    on: On = "request"
    rules: list[AnyRule] | None = None
    hook: str | None = None
    """`module:function`, one of those that the service's setting `hooks` allows."""
    match: dict[str, str] = field(default_factory=dict[str, str])
    """Session labels that must have these values; `*` is any value. Empty: every session."""
    order: int = 0
    """Lower ones run first, equal ones in the order they were added."""
    on_error: Literal["pass", "fail"] = "pass"
    """What a failing or slow hook does to the call: nothing, or end it (502 `call_failed`)."""
    timeout_seconds: Annotated[float, Meta(gt=0, le=30)] = 1.0


class InterceptorStatus(Wire):
    name: str
    interceptor: Interceptor
    unchanged: int = 0
    edited: int = 0
    blocked: int = 0
    failed: int = 0
    """All since the service started."""


class InterceptorList(Wire):
    interceptors: list[InterceptorStatus]
    """In the order in which they run."""
    hooks: list[str] = field(default_factory=list[str])
    """Those that may be named."""


class InterceptorRemoved(Wire):
    removed: bool
    """False if there was none of that name."""
