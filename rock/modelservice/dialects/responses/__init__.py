"""OpenAI Responses: `POST /v1/responses`, plain and streamed.

Read `request` (body to canonical request), `items` and `tools`, then `reply` and `output`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from rock.errors import RockError
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
from rock.modelservice.dialects.chat import epoch_seconds
from rock.modelservice.dialects.openai_errors import error_reply
from rock.modelservice.dialects.responses.reply import ResponsesRenderer
from rock.modelservice.dialects.responses.request import asked
from rock.modelservice.wire import CanonicalRequest


class ResponsesDialect:
    name = "responses"
    routes = ("/responses",)

    def __init__(self, now: Callable[[], float] = epoch_seconds) -> None:
        self._now = now
        self.count_routes: Mapping[str, CountRoute] = {
            "/responses/input_tokens": CountRoute(_counted, _count_body)
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

    def error(self, exc: RockError) -> ErrorReply:
        return error_reply(exc)


def _counted(body: bytes, history: History) -> CanonicalRequest:
    return asked(fields_of(body), history).request


def _count_body(tokens: int) -> bytes:
    return msgspec.json.encode({"object": "response.input_tokens", "input_tokens": tokens})
