"""An Anthropic Messages body as a canonical request.

Fields without a place in it are kept as sent in `extra["anthropic"]`; `top_k` stands in `extra`
itself, where engines look for it. docs/dialects.md lists every field.
"""

from __future__ import annotations

from msgspec import Raw, Struct

from rock.errors import BadRequest
from rock.modelservice.dialects import canonical, reading
from rock.modelservice.dialects.anthropic import content
from rock.modelservice.dialects.anthropic.tools import tool_choice, tools
from rock.modelservice.dialects.base import take
from rock.modelservice.wire import CanonicalRequest

IGNORED = ("cache_control", "betas")
REFUSED = {
    "container": "containers live on Anthropic's servers",
    "mcp_servers": "Anthropic's servers would have to call them",
    "thread": "the whole conversation must be in `messages`",
}


class _Format(Struct):
    type: str
    schema: Raw


class _OutputConfig(Struct):
    effort: str | None = None
    format: _Format | None = None


def canonical_request(fields: dict[str, Raw]) -> CanonicalRequest:
    """Takes `fields` apart. Raises BadRequest."""
    model = reading.model_name(fields)
    _refuse(fields)
    kept: dict[str, object] = {}
    system, billing = content.system(fields.pop("system", Raw(b"null")))
    if billing is not None:
        kept["x-anthropic-billing-header"] = billing
    functions, besides = tools(take(fields, "tools", list[Raw], "a list of tools") or [])
    if besides:
        kept["tools"] = besides
    choice, parallel = _tool_choice(fields)
    output = _output(fields)
    extra: dict[str, Raw] = {}
    if (top_k := take(fields, "top_k", int, "an integer")) is not None:
        extra["top_k"] = canonical.raw(top_k)
    request = CanonicalRequest(
        model=model,
        messages=[*([system] if system else []), *_messages(fields)],
        tools=functions or None,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        response_format=_response_format(output.format),
        reasoning_effort=output.effort,
        temperature=reading.number(fields, "temperature", 0.0, 2.0),
        top_p=reading.number(fields, "top_p", 0.0, 1.0),
        max_tokens=reading.integer(fields, "max_tokens"),
        stop=take(fields, "stop_sequences", list[str], "a list of strings") or None,
        extra=extra,
    )
    kept.update(fields)
    if kept:
        extra["anthropic"] = canonical.raw(kept)
    return request


def _refuse(fields: dict[str, Raw]) -> None:
    for name in IGNORED:
        fields.pop(name, None)
    for name, why in REFUSED.items():
        if bytes(fields.pop(name, Raw(b"null"))) not in (b"null", b"[]"):
            raise reading.refused(name, "it", why)


def _messages(fields: dict[str, Raw]) -> list[Raw]:
    expected = "a list of messages"
    sent: list[Raw] | None = take(fields, "messages", list[Raw], expected)
    if not sent:
        given = "missing" if sent is None else "empty"
        raise BadRequest(f"messages: {given}; expected {expected}", param="messages")
    return [
        message
        for index, raw in enumerate(sent)
        for message in content.messages(raw, f"messages[{index}]")
    ]


def _tool_choice(fields: dict[str, Raw]) -> tuple[Raw | None, bool | None]:
    raw = fields.pop("tool_choice", Raw(b"null"))
    return (None, None) if bytes(raw) == b"null" else tool_choice(raw)


def _output(fields: dict[str, Raw]) -> _OutputConfig:
    """`output_config`, and the older `output_format` beside it."""
    raw = fields.pop("output_config", Raw(b"null"))
    config = (
        _OutputConfig()
        if bytes(raw) == b"null"
        else reading.read(raw, _OutputConfig, "output_config")
    )
    older = fields.pop("output_format", Raw(b"null"))
    if bytes(older) != b"null" and config.format is None:
        config.format = reading.read(older, _Format, "output_format")
    return config


def _response_format(sent: _Format | None) -> Raw | None:
    if sent is None:
        return None
    if sent.type != "json_schema":
        raise reading.unknown("output_config.format.type", sent.type, sent.schema, "json_schema")
    schema = {"name": "output", "schema": sent.schema, "strict": True}
    return canonical.raw({"type": "json_schema", "json_schema": schema})
