"""The scheduler: events in, decisions out. Synchronous; time is passed in.

    scheduler = Scheduler(policy)
    scheduler.add(plan) …                       what there is to do
    scheduler.ended(group_id, index, ending)    what happened
    for decision in scheduler.decide(now): …    what to do about it

It promises, whatever the events:

- A member is started when none of its attempts runs and it has not ended for good; it ends once.
- Never more attempts than the concurrency, the model's pace, and the quotas of tasks and tags
  allow, and never faster than the rate of starts.
- The first n members of a group that count are its group; the others are told to stop, and a group
  is settled without waiting for them.
- What was begun by a policy older than the bound allows is stopped, or run again if it had ended.
- Never more steps or groups ahead of the trainer than the bounds allow.
- Every group is settled, as long as attempts end and the trainer takes what goes out. Retries and
  members of groups that are open come before new groups, older groups before younger ones.

`decide` costs O(log n) for each thing it decides. A change of the policy version looks at what runs
and at the groups that are open.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from rock.rollout.scheduler.members import Group, Member, MemberState
from rock.rollout.scheduler.pace import ModelPace, RoomPace, StartRate
from rock.rollout.scheduler.plan import (
    Cancel,
    CancelReason,
    Decision,
    Ending,
    GroupPlan,
    Reopen,
    ReopenReason,
    SchedulePolicy,
    Settled,
    Start,
)
from rock.rollout.scheduler.pool import Curriculum, Pool, QuotaKey
from rock.rollout.scheduler.windows import Windows


class Scheduler:
    """One run's groups from waiting to consumed."""

    def __init__(self, policy: SchedulePolicy, *, curriculum: Curriculum | None = None) -> None:
        self.policy = policy
        self._curriculum = curriculum
        self._pool = Pool(curriculum)
        self._windows = Windows(policy)
        self._pace = ModelPace(policy.concurrency, policy.queue_wait_seconds)
        self._room = RoomPace(policy.concurrency)
        self._rate = StartRate(policy.starts_per_second, policy.start_burst)
        self._groups: dict[str, Group] = {}
        self._live: dict[str, Group] = {}
        """Neither settled nor waiting untouched: groups that a new policy version concerns."""
        self._ready: list[tuple[int, int, str]] = []
        """Heap of (group's order, index, group id): members that may start now."""
        self._later: list[tuple[float, int, int, str]] = []
        """Heap by moment: members that wait for their next attempt."""
        self._held: dict[QuotaKey, list[tuple[int, int, str]]] = {}
        """Members that were due, but whose quota is used up."""
        self._used = Counter[QuotaKey]()
        self._running: set[tuple[str, int]] = set()
        self._out: list[Decision] = []
        self._unsettled = 0
        self._version: int | None = None

    # --- events ---

    def add(
        self,
        plan: GroupPlan,
        *,
        done: Mapping[int, Ending] | None = None,
        not_needed: Collection[int] = (),
    ) -> None:
        """A group to run. `done` are members that ended in an earlier run, in that order; those not
        needed lost to others then."""
        keys = tuple(("tag", t) for t in plan.tags if t in self.policy.tag_concurrency)
        group = Group(plan, len(self._groups), keys)
        self._groups[plan.group_id] = group
        self._unsettled += 1
        for index, ending in (done or {}).items():
            group.members[index].version = ending.version
            group.end(group.members[index], valid=ending.kind == "valid")
        for index in not_needed:
            group.members[index].state = MemberState.NOT_NEEDED
        self._pool.put(plan, keys, group.order)
        if done:
            self._live[plan.group_id] = group
            self._settle(group)

    def add_published(self, plan: GroupPlan, done: Mapping[int, Ending], *, consumed: bool) -> None:
        """A group that went out in an earlier run. Add these before all others."""
        group = Group(plan, len(self._groups), ())
        self._groups[plan.group_id] = group
        for index, ending in done.items():
            group.members[index].version = ending.version
            group.end(group.members[index], valid=ending.kind == "valid")
        group.settled = Settled(plan.group_id, publish=True, chosen=tuple(done))
        group.consumed = consumed
        if consumed:
            self._windows.consumed += 1
        else:
            self._windows.unconsumed += 1
        self._windows.resume(self._windows.consumed + self._windows.unconsumed)

    def sampled(self, group_id: str, index: int, version: int) -> None:
        """The attempt that runs has its first tokens, of this policy version."""
        member = self._groups[group_id].members[index]
        if member.state is MemberState.RUNNING:
            member.version = version
            if member.stale(self._floor()):
                self._cancel(self._groups[group_id], member, "stale")

    def ended(self, group_id: str, index: int, ending: Ending, now: float) -> None:
        """The attempt that ran has ended, by itself or because it was told to."""
        group = self._groups[group_id]
        member = group.members[index]
        if member.state is not MemberState.RUNNING:
            raise ValueError(f"{group_id} #{index} ended, but it is {member.state.value}")
        self._running.discard((group_id, index))
        self._free(group)
        if ending.version is not None:
            member.version = ending.version
        member.cancel = None
        if ending.no_room:
            self._room.refused(len(self._running), now)
        if ending.kind == "again":
            self._wait(group, member, now + ending.after_seconds)
        else:
            group.end(member, valid=ending.kind == "valid")
        if group.settled is None:
            self._recall(group)
            self._settle(group)

    def policy_version(self, version: int) -> None:
        """The trainer samples with this version now."""
        if self._version is not None and version <= self._version:
            return
        self._version = version
        floor = self._floor()
        if floor is None:
            return
        for group_id, index in sorted(self._running):
            member = self._groups[group_id].members[index]
            if member.stale(floor):
                self._cancel(self._groups[group_id], member, "stale")
        for group in list(self._live.values()):
            self._recall(group)

    def queue_wait(self, seconds: float, now: float) -> None:
        """The longest that a call waits for the model at the moment."""
        self._pace.note(seconds, running=len(self._running), now=now)

    def withdrawn(self, group_id: str, version: int) -> None:
        """A published group was too old for a trainer with policy `version`, and was not handed out."""
        self.policy_version(version)
        group = self._groups[group_id]
        if group.settled is None or not group.settled.publish or group.consumed:
            return
        group.settled = None
        self._unsettled += 1
        self._windows.reopen()
        self._windows.uncomplete(group.window)
        group.admitted = True
        self._live[group_id] = group
        self._recall(group)
        self._settle(group)

    def consumed(self, group_id: str) -> None:
        """The trainer has acknowledged a group."""
        group = self._groups[group_id]
        if group.consumed or group.settled is None:
            return
        group.consumed = True
        self._windows.unconsumed -= 1
        self._windows.consumed += 1

    def learn(self, group_id: str, rewards: Sequence[float]) -> None:
        """What a published group achieved, for the curriculum."""
        if self._curriculum is not None:
            self._curriculum.learn(self._groups[group_id].plan, rewards)

    # --- decisions ---

    def decide(self, now: float) -> list[Decision]:
        """What is to be done now. Call it after every event, and again at `next_time`."""
        self._room.pass_time(now)
        while self._running_below_limit():
            member = self._next_ready(now)
            if member is None:
                if not self._admit():
                    break
                continue
            if not self._rate.take(now):
                self._push(*member)
                break
            self._start(*member)
        out, self._out = self._out, []
        return out

    def next_time(self, now: float) -> float | None:
        """When `decide` may have more to do though nothing happens; None if it cannot."""
        if self._out:
            return now  # what the last events decided was not asked for yet
        if not self._running_below_limit():
            waits = bool(self._ready or self._later or self._windows.room)
            more = waits and self._room.raise_at < float("inf")
            return self._room.raise_at if more else None
        moments: list[float] = []
        if self._later:
            moments.append(self._later[0][0])
        if self._ready:
            moments.append(self._rate.ready_at(now))
        return min(moments, default=None)

    @property
    def finished(self) -> bool:
        """Every group is settled and nothing runs."""
        return not self._unsettled and not self._running and not self._out

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def limit(self) -> int:
        """Attempts that may run at once as things are."""
        return min(self._room.limit, self._pace.limit)

    @property
    def held_by_trainer(self) -> bool:
        """Nothing runs or can run until the trainer takes a group."""
        idle = not self._running and not self._ready and not self._later
        return idle and self._unsettled > 0 and not self._windows.room

    # --- starting ---

    def _running_below_limit(self) -> bool:
        return len(self._running) < self.limit

    def _next_ready(self, now: float) -> tuple[Group, Member] | None:
        while self._later and self._later[0][0] <= now:
            _, order, index, group_id = heapq.heappop(self._later)
            heapq.heappush(self._ready, (order, index, group_id))
        while self._ready:
            entry = heapq.heappop(self._ready)
            group = self._groups[entry[2]]
            member = group.members[entry[1]]
            if not group.admitted or group.settled or member.state is not MemberState.WAITING:
                continue  # it was settled, or went back to the pool, since
            if member.ready_at > now:
                continue  # another entry is for that moment
            member.ready_at = float("-inf")
            full = self._full_quota(group)
            if full is None:
                return group, member
            self._held.setdefault(full, []).append(entry)
        return None

    def _keys(self, group: Group) -> tuple[QuotaKey, ...]:
        return (*group.tag_keys, ("task", group.plan.task_id))

    def _full_quota(self, group: Group) -> QuotaKey | None:
        for key in self._keys(group):
            bound = self._bound(key)
            if bound is not None and self._used[key] >= bound:
                return key
        return None

    def _bound(self, key: QuotaKey) -> int | None:
        kind, name = key
        if kind == "tag":
            return self.policy.tag_concurrency.get(name)
        return self.policy.task_concurrency

    def _admit(self) -> bool:
        """Open the next group, if there is one that may be opened."""
        if not self._windows.room:
            return False
        group_id = self._pool.take(
            lambda keys: all(self._used[key] < (self._bound(key) or 0) for key in keys)
        )
        if group_id is None:
            return False
        group = self._groups[group_id]
        group.admitted = True
        group.window = self._windows.admit()
        self._live[group_id] = group
        self._recall(group)
        for member in group.in_state(MemberState.WAITING):
            self._push(group, member)
        return True

    def _push(self, group: Group, member: Member) -> None:
        """A waiting member of an open group takes its place in line."""
        key = (group.order, member.index, group.plan.group_id)
        if member.ready_at > float("-inf"):
            heapq.heappush(self._later, (member.ready_at, *key))
        else:
            heapq.heappush(self._ready, key)

    def _wait(self, group: Group, member: Member, ready_at: float) -> None:
        member.again()
        member.ready_at = ready_at
        if group.settled is not None:
            member.state = MemberState.NOT_NEEDED
        elif group.admitted:
            self._push(group, member)

    def _start(self, group: Group, member: Member) -> None:
        member.state, member.version, member.ready_at = MemberState.RUNNING, None, float("-inf")
        self._running.add((group.plan.group_id, member.index))
        for key in self._keys(group):
            self._used[key] += 1
        self._out.append(Start(group.plan.group_id, member.index))

    def _free(self, group: Group) -> None:
        for key in self._keys(group):
            self._used[key] -= 1
            if not self._used[key]:
                del self._used[key]
            for entry in self._held.pop(key, ()):
                heapq.heappush(self._ready, entry)

    # --- ending ---

    def _cancel(self, group: Group, member: Member, reason: CancelReason) -> None:
        if member.cancel is None:
            member.cancel = reason
            self._out.append(Cancel(group.plan.group_id, member.index, reason))

    def _floor(self) -> int | None:
        """The oldest policy version whose samples may still be used."""
        if self._version is None or self.policy.max_staleness is None:
            return None
        return self._version - self.policy.max_staleness

    def _recall(self, group: Group) -> None:
        """Run members again whose samples became too old before the trainer took them."""
        floor = self._floor()
        if floor is None or group.settled is not None:
            return
        stale = [member for member in group.members if member.counts and member.stale(floor)]
        if any(member.reopens >= self.policy.max_stale_reopens for member in stale):
            self._drop(group, "it became stale every time")
            return
        for member in stale:
            member.reopens += 1
            self._reopen(group, member, "stale")

    def _reopen(self, group: Group, member: Member, reason: ReopenReason) -> None:
        self._out.append(Reopen(group.plan.group_id, member.index, reason))
        member.again()
        if group.admitted:
            self._push(group, member)

    def _settle(self, group: Group) -> None:
        """Settle the group if nothing is open about it any more."""
        if group.settled is not None:
            return
        verdict = group.verdict(self.policy)
        if verdict is None:
            return
        refill = group.to_refill(self.policy)
        if refill:
            for member in refill:
                member.refills += 1
                self._reopen(group, member, "refill")
            return
        if not verdict.publish:
            self._drop(group, verdict.reason)
            return
        self._close(group, verdict, "redundant")
        if not group.admitted:
            self._pool.remove(group.plan.group_id, group.tag_keys)
            group.admitted, group.window = True, self._windows.admit()
        if self._windows.complete(group.window) and group.window is not None:
            self._cancel_losers(group.window)

    def _close(self, group: Group, verdict: Settled, reason: CancelReason) -> None:
        group.settled = verdict
        self._unsettled -= 1
        self._live.pop(group.plan.group_id, None)
        self._out.append(verdict)
        for member in group.members:
            if member.state is MemberState.RUNNING:
                self._cancel(group, member, reason)
            elif member.state is MemberState.WAITING:
                member.state = MemberState.NOT_NEEDED

    def _drop(self, group: Group, reason: str) -> None:
        self._close(
            group, Settled(group.plan.group_id, publish=False, chosen=(), reason=reason), "dropped"
        )
        if group.admitted:
            self._windows.leave(group.window)
        else:
            self._pool.remove(group.plan.group_id, group.tag_keys)

    def _cancel_losers(self, window: int) -> None:
        """A step has its groups: the others that were opened for it stop and wait for a later one."""
        for group in list(self._live.values()):
            if group.window != window or not group.admitted:
                continue
            if group.cancels >= self.policy.max_group_cancels:
                group.window = self._windows.move_on(window)
                continue
            group.cancels += 1
            group.admitted, group.window = False, None
            self._windows.leave(window)
            for member in group.in_state(MemberState.RUNNING):
                self._cancel(group, member, "redundant_group")
            self._pool.put(group.plan, group.tag_keys, group.order)
