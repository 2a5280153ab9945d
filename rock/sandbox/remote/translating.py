"""The sandbox server's HTTP, without decisions: from queries to values, from values and errors to answers.

What reads a request raises `BadRequest` with the parameter's name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from aiohttp import web

from rock.errors import BadRequest, NotFound, PayloadTooLarge, RockError, SandboxDied
from rock.sandbox import api
from rock.sandbox.command import Overflow

Number = TypeVar("Number", int, float)


def json_answer(value: object, *, status: int = 200) -> web.Response:
    return web.Response(body=api.encode(value), status=status, content_type="application/json")


def refusal(error: RockError, status: int) -> web.Response:
    cause = error.cause if isinstance(error, SandboxDied) else None
    body = api.ErrorBody(code=error.code, message=error.message, cause=cause)
    return json_answer(body, status=status)


def http_error(error: web.HTTPException, max_body_bytes: int) -> RockError:
    """What the library refused by itself, as an error of ours."""
    if error.status == 404:
        return NotFound("there is no such path; GET /openapi.json lists them")
    if error.status == 413:
        return PayloadTooLarge(f"the body is over {max_body_bytes} bytes")
    return BadRequest(f"{error.reason}; GET /openapi.json says what is taken")


def number_in(request: web.Request, name: str, kind: Callable[[str], Number]) -> Number | None:
    """A number from 0 in the query, None where it has none."""
    text = request.query.get(name)
    if text is None:
        return None
    try:
        found = kind(text)
    except ValueError:
        found = None
    if found is None or not 0 <= found < 1e9:
        raise BadRequest(f"{name}: got {text[:40]!r}, expected a number from 0", param=name)
    return found


def path_in(request: web.Request) -> str:
    path = request.query.get("path", "")
    if not path:
        raise BadRequest("path: missing", param="path")
    return path


def mode_in(request: web.Request) -> int:
    try:
        return int(request.query.get("mode", "644"), 8)
    except ValueError:
        raise BadRequest("mode: expected an octal number", param="mode") from None


def overflow_of(given: str) -> Overflow:
    if given == "kill":
        return "kill"
    if given == "truncate":
        return "truncate"
    raise BadRequest(f"overflow: got {given!r}, expected kill or truncate", param="overflow")
