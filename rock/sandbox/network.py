"""What a sandbox may reach: values and rules, no I/O."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from rock.errors import ConfigError

_USUAL_PORTS = (80, 443)


class NetworkMode(enum.StrEnum):
    """`none` and `model` are the same network (only what the harness serves by `listen` is there); they
    say whether something is meant to be served."""

    NONE = "none"
    MODEL = "model"
    ALLOWLIST = "allowlist"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Network:
    """A mode, and for `allowlist` the hosts: `name`, `*.name` for all below it, either with `:port`.

    Without a port, 80 and 443 are meant.
    """

    mode: NetworkMode = NetworkMode.NONE
    hosts: tuple[str, ...] = ()

    def allows(self, host: str, port: int) -> bool:
        if self.mode is NetworkMode.FULL:
            return True
        return self.mode is NetworkMode.ALLOWLIST and self.lists(host, port)

    def lists(self, host: str, port: int) -> bool:
        """Whether `hosts` names this host and port."""
        return any(_matches(entry.lower(), host.lower(), port) for entry in self.hosts)


def _matches(entry: str, host: str, port: int) -> bool:
    name, separator, number = entry, "", ""
    if entry.count(":") == 1:  # more than one is an IPv6 address
        name, separator, number = entry.partition(":")
    if port not in ((int(number),) if separator else _USUAL_PORTS):
        return False
    if name.startswith("*."):
        return host.endswith(name[1:]) and host != name[2:]
    return host == name


def check_hosts(field: str, hosts: Sequence[str]) -> None:
    """Raises `ConfigError` for what is no host name, address, or `*.` and a name, with or without a port."""
    for host in hosts:
        name, _, port = host.partition(":") if host.count(":") == 1 else (host, "", "")
        bare = name.removeprefix("*.")
        if not bare or any(c in bare for c in "*/@ ") or port.strip("0123456789"):
            raise ConfigError(
                f"{field}: got {host!r}, expected a host such as pypi.org or *.x.org:443"
            )
