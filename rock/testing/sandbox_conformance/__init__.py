"""What every sandbox provider must do, as checks that anybody can run on theirs.

A check is an async function of a `Subject` (a provider and the spec to try it with) that raises
`AssertionError` when the promise that its name states is broken. `CHECKS` has all of them:

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_my_provider(check: Check) -> None:
        async with MyProvider() as provider:
            await check(Subject(provider, SandboxSpec(image="my-image")))

They need a POSIX shell and the usual small programs in the sandbox (busybox is enough), and, to
connect to a port, one of python3, bash or nc.
"""

from rock.testing.sandbox_conformance import (
    commands,
    endings,
    escapes,
    files,
    isolation,
    networks,
    records,
    running,
    shells,
    states,
)
from rock.testing.sandbox_conformance.subject import Check, Subject

CHECKS: tuple[Check, ...] = (
    *commands.CHECKS,
    *endings.CHECKS,
    *running.CHECKS,
    *shells.CHECKS,
    *files.CHECKS,
    *isolation.CHECKS,
    *networks.CHECKS,
    *escapes.CHECKS,
    *states.CHECKS,
    *records.CHECKS,
)

__all__ = ["CHECKS", "Check", "Subject"]
