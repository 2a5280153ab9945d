"""What a sandbox may reach in each phase of an attempt: while the agent works, and while it is graded.

The run file says it for all tasks, and is the upper bound: a task may ask for less and never for more,
since tasks come from elsewhere. Sandboxes are made without a network, whatever is wanted, and opened and
closed by `set_network`; so there is none that could not be taken away again before the grader runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from rock.errors import ConfigError
from rock.sandbox.base import NetworkName, Sandbox
from rock.sandbox.network import check_hosts

Reachable: TypeAlias = NetworkName
_WIDTH: dict[Reachable, int] = {"none": 0, "model": 0, "allowlist": 1, "full": 2}


@dataclass(frozen=True, slots=True)
class Reach:
    """A network, and for `allowlist` its hosts. `none` and `model` are equal: nothing is opened."""

    network: Reachable = "model"
    hosts: tuple[str, ...] = ()

    @property
    def closed(self) -> bool:
        return _WIDTH[self.network] == 0


CLOSED = Reach()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaches:
    """`agent` from the setup on until the agent has ended, `grade` from there on."""

    agent: Reach = CLOSED
    grade: Reach = CLOSED


CLOSED_ALWAYS = Reaches()


class RunSays(Protocol):
    @property
    def network(self) -> Reachable: ...
    @property
    def grade_network(self) -> Reachable: ...
    @property
    def allowed_hosts(self) -> Sequence[str]: ...


class TaskSays(Protocol):
    @property
    def network(self) -> Reachable | None: ...
    @property
    def grade_network(self) -> Reachable | None: ...
    @property
    def allowed_hosts(self) -> Sequence[str] | None: ...


class Loaded(Protocol):
    @property
    def task_id(self) -> str: ...
    @property
    def task(self) -> TaskSays: ...


def check_run(run: RunSays) -> None:
    """Raises `ValueError` for hosts that are none, or that nothing uses."""
    if run.allowed_hosts and "allowlist" not in (run.network, run.grade_network):
        raise ValueError("allowed_hosts: expected network or grade_network to be allowlist")
    try:
        check_hosts("allowed_hosts", run.allowed_hosts)
    except ConfigError as exc:
        raise ValueError(exc.message) from exc


def reaches_of(run: RunSays, task: TaskSays) -> Reaches:
    """What holds for a task. Raises `ConfigError` where it asks for more than the run allows."""
    return Reaches(
        agent=_within("network", run.network, run.allowed_hosts, task.network, task.allowed_hosts),
        grade=_within(
            "grade_network",
            run.grade_network,
            run.allowed_hosts,
            task.grade_network,
            task.allowed_hosts,
        ),
    )


def refuse_wide(run: RunSays, tasks: Iterable[Loaded]) -> None:
    """Raises `ConfigError` naming the first task that asks for more than the run allows."""
    for item in tasks:
        try:
            reaches_of(run, item.task)
        except ConfigError as exc:
            raise ConfigError(f"tasks: {item.task_id}: {exc.message}") from exc


def _within(
    field: str,
    most: Reachable,
    allowed: Sequence[str],
    wanted: Reachable | None,
    hosts: Sequence[str] | None,
) -> Reach:
    network = most if wanted is None else wanted
    if _WIDTH[network] > _WIDTH[most]:
        raise ConfigError(
            f"{field}: the task asks for {network!r}, and the run file allows {most!r}; a task may ask "
            "for less than the run, never for more"
        )
    if network != "allowlist":
        return Reach(network)
    chosen = allowed if hosts is None else hosts
    beyond = sorted(set(chosen) - set(allowed))
    if beyond and most == "allowlist":
        raise ConfigError(
            f"allowed_hosts: the task asks for {beyond[0]!r}, which is not among the run file's"
        )
    check_hosts("allowed_hosts", chosen)
    return Reach(network, tuple(chosen))


async def reach(sandbox: Sandbox, wanted: Reach, *, before: Reach = CLOSED) -> None:
    """Let `sandbox` reach what is wanted, and nothing else. Raises `SandboxError`."""
    if wanted != before and not (wanted.closed and before.closed):
        await sandbox.set_network(wanted.network, wanted.hosts)
