"""A harness's door: other processes of its user see, use and change its sandboxes, and nobody else does."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rock import process
from rock.errors import NotFound, NotSupported
from rock.sandbox import host_dirs
from rock.sandbox.base import SandboxSpec
from rock.sandbox.box.channel_sandbox import ChannelSandbox
from rock.sandbox.local.local import LocalProvider
from rock.sandbox.remote import door
from rock.sandbox.remote.remote import RemoteProvider
from rock.testing.sandbox_conformance.subject import output, until

pytestmark = pytest.mark.userns


@pytest.fixture
def base() -> Generator[Path]:
    """A socket's path must be short."""
    with tempfile.TemporaryDirectory(prefix="rock-door-") as name:
        yield Path(name) / "b"


@asynccontextmanager
async def _visited(base: Path) -> AsyncGenerator[tuple[LocalProvider, RemoteProvider]]:
    async with LocalProvider(base=base) as provider, door.opened(provider, base=base):
        (visitor,) = door.doors(base)
        async with visitor:
            yield provider, visitor


async def test_a_visitor_sees_what_the_harness_has_and_no_more(base: Path) -> None:
    async with _visited(base) as (provider, visitor):
        assert await visitor.list() == []
        box = await provider.create(SandboxSpec())
        (seen,) = await visitor.list()
        assert (seen.id, seen.provider) == (box.id, "local")
        with pytest.raises(NotSupported, match="its own sandboxes only"):
            await visitor.create(SandboxSpec())
        await box.stop()
        assert await visitor.list() == []
    assert door.doors(base) == []
    assert os.listdir(base) == []  # noqa: PTH208 (an empty directory is the point)


async def test_a_visitor_and_the_harness_share_one_sandbox_and_one_log(base: Path) -> None:
    async with _visited(base) as (provider, visitor):
        box = await provider.create(SandboxSpec())
        (seen,) = await visitor.list()
        guest = visitor.attach(seen)
        await guest.write_file("from-outside", b"x")
        assert await box.read_file("from-outside") == b"x"

        # Variables: whoever changes them, both have them in what they start next.
        await guest.set_env({"WHO": "guest"})
        assert await output(box, 'echo "$WHO"') == "guest\n"
        await box.set_env({"WHO": "harness"})
        assert (await visitor.list())[0].profile.env_changes == {"WHO": "harness"}
        third = visitor.attach((await visitor.list())[0])
        assert await output(third, 'echo "$WHO"') == "harness\n"
        await third.set_env({"WHO": "third"})

        async def told() -> bool:
            return await output(guest, 'echo "$WHO"') == "third\n"

        await until("the first guest's next commands have it, too", told)
        entries = (await guest.read_log()).entries
        assert {entry.by for entry in entries} == {"harness", "client"}
        assert (await box.read_log()).entries[: len(entries)] == entries

        changes = await guest.diff()
        assert [change.path for change in changes.entries] == ["/workspace/from-outside"]
        kept = await guest.keep_snapshot()
        await box.write_file("later", b"")
        assert (await guest.restore_kept(kept.id)).clean
        assert "later" not in await output(box, "ls")
        assert (await guest.reset()).clean
        assert await output(box, 'ls; echo "${WHO-unset}"') == "unset\n"
        assert await output(guest, 'echo "${WHO-unset}"') == "unset\n"
        await third.detach()
        await guest.stop()
        assert provider.sandboxes() == []
        with pytest.raises(NotFound):
            await visitor.attach(seen).read_log()


async def test_a_visitor_that_leaves_ends_what_it_started_and_not_the_sandbox(base: Path) -> None:
    async with _visited(base) as (provider, visitor):
        box = await provider.create(SandboxSpec())
        own = await box.spawn(["sleep", "300"])
        guest = visitor.attach((await visitor.list())[0])
        await guest.spawn(["sleep", "299"])

        async def runs(what: str) -> bool:
            return any(what in one.command for one in await box.list_processes())

        assert await runs("299")
        await guest.detach()

        async def gone() -> bool:
            return not await runs("299")

        await until("what the visitor started has ended", gone)
        assert own.running
        entries = (await box.read_log()).entries
        assert any(entry.by == "client" and entry.part == "began" for entry in entries)


_HARNESS = """
import asyncio, sys
from pathlib import Path
from rock.sandbox.base import SandboxSpec
from rock.sandbox.local.local import LocalProvider
from rock.sandbox.remote import door

async def main(base):
    async with LocalProvider(base=base) as provider, door.opened(provider, base=base):
        box = await provider.create(SandboxSpec())
        await box.exec(["echo", "last words"], timeout_seconds=10)
        print(box.id, flush=True)
        await asyncio.sleep(300)

asyncio.run(main(Path(sys.argv[1])))
"""


async def test_what_a_killed_harness_wrote_down_is_found_until_it_is_reaped(base: Path) -> None:
    harness = await process.start(
        [sys.executable, "-c", _HARNESS, base],
        env=dict(os.environ),
        cwd=Path(__file__).parents[2],
        stdout=process.PIPE,
    )
    assert harness.stdout is not None
    name = (await asyncio.wait_for(harness.stdout.readline(), 30)).decode().strip()
    (visitor,) = door.doors(base)
    async with visitor:
        assert [info.id for info in await visitor.list()] == [name]
    harness.send_signal(signal.SIGKILL)
    await harness.wait()
    assert door.doors(base) == []
    left = host_dirs.find_log(base, name[:8])
    assert left is not None
    assert b"last words\n" in [entry.stdout for entry in left.read().entries]
    async with LocalProvider(base=base) as provider:
        await provider.create(SandboxSpec())
        assert host_dirs.find_log(base, name) is None
        boxes = [one for one in provider.sandboxes() if isinstance(one, ChannelSandbox)]
        assert len(boxes) == 1
