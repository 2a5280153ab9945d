"""Errors as Anthropic's endpoints give them: `{"type": "error", "error": {type, message}}`.

The types and statuses are those that its clients act on: wait, retry, compact, stop.
"""

from __future__ import annotations

import msgspec

from rock.errors import ContextLengthExceeded, DeadlineExceeded, RockError, ServiceUnavailable
from rock.modelservice.dialects.base import ErrorReply
from rock.modelservice.dialects.openai_errors import retry_headers

OVERLOADED = 529
"""No registered status; what Anthropic answers when it has no capacity."""
TOO_LONG = "prompt is too long"
"""Clients look for these words and compact."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    OVERLOADED: "overloaded_error",
}


def error_reply(exc: RockError) -> ErrorReply:
    return ErrorReply(_status(exc), error_body(exc), retry_headers(exc))


def error_body(exc: RockError) -> bytes:
    error = {"type": _type(exc), "message": _message(exc)}
    return msgspec.json.encode({"type": "error", "error": error})


def _status(exc: RockError) -> int:
    return OVERLOADED if isinstance(exc, ServiceUnavailable) else exc.status


def _type(exc: RockError) -> str:
    if isinstance(exc, DeadlineExceeded):
        return "timeout_error"
    status = _status(exc)
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def _message(exc: RockError) -> str:
    if isinstance(exc, ContextLengthExceeded) and TOO_LONG not in exc.message.lower():
        return f"{TOO_LONG}: {exc.message}"
    return exc.message
