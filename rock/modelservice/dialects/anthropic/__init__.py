"""Anthropic Messages: `POST /v1/messages`, plain and streamed, and `/v1/messages/count_tokens`.

Read `request` (body to canonical request), `content` (blocks), `tools`, then `reply` and `errors`.
Version and beta headers and `?beta=true` are accepted and change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rock.errors import RockError
from rock.modelservice.dialects.anthropic.errors import error_reply
from rock.modelservice.dialects.anthropic.reply import MessagesRenderer
from rock.modelservice.dialects.anthropic.request import canonical_request
from rock.modelservice.dialects.base import (
    NO_HISTORY,
    CountRoute,
    ErrorReply,
    Headers,
    History,
    Parsed,
    fields_of,
    take,
)
from rock.modelservice.wire import CanonicalRequest


class AnthropicDialect:
    name = "anthropic"
    routes = ("/messages",)

    def __init__(self) -> None:
        self.count_routes: Mapping[str, CountRoute] = {
            "/messages/count_tokens": CountRoute(_counted, _count_body)
        }

    def parse(self, body: bytes, headers: Headers, history: History = NO_HISTORY) -> Parsed:
        del headers, history
        fields = fields_of(body)
        stream = bool(take(fields, "stream", bool, "true or false"))
        request = canonical_request(fields)
        return Parsed(request, stream, MessagesRenderer(request.model))

    def error(self, exc: RockError) -> ErrorReply:
        return error_reply(exc)


def _counted(body: bytes, history: History) -> CanonicalRequest:
    del history
    return canonical_request(fields_of(body))


def _count_body(tokens: int) -> bytes:
    return msgspec.json.encode({"input_tokens": tokens})
