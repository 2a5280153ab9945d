"""What the setup of an episode's first attempt made, kept for a further attempt of the same episode.

Only files are kept, as they were when the task's setup had ended and before anything of the agent's was
there. A further attempt has a new sandbox, a new session and the agent from its beginning; it is only
spared the setup.
"""

from __future__ import annotations

import logging

from rock.errors import CapacityExceeded, NotSupported, SandboxBusy, SandboxError
from rock.sandbox.base import Provider, Sandbox, SandboxSpec
from rock.sandbox.state import Snapshot

log = logging.getLogger(__name__)


class KeptSetups:
    """Snapshots by episode. Whoever keeps one forgets it when the episode is over."""

    def __init__(self) -> None:
        self._kept: dict[str, Snapshot] = {}

    async def create(self, provider: Provider, spec: SandboxSpec, episode_id: str) -> Sandbox:
        """A sandbox for the episode's next attempt; its `origin` says whether the setup is in it.

        Raises what `create` raises.
        """
        snapshot = self._kept.get(episode_id)
        if snapshot is None:
            return await provider.create(spec)
        try:
            sandbox = await provider.create(spec, snapshot=snapshot)
        except CapacityExceeded:
            raise
        except SandboxError as exc:
            log.warning("%s: its setup runs again: %s", episode_id, exc.message)
            self.forget(episode_id)
            return await provider.create(spec)
        sandbox.origin = "snapshot"
        return sandbox

    async def keep(self, episode_id: str, sandbox: Sandbox) -> None:
        """Keep the files of `sandbox` as they are. Where that cannot be done, the setup runs again.

        Raises what else `snapshot` raises.
        """
        try:
            snapshot = await sandbox.snapshot()
        except (NotSupported, SandboxBusy) as exc:
            log.info("%s: its setup is not kept: %s", episode_id, exc.message)
            return
        self.forget(episode_id)
        self._kept[episode_id] = snapshot

    def forget(self, episode_id: str) -> None:
        """Free what is kept for the episode. Safe to call twice."""
        snapshot = self._kept.pop(episode_id, None)
        if snapshot is not None:
            snapshot.release()

    def forget_all(self) -> None:
        for snapshot in self._kept.values():
            snapshot.release()
        self._kept.clear()
