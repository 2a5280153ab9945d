"""Leases made by hand, for one conversation that goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from rock.modelservice.render import ChatTokenizer, load
from rock.modelservice.wire import CanonicalRequest, Lease, Parent
from tests.modelservice.render.families import family_directory

Message = dict[str, Any]
TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]


def chat_of(family: str) -> ChatTokenizer:
    return load(family_directory(family))


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def says(text: str | None, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


def runs(arguments: str, text: str | None = None, **more: Any) -> Message:
    call = {"id": "call12345", "type": "function"}
    call |= {"function": {"name": "run", "arguments": arguments}}
    return says(text, tool_calls=[call], **more)


def result(text: str) -> Message:
    return {"role": "tool", "tool_call_id": "call12345", "content": text}


def lease(
    messages: Sequence[Message],
    *,
    after: Sequence[int] | None = None,
    covers: int = 0,
    tools: list[Any] | None = None,
    **fields: Any,
) -> Lease:
    """A lease on these messages; with `covers` it has a parent, whose ids are `after`."""
    request = CanonicalRequest(
        model="m",
        messages=[_raw(message) for message in messages],
        tools=None if tools is None else [_raw(tool) for tool in tools],
        **fields,
    )
    parent = None
    if covers:
        ids = None if after is None else list(after)
        parent = Parent(call_id="s.0", choice=0, messages=covers, token_ids=ids)
    return Lease(
        lease_id="s.1.1",
        call_id="s.1",
        session_id="s",
        delivery=1,
        expires_in_seconds=60.0,
        request=request,
        parent=parent,
    )


def _raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())
