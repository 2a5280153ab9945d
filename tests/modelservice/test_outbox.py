"""Groups wait, are leased, come back, and end with an acknowledgement."""

import pytest

from rock.errors import LeaseLost, NotFound
from rock.modelservice.engine.outbox import GroupLease, Outbox


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
    assert outbox.status("a").state == "acknowledged"
    assert outbox.acknowledged(outbox.holder(lease.lease_id))


def test_an_unknown_group_has_no_status() -> None:
    with pytest.raises(NotFound, match="'nope'"):
        Outbox().status("nope")
