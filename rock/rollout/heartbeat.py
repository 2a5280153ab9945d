"""Once a second: what ModelService knows of the run's sessions, its groups and the policy.

One request tells it all. The scheduler learns which policy version samples, which attempts began
under which, how long calls wait, what the trainer took and what it left; the attempts learn whether
their agents are still asking.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from rock.errors import ModelServiceError
from rock.modelservice.wire.groups import GroupStatus
from rock.modelservice.wire.pulse import PulseReply
from rock.rollout.episode.episode import Tools
from rock.rollout.episode.progress import Handle
from rock.rollout.groups import Publisher
from rock.rollout.records.ledger import Ledger
from rock.rollout.records.ledger_lines import GroupConsumed
from rock.rollout.records.record import now
from rock.rollout.report.events import GroupAcknowledged, Heard
from rock.rollout.scheduler.core import Scheduler

log = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
QUICK_BEAT_SECONDS = 0.2
"""While nothing is left to do but to see what the trainer takes."""

Handles = Mapping[tuple[str, int], Handle]


class Heartbeat:
    """Asks, and passes on what it hears."""

    def __init__(
        self,
        ledger: Ledger,
        tools: Tools,
        publisher: Publisher,
        scheduler: Scheduler,
        wake: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._tools = tools
        self._publisher = publisher
        self._scheduler = scheduler
        self._wake = wake
        self._running_since: float | None = None
        """Since when the policy takes calls, as far as is known."""

    @property
    def waiting(self) -> list[str]:
        """Groups that went out and that the trainer has not acknowledged."""
        groups = self._ledger.state.groups.values()
        return [g.plan.group_id for g in groups if g.published and not g.consumed]

    async def beat(self, handles: Callable[[], Handles]) -> None:
        """Ask again and again. Runs until cancelled."""
        while True:
            try:
                await self.ask(handles())
            except ModelServiceError as exc:
                # Attempts find out for themselves, and the service may be starting again.
                log.warning("no pulse from ModelService: %s", exc)
            quick = self._scheduler.finished
            await asyncio.sleep(QUICK_BEAT_SECONDS if quick else BEAT_SECONDS)

    async def ask(self, handles: Handles) -> None:
        """Once. Raises `ModelServiceError`."""
        sessions = {handle.session_id: key for key, handle in handles.items() if handle.session_id}
        waiting = self.waiting
        reply = await self._tools.admin.pulse(list(sessions), waiting)
        if reply.policy.version is not None:
            self._scheduler.policy_version(reply.policy.version)
        for pulse in reply.sessions:
            key = sessions[pulse.session_id]
            handles[key].pulse = pulse
            if pulse.first_sampled_version is not None:
                self._scheduler.sampled(*key, pulse.first_sampled_version)
        self._tell(reply, sessions)
        self._note_wait(reply)
        known = {status.group_id for status in reply.groups}
        for status in reply.groups:
            await self._group(status, reply.policy.version)
        for group_id in waiting:
            group = self._ledger.state.groups[group_id]
            if group_id not in known and group.published:
                await self._publisher.publish_again(group)
        self._wake()

    def _tell(self, reply: PulseReply, sessions: Mapping[str, tuple[str, int]]) -> None:
        """What whoever watches the run sees of its calls."""
        tokens: dict[str, int] = {}
        for pulse in reply.sessions:
            group_id, index = sessions[pulse.session_id]
            tokens[f"{group_id}.{index}"] = pulse.completion_tokens
        self._tools.on_event(
            Heard(
                completion_tokens=tokens,
                queued=sum(pulse.queued for pulse in reply.sessions),
                leased=sum(pulse.leased for pulse in reply.sessions),
            )
        )

    def _note_wait(self, reply: PulseReply) -> None:
        """The longest wait of a call that is queued; a pause is no wait for the model."""
        clock = self._tools.clock()
        if reply.policy.state == "paused":
            self._running_since = None
            return
        if self._running_since is None:
            self._running_since = clock
        waits = [p.last_call_age_seconds or 0.0 for p in reply.sessions if p.queued]
        wait = min(max(waits, default=0.0), clock - self._running_since)
        self._scheduler.queue_wait(wait, clock)

    async def _group(self, status: GroupStatus, version: int | None) -> None:
        group_id = status.group_id
        group = self._ledger.state.groups[group_id]
        if status.revision != group.revision or not group.published:
            return  # it is about to go out anew
        if status.state == "acknowledged" and not group.consumed:
            await self._ledger.append(GroupConsumed(group_id=group_id, step=status.step, at=now()))
            self._scheduler.consumed(group_id)
            self._tools.on_event(GroupAcknowledged(group_id=group_id))
        elif status.state == "stale" and version is not None:
            self._scheduler.withdrawn(group_id, version)

    async def wait_for_trainer(self, timeout_seconds: float) -> None:
        """Until no group is left that the trainer has not acknowledged, but not for longer."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    await self.ask({})
                    if not self.waiting:
                        return
                    await asyncio.sleep(QUICK_BEAT_SECONDS)
        except (TimeoutError, ModelServiceError):
            return
