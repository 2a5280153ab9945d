"""What a person can set on one ModelService; units are in the names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from rock.config import Strict

ClaimOrder = Literal["round_robin", "fifo", "oldest_session", "priority"]
SyncLevel = Literal["process", "disk"]


def _split(value: object) -> object:
    """Text from a command line as a tuple."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


class ServiceConfig(Strict):
    """Settings of one service process. Two processes never share a `state_dir`."""

    state_dir: Path = Field(
        description="Journal, keys and sockets; made with mode 0700 if missing. Set by `--state-dir`."
    )
    agent_host: str = Field("127.0.0.1", description="Address of the listener for agents.")
    agent_port: int = Field(0, ge=0, le=65535, description="0 picks a free port.")
    public_agent_url: str | None = Field(
        None,
        description="Base of session URLs where agents reach the service by another address than "
        "it listens on (`0.0.0.0`, a proxy, a host name): `http://gateway.example:8000`.",
        pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$",
    )
    control_host: str = Field(
        "127.0.0.1", description="Address of the listener for trainers and harnesses."
    )
    control_port: int = Field(0, ge=0, le=65535, description="0 picks a free port.")

    max_queued: int = Field(20_000, ge=1, description="Calls waiting for a worker; over it, 429.")
    max_parked: int = Field(
        20_000, ge=1, description="Calls, and connections, waiting for an answer; over it, 429."
    )
    max_body_bytes: int = Field(
        64 * 1024 * 1024, ge=1024, description="Larger requests are refused with 413."
    )
    body_seconds: float = Field(
        60.0,
        gt=0,
        description="A request's body must have arrived after this; else 408. A head that takes "
        "longer, or a new connection that asks nothing, is closed.",
    )
    peer_timeout_seconds: float = Field(
        60.0,
        ge=1,
        description="A peer that acknowledges or takes no data for this long is gone.",
    )
    max_deliveries: int = Field(
        5, ge=1, description="Hand-outs of one call that may be lost before the call fails."
    )
    max_lease_seconds: float = Field(3600.0, gt=0, description="Longer leases are cut to this.")
    max_wait_seconds: float = Field(60.0, gt=0, description="Longer long-polls are cut to this.")
    session_idle_seconds: float = Field(
        86_400.0,
        gt=0,
        description="A session without calls for this long is closed as `expired`.",
    )
    call_deadline_seconds: float = Field(
        3600.0,
        gt=0,
        description="An unanswered call fails after this, unless its session says other.",
    )
    cancel_grace_seconds: float = Field(
        10.0, ge=0, description="How long a call outlives its agent's connection."
    )
    restart_grace_seconds: float = Field(
        60.0, ge=0, description="The same for calls that a restarted service found in its journal."
    )
    stream_grace_seconds: float = Field(
        2.0, ge=0, description="How long a streaming reply waits for an early answer or refusal."
    )
    keepalive_seconds: float = Field(
        10.0, gt=0, le=15.0, description="Pause between keep-alive events of a waiting stream."
    )
    hooks: Annotated[tuple[str, ...], BeforeValidator(_split)] = Field(
        (),
        description="Python functions that interceptors may name, `module:function`, comma-separated.",
    )
    tokenizers: Annotated[tuple[str, ...], BeforeValidator(_split)] = Field(
        (),
        description="Tokenizers that answers can be checked with, `NAME=DIRECTORY`, comma-separated.",
    )
    backend_concurrency: int = Field(
        256, ge=1, description="Calls that each built-in backend works on at the same time."
    )
    backends_file: Path | None = Field(
        None, description="YAML file that describes built-in backends, see docs/backends.md."
    )
    default_backend: str = Field(
        "queue", description="Who answers sessions that choose no backend."
    )
    order: ClaimOrder = Field("round_robin", description="Which waiting call is handed out next.")
    sync: SyncLevel = Field(
        "process",
        description="`process`: acknowledged data survives kill -9; `disk`: a power failure too.",
    )
    on_journal_failure: Literal["answer", "exit"] = Field(
        "answer",
        description="When the journal can no longer be written: `answer` everything with 503 until "
        "somebody restarts the service; `exit`, for one that is started again by itself.",
    )
    evict_seconds: float = Field(
        300.0,
        ge=0,
        description="How long a closed session stays in memory; later it is read from the journal.",
    )
    keep_closed_seconds: float = Field(
        7 * 86_400.0,
        ge=0,
        description="How long a closed session stays on disk; compaction then forgets it.",
    )
    compact_bytes: int = Field(
        256 * 1024 * 1024,
        ge=4096,
        description="Size of the active journal file, and of the base, over which it is compacted.",
    )
    compact_share: float = Field(
        0.25,
        ge=0,
        le=1,
        description="Share of the journal's records, archives aside, that must be over before it is "
        "compacted: of closed sessions out of memory, of acknowledged groups.",
    )
    shard: int | None = Field(
        None,
        ge=0,
        description="Number of this shard; set by `rock serve --shards`, as is the next.",
    )
    shard_control_ports: Annotated[tuple[int, ...], BeforeValidator(_split)] = Field(
        (), description="Control ports of all shards, comma-separated."
    )
    max_staleness: int | None = Field(
        None, ge=0, description="Policy versions a session may span; over it, it closes as `stale`."
    )

    @model_validator(mode="after")
    def _two_listeners(self) -> Self:
        same = (self.agent_host, self.agent_port) == (self.control_host, self.control_port)
        if same and self.agent_port != 0:
            raise ValueError(f"agent_port and control_port are the same, {self.agent_port}")
        return self
