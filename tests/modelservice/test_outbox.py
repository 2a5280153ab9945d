"""Groups wait, are leased, come back, and end with an acknowledgement."""

import pytest

from rock.errors import LeaseLost, NotFound
from rock.modelservice.engine.outbox import Freshness, GroupLease, Outbox


def published(*group_ids: str) -> Outbox:
    outbox = Outbox()
    for group_id in group_ids:
        outbox.publish(group_id, f'"{group_id}"'.encode())
        outbox.offer(group_id)
    return outbox


def take(outbox: Outbox, now: float = 0.0) -> GroupLease:
    lease = outbox.claim(now=now, lease_seconds=10.0)
    assert lease is not None
    return lease


def test_groups_are_handed_out_in_the_order_of_publication() -> None:
    outbox = published("a", "b")
    assert [take(outbox).group, take(outbox).group] == [b'"a"', b'"b"']
    assert outbox.claim(now=0.0, lease_seconds=1.0) is None


def test_a_group_is_published_once() -> None:
    outbox = published("a")
    outbox.publish("a", b'"other"')
    assert take(outbox).group == b'"a"'


def test_a_group_is_not_handed_out_before_it_is_offered() -> None:
    outbox = Outbox()
    outbox.publish("a", b"{}")
    assert outbox.claim(now=0.0, lease_seconds=1.0) is None
    assert outbox.status("a").state == "pending"


def test_an_unacknowledged_group_is_handed_out_again_first() -> None:
    outbox = published("a", "b")
    old = take(outbox)
    assert outbox.expire(10.0) == 1
    new = take(outbox, now=10.0)
    assert (new.group, new.delivery) == (b'"a"', 2)
    with pytest.raises(LeaseLost):
        outbox.holder(old.lease_id)


def test_an_acknowledged_group_never_comes_back() -> None:
    outbox = published("a")
    lease = take(outbox)
    outbox.acknowledge(outbox.holder(lease.lease_id))
    assert outbox.expire(1e9) == 0
    assert outbox.claim(now=1e9, lease_seconds=1.0) is None
    assert outbox.acknowledged(outbox.holder(lease.lease_id))


def test_an_unknown_group_has_no_status() -> None:
    with pytest.raises(NotFound, match="'nope'"):
        Outbox().status("nope")


def aged(oldest: int, revision: int = 0) -> Freshness:
    return Freshness(revision=revision, oldest_version=oldest, max_staleness=1)


def test_a_group_too_old_for_the_policy_is_stale_and_not_handed_out() -> None:
    outbox = Outbox()
    for name, oldest in (("old", 3), ("young", 4)):
        outbox.publish(name, name.encode(), aged(oldest))
        outbox.offer(name)
    lease = outbox.claim(now=0.0, lease_seconds=1.0, version=5)
    assert lease is not None
    assert lease.group == b"young"
    assert outbox.status("old").state == "stale"
    assert outbox.claim(now=0.0, lease_seconds=1.0, version=4) is None


def test_a_new_policy_version_withdraws_what_waits_but_not_what_is_leased() -> None:
    outbox = Outbox()
    for name in ("taken", "waits"):
        outbox.publish(name, name.encode(), aged(3))
        outbox.offer(name)
    assert take(outbox).group == b"taken"
    outbox.withdraw_stale(5)
    assert [outbox.status(name).state for name in ("taken", "waits")] == ["leased", "stale"]


def test_a_later_revision_replaces_an_earlier_one_and_ends_its_lease() -> None:
    outbox = Outbox()
    outbox.publish("a", b"first", aged(1))
    outbox.offer("a")
    old = take(outbox)
    outbox.publish("a", b"again", aged(1))
    assert outbox.holder(old.lease_id) == "a"
    outbox.publish("a", b"second", aged(4, revision=1))
    outbox.offer("a", 0)
    assert outbox.waiting == 0
    outbox.offer("a", 1)
    with pytest.raises(LeaseLost):
        outbox.holder(old.lease_id)
    new = take(outbox)
    assert (new.group, new.delivery) == (b"second", 2)
    assert outbox.expire(10.0) == 1
    outbox.acknowledge("a", step=7)
    assert not outbox.accepts("a", 2)
    assert (outbox.status("a").step, outbox.status("a").revision) == (7, 1)


def test_a_lease_can_be_renewed_and_released() -> None:
    outbox = published("a", "b")
    lease = take(outbox)
    outbox.renew(lease.lease_id, now=9.0, lease_seconds=10.0)
    assert outbox.expire(10.0) == 0
    outbox.release(lease.lease_id)
    again = take(outbox)
    assert again.group == lease.group
    outbox.acknowledge("a")
    for over in (lease.lease_id, again.lease_id):
        with pytest.raises(LeaseLost):
            outbox.renew(over, now=0.0, lease_seconds=1.0)
        with pytest.raises(LeaseLost):
            outbox.release(over)


def restarted(*, delivery: int = 1) -> Outbox:
    """A service that finds in its journal that `a` was handed out under the lease `old`."""
    outbox = Outbox(boot="2-")
    for name in ("a", "b"):
        outbox.publish(name, f'"{name}"'.encode(), aged(3))
        outbox.offer(name)
    outbox.restore("a", lease_id="old", delivery=delivery)
    return outbox


def test_a_lease_from_before_a_restart_is_good_until_the_group_is_handed_out_again() -> None:
    outbox = restarted()
    assert outbox.status("a").state == "pending"
    outbox.acknowledge(outbox.holder("old"), step=3)
    outbox.settle("a")
    assert (outbox.status("a").state, outbox.status("a").step) == ("acknowledged", 3)
    assert take(outbox).group == b'"b"'

    outbox = restarted(delivery=4)
    again = take(outbox)
    assert (again.group, again.delivery) == (b'"a"', 5)
    with pytest.raises(LeaseLost):
        outbox.holder("old")


def test_a_lease_from_before_a_restart_can_be_renewed_and_released() -> None:
    outbox = restarted()
    outbox.renew("old", now=0.0, lease_seconds=10.0)
    assert (outbox.status("a").state, take(outbox).group) == ("leased", b'"b"')
    outbox.release("old")
    assert take(outbox).group == b'"a"'


def test_a_group_that_became_stale_takes_its_lease_from_before_a_restart_along() -> None:
    outbox = restarted()
    outbox.withdraw_stale(9)
    with pytest.raises(LeaseLost):
        outbox.holder("old")


def test_a_group_counts_as_acknowledged_once_the_journal_says_so() -> None:
    outbox = published("a")
    outbox.acknowledge(outbox.holder(take(outbox).lease_id))
    assert outbox.status("a").state == "leased"
    outbox.settle("a")
    assert outbox.status("a").state == "acknowledged"
