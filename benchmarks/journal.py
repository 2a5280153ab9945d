"""Which store should the journal be? Measures ways to make a record safe before a reply.

    python benchmarks/journal.py [--seconds 2] [--json]

Each way gets 1, 64 and 512 concurrent writers that append a record of 2 to 6 KB and wait until it
is safe, again and again. CPU is this process's user and system time per record.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sqlite3
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from rock.modelservice.journal.journal import Journal, framed

CONCURRENCY = (1, 64, 512)
RECORDS = [
    b'{"t":"queued","text":"%b"}' % (b"x" * size)
    for size in random.Random(7).choices(range(2000, 6000), k=256)
]

Append = Callable[[bytes], Awaitable[None]]
Close = Callable[[], Awaitable[None]]


@dataclass
class Row:
    way: str
    writers: int
    records_per_second: float
    cpu_microseconds: float
    p50_milliseconds: float
    p99_milliseconds: float


class ThreadedWriter:
    """Batches of records written by one thread; the loop is told when a batch is safe."""

    def __init__(self, write_batch: Callable[[list[bytes]], None]) -> None:
        self._write_batch = write_batch
        self._loop = asyncio.get_running_loop()
        self._records: list[bytes] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._more = threading.Condition()
        self._closing = False
        self._thread = ThreadPoolExecutor(1)
        self._done = self._loop.run_in_executor(self._thread, self._run)

    def append(self, record: bytes) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        with self._more:
            self._records.append(record)
            self._waiting.append(future)
            self._more.notify()
        return future

    async def close(self) -> None:
        with self._more:
            self._closing = True
            self._more.notify()
        await self._done
        self._thread.shutdown()

    def _run(self) -> None:
        while True:
            with self._more:
                while not self._records and not self._closing:
                    self._more.wait()
                if not self._records:
                    return
                records, self._records = self._records, []
                waiting, self._waiting = self._waiting, []
            self._write_batch(records)
            self._loop.call_soon_threadsafe(_finish, waiting)


def _finish(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)


def log_inline(folder: Path) -> tuple[Append, Close]:
    journal = Journal.open(folder, schema=1, on_record=lambda payload, place: None, sync="process")
    return journal.append, journal.close


def log_disk(folder: Path) -> tuple[Append, Close]:
    journal = Journal.open(folder, schema=1, on_record=lambda payload, place: None, sync="disk")
    return journal.append, journal.close


def log_thread(folder: Path) -> tuple[Append, Close]:
    fd = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    writer = ThreadedWriter(lambda records: _written(fd, records))

    async def close() -> None:
        await writer.close()
        os.close(fd)

    return writer.append, close


def _written(fd: int, records: list[bytes]) -> None:
    os.write(fd, framed(records))


def sqlite(synchronous: str) -> Callable[[Path], tuple[Append, Close]]:
    def make(folder: Path) -> tuple[Append, Close]:
        database = sqlite3.connect(folder / "db", isolation_level=None, check_same_thread=False)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute(f"PRAGMA synchronous={synchronous}")
        database.execute("CREATE TABLE records (id INTEGER PRIMARY KEY, record BLOB)")

        def commit(records: list[bytes]) -> None:
            database.execute("BEGIN")
            database.executemany(
                "INSERT INTO records (record) VALUES (?)", [(record,) for record in records]
            )
            database.execute("COMMIT")

        writer = ThreadedWriter(commit)

        async def close() -> None:
            await writer.close()
            database.close()

        return writer.append, close

    return make


WAYS: dict[str, Callable[[Path], tuple[Append, Close]]] = {
    "log, write on the loop (`process`)": log_inline,
    "log, write in a thread": log_thread,
    "log, fdatasync (`disk`)": log_disk,
    "SQLite WAL, NORMAL": sqlite("NORMAL"),
    "SQLite WAL, FULL": sqlite("FULL"),
}


async def measure(way: str, writers: int, seconds: float) -> Row:
    latencies: list[float] = []

    async def write(append: Append, seed: int, end: float) -> None:
        number = seed
        while (start := time.perf_counter()) < end:
            await append(RECORDS[number % len(RECORDS)])
            latencies.append(time.perf_counter() - start)
            number += 1

    with tempfile.TemporaryDirectory(prefix="rock-journal-") as folder:
        append, close = WAYS[way](Path(folder))
        start, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(write(append, n, start + seconds) for n in range(writers)))
        elapsed, used = time.perf_counter() - start, time.process_time() - cpu
        await close()
    latencies.sort()
    return Row(
        way=way,
        writers=writers,
        records_per_second=len(latencies) / elapsed,
        cpu_microseconds=1e6 * used / len(latencies),
        p50_milliseconds=1e3 * latencies[len(latencies) // 2],
        p99_milliseconds=1e3 * latencies[int(len(latencies) * 0.99)],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure ways to make a record safe.")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [
        asyncio.run(measure(way, writers, args.seconds)) for way in WAYS for writers in CONCURRENCY
    ]
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"{'way':<38}{'writers':>8}{'records/s':>11}{'CPU µs':>8}{'p50 ms':>8}{'p99 ms':>8}")
    for row in rows:
        print(
            f"{row.way:<38}{row.writers:>8}{row.records_per_second:>11.0f}"
            f"{row.cpu_microseconds:>8.0f}{row.p50_milliseconds:>8.2f}{row.p99_milliseconds:>8.2f}"
        )


if __name__ == "__main__":
    main()
