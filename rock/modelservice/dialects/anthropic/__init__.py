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
    ErrorReply,
    Headers,
    History,
    LocalHandler,
    Parsed,
    fields_of,
    take,
)
from rock.modelservice.dialects.counting import TokenCounter, estimate_tokens


class AnthropicDialect:
    name = "anthropic"
    routes = ("/messages",)

    def __init__(self, count: TokenCounter = estimate_tokens) -> None:
        self._count = count
        self.local_routes: Mapping[str, LocalHandler] = {
            "/messages/count_tokens": self.count_tokens
        }

    def parse(self, body: bytes, headers: Headers, history: History = NO_HISTORY) -> Parsed:
        del headers, history
        fields = fields_of(body)
        stream = bool(take(fields, "stream", bool, "true or false"))
        request = canonical_request(fields)
        return Parsed(request, stream, MessagesRenderer(request.model))

    def count_tokens(self, body: bytes, headers: Headers) -> bytes:
        del headers
        tokens = self._count(canonical_request(fields_of(body)))
        return msgspec.json.encode({"input_tokens": tokens})

    def error(self, exc: RockError) -> ErrorReply:
        return error_reply(exc)
