"""Install the clients of the conformance kit: python -m tests.clients.install [NAME...]"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from rock.errors import InstallFailed
from rock.rollout.installing import install
from tests.clients.catalog import CLIENTS, clients_dir


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a command's own output


async def main(names: Sequence[str]) -> int:
    unknown = sorted(set(names) - CLIENTS.keys())
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are: {', '.join(CLIENTS)}", file=sys.stderr)  # noqa: T201 - a command's own output
        return 2
    failed = 0
    for name in names or CLIENTS:
        try:
            await install([CLIENTS[name]], clients_dir(), say=say)
        except InstallFailed as exc:
            failed += 1
            print(f"{name}: {exc}", file=sys.stderr)  # noqa: T201 - a command's own output
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
