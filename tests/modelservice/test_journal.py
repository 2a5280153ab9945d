"""The journal: what is acknowledged is in the file, and a damaged file is never guessed about."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rock import process
from rock.config import inherited_environment
from rock.errors import JournalError
from rock.modelservice.journal.journal import LOCK_NAME, Journal
from rock.modelservice.journal.segments import FILE_NAME, framed
from rock.modelservice.settings import SyncLevel

LEVELS: list[SyncLevel] = ["process", "disk"]


def opened(
    folder: Path, *, schema: int = 1, sync: SyncLevel = "process"
) -> tuple[Journal, list[bytes]]:
    found: list[bytes] = []
    journal = Journal.open(
        folder, schema=schema, on_record=lambda payload, place: found.append(payload), sync=sync
    )
    return journal, found


async def reread(folder: Path) -> list[bytes]:
    journal, found = opened(folder)
    await journal.close()
    return found


async def written(folder: Path, *payloads: bytes) -> Path:
    journal, _ = opened(folder)
    await asyncio.gather(*(journal.append(payload) for payload in payloads))
    await journal.close()
    return folder / FILE_NAME


@pytest.mark.parametrize("sync", LEVELS)
async def test_an_acknowledged_record_is_in_the_file(tmp_path: Path, sync: SyncLevel) -> None:
    journal, _ = opened(tmp_path, sync=sync)
    async with asyncio.timeout(10):
        await journal.append(b'{"a":1}')
    assert (tmp_path / FILE_NAME).read_bytes().endswith(framed([b'{"a":1}']))
    assert journal.size_bytes == (tmp_path / FILE_NAME).stat().st_size
    await journal.close()


@pytest.mark.parametrize("sync", LEVELS)
async def test_many_records_keep_their_order(tmp_path: Path, sync: SyncLevel) -> None:
    journal, _ = opened(tmp_path, sync=sync)
    payloads = [b"%d" % number for number in range(1000)]
    seen: list[int] = []
    for number, payload in enumerate(payloads):
        journal.note(payload, lambda number=number: seen.append(number))
        if number % 100 == 0:
            await journal.barrier()
            assert seen[-1] == number
    await journal.close()
    assert seen == list(range(1000))
    assert await reread(tmp_path) == payloads


async def test_records_of_one_turn_go_out_in_one_write(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    path = tmp_path / FILE_NAME
    before = path.stat().st_size
    futures = [journal.append(b"x" * 100) for _ in range(50)]
    assert path.stat().st_size == before
    await futures[0]
    assert all(future.done() for future in futures)
    assert path.stat().st_size == before + 50 * len(framed([b"x" * 100]))
    await journal.close()


async def test_a_cancelled_waiter_does_not_take_the_record_with_it(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    shown: list[str] = []
    future = journal.append(b"kept", lambda: shown.append("kept"))
    future.cancel()
    await journal.barrier()
    assert shown == ["kept"]
    await journal.close()
    assert await reread(tmp_path) == [b"kept"]


async def test_closing_writes_what_is_left(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path, sync="disk")
    journal.note(b"one")
    await asyncio.sleep(0)
    journal.note(b"two")
    await journal.close()
    await journal.close()
    with pytest.raises(JournalError, match="closed"):
        journal.note(b"three")
    assert await reread(tmp_path) == [b"one", b"two"]


@pytest.mark.parametrize("sync", LEVELS)
async def test_records_that_nobody_waits_for_are_written_too(
    tmp_path: Path, sync: SyncLevel
) -> None:
    journal, _ = opened(tmp_path, sync=sync)
    journal.note(b"one")
    await journal.barrier()
    assert (tmp_path / FILE_NAME).read_bytes().endswith(framed([b"one"]))
    journal.note(b"two")
    await journal.close()
    assert await reread(tmp_path) == [b"one", b"two"]


async def test_the_directory_is_private(tmp_path: Path) -> None:
    path = await written(tmp_path / "deep" / "state", b"{}")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("lost_bytes", [1, 2, 10, 25])
async def test_a_torn_last_record_is_cut_with_a_warning(
    tmp_path: Path, lost_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = await written(tmp_path, b"first", b"second-record")
    os.truncate(path, path.stat().st_size - lost_bytes)
    assert await reread(tmp_path) == [b"first"]
    assert "incomplete last record" in caplog.text
    await written(tmp_path, b"third")
    assert await reread(tmp_path) == [b"first", b"third"]


async def test_a_file_cut_anywhere_gives_back_a_prefix(tmp_path: Path) -> None:
    payloads = [b"one", b"two\nwith a newline", b"three"]
    path = await written(tmp_path, *payloads)
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        found = await reread(tmp_path)
        assert found == payloads[: len(found)]


@pytest.mark.parametrize("offset", [0, 9, 20, 30])
async def test_damage_in_the_middle_is_an_error_and_changes_nothing(
    tmp_path: Path, offset: int
) -> None:
    path = await written(tmp_path, b"first", b"second")
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x55
    path.write_bytes(content)
    with pytest.raises(JournalError, match=r"corrupt at byte \d+"):
        opened(tmp_path)
    assert path.read_bytes() == content


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path, schema=2)
    await journal.close()
    with pytest.raises(JournalError, match=r"has schema 2.*up to 1"):
        opened(tmp_path, schema=1)


async def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(framed([b'{"hello":"world"}']))
    with pytest.raises(JournalError, match="not a journal"):
        opened(tmp_path)


async def test_a_second_user_is_refused_while_the_first_one_lives(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    with pytest.raises(JournalError, match=rf"another process \(pid {os.getpid()}\)"):
        opened(tmp_path)
    (tmp_path / LOCK_NAME).unlink()  # as somebody does who thinks that it is stale
    with pytest.raises(JournalError, match=r"another process \(pid unknown\)"):
        opened(tmp_path)
    await journal.append(b"goes on")
    await journal.close()
    assert await reread(tmp_path) == [b"goes on"]


async def test_a_file_that_cannot_be_begun_after_a_seal_loses_nothing(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    records = [b"%d" % number + b"x" * 1000 for number in range(20)]
    await asyncio.gather(*map(journal.append, records))
    with files_limited_to(10):  # the new file has no room for its first record
        later = journal.append(b"later")
        with pytest.raises(JournalError, match="cannot be written"):
            await journal.seal()
        with pytest.raises(JournalError, match="cannot be written"):
            await later
    await journal.close()
    assert (tmp_path / FILE_NAME).stat().st_size <= 10
    assert await reread(tmp_path) == records


@pytest.mark.parametrize("folder", ["/proc/rock", "/dev/null/rock"])
def test_a_directory_that_cannot_be_used_is_a_clear_error(folder: str) -> None:
    with pytest.raises(JournalError, match=f"{folder}.*cannot be used"):
        opened(Path(folder))


@contextmanager
def files_limited_to(size_bytes: int) -> Generator[None]:
    """The kernel refuses to let files grow: what a full disk looks like to a writer."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("sync", LEVELS)
async def test_a_full_disk_acknowledges_nothing_that_is_not_on_it(
    tmp_path: Path, sync: SyncLevel
) -> None:
    journal, _ = opened(tmp_path, sync=sync)
    told: list[JournalError] = []
    shown: list[str] = []
    journal.on_failure = told.append
    await journal.append(b"fits")
    with files_limited_to(journal.size_bytes + 50):
        lost = [journal.append(b"x" * 100, lambda: shown.append("x")) for _ in range(3)]
        results = await asyncio.gather(*lost, return_exceptions=True)
    assert [type(result) for result in results] == [JournalError] * 3
    assert "cannot be written" in str(results[0])
    assert (len(told), shown) == (1, [])
    with pytest.raises(JournalError, match="cannot be written"):
        journal.append(b"later")
    with pytest.raises(JournalError, match="cannot be written"):
        await journal.barrier()
    await journal.close()
    assert await reread(tmp_path) == [b"fits"]


WRITER = """
import asyncio, sys
from pathlib import Path
from rock.modelservice.journal.journal import Journal

async def main():
    journal = Journal.open(Path(sys.argv[1]), schema=1, on_record=lambda payload, place: None, sync=sys.argv[2])
    async def write(name):
        number = 0
        while True:
            await journal.append(b"%d:%d:" % (name, number) + b"x" * (number % 3000))
            sys.stdout.write(f"{name}:{number}\\n")
            sys.stdout.flush()
            number += 1
    await asyncio.gather(*(write(name) for name in range(16)))

asyncio.run(main())
"""


@pytest.mark.parametrize("sync", LEVELS)
async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, sync: SyncLevel) -> None:
    writer = await process.start(
        [sys.executable, "-c", WRITER, tmp_path, sync],
        env=inherited_environment(),
        stdout=process.PIPE,
    )
    acknowledged: set[bytes] = set()
    try:
        assert writer.stdout is not None
        async with asyncio.timeout(30):
            while len(acknowledged) < 500:
                acknowledged.add((await writer.stdout.readline()).strip())
            writer.send_signal(signal.SIGKILL)
            acknowledged |= set((await writer.stdout.read()).split(b"\n")[:-1])
            await writer.wait()
    finally:
        await process.stop(writer)
    found = {b":".join(record.split(b":")[:2]) for record in await reread(tmp_path)}
    assert acknowledged <= found
    # At most what was under way in each of the 16 writers was written and not acknowledged.
    assert len(found - acknowledged) <= 16
