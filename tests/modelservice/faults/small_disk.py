"""A service whose disk is really full: to be run where FOLDER is a small file system of its own.

    python -m tests.modelservice.faults.small_disk STORY FOLDER

Each story ends with exit code 0 or with what was wrong. `test_small_disk` makes the file system.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from rock.errors import JournalError, ServiceUnavailable
from rock.modelservice.client.client import AdminClient, TrainerClient
from rock.modelservice.hosting.supervise import ServiceProcess, kept_up
from rock.modelservice.wire import AssistantMessage, Choice, Completion
from tests.modelservice.faults.connection import Broken, Connection, chat, text_of
from tests.modelservice.faults.stories import Chronicle
from tests.modelservice.faults.worker import nonce_of

PIECE = b"\0" * 4096
BOUND_SECONDS = 40.0
SETTINGS = {"restart_grace_seconds": 600.0}
PADDING = "p" * 500


def fill(folder: Path, *, leave_bytes: int) -> None:
    """Take all room but so much."""
    disk = os.statvfs(folder)
    left = disk.f_bavail * disk.f_frsize - leave_bytes
    with (folder / "filler").open("ab") as file:
        file.write(b"\0" * max(0, left))


def fill_wholly(folder: Path) -> None:
    with contextlib.suppress(OSError), (folder / "filler").open("ab", buffering=0) as file:
        while file.write(PIECE):
            pass


class Talk:
    """One agent and one worker of a service, and what each was told."""

    def __init__(self, service: ServiceProcess, key: str) -> None:
        self.service = service
        self._key = key
        self.heard: dict[str, str] = {}
        """By nonce: whole answers."""
        self.accepted: dict[str, str] = {}
        """By nonce: answers that the service took."""
        self.claimed: set[str] = set()
        self.refusals: list[bytes] = []

    async def ask(self, nonce: str) -> bool:
        """Whether it was answered; a refusal must be the one of a full disk."""
        try:
            connection = await Connection.open(self.service.listens_at[0])
        except OSError as exc:
            raise AssertionError("a connection was refused") from exc
        messages = [{"role": "user", "content": nonce}, {"role": "user", "content": PADDING}]
        headers = {"Idempotency-Key": nonce}
        try:
            heard = await connection.ask(
                chat([*reversed(messages)], key=self._key, headers=headers)
            )
        except Broken:
            return False
        finally:
            await connection.close()
        if heard.status == 200:
            assert self.heard.setdefault(nonce, text_of(heard)) == text_of(heard)
            return True
        self.refusals.append(heard.body)
        assert heard.status == 503, heard
        assert heard.json()["error"]["code"] in ("journal_error", "service_unavailable"), heard
        return False

    async def work(self, trainer: TrainerClient) -> None:
        """Answer one batch of calls."""
        leases = (await trainer.claim("w", max_leases=8, wait_seconds=0.2)).leases
        texts = {lease.lease_id: nonce_of(lease) for lease in leases}
        self.claimed |= {*texts.values()}
        items = [
            Completion(lease_id=one, choices=[Choice(AssistantMessage(content=f"re {nonce}"))])
            for one, nonce in texts.items()
        ]
        for result in await trainer.complete(items) if items else []:
            if result.error is None:
                self.accepted[texts[result.lease_id]] = f"re {texts[result.lease_id]}"

    async def insist(self, nonces: list[str]) -> None:
        """Ask each until it is answered."""
        for nonce in nonces:
            while not await self.ask(nonce):  # noqa: ASYNC110 - the service says nothing
                await asyncio.sleep(0.05)

    async def keep_working(self, trainer: TrainerClient, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.work(trainer)

    async def exchange(self, nonces: list[str], trainer: TrainerClient) -> bool:
        """Ask all, and answer until all have something; whether that is an answer."""
        asking = asyncio.ensure_future(asyncio.gather(*(self.ask(nonce) for nonce in nonces)))
        try:
            while not asking.done():
                await self.work(trainer)
        except (JournalError, ServiceUnavailable):
            await asking
            return False
        return all(await asking)


@asynccontextmanager
async def talking(
    service: ServiceProcess, key: str, *, retry_seconds: float = 0.0, talk: Talk | None = None
) -> AsyncGenerator[tuple[Talk, TrainerClient]]:
    control, trainer_key = service.listens_at[1], service.keys.trainer_key
    async with TrainerClient(control, trainer_key, retry_seconds=retry_seconds) as trainer:
        yield talk or Talk(service, key), trainer


async def new_key(service: ServiceProcess) -> str:
    async with AdminClient(service.control_url, service.keys.admin_key) as admin:
        return (await admin.create_session()).key


async def a_journal_that_does_not_fit(folder: Path) -> None:
    """Nothing is acknowledged that is not on disk, everything that was is there once there is room."""
    async with ServiceProcess(folder, settings=SETTINGS, exit_with_parent=True) as service:
        key = await new_key(service)
        async with talking(service, key) as (talk, trainer):
            asked = await _until_full(talk, trainer)
            await _everything_says_so(talk, trainer, service)
            told = await _refused_start(service)
            assert "no space left on" in told.lower(), told
            (folder / "filler").unlink()
            await service.restart()
            await _finish(talk, trainer, asked)
    _check(folder, talk, asked)


async def a_service_that_is_kept_up(folder: Path) -> None:
    """It goes on by itself once there is room; who tries again for so long notices nothing."""
    service = ServiceProcess(folder, settings=SETTINGS, exit_with_parent=True)
    asked = [f"n{number}" for number in range(200)]  # far more than there is room for
    async with kept_up(service):
        first, key = service.pid, await new_key(service)
        async with talking(service, key, retry_seconds=30.0) as (talk, trainer):
            fill(folder, leave_bytes=64 * 1024)
            agents = [asyncio.ensure_future(talk.insist(asked[n::8])) for n in range(8)]
            stop = asyncio.Event()
            working = asyncio.ensure_future(talk.keep_working(trainer, stop))
            await _until(lambda: not _alive(first))
            assert len(talk.heard) < len(asked)
            (folder / "filler").unlink()
            await asyncio.gather(*agents)
            stop.set()  # not cancelled: it is yet to hear that its last answer was taken
            await working
    _check(folder, talk, asked)


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _check(folder: Path, talk: Talk, asked: list[str]) -> None:
    chronicle = Chronicle(folder)
    for nonce, answer in talk.accepted.items():
        [story] = chronicle.by_nonce[nonce]
        assert story.text == answer
    assert {*talk.accepted} == {*talk.heard} == {*asked}


async def _until_full(talk: Talk, trainer: TrainerClient) -> list[str]:
    """Ask and answer until nothing goes any more; what was asked."""
    asked = ["before"]
    going = await talk.exchange(asked, trainer)
    assert going
    fill(talk.service.state_dir, leave_bytes=64 * 1024)
    while going:
        batch = [f"n{len(asked) + number}" for number in range(8)]
        asked += batch
        going = await talk.exchange(batch, trainer)
    assert len(talk.heard) > 8, "the disk was full before it began"
    return asked


async def _everything_says_so(talk: Talk, trainer: TrainerClient, service: ServiceProcess) -> None:
    assert not await talk.ask("while full")
    assert b"cannot store anything now; try again" in talk.refusals[-1]
    assert str(service.state_dir).encode() not in talk.refusals[-1], "agents need no paths"
    admin = AdminClient(service.control_url, service.keys.admin_key, retry_seconds=0.0)
    refused: list[Callable[[], Awaitable[object]]] = [
        lambda: trainer.policy(version=3),
        lambda: trainer.complete([]),
        admin.create_session,
        admin.health,
    ]
    async with admin:
        for step in refused:
            try:
                await step()
            except JournalError as exc:
                told = exc.message
                assert "No space left on device; restart once that is repaired" in told, told
            else:
                raise AssertionError(f"{step} was accepted on a full disk")


async def _refused_start(service: ServiceProcess) -> str:
    """What a start says while the disk is wholly full."""
    fill_wholly(service.state_dir)
    try:
        await service.restart()
    except ServiceUnavailable as exc:
        return exc.message
    raise AssertionError("the service started on a full disk")


async def _finish(talk: Talk, trainer: TrainerClient, asked: list[str]) -> None:
    """Every agent comes back, and gets what was accepted before or is answered now."""
    unheard = [nonce for nonce in asked if nonce not in talk.heard]
    assert await talk.exchange(unheard, trainer)


async def a_compaction_that_does_not_fit(folder: Path) -> None:
    """Calls go on without it, and it is done once there is room."""
    settings = {"compact_bytes": 64 * 1024, "compact_share": 0.0, "evict_seconds": 0.0}
    async with ServiceProcess(folder, settings=settings, exit_with_parent=True) as service:
        key = await new_key(service)
        async with talking(service, key) as (talk, trainer):
            # More than the journal needs until it is compacted, less than a second copy of it does.
            fill(folder, leave_bytes=100 * 1024)
            asked: list[str] = []
            while not _exist(folder, "journal-*.log"):
                await _ask_more(talk, trainer, asked)
            await _ask_more(talk, trainer, asked)
            assert {*talk.heard} == {*asked}
            await _until(lambda: "could not be compacted" in _log_of(service))
            assert not _exist(folder, "base-*.log*")
            (folder / "filler").unlink()
            await service.restart()
            await _until(lambda: _exist(folder, "base-*.log"))
            assert await talk.exchange(["after"], trainer)
            assert talk.heard["after"] == "re after"
            assert all(await asyncio.gather(*(talk.ask(nonce) for nonce in asked)))


async def _ask_more(talk: Talk, trainer: TrainerClient, asked: list[str]) -> None:
    batch = [f"n{len(asked) + number}" for number in range(8)]
    asked += batch
    assert await talk.exchange(batch, trainer)


def _exist(folder: Path, pattern: str) -> bool:
    return any(folder.glob(pattern))


def _log_of(service: ServiceProcess) -> str:
    return (service.state_dir / "service.log").read_text(errors="replace")


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - another process has no event to wait for
            await asyncio.sleep(0.02)


STORIES = {
    story.__name__: story
    for story in (
        a_journal_that_does_not_fit,
        a_service_that_is_kept_up,
        a_compaction_that_does_not_fit,
    )
}


async def main(story: str, folder: Path) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        await STORIES[story](folder)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
