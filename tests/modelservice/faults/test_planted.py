"""Bugs planted in a copy of rock, each of which the state machine test must find, as small as it runs
in `make test`. A test that lets one of them through would let the real one through as well."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from rock import process
from rock.config import inherited_environment

ROOT = Path(__file__).parent.parent.parent.parent
PROGRAM = """
import rock.modelservice
from tests.modelservice.test_state_machine import EXAMPLES, STEPS, run

run(EXAMPLES, STEPS, derandomize=True, shrink=False)
print(rock.modelservice.__file__)
"""

Edits = list[tuple[str, str]]
"""Pieces of rock's source, each of which is there once, and what to put in their place."""
PLANTED: dict[str, Edits] = {
    "a call is handed out twice": [
        (
            "            ticket.move(Event.CLAIM)\n            ticket.deliveries += 1\n",
            "            if ticket.state is State.QUEUED:\n"
            "                ticket.move(Event.CLAIM)\n"
            "            ticket.deliveries += 1\n"
            "            if ticket.deliveries == 2:\n"
            "                self._push(ticket, first=True)\n",
        )
    ],
    "a renewal does nothing": [
        (
            "            held.frozen_seconds = lease_seconds\n        else:\n"
            "            self._expiries.set(lease_id, now + lease_seconds)\n",
            "            held.frozen_seconds = lease_seconds\n",
        )
    ],
    "a call that was leased is not queued again after a restart": [
        (
            "                self.queue.add(call)\n            else:\n",
            "                if not call.deliveries:\n"
            "                    self.queue.add(call)\n            else:\n",
        )
    ],
    "a lease that is over completes the call that another one has": [
        (
            "        held = self._queue.held(LeaseId(completion.lease_id))\n",
            "        held = call.lease or self._queue.held(LeaseId(completion.lease_id))\n",
        )
    ],
    "an answer that nobody read is sampled again for a retry": [
        (
            "            if call.attached == 0 and call.state is not State.DELIVERED:\n",
            "            if call.attached == 0 and call.state in (State.QUEUED, State.LEASED):\n",
        ),
    ],
    "an idempotency key counts for a session's first call only": [
        (
            "        if call.idempotency_key is not None:\n            self._by_key",
            "        if call.idempotency_key is not None and call.number == 0:\n"
            "            self._by_key",
        )
    ],
    "a call that was cancelled is answered": [
        (
            "        self.queue.end(call, event)\n",
            "        if event is Event.GRACE_OVER and call.lease is not None:\n"
            "            call.move(event)\n"
            "        else:\n"
            "            self.queue.end(call, event)\n",
        ),
        (
            "        if call.state not in OPEN and call.answered_lease != lease_id:\n",
            "        if call.state is State.FAILED:\n",
        ),
        (
            "        (State.LEASED, Event.COMPLETE): State.ANSWERED,\n",
            "        (State.LEASED, Event.COMPLETE): State.ANSWERED,\n"
            "        (State.CANCELLED, Event.COMPLETE): State.ANSWERED,\n",
        ),
    ],
    "a call that was cancelled is open again after a restart": [
        (
            "        call.move(event)\n        if event is Event.CLOSE:\n",
            "        if event is not Event.GRACE_OVER:\n"
            "            call.move(event)\n        if event is Event.CLOSE:\n",
        )
    ],
    "a call whose agent came back is cancelled all the same": [
        (
            "        self._graces.drop(call.id)\n        self.observer.attached(call)\n",
            "        self.observer.attached(call)\n",
        )
    ],
    "what was said of an answer is lost in a restart": [
        (
            "            case records.CallPartial():\n                self.add_span(call, record)\n",
            "            case records.CallPartial():\n                pass\n",
        )
    ],
    "what an agent has read is forgotten in a restart": [
        (
            "            case records.SpansRead():\n                call.shown = True\n",
            "            case records.SpansRead():\n                pass\n",
        )
    ],
    "an answer may contradict what its agent has read": [
        (
            "        if not call.shown:\n            self._engine.drop_spans(call)\n"
            "            return\n        message",
            "        if call.said:\n            self._engine.drop_spans(call)\n"
            "            return\n        message",
        )
    ],
    "a pause that holds lets leases expire": [
        (
            "            if held.ticket.backend == backend and moment is not None:\n",
            "            if held.ticket.backend != backend and moment is not None:\n",
        )
    ],
    "a closed session leaves its leases out": [
        (
            "                else:\n                    self.end(call, Event.CLOSE",
            "                elif call.state is State.QUEUED:\n"
            "                    self.end(call, Event.CLOSE",
        )
    ],
    "compaction forgets the last record of a session": [
        (
            "        if known is None:\n            live[session_id] = places[: bisect_left(places, end)]\n",
            "        if known is None:\n"
            "            live[session_id] = places[: bisect_left(places, end) - 1]\n",
        )
    ],
}


def plant(edits: Edits, folder: Path) -> None:
    """A copy of the sources with the edits in it."""
    for name in ("rock", "tests", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    for old, new in edits:
        found = [
            path
            for path in (folder / "rock" / "modelservice").rglob("*.py")
            if old in path.read_text()
        ]
        assert len(found) == 1, f"in {len(found)} files: {old}"
        text = found[0].read_text()
        assert text.count(old) == 1, old
        found[0].write_text(text.replace(old, new))


async def _run(folder: Path) -> tuple[int, str]:
    """(exit code, what it printed) of the state machine on the sources in `folder`."""
    with (folder / "said").open("wb") as said:
        child = await process.start(
            [sys.executable, "-c", PROGRAM],
            env=inherited_environment(),
            cwd=folder,
            stdout=said,
            stderr=said,
        )
        try:
            code = await child.wait()
        finally:
            await process.stop(child)
    return code, (folder / "said").read_text(errors="replace")


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLANTED)
async def test_the_state_machine_finds_a_planted_bug(tmp_path: Path, name: str) -> None:
    plant(PLANTED[name], tmp_path)
    code, said = await _run(tmp_path)
    assert code == 1, said[-2000:]
    assert "state.something_happens(" in said  # the machine failed, not a copy that is broken


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_without_a_bug_the_same_copy_passes(tmp_path: Path) -> None:
    plant([], tmp_path)
    code, said = await _run(tmp_path)
    assert code == 0, said[-2000:]
    assert Path(said.split()[-1]).is_relative_to(tmp_path)  # of the service that ran
