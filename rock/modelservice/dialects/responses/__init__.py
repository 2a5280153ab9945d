"""OpenAI Responses: `POST /v1/responses`, plain and streamed.

Read `request` (body to canonical request), `items` and `tools`, then `reply` and `output`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from rock.errors import RockError
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
from rock.modelservice.dialects.chat import epoch_seconds
from rock.modelservice.dialects.counting import TokenCounter, estimate_tokens
from rock.modelservice.dialects.openai_errors import error_reply
from rock.modelservice.dialects.responses.reply import ResponsesRenderer
from rock.modelservice.dialects.responses.request import asked


class ResponsesDialect:
    name = "responses"
    routes = ("/responses",)

    def __init__(
        self, now: Callable[[], float] = epoch_seconds, count: TokenCounter = estimate_tokens
    ) -> None:
        self._now = now
        self._count = count
        self.local_routes: Mapping[str, LocalHandler] = {
            "/responses/input_tokens": self.count_tokens
        }

    def parse(self, body: bytes, headers: Headers, history: History = NO_HISTORY) -> Parsed:
        del headers
        fields = fields_of(body)
        stream = bool(take(fields, "stream", bool, "true or false"))
        fields.pop("stream_options", None)  # padding against eavesdroppers; nothing to do
        sent = asked(fields, history)
        renderer = ResponsesRenderer(
            model=sent.request.model,
            now=self._now,
            targets=sent.targets,
            previous_response_id=sent.previous_response_id,
            parallel_tool_calls=sent.request.parallel_tool_calls is not False,
            sealed=sent.sealed,
        )
        return Parsed(sent.request, stream, renderer)

    def count_tokens(self, body: bytes, headers: Headers) -> bytes:
        del headers
        request = asked(fields_of(body), NO_HISTORY).request
        counted = {"object": "response.input_tokens", "input_tokens": self._count(request)}
        return msgspec.json.encode(counted)

    def error(self, exc: RockError) -> ErrorReply:
        return error_reply(exc)
