"""How `rock run` ends when it is told to stop, when nobody looks any more, and when the disk is full."""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import shlex
import signal
import subprocess
import tarfile
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rock.rollout.records.ledger import State, replay
from tests.cli.command import ROCK, Done, environment, started
from tests.cli.test_run import write
from tests.rollout.live import wait_until

pytestmark = [pytest.mark.userns, pytest.mark.timeout(180)]

DEAF = {"command": ["sh", "-c", "trap '' HUP INT TERM; sleep 7777"], "requires_model": False}
INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


def state(directory: Path) -> State:
    return replay((directory / "ledger.jsonl").read_bytes(), source="ledger")[0]


def sleepers(home: Path) -> list[bytes]:
    """What runs here: deaf agents, and the services of this folder's runs."""
    found: list[bytes] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes()
            if line.startswith(b"sleep\x007777") or os.fsencode(home) + b"/out" in line:
                found.append(line)
    return found


@pytest.mark.parametrize(
    "signals",
    [
        pytest.param((INT, INT, TERM, HUP), id="everything"),
        pytest.param((TERM,), id="sigterm", marks=pytest.mark.soak),
        pytest.param((HUP,), id="terminal-closed", marks=pytest.mark.soak),
        pytest.param((INT,) * 20, id="impatient", marks=pytest.mark.soak),
    ],
)
async def test_a_run_that_is_told_to_stop_stops_in_order_however_often_it_is_told(
    tmp_path: Path, signals: tuple[signal.Signals, ...]
) -> None:
    write(tmp_path, agent=DEAF)
    async with started("run", "run.yaml", "--out", "out", home=tmp_path) as running:
        await wait_until((tmp_path / "out/episodes/a/0/attempt-1/session").exists)
        for number in signals:
            with contextlib.suppress(ProcessLookupError):
                running.send_signal(number)
            await asyncio.sleep(0)
        _, err = await asyncio.wait_for(running.communicate(), 30)
    assert running.returncode == 130
    stopping, interrupted = err.decode().splitlines()
    assert stopping == "rock: stopping; what runs is ended and removed"
    assert interrupted == "rock: interrupted; go on with: rock run --resume out"
    assert sleepers(tmp_path) == []
    record = json.loads((tmp_path / "out/episodes/a/0/attempt-1/record.json").read_bytes())
    assert record["outcome"]["class"] == "cancelled"
    (group,) = state(tmp_path / "out").groups.values()
    assert (group.status, group.episodes[0].running) == ("pending", False)


async def unread(home: Path, shell: str) -> int:
    """The exit code of `rock run` in a shell that does something to its output."""
    line = f"{shlex.quote(ROCK)} run run.yaml --out out {shell}"
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", line), cwd=home, env=environment(home)
    )
    return await asyncio.wait_for(process.wait(), 60)


@pytest.mark.parametrize(
    "shell",
    [
        pytest.param(">/dev/full 2>&1", id="full"),
        pytest.param("<&- >&- 2>&-", id="closed", marks=pytest.mark.soak),
        pytest.param("2>&1 | true; exit ${PIPESTATUS[0]}", id="no-reader", marks=pytest.mark.soak),
        pytest.param("--json >/dev/full", id="full-json", marks=pytest.mark.soak),
    ],
)
async def test_a_run_goes_on_when_nobody_can_read_what_it_prints(
    tmp_path: Path, shell: str
) -> None:
    write(tmp_path)
    assert await unread(tmp_path, shell) == 0
    assert json.loads((tmp_path / "out/report.json").read_bytes())["total"]["solved"] == 1
    # No print went into a file that got the number of a closed descriptor.
    assert next(iter(state(tmp_path / "out").groups.values())).complete


def in_a_terminal(home: Path, before: Callable[[], object]) -> tuple[subprocess.Popen[bytes], int]:
    """`rock run` as the leader of a terminal's session, and the terminal's other end."""
    master, slave = pty.openpty()

    def lead() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        before()

    running = subprocess.Popen(
        [ROCK, "run", "run.yaml", "--out", "out"],
        cwd=home,
        env={**environment(home), "TERM": "xterm"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lead,
    )
    os.close(slave)
    return running, master


@pytest.mark.soak
@pytest.mark.parametrize(
    ("handler", "code", "status"),
    [(signal.SIG_DFL, 130, "pending"), (signal.SIG_IGN, 0, "published")],
    ids=["plain", "nohup"],
)
async def test_a_terminal_that_is_closed_stops_a_run_unless_it_was_started_to_outlive_it(
    tmp_path: Path, handler: Any, code: int, status: str
) -> None:
    flag = tmp_path / "go"
    (tmp_path / "agent.py").write_text(
        "import asyncio\nfrom pathlib import Path\n"
        "async def agent(seat):\n"
        f"    while not Path({str(flag)!r}).exists():\n        await asyncio.sleep(0.01)\n"
        "    await seat.run('echo 42 > answer.txt')\n"
    )
    write(tmp_path, agent={"python": "agent.py:agent", "requires_model": False})
    running, master = in_a_terminal(tmp_path, lambda: signal.signal(HUP, handler))
    try:
        await wait_until((tmp_path / "out/episodes/a/0/attempt-1/session").exists)
        os.close(master)
        flag.touch() if handler is signal.SIG_IGN else None
        assert await asyncio.to_thread(running.wait, 30) == code
    finally:
        running.kill()
        running.wait()
    assert [group.status for group in state(tmp_path / "out").groups.values()] == [status]
    assert sleepers(tmp_path) == []


FULL = """
mkdir disk && mount -t tmpfs -o size=$1 none disk
"$0" run run.yaml --out disk/out; echo "code $?"
mount -o remount,size=64M disk
"$0" run --resume disk/out; echo "code $?"
tar -C disk -cf kept.tar out
"""


@pytest.mark.soak
@pytest.mark.parametrize("size", ["8k", "28k", "40k", "64k", "192k"])
async def test_a_run_whose_disk_is_full_says_so_and_is_gone_on_with_when_there_is_room(
    tmp_path: Path, size: str
) -> None:
    names = [f"t{number}" for number in range(12)]
    write(tmp_path, *names)
    done = await in_namespace(tmp_path, FULL, size)
    assert "Traceback" not in done.err
    first, *_, last = [line for line in done.out.splitlines() if line.startswith("code ")]
    assert (first, last) == ("code 1", "code 0"), done.err
    assert "o space left on" in done.err
    if size != "8k":  # where not even the service starts
        assert "rock: go on with: rock run --resume disk/out" in done.err
    with tarfile.open(tmp_path / "kept.tar") as kept:
        kept.extractall(tmp_path, filter="data")
    report = json.loads((tmp_path / "out/report.json").read_bytes())["total"]
    assert (report["episodes"], report["solved"]) == (12, 12)
    lines = (tmp_path / "out/ledger.jsonl").read_bytes().splitlines()
    ended = [line for line in lines if b'"final":true' in line]
    assert len(ended) == len(set(ended)) == 12


async def in_namespace(home: Path, script: str, *args: str) -> Done:
    """A shell script in which mounts may be made, which go with it."""
    argv = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, ROCK, *args]
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=home, env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())
