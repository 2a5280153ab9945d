"""What the live view says of a run, on a clock that only moves when told to, and how it is drawn."""

import io
import json
import re
import threading
from pathlib import Path
from typing import get_args

from rich.console import Console

from rock.cli.running.board import Board
from rock.cli.running.progress import JsonView, TextView, duration, name_of, status_lines
from rock.rollout.records.outcome import Outcome, OutcomeClass, Phase, graded, outcome_of
from rock.rollout.records.record import Plan, Record, Usage
from rock.rollout.report.events import (
    AttemptDone,
    Event,
    GroupAcknowledged,
    GroupDone,
    Heard,
    PhaseEntered,
    RunEnded,
    RunStarted,
    TrainerAwaited,
)
from rock.rollout.report.report import report
from rock.testing.clock import FakeClock

STARTED = RunStarted(
    run_id="r", directory=Path("/runs/r"), provider="local", groups=2, episodes=10, done=2
)


def plan(index: int, attempt: int = 1) -> Plan:
    return Plan(run_id="r", group_id="r.0", task_id="task", index=index, attempt=attempt)


def entered(index: int, phase: Phase) -> PhaseEntered:
    return PhaseEntered(plan=plan(index), phase=phase)


def ended(index: int, outcome: Outcome, *, tokens: int = 0, final: bool = True) -> AttemptDone:
    record = Record(
        run_id="r",
        group_id="r.0",
        episode_id=plan(index).episode_id,
        task_id="task",
        index=index,
        attempt=1,
        started_at="",
        ended_at="",
        seconds=1.0,
        phase_seconds={},
        outcome=outcome,
        usage=Usage(completion_tokens=tokens),
    )
    return AttemptDone(record=record, final=final)


def heard(**tokens: int) -> Heard:
    """`e3=100`: the episode with index 3 has 100 tokens."""
    by_id = {plan(int(name[1:])).episode_id: count for name, count in tokens.items()}
    return Heard(completion_tokens=by_id, queued=1, leased=2)


SOLVED = graded(1.0, agent_class=None)
FAILED = graded(0.0, agent_class=None)
DIED = outcome_of(OutcomeClass.SANDBOX_DIED, Phase.AGENT, detail="gone")


def told(board: Board, *events: Event) -> None:
    for event in events:
        board.on_event(event)


def test_only_final_valid_episodes_count_and_earlier_ones_do_not_make_it_fast() -> None:
    clock = FakeClock()
    board = Board(clock)
    told(board, STARTED, entered(0, Phase.AGENT))
    assert board.eta_seconds is None
    clock.advance(20)
    told(board, ended(0, SOLVED), ended(1, FAILED), ended(2, DIED, final=False))
    assert (board.done, board.valid, board.solved) == (4, 2, 1)
    # Two in twenty seconds, six to go.
    assert board.eta_seconds == 60.0
    told(board, ended(2, DIED), ended(3, outcome_of(OutcomeClass.REDUNDANT, Phase.AGENT)))
    assert (board.done, board.valid, board.solved) == (5, 2, 1)


def test_tokens_are_counted_once_while_they_are_sampled_and_when_the_attempt_has_ended() -> None:
    clock = FakeClock()
    board = Board(clock)
    told(board, STARTED, entered(0, Phase.AGENT), entered(1, Phase.AGENT))
    clock.advance(10)
    told(board, heard(e0=100, e1=50, e7=999))
    assert (board.tokens, board.tokens_per_second) == (150, 15.0)
    # Its session is closed by now, so the service says nothing of it any more.
    told(board, ended(0, SOLVED, tokens=120), heard(e1=80))
    assert board.tokens == 200
    clock.advance(40)
    told(board, heard(e1=80))
    assert board.tokens_per_second == 0.0


def test_the_slowest_are_those_that_have_gone_on_for_longest() -> None:
    clock = FakeClock()
    board = Board(clock)
    told(board, STARTED)
    for index in range(4):
        told(board, entered(index, Phase.PROVISION))
        clock.advance(5)
    told(board, entered(0, Phase.GRADE), ended(1, SOLVED))
    assert board.slowest(2) == [("task/0", Phase.GRADE, 20.0), ("task/2", Phase.PROVISION, 10.0)]
    assert board.phases() == {Phase.PROVISION: 2, Phase.GRADE: 1}
    lines = "\n".join(status_lines(board))
    assert "3 of 10 done (30%), 1 solved of 1 valid, 0:20 gone, ETA 2:20" in lines
    assert "running 3 (provision 2, grade 1)" in lines
    assert "slowest now: task/0 grade 0:20" in lines


def test_durations_are_shown_as_clocks_show_them() -> None:
    assert [duration(s) for s in (7.4, 723, 3765)] == ["0:07", "12:03", "1:02:45"]


EVENTS: list[Event] = [
    STARTED,
    entered(0, Phase.AGENT),
    heard(e0=10),
    ended(0, DIED),
    GroupDone(group_id="r.0", task_id="[task]", rewards=(1.0, None)),
    GroupAcknowledged(group_id="r.0"),
    TrainerAwaited(groups=2, seconds=10.0),
    RunEnded(report=report([]), failure=None),
]


class Screen(io.StringIO):
    """A terminal that says when it has been sent a text."""

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self._awaited = awaited
        self.shown = threading.Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        if self._awaited in text:
            self.shown.set()
        return count


def test_a_terminal_gets_a_picture_that_is_gone_at_the_end() -> None:
    screen = Screen("slowest now:")
    console = Console(file=screen, force_terminal=True, width=120, highlight=False)
    with TextView(console) as view:
        for event in EVENTS[:3]:
            view.on_event(event)
        assert screen.shown.wait(10)
        drawn = screen.getvalue()
        for event in EVENTS[3:]:
            view.on_event(event)
    assert "\x1b[" in drawn
    assert "━" in drawn


def test_without_a_terminal_there_are_plain_lines_and_now_and_then_how_far_it_is() -> None:
    out = io.StringIO()
    clock = FakeClock()
    view = TextView(Console(file=out, width=120, highlight=False), clock=clock)
    with view:
        for event in EVENTS:
            view.on_event(event)
        quiet = out.getvalue()
        clock.advance(11)
        view.on_event(heard())
        view.on_event(heard())
    assert quiet.splitlines() == [
        "2 tasks, 10 episodes, 2 done before, sandboxes by local, into /runs/r",
        "task/0: sandbox_died: gone",
        "[task]: rewards 1 -",
        "waiting up to 10 s for a trainer to acknowledge 2 groups (consume_timeout_seconds)",
    ]
    (status,) = out.getvalue()[len(quiet) :].splitlines()
    assert status.startswith("3 of 10 done (30%)")
    assert "\x1b" not in out.getvalue()


def test_programs_get_every_event_as_one_line_of_json() -> None:
    out = io.StringIO()
    with JsonView(Console(file=out)) as view:
        for event in EVENTS:
            view.on_event(event)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["event"] for line in lines] == [
        "run_started",
        "phase_entered",
        "heard",
        "attempt_done",
        "group_done",
        "group_acknowledged",
        "trainer_awaited",
        "run_ended",
    ]
    assert lines[0]["directory"] == "/runs/r"
    assert lines[3]["record"]["outcome"]["class"] == "sandbox_died"
    assert all(line["at"].endswith("+00:00") for line in lines)


def test_every_event_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rollout.md").read_text()
    documented = set(
        re.findall(r"^\| `(\w+)` \|", page.partition("## Watching a run")[2], re.MULTILINE)
    )
    names = {name_of(kind) for kind in get_args(Event)}
    assert documented - {"event"} == names | {"run_stopped"}


def test_a_run_that_was_stopped_says_so_in_json() -> None:
    out = io.StringIO()
    with JsonView(Console(file=out)) as view:
        view.on_event(STARTED)
    assert json.loads(out.getvalue().splitlines()[-1])["event"] == "run_stopped"
