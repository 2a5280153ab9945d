"""What trainers and harnesses reach: `/trainer/v1` and `/admin/v1`, JSON in, JSON out.

The admin key opens everything here, the trainer key only `/trainer/v1`, a session key nothing.
Errors are `{"error": {"code", "message", "param"}}` with the class's status; a batch answers 200 and
reports each item by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_args
from urllib.parse import unquote

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from rock.errors import (
    BadRequest,
    Forbidden,
    NotFound,
    RockError,
    Unauthorized,
    UpstreamUnauthorized,
    shown,
)
from rock.modelservice import wire
from rock.modelservice.graph import stored
from rock.modelservice.keys import Keys, matches
from rock.modelservice.planes.plane import Reply, Request, nothing
from rock.modelservice.service.service import ModelService
from rock.modelservice.telemetry.logs import about
from rock.modelservice.telemetry.metrics import CONTENT_TYPE
from rock.modelservice.wire import groups as wire_groups
from rock.modelservice.wire.interceptors import Interceptor
from rock.modelservice.wire.partial import CancelledRequest, PartialRequest
from rock.modelservice.wire.pulse import PulseRequest
from rock.types import SessionId

log = logging.getLogger(__name__)
T = TypeVar("T", bound=Struct)
MAX_MESSAGE = 300
"""Of what msgspec says about a body, which can quote some of it."""


class Backend(Protocol):
    """A worker inside the service, as this plane sees it."""

    @property
    def refused(self) -> str | None:
        """Why it cannot answer anything any more; null while it can."""
        ...


class ControlPlane:
    """Handlers of the control listener."""

    def __init__(
        self,
        service: ModelService,
        keys: Keys,
        *,
        agent_url: str,
        attach_path: Path,
        backends: Mapping[str, Backend],
        detach: Callable[[str], Awaitable[None]],
    ) -> None:
        """`agent_url` is the base of session URLs; `attach_path` and `detach` are of `attach`: `detach` ends a session's lent listeners."""
        self._service = service
        self._keys = keys
        self._agent_url = agent_url
        self._attach_path = attach_path
        self._backends = backends
        self._detach = detach
        self._routes: dict[str, dict[str, Callable[[Request, str], Awaitable[Reply]]]] = {
            "/trainer/v1/claim": {"POST": self._claim},
            "/trainer/v1/leases": {"POST": self._leases},
            "/trainer/v1/complete": {"POST": self._complete},
            "/trainer/v1/partial": {"POST": self._partial},
            "/trainer/v1/cancelled": {"POST": self._cancelled},
            "/trainer/v1/renew": {"POST": self._renew},
            "/trainer/v1/release": {"POST": self._release},
            "/trainer/v1/fail": {"POST": self._fail},
            "/trainer/v1/policy": {"POST": self._policy, "GET": self._policy_status},
            "/trainer/v1/stats": {"GET": self._stats},
            "/trainer/v1/shards": {"GET": self._shards},
            "/trainer/v1/rollouts/claim": {"POST": self._claim_groups},
            "/trainer/v1/rollouts/ack": {"POST": self._ack_groups},
            "/trainer/v1/rollouts/renew": {"POST": self._renew_groups},
            "/trainer/v1/rollouts/release": {"POST": self._release_groups},
            "/metrics": {"GET": self._metrics},
            "/admin/v1/health": {"GET": self._health},
            "/admin/v1/pulse": {"POST": self._pulse},
            "/admin/v1/sessions": {"POST": self._create_session},
            "/admin/v1/sessions/*": {"GET": self._session},
            "/admin/v1/sessions/*/close": {"POST": self._close_session},
            "/admin/v1/sessions/*/trajectory": {"GET": self._trajectory},
            "/admin/v1/interceptors": {"GET": self._interceptors},
            "/admin/v1/interceptors/*": {
                "GET": self._interceptor,
                "PUT": self._set_interceptor,
                "DELETE": self._remove_interceptor,
            },
            "/admin/v1/groups": {"POST": self._publish},
            "/admin/v1/groups/*": {"GET": self._group},
        }

    async def handle(self, request: Request) -> Reply:
        """Never raises a RockError: errors are replies."""
        try:
            self._authorize(request)
            pattern, name = _pattern(request.path)
            methods = self._routes.get(pattern)
            if methods is None:
                raise NotFound(f"there is no {request.path[:200]} here")
            handler = methods.get(request.method)
            if handler is None:
                return _not_allowed(request.method, methods)
            return await handler(request, name)
        except RockError as exc:
            return self.refusal(exc)

    def refusal(self, exc: RockError) -> Reply:
        param = exc.param if isinstance(exc, BadRequest) else None
        # Not the message: it may quote what was sent.
        log.info("request refused", extra=about(status=exc.status, code=exc.code, param=param))
        error = wire.ErrorBody(code=exc.code, message=exc.message, param=param)
        return Reply(exc.status, wire.encode(wire.ErrorReply(error=error)))

    def _authorize(self, request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            raise Unauthorized("no key; send `Authorization: Bearer` with a key from keys.json")
        if matches(given, self._keys.admin_key):
            return
        if not matches(given, self._keys.trainer_key):
            raise Unauthorized("this key was not issued for the control plane")
        if not request.path.startswith("/trainer/") and request.path != "/metrics":
            raise Forbidden(
                "the trainer key opens /trainer/v1 and /metrics only; use the admin key"
            )

    # --- trainer ---

    async def _claim(self, request: Request, name: str) -> Reply:
        body = await _read(request, wire.ClaimRequest)
        _at_least("max_leases", body.max_leases, 0)
        _at_least("lease_seconds", body.lease_seconds, 0.01)
        _at_least("wait_seconds", body.wait_seconds, 0)
        reply = await self._service.claim(body)
        ids = [lease.lease_id for lease in reply.leases]
        # A worker that hung up never saw its leases: hand them to the next one at once.
        lost = partial(self._give_back, ids) if ids else nothing
        return Reply(200, wire.encode(reply), lost=lost)

    def _give_back(self, lease_ids: list[str]) -> None:
        self._service.release(wire.ReleaseRequest(lease_ids=lease_ids))

    async def _leases(self, request: Request, name: str) -> Reply:
        return _ok(self._service.leases(await _read(request, wire.LeasesRequest)))

    async def _complete(self, request: Request, name: str) -> Reply:
        return _ok(await self._service.complete(await _read(request, wire.CompleteRequest)))

    async def _partial(self, request: Request, name: str) -> Reply:
        return _ok(await self._service.partial(await _read(request, PartialRequest)))

    async def _cancelled(self, request: Request, name: str) -> Reply:
        body = await _read(request, CancelledRequest)
        _at_least("wait_seconds", body.wait_seconds, 0)
        return _ok(await self._service.cancelled(body))

    async def _renew(self, request: Request, name: str) -> Reply:
        body = await _read(request, wire.RenewRequest)
        _at_least("lease_seconds", body.lease_seconds, 0.01)
        return _ok(self._service.renew(body))

    async def _release(self, request: Request, name: str) -> Reply:
        return _ok(self._service.release(await _read(request, wire.ReleaseRequest)))

    async def _fail(self, request: Request, name: str) -> Reply:
        return _ok(await self._service.fail(await _read(request, wire.FailRequest)))

    async def _policy(self, request: Request, name: str) -> Reply:
        return _ok(await self._service.policy(await _read(request, wire.PolicyUpdate)))

    async def _policy_status(self, request: Request, name: str) -> Reply:
        return _ok(await self._service.policy())

    async def _stats(self, request: Request, name: str) -> Reply:
        return _ok(self._service.stats())

    async def _shards(self, request: Request, name: str) -> Reply:
        return _ok(wire.ShardPorts(control_ports=list(self._service.config.shard_control_ports)))

    async def _claim_groups(self, request: Request, name: str) -> Reply:
        body = await _read(request, wire_groups.RolloutClaimRequest)
        _at_least("max_groups", body.max_groups, 1)
        _at_least("lease_seconds", body.lease_seconds, 0.01)
        _at_least("wait_seconds", body.wait_seconds, 0)
        reply = await self._service.claim_groups(body)
        ids = [claimed.lease_id for claimed in reply.groups]
        return Reply(200, wire.encode(reply), lost=partial(self._back, ids) if ids else nothing)

    def _back(self, lease_ids: list[str]) -> None:
        self._service.release_groups(wire_groups.RolloutReleaseRequest(lease_ids=lease_ids))

    async def _renew_groups(self, request: Request, name: str) -> Reply:
        body = await _read(request, wire_groups.RolloutRenewRequest)
        _at_least("lease_seconds", body.lease_seconds, 0.01)
        return _ok(self._service.renew_groups(body))

    async def _release_groups(self, request: Request, name: str) -> Reply:
        body = await _read(request, wire_groups.RolloutReleaseRequest)
        return _ok(self._service.release_groups(body))

    async def _ack_groups(self, request: Request, name: str) -> Reply:
        return _ok(
            await self._service.ack_groups(await _read(request, wire_groups.RolloutAckRequest))
        )

    async def _metrics(self, request: Request, name: str) -> Reply:
        return Reply(200, self._service.metrics(), content_type=CONTENT_TYPE)

    # --- admin ---

    async def _health(self, request: Request, name: str) -> Reply:
        if self._service.error is not None:
            raise self._service.error
        backends = {name: backend.refused for name, backend in self._backends.items()}
        return _ok(wire.Health(backends=backends))

    async def _pulse(self, request: Request, name: str) -> Reply:
        return _ok(await self._service.pulse(await _read(request, PulseRequest)))

    async def _create_session(self, request: Request, name: str) -> Reply:
        spec = await _read(request, wire.SessionSpec)
        if spec.backend is not None:
            self._check_backend(spec.backend)
        new = await self._service.create_session(spec)
        base_url = f"{self._agent_url}/s/{new.key}/v1"
        return _ok(
            wire.SessionCreated(
                session_id=new.session_id,
                key=new.key,
                base_url=base_url,
                attach_path=str(self._attach_path),
            )
        )

    def _check_backend(self, name: str) -> None:
        if name == "queue":
            return
        backend = self._backends.get(name)
        if backend is None:
            known = ", ".join(["queue", *sorted(self._backends)])
            message = f"backend: expected one that this service was started with ({known}), got {shown(name)}"
            raise BadRequest(message, param="backend")
        if backend.refused is not None:
            raise UpstreamUnauthorized(backend.refused)

    async def _session(self, request: Request, name: str) -> Reply:
        return _ok(await self._service.read_session_info(SessionId(name)))

    async def _close_session(self, request: Request, name: str) -> Reply:
        reason = (await _read(request, wire.SessionClose)).reason
        info = await self._service.close_session(SessionId(name), reason)
        await self._detach(name)
        return _ok(info)

    async def _trajectory(self, request: Request, name: str) -> Reply:
        found = await self._service.read_trajectory(SessionId(name))
        return Reply(200, await asyncio.to_thread(stored.encode, found))

    async def _interceptors(self, request: Request, name: str) -> Reply:
        return _ok(self._service.interceptors())

    async def _interceptor(self, request: Request, name: str) -> Reply:
        return _ok(self._service.interceptor(name))

    async def _set_interceptor(self, request: Request, name: str) -> Reply:
        return _ok(await self._service.set_interceptor(name, await _read(request, Interceptor)))

    async def _remove_interceptor(self, request: Request, name: str) -> Reply:
        return _ok(await self._service.remove_interceptor(name))

    async def _publish(self, request: Request, name: str) -> Reply:
        return _ok(await self._service.publish_group(await _read(request, wire_groups.Group)))

    async def _group(self, request: Request, name: str) -> Reply:
        return _ok(self._service.group_status(name))


def _pattern(path: str) -> tuple[str, str]:
    """The route of a path, with the name in its fourth part, if it has one, taken out."""
    parts = path.split("/")
    if len(parts) < 5 or parts[1] != "admin":
        return path, ""
    return "/".join([*parts[:4], "*", *parts[5:]]), unquote(parts[4])


async def _read(request: Request, kind: type[T]) -> T:
    """The body as `kind`; an empty one counts as `{}`. Raises BadRequest naming the field."""
    body = await request.read() or b"{}"
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as exc:
        message, _, place = str(exc).partition(" - at ")
        param = place.strip("`").removeprefix("$").removeprefix(".") or None
        message = message[:MAX_MESSAGE] + _one_of(kind, param, message)
        raise BadRequest(f"{param or 'body'}: {message}", param=param) from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BadRequest(f"the body is not valid JSON: {exc}") from exc
    except RecursionError as exc:
        raise BadRequest("the body is nested too deeply") from exc


def _one_of(kind: type[Struct], param: str | None, message: str) -> str:
    """What was expected of a field that takes a few words, which msgspec does not say."""
    if not message.startswith("Invalid enum value"):
        return ""
    words = next((one.type for one in fields(kind) if one.name == param), None)
    known = [word for part in (words, *get_args(words)) for word in get_args(part)]
    listed = ", ".join(word for word in known if isinstance(word, str))
    return f"; expected one of {listed}" if listed else ""


def _at_least(name: str, value: int | float, bound: int | float) -> None:
    # Not only `float`: an integer, of any size, stays one in the compiled form too.
    if not value >= bound:
        raise BadRequest(f"{name}: expected at least {bound}, got {value}", param=name)


def _ok(reply: Struct) -> Reply:
    return Reply(200, wire.encode(reply))


def _not_allowed(method: str, methods: Mapping[str, Any]) -> Reply:
    allowed = ", ".join(methods)
    message = f"{method} is not allowed here; use {allowed}"
    body = wire.ErrorReply(error=wire.ErrorBody(code="method_not_allowed", message=message))
    return Reply(405, wire.encode(body), {"Allow": allowed})
