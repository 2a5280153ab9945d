"""What a sandbox server and its clients say to each other: JSON shapes, and the document of them.

Bytes are base64 in JSON. Everything about commands and files that is not one request and one answer goes
over a WebSocket (`channel`), whose binary messages are the bytes of one tunnel to the sandbox's helper
(`native/mux.c`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from rock.errors import BadRequest, RockError, SandboxError, any_error_for
from rock.sandbox.command import Death, ExecResult, ProcessInfo
from rock.sandbox.logs import LogEntry, LogPage
from rock.sandbox.spec import NetworkName, SandboxSpec
from rock.sandbox.state import Capability, Changes, ResetReceipt
from rock.secrets import redact, redact_text

T = TypeVar("T")
MAX_NOTE_BYTES = 16 * 1024
MAX_NOTE_TEXT = 1000


class Named(Protocol):
    @property
    def user(self) -> str: ...
    @property
    def home(self) -> str: ...


class Described(Protocol):
    """What there is to tell of a sandbox."""

    spec: SandboxSpec
    variables: dict[str, str]
    env_changes: dict[str, str | None]
    rlimits: tuple[tuple[int, int], ...]

    @property
    def identity(self) -> Named: ...
    @property
    def proxy_variables(self) -> Mapping[str, str]: ...
    @property
    def capabilities(self) -> frozenset[Capability]: ...
    @property
    def not_enforced(self) -> tuple[str, ...]: ...


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What a client must know of a sandbox to run commands in it as its server would."""

    user: str
    home: str
    variables: dict[str, str]
    rlimits: list[tuple[int, int]]
    capabilities: list[str]
    not_enforced: list[str]
    env_changes: dict[str, str | None] = {}
    """Variables set, or taken away, since it was made or reset."""
    proxy: dict[str, str] = {}
    """Variables by which programs find the way out that its network allows now."""


class SandboxInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    provider: str
    age_seconds: float
    spec: SandboxSpec
    profile: Profile
    box: str = ""
    """The box that it is now; after a reset that made another one, another one."""


def info_of(
    sandbox: Described, *, sandbox_id: str, provider: str, age_seconds: float, box: str = ""
) -> SandboxInfo:
    profile = Profile(
        user=sandbox.identity.user,
        home=sandbox.identity.home,
        variables=dict(sandbox.variables),
        rlimits=list(sandbox.rlimits),
        capabilities=sorted(sandbox.capabilities),
        not_enforced=list(sandbox.not_enforced),
        env_changes=dict(sandbox.env_changes),
        proxy=dict(sandbox.proxy_variables),
    )
    return SandboxInfo(
        id=sandbox_id,
        provider=provider,
        age_seconds=age_seconds,
        spec=sandbox.spec,
        profile=profile,
        box=box,
    )


class CreateRequest(msgspec.Struct, frozen=True, kw_only=True):
    spec: SandboxSpec = SandboxSpec()
    lease_seconds: float = 60.0
    """Stopped when no client has asked for it for so long; 0 keeps it for its whole lifetime."""
    snapshot: str | None = None
    """Whose files it starts from."""


class SnapshotRequest(msgspec.Struct, frozen=True, kw_only=True):
    lease_seconds: float = 0.0
    """Dropped when nobody has asked for it for so long; 0 keeps it until it is dropped."""


class RestoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    snapshot: str


class SnapshotInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    sandbox: str
    """Whose files it has."""
    age_seconds: float


class ExecRequestBody(msgspec.Struct, frozen=True, kw_only=True):
    argv: list[str]
    timeout_seconds: float
    cwd: str | None = None
    env: dict[str, str] = {}
    user: str | None = None
    stdin: bytes = b""
    output_limit_bytes: int = 1024 * 1024
    overflow: str = "kill"


class Variables(msgspec.Struct, frozen=True, kw_only=True):
    variables: dict[str, str]
    """Of a command that asks for none of its own."""
    changes: dict[str, str | None]
    """What of it was set, or taken away, since the sandbox was made or reset."""
    proxy: dict[str, str] = {}
    """What of it names the way out, if its network has one now."""


class EnvRequest(msgspec.Struct, frozen=True, kw_only=True):
    changes: dict[str, str | None]
    """Null takes a variable away."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a server tells on a channel, at its start and at every change: clients start commands themselves."""

    changes: dict[str, str | None]
    proxy: dict[str, str] = {}


class NetworkRequest(msgspec.Struct, frozen=True, kw_only=True):
    network: NetworkName
    allowed_hosts: tuple[str, ...] = ()


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """What a client did to a sandbox over its channel, for the sandbox's log."""

    entries: list[LogEntry]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    provider: str
    available: bool
    detail: str
    remedy: str | None = None
    sandboxes: int = 0


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str
    cause: str | None = None
    """Of `sandbox_died` only."""


def bounded(entry: LogEntry) -> LogEntry:
    """What a client wrote down, as it may stand in a log of the server: bounded, redacted, its own."""
    return replace(
        entry,
        by="client",
        what=redact_text(entry.what)[:MAX_NOTE_TEXT],
        status=entry.status[:100],
        action=entry.action[:100],
        stdout=redact(entry.stdout[:MAX_NOTE_BYTES]),
        stderr=redact(entry.stderr[:MAX_NOTE_BYTES]),
    )


def encode(value: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=_plain)


def decode(data: bytes, kind: type[T]) -> T:
    """Raises `BadRequest` naming the field."""
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=_of_plain)
    except (msgspec.DecodeError, msgspec.ValidationError) as exc:
        raise BadRequest(f"the body is not a {kind.__name__}: {exc}") from exc


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"no JSON for {type(value).__name__}")


def _of_plain(kind: type[Any], value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"no {kind.__name__} from JSON")


def error_of(status: int, data: bytes) -> RockError:
    """The error that an answer stands for."""
    try:
        body = msgspec.json.decode(data, type=ErrorBody)
    except msgspec.DecodeError:
        return SandboxError(f"the sandbox server answered with status {status}")
    error = any_error_for(body.code, body.message)
    if body.cause is not None:
        setattr(error, "cause", body.cause)  # noqa: B010 - only SandboxDied has it
    return error


_PATHS: dict[str, dict[str, tuple[str, Any, Any]]] = {
    "/v1/health": {"get": ("Whether the provider works", None, Health)},
    "/v1/sandboxes": {
        "get": ("Every sandbox", None, list[SandboxInfo]),
        "post": ("Make a sandbox", CreateRequest, SandboxInfo),
    },
    "/v1/sandboxes/{id}": {
        "get": ("One sandbox", None, SandboxInfo),
        "delete": ("Stop it", None, None),
    },
    "/v1/sandboxes/{id}/exec": {"post": ("Run a command to its end", ExecRequestBody, ExecResult)},
    "/v1/sandboxes/{id}/log": {
        "get": (
            "What was done to it: after the cursor `after`, or the last `tail` entries; "
            "waits up to `wait_seconds` for the first",
            None,
            LogPage,
        ),
        "post": ("Add what a client did over the channel", Notes, None),
    },
    "/v1/sandboxes/{id}/env": {
        "get": ("The variables of its commands", None, Variables),
        "patch": ("Change those of later commands", EnvRequest, Variables),
    },
    "/v1/sandboxes/{id}/network": {
        "put": (
            "Change what may be reached; what it no longer allows is cut",
            NetworkRequest,
            Variables,
        )
    },
    "/v1/sandboxes/{id}/processes": {"get": ("What runs inside", None, list[ProcessInfo])},
    "/v1/sandboxes/{id}/reset": {"post": ("Back to how it was made", None, ResetReceipt)},
    "/v1/sandboxes/{id}/snapshot": {
        "post": ("Keep its files as they are", SnapshotRequest, SnapshotInfo)
    },
    "/v1/sandboxes/{id}/restore": {
        "post": ("Back to a snapshot of the same kind", RestoreRequest, ResetReceipt)
    },
    "/v1/sandboxes/{id}/diff": {"get": ("What was written since it was made", None, Changes)},
    "/v1/snapshots": {"get": ("Every snapshot", None, list[SnapshotInfo])},
    "/v1/snapshots/{id}": {"delete": ("Drop it", None, None)},
    "/v1/snapshots/{id}/renew": {"post": ("Renew its lease", None, None)},
    "/v1/sandboxes/{id}/pause": {"post": ("Stop its processes where they are", None, None)},
    "/v1/sandboxes/{id}/resume": {"post": ("Let them go on", None, None)},
    "/v1/sandboxes/{id}/renew": {"post": ("Renew its lease", None, None)},
    "/v1/sandboxes/{id}/death": {"get": ("Why it does not answer", None, Death)},
}
_RAW_PATHS = {
    "/v1/sandboxes/{id}/file": {
        "get": "The bytes of the file at the query's `path`",
        "put": "Write the body to the query's `path`, with its octal `mode`",
    },
    "/v1/sandboxes/{id}/channel": {"get": "A WebSocket: the tunnel to the sandbox's helper"},
}


_QUERIES = {
    ("get", "/v1/sandboxes/{id}/file"): [("path", "string")],
    ("put", "/v1/sandboxes/{id}/file"): [("path", "string"), ("mode", "string")],
    ("get", "/v1/sandboxes/{id}/log"): [
        ("after", "string"),
        ("tail", "integer"),
        ("wait_seconds", "number"),
    ],
}


def document(version: str) -> dict[str, Any]:
    """The OpenAPI description of the server."""
    kinds = [kind for entry in _PATHS.values() for op in entry.values() for kind in op[1:] if kind]
    schemas, components = msgspec.json.schema_components(
        [*kinds, ErrorBody], schema_hook=_schema, ref_template="#/components/schemas/{name}"
    )
    known = dict(zip(map(repr, kinds), schemas, strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for path, entry in _PATHS.items():
        for method, (summary, body, answer) in entry.items():
            operation = _operation(method, path, summary)
            if body is not None:
                operation["requestBody"] = {"required": True, **_content(known[repr(body)])}
            if answer is not None:
                operation["responses"]["200"].update(_content(known[repr(answer)]))
            paths.setdefault(path, {})[method] = operation
    for path, methods in _RAW_PATHS.items():
        for method, summary in methods.items():
            paths.setdefault(path, {})[method] = _operation(method, path, summary)
    return {
        "openapi": "3.1.0",
        "info": {"title": "rock sandboxes", "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _operation(method: str, path: str, summary: str) -> dict[str, Any]:
    refusal = {"description": "Refused", **_content({"$ref": "#/components/schemas/ErrorBody"})}
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {"200": {"description": "Done"}, "default": refusal},
    }
    parameters = [_parameter("id", "string", where="path")] if "{id}" in path else []
    parameters += [_parameter(*one) for one in _QUERIES.get((method, path), ())]
    if parameters:
        operation["parameters"] = parameters
    return operation


def _parameter(name: str, kind: str, *, where: str = "query") -> dict[str, Any]:
    required = where == "path" or name == "path"
    return {"name": name, "in": where, "required": required, "schema": {"type": kind}}


def _content(schema: object) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _schema(kind: type[Any]) -> dict[str, Any]:
    if kind is Path:
        return {"type": "string"}
    raise NotImplementedError(f"no schema for {kind.__name__}")
