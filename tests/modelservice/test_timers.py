"""Moments by name."""

from rock.modelservice.timers import Timers


def test_names_come_due_in_order_and_once() -> None:
    timers = Timers()
    timers.set("b", 2.0)
    timers.set("a", 1.0)
    timers.set("c", 9.0)
    assert list(timers.due(2.0)) == ["a", "b"]
    assert list(timers.due(2.0)) == []
    assert len(timers) == 1


def test_a_moved_name_is_due_at_its_new_moment_only() -> None:
    timers = Timers()
    timers.set("a", 1.0)
    timers.set("a", 5.0)
    assert list(timers.due(4.0)) == []
    assert list(timers.due(5.0)) == ["a"]


def test_a_dropped_name_is_never_due() -> None:
    timers = Timers()
    timers.set("a", 1.0)
    timers.drop("a")
    timers.drop("never set")
    assert list(timers.due(9.0)) == []


def test_names_that_come_and_go_leave_nothing_behind() -> None:
    timers = Timers()
    for number in range(10_000):
        timers.set(str(number), 1e9)
        timers.drop(str(number))
    assert len(timers._heap) < 200  # pyright: ignore[reportPrivateUsage] - the leak would be here
