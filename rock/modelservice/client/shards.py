"""Clients of a service of several shards: the same methods as `client`, over all of them.

    async with TrainerShards(url, key) as trainer:      # one shard's URL, or a list of all
        for lease in (await trainer.claim("worker-1", max_leases=8)).leases: ...

Given one URL they ask it for the others (same host, other ports), so a service of one process is
used through them like any other. Claims are fair: every shard has an equal part of the room in every
claim, what one leaves is offered to the others, and no lease is taken that there is no room for. A
shard that is started again, hangs or is gone holds nobody up: claims go on without it until it is back,
its items of a batch have the error `service_unavailable` each, and only when all shards are away is that
an error of the call. What concerns all shards (policy, stats, health) needs them all.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from rock.errors import RockError, ServiceUnavailable
from rock.modelservice import wire
from rock.modelservice.client.client import AdminClient, TrainerClient
from rock.modelservice.client.control import ControlClient
from rock.modelservice.client.fanout import AWAY, Shards
from rock.modelservice.graph import deltas
from rock.modelservice.sharding import one_policy, one_stats, shares, split
from rock.modelservice.wire import groups as wire_groups
from rock.modelservice.wire import interceptors as wire_interceptors
from rock.modelservice.wire.partial import CancelledReply, Partial, PartialReply
from rock.modelservice.wire.pulse import PulseReply

log = logging.getLogger(__name__)


SLOW_SECONDS = 1.0
"""A claim goes on without a shard that has not answered after this; its leases come with the next."""
READY_SECONDS = 20.0
REST_SECONDS = 1.0
"""A shard that could not be reached is not asked for calls before this."""
GROUPS = 0
"""The shard that keeps the finished groups of all."""


class TrainerShards(Shards[TrainerClient]):
    """`TrainerClient` for all shards."""

    def __init__(
        self,
        urls: str | Sequence[str],
        key: str,
        *,
        retry_seconds: float = 30.0,
        memory_bytes: int = deltas.MAX_BYTES,
    ) -> None:
        def connect(url: str) -> TrainerClient:
            return TrainerClient(url, key, retry_seconds=retry_seconds, memory_bytes=memory_bytes)

        first = urls if isinstance(urls, str) else urls[0]
        super().__init__(
            urls, connect, first=ControlClient(first, key, retry_seconds=retry_seconds)
        )
        self._turn = 0
        self._claims: dict[int, asyncio.Task[wire.ClaimReply]] = {}
        """By shard: claims that have not answered."""
        self._ready: dict[int, asyncio.Task[wire.ClaimReply]] = {}
        """By shard: waits until a call can be claimed there. They take nothing."""
        self._away: dict[int, RockError] = {}
        """Shards that could not be reached when they were asked last, and why."""
        self._rests: dict[int, float] = {}
        """Until when those are left alone, on the loop's clock."""
        self._cursors: dict[tuple[str, int], int] = {}
        self._told = 0

    async def close(self) -> None:
        tasks = [*self._claims.values(), *self._ready.values()]
        self._claims, self._ready = {}, {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().close()

    async def claim(
        self,
        worker_id: str,
        *,
        max_leases: int = 1,
        lease_seconds: float = 60.0,
        wait_seconds: float = 20.0,
        policy_version: int | None = None,
        whole: bool = True,
    ) -> wire.ClaimReply:
        """As `TrainerClient.claim`. `policy_state` is that of the shards that answered: paused only
        if all are. One claim at a time."""
        self._check_open()

        def claim_of(shard: int, room: int, wait: float) -> asyncio.Task[wire.ClaimReply]:
            claim = self._clients[shard].claim(
                worker_id,
                max_leases=room,
                lease_seconds=lease_seconds,
                wait_seconds=wait,
                policy_version=policy_version,
                whole=whole,
            )
            return asyncio.ensure_future(claim)

        if len(self._clients) == 1:
            return await claim_of(0, max_leases, wait_seconds)
        end = asyncio.get_running_loop().time() + wait_seconds
        while True:
            reply = await self._sweep(max_leases, claim_of)
            left = end - asyncio.get_running_loop().time()
            if reply.leases:
                return reply
            if len(self._away) == len(self._clients):
                raise next(iter(self._away.values()))
            if left <= 0:
                return reply
            await self._until_ready(left, claim_of)

    async def _sweep(
        self, room: int, claim_of: Callable[[int, int, float], asyncio.Task[wire.ClaimReply]]
    ) -> wire.ClaimReply:
        """Take what there is, without waiting for more: equal parts, then what is left of the room
        from those that gave all they were asked for."""
        count = len(self._clients)
        order = [(self._turn + step) % count for step in range(count)]
        order = [shard for shard in order if not self._resting(shard)]
        self._turn = (self._turn + 1) % count
        leases: list[wire.Lease] = []
        states: list[wire.PolicyState] = []
        # At most so often as there are shards: every round, one has no more or the room is used up.
        while order and room > 0 and len(states) <= 2 * count:
            parts = shares(room, [shard for shard in order if shard not in self._claims] or order)
            for shard, part in parts.items():
                if shard not in self._claims:
                    self._claims[shard] = claim_of(shard, part, 0.0)
            # One that was slow before has had its time.
            await asyncio.wait([self._claims[shard] for shard in parts], timeout=SLOW_SECONDS)
            more: list[int] = []
            for shard in [shard for shard, task in self._claims.items() if task.done()]:
                reply = self._answer(shard, self._claims.pop(shard))
                if reply is None:
                    continue
                states.append(reply.policy_state)
                leases += reply.leases
                room -= len(reply.leases)
                if reply.leases and len(reply.leases) >= parts.get(shard, 1):
                    more.append(shard)
            order = [shard for shard in order if shard in more or shard not in parts]
            order = [shard for shard in order if shard not in self._claims]
        paused = bool(states) and all(state == "paused" for state in states)
        return wire.ClaimReply(leases=leases, policy_state="paused" if paused else "running")

    async def _until_ready(
        self,
        seconds: float,
        claim_of: Callable[[int, int, float], asyncio.Task[wire.ClaimReply]],
    ) -> None:
        """Wait until some shard has a call to claim, or a late claim has come."""
        for shard in range(len(self._clients)):
            busy = shard in self._ready or shard in self._claims
            if not busy and not self._resting(shard):
                self._ready[shard] = claim_of(shard, 0, READY_SECONDS)
        tasks = {*self._ready.values(), *self._claims.values()}
        if self._rests:
            seconds = min(seconds, REST_SECONDS)
        if not tasks:
            await asyncio.sleep(seconds)
            return
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for shard in [shard for shard, task in self._ready.items() if task in done]:
            self._answer(shard, self._ready.pop(shard))

    def _answer(self, shard: int, task: asyncio.Task[wire.ClaimReply]) -> wire.ClaimReply | None:
        """What a shard said to a claim; None if it is away. Raises what it refused the claim with."""
        try:
            reply = task.result()
        except AWAY as exc:
            if shard not in self._away:
                log.warning("claims go on without shard %d: %s", shard, exc.message)
            self._away[shard] = exc
            self._rests[shard] = asyncio.get_running_loop().time() + REST_SECONDS
            return None
        self._away.pop(shard, None)
        self._rests.pop(shard, None)
        return reply

    def _resting(self, shard: int) -> bool:
        return self._rests.get(shard, 0.0) > asyncio.get_running_loop().time()

    async def leases(self, lease_ids: Sequence[str]) -> list[wire.Lease]:
        self._check_open()
        parts = split(lease_ids, str, len(self._clients))
        found = await asyncio.gather(
            *(
                self._clients[shard].leases([lease_ids[place] for place in places])
                for shard, places in parts.items()
            )
        )
        return [lease for part in found for lease in part]

    async def complete(self, completions: Sequence[wire.Completion]) -> list[wire.ItemResult]:
        return await self._batch(completions, _lease_of, TrainerClient.complete)

    async def partial(
        self, partials: Sequence[Partial], *, worker_id: str | None = None
    ) -> PartialReply:
        replies: list[PartialReply] = []

        async def send(client: TrainerClient, items: list[Partial]) -> Sequence[wire.ItemResult]:
            replies.append(await client.partial(items, worker_id=worker_id))
            return replies[-1].results

        return PartialReply(
            results=await self._batch(partials, lambda item: item.lease_id, send),
            cancelled=[lease_id for reply in replies for lease_id in reply.cancelled],
            policy_state="paused"
            if any(r.policy_state == "paused" for r in replies)
            else "running",
        )

    async def cancelled(
        self, worker_id: str, *, after: int = 0, wait_seconds: float = 20.0
    ) -> CancelledReply:
        """As `TrainerClient.cancelled`, but the cursors are kept here, one for each shard; `after` 0
        starts from the beginning."""
        self._check_open()
        if after == 0:
            self._cursors = {k: v for k, v in self._cursors.items() if k[0] != worker_id}
        shards = range(len(self._clients))
        asked = {
            asyncio.ensure_future(
                self._clients[shard].cancelled(
                    worker_id,
                    after=self._cursors.get((worker_id, shard), 0),
                    wait_seconds=wait_seconds,
                )
            ): shard
            for shard in shards
        }
        lease_ids: list[str] = []
        end = asyncio.get_running_loop().time() + wait_seconds + SLOW_SECONDS
        away: list[RockError] = []
        try:
            waiting = set(asked)
            while waiting and not lease_ids:
                left = max(0.0, end - asyncio.get_running_loop().time())
                done, waiting = await asyncio.wait(
                    waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    break
                for task in done:
                    try:
                        reply = task.result()
                    except AWAY as exc:
                        away.append(exc)
                        continue
                    self._cursors[worker_id, asked[task]] = reply.cursor
                    lease_ids += reply.lease_ids
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        if len(away) == len(asked):
            raise away[0]
        self._told += 1
        return CancelledReply(lease_ids=lease_ids, cursor=self._told)

    async def renew(
        self, lease_ids: Sequence[str], *, lease_seconds: float = 60.0
    ) -> list[wire.ItemResult]:
        async def send(client: TrainerClient, ids: list[str]) -> list[wire.ItemResult]:
            return await client.renew(ids, lease_seconds=lease_seconds)

        # Or the leases on the other shards would not be renewed again before they are over.
        return await self._batch(lease_ids, str, send, bound_seconds=lease_seconds / 3)

    async def release(self, lease_ids: Sequence[str]) -> list[wire.ItemResult]:
        return await self._batch(lease_ids, str, TrainerClient.release)

    async def fail(self, failures: Sequence[wire.Failure]) -> list[wire.ItemResult]:
        return await self._batch(failures, lambda item: item.lease_id, TrainerClient.fail)

    async def policy(
        self,
        *,
        version: int | None = None,
        state: wire.PolicyState | None = None,
        mode: wire.PauseMode = "hold",
    ) -> wire.PolicyStatus:
        """Of all shards at once; running only if all are, and the lowest version of any."""
        return one_policy(
            await self._each(lambda one: one.policy(version=version, state=state, mode=mode))
        )

    async def stats(self) -> wire.Stats:
        """The sums over all shards."""
        return one_stats(await self._each(TrainerClient.stats))

    async def claim_rollouts(
        self,
        worker_id: str,
        *,
        max_groups: int = 1,
        lease_seconds: float = 300.0,
        wait_seconds: float = 20.0,
        policy_version: int | None = None,
    ) -> list[wire_groups.ClaimedGroup]:
        self._check_open()
        return await self._clients[GROUPS].claim_rollouts(
            worker_id,
            max_groups=max_groups,
            lease_seconds=lease_seconds,
            wait_seconds=wait_seconds,
            policy_version=policy_version,
        )

    async def ack_rollouts(
        self, lease_ids: Sequence[str], *, step: int | None = None
    ) -> list[wire.ItemResult]:
        self._check_open()
        return await self._clients[GROUPS].ack_rollouts(lease_ids, step=step)

    async def renew_rollouts(
        self, lease_ids: Sequence[str], *, lease_seconds: float = 300.0
    ) -> list[wire.ItemResult]:
        self._check_open()
        return await self._clients[GROUPS].renew_rollouts(lease_ids, lease_seconds=lease_seconds)

    async def release_rollouts(self, lease_ids: Sequence[str]) -> list[wire.ItemResult]:
        self._check_open()
        return await self._clients[GROUPS].release_rollouts(lease_ids)


class AdminShards(Shards[AdminClient]):
    """`AdminClient` for all shards. Sessions are placed in turn, beginning anywhere."""

    def __init__(self, urls: str | Sequence[str], key: str, *, retry_seconds: float = 30.0) -> None:
        def connect(url: str) -> AdminClient:
            return AdminClient(url, key, retry_seconds=retry_seconds)

        first = urls if isinstance(urls, str) else urls[0]
        super().__init__(
            urls, connect, first=ControlClient(first, key, retry_seconds=retry_seconds)
        )
        self._turn = random.randrange(1 << 16)

    async def create_session(self, spec: wire.SessionSpec | None = None) -> wire.SessionCreated:
        self._check_open()
        away: RockError | None = None
        for _ in self._clients:
            self._turn += 1
            try:
                return await self._clients[self._turn % len(self._clients)].create_session(spec)
            except AWAY as exc:  # the next one has room for it
                away = exc
        raise away or ServiceUnavailable("there is no shard")

    async def close_session(
        self, session_id: str, reason: wire.CloseReason = "finished"
    ) -> wire.SessionInfo:
        return await self._of(session_id).close_session(session_id, reason)

    async def session(self, session_id: str) -> wire.SessionInfo:
        return await self._of(session_id).session(session_id)

    async def trajectory(self, session_id: str) -> wire.Trajectory:
        return await self._of(session_id).trajectory(session_id)

    async def interceptors(self) -> wire_interceptors.InterceptorList:
        """Those of the first shard; all have the same, if all were told."""
        return (await self._each(AdminClient.interceptors))[0]

    async def set_interceptor(
        self, name: str, spec: wire_interceptors.Interceptor
    ) -> wire_interceptors.InterceptorStatus:
        """In every shard; said again, it repairs one that had missed it."""
        return (await self._each(lambda one: one.set_interceptor(name, spec)))[0]

    async def remove_interceptor(self, name: str) -> wire_interceptors.InterceptorRemoved:
        replies = await self._each(lambda one: one.remove_interceptor(name))
        return wire_interceptors.InterceptorRemoved(removed=any(r.removed for r in replies))

    async def publish_group(self, group: wire_groups.Group) -> wire_groups.PublishReply:
        self._check_open()
        return await self._clients[GROUPS].publish_group(group)

    async def group_status(self, group_id: str) -> wire_groups.GroupStatus:
        self._check_open()
        return await self._clients[GROUPS].group_status(group_id)

    async def pulse(self, session_ids: Sequence[str], group_ids: Sequence[str]) -> PulseReply:
        """Of all shards at once."""
        self._check_open()
        parts = split(session_ids, str, len(self._clients))
        replies = await asyncio.gather(
            *(
                client.pulse(
                    [session_ids[place] for place in parts.get(shard, ())],
                    group_ids if shard == GROUPS else (),
                )
                for shard, client in enumerate(self._clients)
            )
        )
        return PulseReply(
            policy=one_policy([reply.policy for reply in replies]),
            sessions=[session for reply in replies for session in reply.sessions],
            groups=replies[GROUPS].groups,
        )

    async def health(self) -> wire.Health:
        """Raises what any shard raises; a backend is refused if it is in any."""
        replies = await self._each(AdminClient.health)
        backends: dict[str, str | None] = {}
        for reply in replies:
            for name, refused in reply.backends.items():
                backends[name] = backends.get(name) or refused
        return wire.Health(backends=backends)


def _lease_of(item: wire.Completion) -> str:
    return item.lease_id
