"""Logs as files and as entries: bounds, several writers, what a disk cut, secrets in two pieces."""

from __future__ import annotations

from pathlib import Path

import pytest

from rock import secrets
from rock.errors import BadRequest
from rock.sandbox.channel.recorder import KEPT_BYTES, Recorder
from rock.sandbox.logbook import LogFiles
from rock.sandbox.logs import LogEntry
from rock.testing.sandbox_conformance.subject import until


class Entries(list[LogEntry]):
    """A sink that is looked at."""

    def add(self, entry: LogEntry) -> None:
        self.append(entry)


def _entry(number: int) -> LogEntry:
    return LogEntry(at=float(number), action="a", kind="exec", part="ended", what=f"{number}")


def test_several_writers_share_one_log_within_its_bound(tmp_path: Path) -> None:
    writers = [LogFiles(tmp_path, "box", file_bytes=1000) for _ in range(3)]
    other = LogFiles(tmp_path, "boxer", file_bytes=1000)
    other.add(_entry(0))
    for number in range(300):
        writers[number % 3].add(_entry(number))
    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("box.*")}
    assert len(sizes) == 3
    assert "box.0" in sizes
    assert all(size < 2000 for size in sizes.values())
    page = writers[0].read()
    numbers = [int(entry.what) for entry in page.entries]
    assert numbers == sorted(numbers)
    assert (numbers[0], numbers[-1], page.complete) == (0, 299, False)
    assert writers[1].read(after=page.cursor).entries == ()
    writers[2].add(_entry(300))
    assert [entry.what for entry in writers[1].read(after=page.cursor).entries] == ["300"]
    writers[0].remove()
    writers[0].add(_entry(301))
    assert [path.name for path in tmp_path.iterdir()] == ["boxer.0"]


def test_every_entry_is_read_once_however_often_it_is_asked_for(tmp_path: Path) -> None:
    log, seen, cursor = LogFiles(tmp_path, "box", file_bytes=2000), list[str](), ""
    for number in range(200):
        log.add(_entry(number))
        if number % 7 == 0:
            page = log.read(after=cursor)
            assert page.complete
            seen += [entry.what for entry in page.entries]
            cursor = page.cursor
    seen += [entry.what for entry in log.read(after=cursor).entries]
    assert seen == [f"{number}" for number in range(200)]


def test_what_a_full_disk_has_cut_is_left_out(tmp_path: Path) -> None:
    log = LogFiles(tmp_path, "box")
    log.add(_entry(1))
    with (tmp_path / "box.0").open("ab") as file:
        file.write(b'{"at": 2, "acti\n')
    log.add(_entry(3))
    page = log.read()
    assert [entry.what for entry in page.entries] == ["1", "3"]
    with (tmp_path / "box.0").open("ab") as file:
        file.write(b'{"at": 4')  # an entry that is being written
    assert log.read(after=page.cursor).entries == ()


def test_a_log_that_cannot_be_written_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = LogFiles(tmp_path / "gone", "box")
    log.add(_entry(1))
    log.add(_entry(2))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert log.read().entries == ()
    for wrong in ("x", "1", "1:x", "-1:0", ":"):
        with pytest.raises(BadRequest, match="cursor"):
            log.read(after=wrong)


async def test_a_secret_that_is_written_in_two_pieces_is_found() -> None:
    secrets.register("sk-in-two-pieces-93")
    entries = Entries()
    action = Recorder(entries, "test").action("exec", "run")
    action.output(0, b"a line\nthe key is sk-in-two-")

    async def written() -> bool:
        return any(entry.stdout for entry in entries)

    await until("a part of it is written down", written)
    action.output(0, b"pieces-93 and so on\n")
    action.end()
    text = b"".join(entry.stdout for entry in entries)
    assert text == b"a line\nthe key is [redacted] and so on\n"
    assert entries[-1].stdout_bytes == len(b"a line\nthe key is sk-in-two-pieces-93 and so on\n")


async def test_a_prompt_without_a_line_end_is_shown_though_nothing_follows() -> None:
    entries = Entries()
    action = Recorder(entries, "test").action("process", "ask")
    action.output(0, b"password: ")

    async def shown() -> bool:
        return b"".join(entry.stdout for entry in entries) == b"password: "

    await until("the prompt is written down", shown)
    assert [entry.part for entry in entries] == ["began", "output"]
    action.end()
    action.end()
    assert [entry.part for entry in entries] == ["began", "output", "ended"]


async def test_a_flood_leaves_its_beginning_and_its_end() -> None:
    entries = Entries()
    action = Recorder(entries, "test").action("exec", "flood")
    lines = [b"%08d\n" % number for number in range(100_000)]
    for line in lines:
        action.output(0, line)
    action.end()
    (entry,) = entries
    assert entry.stdout_bytes == 900_000
    assert entry.stdout.startswith(b"00000000\n")
    assert entry.stdout.endswith(b"00099999\n")
    assert len(entry.stdout) <= KEPT_BYTES
    assert entry.left_out_bytes == 900_000 - len(entry.stdout)
