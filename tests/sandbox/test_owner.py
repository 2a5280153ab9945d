"""Owners and their directories: only what is certainly dead counts as left over."""

import os
from pathlib import Path

import pytest

from rock import process
from rock.config import inherited_environment
from rock.errors import SandboxError
from rock.sandbox import host_dirs
from rock.sandbox.docker.reaper import is_leftover
from rock.sandbox.owner import EXPIRES, Owner


async def a_dead_owner() -> Owner:
    """An owner that was alive when it was looked at."""
    child = await process.start(
        ["python3", "-c", "import sys; sys.stdin.read()"],
        env=inherited_environment(),
        stdin=process.PIPE,
    )
    owner = Owner.of(child.pid)
    assert not owner.is_dead()
    await process.stop(child)
    return owner


def test_a_living_owner_survives_the_round_through_labels() -> None:
    owner = Owner.current()
    assert Owner.from_labels(owner.labels()) == owner
    assert not owner.is_dead()
    assert not is_leftover(owner.labels(), now_seconds=0)


async def test_an_owner_is_dead_once_its_process_is_gone() -> None:
    owner = await a_dead_owner()
    assert owner.is_dead()
    assert is_leftover(owner.labels(), now_seconds=0)


def test_a_later_process_with_the_same_pid_is_not_the_owner() -> None:
    now = Owner.current()
    assert Owner(now.host, now.pid, "another-boot/1").is_dead()


async def test_nothing_is_said_about_processes_of_another_host() -> None:
    dead = await a_dead_owner()
    assert not Owner("elsewhere/1", dead.pid, dead.start).is_dead()


def test_an_expired_sandbox_is_left_over_although_its_owner_lives() -> None:
    labels = {**Owner.current().labels(), EXPIRES: "1000"}
    assert not is_leftover(labels, now_seconds=999.0)
    assert is_leftover(labels, now_seconds=1001.0)


@pytest.mark.parametrize("labels", [{}, {"rock.host": "x"}, {"rock.owner-pid": "7"}])
def test_what_names_no_owner_is_left_alone(labels: dict[str, str]) -> None:
    assert not is_leftover({**labels, EXPIRES: "1"}, now_seconds=1e12)


def test_labels_that_make_no_sense_are_left_alone() -> None:
    labels = Owner.current().labels()
    assert not is_leftover({**labels, "rock.owner-pid": "seven"}, now_seconds=0)
    assert not is_leftover({**labels, EXPIRES: "soon"}, now_seconds=1e12)


async def test_only_directories_of_dead_owners_are_orphans(tmp_path: Path) -> None:
    base = tmp_path / "base"
    mine = host_dirs.make(base, "mine", Owner.current())
    theirs = host_dirs.make(base, "theirs", await a_dead_owner())
    unmade = base / "unmade"
    unmade.mkdir()
    made_at = unmade.stat().st_mtime
    assert mine.is_dir()
    assert host_dirs.orphans(base, now_seconds=made_at) == [theirs]
    later = made_at + host_dirs.HALF_MADE_SECONDS + 1
    assert host_dirs.orphans(base, now_seconds=later) == [theirs, unmade]


def test_a_sandboxs_directory_is_closed_to_other_users_and_goes_with_it(tmp_path: Path) -> None:
    base = tmp_path / "base"
    folder = host_dirs.make(base, "one", Owner.current())
    assert (base.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o700, 0o700)
    assert (folder / "run").is_dir()
    host_dirs.remove(folder)
    host_dirs.remove(folder)
    assert list(base.iterdir()) == []


def test_a_base_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    base.chmod(0o755)
    with pytest.raises(SandboxError, match="mode 0700"):
        host_dirs.make(base, "one", Owner.current())


def test_a_base_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "base").symlink_to("real")
    with pytest.raises(SandboxError, match="only user"):
        host_dirs.prepare_base(tmp_path / "base")
    assert os.listdir(tmp_path / "real") == []  # noqa: PTH208 (an empty directory is the point)
