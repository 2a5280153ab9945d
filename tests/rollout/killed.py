"""A harness that kills itself: `python -m tests.rollout.killed RUN_FILE DIRECTORY SERVICE WHERE`.

WHERE is a phase (`agent`: SIGKILL when an attempt enters it), `#N` (at the N-th event), or `-` (never).
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec

from rock.modelservice.hosting.server import READY_FILE, Ready
from rock.modelservice.keys import read_keys
from rock.rollout.inputs.runfile import RunFile
from rock.rollout.report.events import Event, PhaseEntered
from rock.rollout.run import ServiceAddress, run


class Killer:
    def __init__(self, where: str) -> None:
        self.where = where
        self.events = 0

    def __call__(self, event: Event) -> None:
        self.events += 1
        in_phase = isinstance(event, PhaseEntered) and event.phase == self.where
        if in_phase or self.where == f"#{self.events}":
            os.kill(os.getpid(), signal.SIGKILL)


async def main(config: RunFile, directory: Path, service: Path, where: str) -> int:
    ready = msgspec.json.decode((service / READY_FILE).read_bytes(), type=Ready)
    address = ServiceAddress(
        control_url=ready.control_url,
        admin_key=read_keys(service).admin_key,
        attach_path=Path(ready.attach_path),
    )
    result = await run(
        config,
        directory=directory,
        service=address,
        on_event=Killer(where),
    )
    return result.exit_code


if __name__ == "__main__":
    given = RunFile.model_validate_json(Path(sys.argv[1]).read_bytes())
    sys.exit(asyncio.run(main(given, Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])))
