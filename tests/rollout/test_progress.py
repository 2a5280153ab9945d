"""When an agent counts as stuck: what the model service and the sandbox say, on a clock by hand."""

from rock.modelservice.wire.pulse import SessionPulse
from rock.rollout.episode.phases import LEAST_SECONDS, Phases
from rock.rollout.episode.progress import Watchdog, parse_processes
from rock.rollout.records.outcome import Phase
from rock.testing import FakeClock


def pulse(*, queued: int = 0, leased: int = 0, age: float | None = None) -> SessionPulse:
    return SessionPulse(session_id="s", queued=queued, leased=leased, last_call_age_seconds=age)


def test_an_agent_that_does_nothing_is_stuck_at_its_limit() -> None:
    dog = Watchdog(60.0, now=0.0)
    dog.heard(pulse(), 30.0)
    assert not dog.stuck(59.9)
    assert dog.stuck(60.0)


def test_a_call_is_a_sign_of_life_from_when_it_was_made() -> None:
    dog = Watchdog(60.0, now=0.0)
    dog.heard(pulse(age=5.0), 50.0)
    assert dog.quiet_seconds(50.0) == 5.0
    dog.heard(pulse(age=40.0), 85.0)
    assert dog.stuck(105.0)


def test_a_call_that_waits_is_the_models_time() -> None:
    dog = Watchdog(60.0, now=0.0)
    for now in (50.0, 100.0, 150.0):
        dog.heard(pulse(queued=1, age=now), now)
    assert not dog.stuck(200.0)
    dog.heard(pulse(leased=1, age=500.0), 1000.0)
    assert not dog.stuck(1000.0)


def test_processor_time_is_a_sign_of_life_and_a_waiting_loop_is_not() -> None:
    dog = Watchdog(60.0, now=0.0)
    dog.saw({(7, 1): 100}, 40.0)
    dog.saw({(7, 1): 105, (8, 2): 900}, 50.0)
    assert dog.quiet_seconds(50.0) == 50.0
    dog.saw({(7, 1): 305}, 59.0)
    assert dog.quiet_seconds(59.0) == 0.0


def test_processes_are_read_whatever_they_are_called() -> None:
    fields = " ".join(["S", *["0"] * 10, "3", "4", "5", "6", "0", "0", "1", "0", "777", "9"])
    line = f"42 (a) b) {fields}\n".encode()
    assert parse_processes(line + b"torn") == {(42, 777): 18}


async def test_phases_share_the_time_of_the_whole_up_to_the_agents_end() -> None:
    clock, seen = FakeClock(), list[Phase]()
    phases = Phases(clock, whole_seconds=100.0, on_enter=seen.append)
    async with phases.enter(Phase.PROVISION, 30.0) as bound:
        assert bound == 30.0
        clock.advance(80.0)
    async with phases.enter(Phase.AGENT, 60.0) as bound:
        assert bound == 20.0
        clock.advance(25.0)
    assert phases.bounded(Phase.SETUP, 9.0) == LEAST_SECONDS
    async with phases.enter(Phase.GRADE, 60.0) as bound:
        assert bound == 60.0
    assert (seen, phases.phase) == ([Phase.PROVISION, Phase.AGENT, Phase.GRADE], Phase.GRADE)
    assert phases.seconds == {"provision": 80.0, "agent": 25.0, "grade": 0.0}
