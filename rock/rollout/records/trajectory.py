"""What one attempt exports: every call of its session, on disk, and the figures that follow."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Raw

from rock.errors import LedgerError, ModelServiceError
from rock.modelservice import wire
from rock.modelservice.client.shards import AdminShards
from rock.modelservice.graph import stored
from rock.modelservice.graph.stored_rows import StoredRow, whole_rows
from rock.rollout.records.durable import write_atomically
from rock.rollout.records.evidence import ANSWERED_STATES, CallSeen, SessionSeen
from rock.rollout.records.record import Usage

FILE_NAME = "trajectory.json"
SESSION_FILE = "session"
RESCUE_SECONDS = 10.0
log = logging.getLogger(__name__)
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Exported:
    """What the harness keeps in memory of a trajectory once it is on disk."""

    session: SessionSeen
    usage: Usage
    untrainable: dict[str, int]
    version: int | None
    """The policy version of the first sampled token."""


async def export(admin: AdminShards, info: wire.SessionInfo, folder: Path) -> Exported:
    """Fetch the trajectory of a closed session and store it in `folder`, durable on return.

    Raises `ModelServiceError` or `OSError`.
    """
    trajectory = await admin.trajectory(info.session_id)
    return await asyncio.to_thread(_exported, folder, trajectory, info)


def _exported(folder: Path, trajectory: wire.Trajectory, info: wire.SessionInfo) -> Exported:
    _store(folder, trajectory)
    return Exported(
        session=SessionSeen(
            close_reason=info.close_reason,
            calls=calls_seen(trajectory.calls),
            limit=info.limit,
            restarted=info.restarted,
        ),
        usage=usage_of(trajectory),
        untrainable=trajectory.untrainable,
        version=oldest_version(trajectory),
    )


def _store(folder: Path, trajectory: wire.Trajectory) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / FILE_NAME, stored.encode(trajectory))


def note_session(folder: Path, session_id: str) -> None:
    """Leave word of the session in the attempt's folder, in case the harness dies in it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SESSION_FILE).write_text(session_id)


async def rescue(admin: AdminShards, folder: Path) -> str | None:
    """Close the session of an attempt in which a harness died, and keep what it has of a trajectory.

    The session's id; None if the attempt had come to none. A service that does not know it, or does
    not answer, has nothing to give.
    """
    try:
        session_id = (folder / SESSION_FILE).read_text()
        if not session_id:  # the disk was full
            return None
        async with asyncio.timeout(RESCUE_SECONDS):
            info = await admin.close_session(session_id, reason="revoked")
            await export(admin, info, folder)
    except FileNotFoundError:
        return None
    except (ModelServiceError, TimeoutError, OSError) as exc:
        log.warning("%s: its session was not closed and kept: %s", folder, exc)
        return None
    return session_id


def calls_seen(calls: Iterable[wire.TrajectoryCall]) -> list[CallSeen]:
    """The calls as evidence; what one asked is a digest. A history is hashed once, not per call."""
    known: dict[tuple[bytes, int], bytes] = {}

    def digest(messages: Iterable[Raw]) -> str:
        found = b""
        for message in messages:
            key = (found, id(message))
            if key not in known:
                known[key] = hashlib.sha256(found + bytes(message)).digest()
            found = known[key]
        return found.hex()

    return [
        CallSeen(
            state=call.state,
            digest=digest(call.request.messages),
            error=call.error,
            code=call.error_code,
            cut_off=call.cut_off,
            left_after_seconds=call.left_after_seconds,
        )
        for call in calls
    ]


def oldest_version(trajectory: wire.Trajectory) -> int | None:
    """The oldest policy version that sampled anything in it."""
    versions = [call.policy_version for call in trajectory.calls]
    versions += [span.policy_version for row in trajectory.rows for span in row.spans]
    return min((version for version in versions if version is not None), default=None)


def usage_of(trajectory: wire.Trajectory) -> Usage:
    """Sums over the answered calls; null as soon as one of them is unknown."""
    usages = [call.usage for call in trajectory.calls if call.state in ANSWERED_STATES]
    prompts = _all_known(usage and usage.prompt_tokens for usage in usages)
    completions = _all_known(usage and usage.completion_tokens for usage in usages)
    costs = _all_known(usage and usage.cost_usd for usage in usages)
    return Usage(
        turns=len(usages),
        prompt_tokens=None if prompts is None else sum(prompts),
        completion_tokens=None if completions is None else sum(completions),
        cost_usd=math.fsum(costs) if costs else None,
        trainable_tokens=sum(sum(row.mask) for row in trajectory.rows),
        rows=len(trajectory.rows),
    )


def _all_known(values: Iterable[Number | None]) -> list[Number] | None:
    """The values, or None as soon as one of them is unknown."""
    known: list[Number] = []
    for value in values:
        if value is None:
            return None
        known.append(value)
    return known


class _Rows(msgspec.Struct):
    rows: list[StoredRow]


def read_rows(folder: Path) -> list[wire.TokenRow]:
    """The token rows of a stored trajectory, none when there is none. Raises `LedgerError`."""
    path = folder / FILE_NAME
    try:
        return whole_rows(msgspec.json.decode(path.read_bytes(), type=_Rows).rows)
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise LedgerError(f"{path}: cannot be read: {exc.strerror}") from exc
    except msgspec.DecodeError as exc:
        raise LedgerError(f"{path}: not a trajectory: {exc}") from exc


def read_trajectory(folder: Path) -> wire.Trajectory | None:
    """A stored trajectory, None when the attempt ended before there was one. Raises `LedgerError`."""
    path = folder / FILE_NAME
    try:
        return stored.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise LedgerError(f"{path}: cannot be read: {exc.strerror}") from exc
    except msgspec.DecodeError as exc:
        raise LedgerError(f"{path}: not a trajectory: {exc}") from exc
