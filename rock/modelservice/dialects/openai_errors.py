"""Errors as OpenAI's endpoints give them, for every dialect of that family.

`{"error": {message, type, param, code}}`: clients choose between retry, stop and compact by status,
`code`, and the two headers set here.
"""

from __future__ import annotations

import math

import msgspec

from rock.errors import BadRequest, CallFailed, QueueFull, RockError, ServiceUnavailable
from rock.modelservice.dialects.base import ErrorReply

MAX_RETRY_AFTER_SECONDS = 30
"""One client gives up on a longer one."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def error_reply(exc: RockError) -> ErrorReply:
    return ErrorReply(exc.status, error_body(exc), retry_headers(exc))


def error_body(exc: RockError) -> bytes:
    kind = _TYPES.get(exc.status, "invalid_request_error" if exc.status < 500 else "server_error")
    param = exc.param if isinstance(exc, BadRequest) else None
    error = {"message": exc.message, "type": kind, "param": param, "code": exc.code}
    return msgspec.json.encode({"error": error})


def retry_headers(exc: RockError) -> dict[str, str]:
    """When to come back, or that coming back is no use. Clients of every family read these."""
    if isinstance(exc, QueueFull):
        seconds = max(1, min(MAX_RETRY_AFTER_SECONDS, math.ceil(exc.retry_after_seconds)))
        return {"Retry-After": str(seconds)}
    if isinstance(exc, ServiceUnavailable):
        return {"Retry-After": "1"}
    if isinstance(exc, CallFailed):
        # The call was ended on purpose; an automatic retry would only sample it again.
        return {"x-should-retry": "false"}
    return {}
