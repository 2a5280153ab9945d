"""Who commands are in a sandbox, and where that user is at home. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from rock.sandbox.spec import SandboxSpec

AGENT_UID = 1000
AGENT_NAME = "agent"
AGENT_HOME = "/home/agent"
_ROOT = ("root", "0")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who runs commands and owns uploaded files: as `/etc/passwd` inside names it, and its home."""

    user: str
    home: str


def identity_of(spec: SandboxSpec) -> Identity:
    """The user that `spec` asks for; an unprivileged one unless it asks for root."""
    if spec.user is None:
        return Identity(str(AGENT_UID), AGENT_HOME)
    return Identity(spec.user, home_of(spec.user, AGENT_HOME))


def home_of(user: str, otherwise: str) -> str:
    """The home of root, for root (perhaps with a group: `0:0`)."""
    return "/root" if user.partition(":")[0] in _ROOT else otherwise


def with_agent(passwd: bytes) -> bytes | None:
    """`/etc/passwd` with the default user in it; None if it has one of that number."""
    if any(line.split(b":")[2:3] == [b"%d" % AGENT_UID] for line in passwd.splitlines()):
        return None
    entry = f"{AGENT_NAME}:x:{AGENT_UID}:{AGENT_UID}::{AGENT_HOME}:/bin/sh\n".encode()
    separator = b"" if not passwd or passwd.endswith(b"\n") else b"\n"
    return passwd + separator + entry
