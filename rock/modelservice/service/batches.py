"""What the batch endpoints share: checks of their parameters, and results item by item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rock.errors import BadRequest, JournalError, RockError
from rock.modelservice import wire

MAX_WORKER_ID = 200


def check_claim(worker_id: str, lease_seconds: float, wait_seconds: float) -> None:
    check_wait(worker_id, wait_seconds)
    check_positive("lease_seconds", lease_seconds)


def check_wait(worker_id: str, wait_seconds: float) -> None:
    if not 0 < len(worker_id) <= MAX_WORKER_ID:
        raise BadRequest(
            f"worker_id: expected a name of 1 to {MAX_WORKER_ID} characters, got {len(worker_id)}",
            param="worker_id",
        )
    if not wait_seconds >= 0:
        raise BadRequest(
            f"wait_seconds: expected 0 or more, got {wait_seconds}", param="wait_seconds"
        )


def check_positive(name: str, value: int | float) -> None:
    # Not only `float`: an integer, of any size, stays one in the compiled form too.
    if not value > 0:
        raise BadRequest(f"{name}: expected more than 0, got {value}", param=name)


def tried(lease_id: str, step: Callable[[], str | None]) -> wire.ItemResult:
    """One item of a batch: what went wrong with it stays with it."""
    try:
        return wire.ItemResult(lease_id, untrainable=step())
    except JournalError:
        raise  # not about this item
    except RockError as exc:
        return wire.ItemResult(lease_id, error=wire.ItemError(exc.status, exc.code, exc.message))


def each(lease_ids: Sequence[str], step: Callable[[str], None]) -> wire.BatchReply:
    return wire.BatchReply([tried(one, partial(step, one)) for one in lease_ids])
