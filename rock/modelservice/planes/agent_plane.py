"""What agents reach: OpenAI's paths, a session per caller, and a wait that stays alive.

Who is asking is decided before the body is read. The key is in the path (`/s/<key>/v1/...`, with
any API key) or is the API key (`Authorization: Bearer`, `x-api-key`). On a listener bound to a
session any key or none will do, but a valid key of another session is refused.

A plain reply waits for its answer without a task (`_PlainReply`); a stream has one (`call_stream`).

How one call can end, and who hears of it:

    refused, failed      status in the dialect's shape, or an error event once streaming
    answered, written    service.sent
    answered, not written, or the agent left while waiting      service.agent_left
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from urllib.parse import unquote

import msgspec

from rock.errors import (
    BadRequest,
    ContextLengthExceeded,
    Forbidden,
    NotFound,
    RockError,
    SessionClosed,
    Unauthorized,
)
from rock.modelservice import dialects
from rock.modelservice.dialects import CountRoute, Dialect, ErrorReply, Exchange, Renderer
from rock.modelservice.dialects.auxiliary import Kind, classify, never_asks_twice
from rock.modelservice.planes.call_stream import CallStream, for_agents
from rock.modelservice.planes.counted import HEADER, TokenCount
from rock.modelservice.planes.plane import EventStream, Outcome, Parked, Reply, Request
from rock.modelservice.service.service import (
    AgentRequest,
    Answer,
    Call,
    ModelService,
    Seen,
    Session,
)
from rock.modelservice.telemetry.logs import about
from rock.modelservice.telemetry.tracing import HEADERS, NO_TRACE, trace_of

log = logging.getLogger(__name__)

MAX_KEY_CHARS = 256


class AgentPlane:
    """Handlers of one listener. `bound` is the session that its connections belong to, if one."""

    def __init__(
        self, service: ModelService, count: TokenCount, *, bound: Session | None = None
    ) -> None:
        self._service = service
        self._count = count
        self._bound = bound
        self._config = service.config

    def handle(self, request: Request) -> Outcome:
        """Never raises a RockError: errors are replies in the dialect's shape."""
        key, route = split_key(request.path)
        dialect = dialects.spoken(route, request.headers)
        try:
            session = self._session(key, request.headers)
            if route in dialects.BY_ROUTE or route in dialects.COUNTED:
                if request.method != "POST":
                    return not_allowed(dialect, request, "POST")
                if request.body is None or route in dialects.COUNTED:
                    return self._later(session, dialect, request, route)
                return self._complete(session, dialect, request, request.body)
            if route == "/models" or route.startswith("/models/"):
                if request.method != "GET":
                    return not_allowed(dialect, request, "GET")
                return _models(session, route.removeprefix("/models").removeprefix("/"))
            raise NotFound(f"there is no {request.method} {_shown(request.path, key)} here")
        except RockError as exc:
            return self.refusal(exc, dialect)

    async def _later(
        self, session: Session, dialect: Dialect, request: Request, route: str
    ) -> Reply | EventStream | Parked:
        """What has to wait before there is a call."""
        try:
            if route in dialects.COUNTED:
                return await self._counted(session, dialects.COUNTED[route][1], request)
            outcome = self._complete(session, dialect, request, await request.read())
        except RockError as exc:
            return self.refusal(exc, dialect)
        return outcome if isinstance(outcome, Reply | Parked) else await outcome

    async def _counted(self, session: Session, route: CountRoute, request: Request) -> Reply:
        history = _SessionHistory(self._service, session)
        tokens, exact = await self._count.of(session, route.parse(await request.read(), history))
        headers = {HEADER: "exact" if exact else "estimate"}
        return Reply(200, route.render(tokens), headers)

    def refusal(self, exc: RockError, dialect: Dialect = dialects.DEFAULT) -> Reply:
        self._service.refused(exc.code)
        log.info("request refused", extra=about(status=exc.status, code=exc.code))
        return _reply(dialect.error(for_agents(exc)))

    def _session(self, key: str | None, headers: Mapping[str, str]) -> Session:
        given = key or _api_key(headers)
        if self._bound is None:
            if not given:
                raise Unauthorized(
                    "no session key; give it as API key, or as /s/<key>/v1 in the URL"
                )
            return self._service.authenticate(given)
        if given and self._names_another(given, self._bound):
            raise Forbidden("this key belongs to another session than this connection")
        return self._bound

    def _names_another(self, key: str, bound: Session) -> bool:
        try:
            return self._service.authenticate(key).id != bound.id
        except Unauthorized:
            return False
        except (SessionClosed, ContextLengthExceeded):  # closed long ago
            return True

    def _complete(
        self, session: Session, dialect: Dialect, request: Request, body: bytes
    ) -> Outcome:
        """Parse and queue. The body and the parsed request end with this frame, unless a hook sees
        them or the reply streams."""
        parsed = dialect.parse(body, request.headers, _SessionHistory(self._service, session))
        kind = classify(parsed.request, request.headers)
        incoming = AgentRequest(
            dialect=dialect.name,
            request=parsed.request,
            body=body,
            idempotency_key=request.headers.get("idempotency-key"),
            retry_count=_retry_count(kind, request.headers),
            stream=parsed.stream,
            trace=trace_of(request.headers) if HEADERS[0] in request.headers else NO_TRACE,
            kind=kind,
        )
        if parsed.stream or self._service.intercepts(session):
            return self._submitted(session, dialect, incoming, parsed.renderer)
        call = self._service.ask(session, incoming)
        return _PlainReply(self, self._service, call, dialect, parsed.renderer)

    async def _submitted(
        self, session: Session, dialect: Dialect, incoming: AgentRequest | None, renderer: Renderer
    ) -> Reply | EventStream | Parked:
        """`incoming` is never None when this begins; its type lets it be let go of."""
        assert incoming is not None
        try:
            call = await self._service.submit(session, incoming, wait=incoming.stream)
            if not incoming.stream:
                return _PlainReply(self, self._service, call, dialect, renderer)
            incoming = None  # its body is not kept while the answer streams
            try:
                await call.news_within(self._config.stream_grace_seconds, Seen())
            except BaseException:  # cancelled: the agent went away while it waited
                self._service.agent_left(call)
                raise
            if call.outcome is not None:
                await call.answer()  # a refusal can still have its status
        except RockError as exc:  # there is no call, or it has ended: nobody needs to be told
            return self.refusal(exc, dialect)
        return CallStream(self._service, call, renderer).opened()


class _PlainReply(Parked):
    """The reply to one call in one piece, once the call has ended."""

    __slots__ = ("_call", "_dialect", "_plane", "_ready", "_renderer", "_service")

    def __init__(
        self,
        plane: AgentPlane,
        service: ModelService,
        call: Call,
        dialect: Dialect,
        renderer: Renderer,
    ) -> None:
        self._plane = plane
        self._service = service
        self._call = call
        self._dialect = dialect
        self._renderer = renderer

    def start(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        self._look()

    def _look(self) -> None:
        if self._call.outcome is None:
            self._call.on_news(self._look)
        else:
            self._ready()

    def reply(self) -> Reply:
        call, outcome = self._call, self._call.outcome
        if not isinstance(outcome, Answer):  # the call has ended, nobody needs to be told
            assert outcome is not None
            return self._plane.refusal(outcome, self._dialect)
        try:
            body = self._renderer.reply(outcome)
        except Exception as exc:
            self._service.agent_left(call)
            if isinstance(exc, RockError):
                return self._plane.refusal(exc, self._dialect)
            raise
        return Reply(
            200,
            body,
            sent=partial(self._service.sent, call),
            lost=partial(self._service.agent_left, call),
        )

    def left(self) -> None:
        self._call.forget(self._look)
        self._service.agent_left(self._call)


class _SessionHistory:
    """What a session asked and got before, looked up only when a request names it."""

    def __init__(self, service: ModelService, session: Session) -> None:
        self._service = service
        self._session = session

    def exchange(self, call_id: str) -> Exchange | None:
        try:
            call = self._service.exported_call(self._session.id, call_id)
        except NotFound:
            return None
        return (
            Exchange(call.original or call.request, call.choices[0].message)
            if call.choices
            else None
        )


def split_key(path: str) -> tuple[str | None, str]:
    """The session key in a path, if any, and the route below `/v1` ("" if it is not below it)."""
    key: str | None = None
    if path.startswith("/s/"):
        key, slash, rest = path[3:].partition("/")
        path = slash + rest
    return key, path.removeprefix("/v1") if path.startswith("/v1/") else ""


def _shown(path: str, key: str | None) -> str:
    """A path for an error message, without the key."""
    shown = path if key is None else path.replace(f"/s/{key}", "", 1)
    return shown if len(shown) <= 200 else shown[:200] + "…"


def _api_key(headers: Mapping[str, str]) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    key = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()
    return key[:MAX_KEY_CHARS] or None


def _retry_count(kind: Kind | None, headers: Mapping[str, str]) -> int:
    """How often the client has asked this before; it only counts if it did ask the same."""
    if never_asks_twice(kind, headers):
        return 1
    given = headers.get("x-stainless-retry-count", "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 6 else 0


def _models(session: Session, wanted: str) -> Reply:
    """Any name is accepted in a request, so any model exists; the list has the one in effect.

    One shape with the fields of both OpenAI and Anthropic.
    """
    name = session.spec.pins.model or "policy"
    if wanted:
        return Reply(200, msgspec.json.encode(_model(unquote(wanted))))
    page = {"has_more": False, "first_id": name, "last_id": name}
    return Reply(200, msgspec.json.encode({"object": "list", "data": [_model(name)], **page}))


def _model(name: str) -> dict[str, str | int]:
    openai: dict[str, str | int] = {"object": "model", "created": 0, "owned_by": "rock"}
    anthropic = {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    return {"id": name, **openai, **anthropic}


def not_allowed(dialect: Dialect, request: Request, allowed: str) -> Reply:
    """405, which is no RockError: a wrong method is the client's bug and nothing to catch.

    A WebSocket upgrade gets 426: the client that tries one falls back to HTTP at once on that
    status, and only after seven tries on any other.
    """
    exc = BadRequest(f"{request.method} is not allowed here; use {allowed}")
    body = dialect.error(exc).body
    if request.headers.get("upgrade", "").lower() == "websocket":
        return Reply(426, body, {"Upgrade": "HTTP/1.1", "Connection": "close"})
    return Reply(405, body, {"Allow": allowed})


def _reply(error: ErrorReply) -> Reply:
    return Reply(error.status, error.body, error.headers)
