"""Mounts are checked before anything starts, and never hand a sandbox the engine."""

import socket
from pathlib import Path

import pytest

from rock.errors import ConfigError
from rock.sandbox.base import Mount, SandboxSpec
from rock.sandbox.mount_rules import check_spec


def spec_with(source: Path, target: str = "/x") -> SandboxSpec:
    return SandboxSpec(mounts=(Mount(source=source, target=target),))


def test_an_ordinary_directory_may_be_shown(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    check_spec(spec_with(tmp_path / "data"))
    check_spec(spec_with(tmp_path / "link", "/opt/tool"))


@pytest.mark.parametrize("source", ["/run", "/var/run", "/"])
def test_no_directory_above_the_engines_socket_may_be_shown(source: str) -> None:
    with pytest.raises(ConfigError, match=r"mounts\[0\]\.source: .*engine's socket"):
        check_spec(spec_with(Path(source)))


def test_no_socket_of_the_host_may_be_shown_under_any_name(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(tmp_path / "own.sock"))
        (tmp_path / "innocent").symlink_to("own.sock")
        for name in ("own.sock", "innocent"):
            with pytest.raises(ConfigError, match=r"mounts\[0\]\.source: .*is a socket"):
                check_spec(spec_with(tmp_path / name))


def test_an_engine_in_an_unusual_place_is_guarded_too(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    guarded = [str(tmp_path / "deep" / "own.sock")]
    check_spec(spec_with(tmp_path))
    for source in (tmp_path, tmp_path / "deep"):
        with pytest.raises(ConfigError, match="engine's socket"):
            check_spec(spec_with(source), engine_sockets=guarded)


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    mounts = (
        Mount(source=tmp_path, target="/good"),
        Mount(source=tmp_path / "absent", target="/x"),
    )
    with pytest.raises(ConfigError, match=r"mounts\[1\]\.source: .*absent does not exist"):
        check_spec(SandboxSpec(mounts=mounts))


def test_a_relative_source_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"mounts\[0\]\.source: .*expected an absolute path"):
        check_spec(spec_with(Path("tests")))


@pytest.mark.parametrize("target", ["", "data", "/a/../b", "/a/", "/", "//", "//a", "/a\0b"])
def test_a_target_that_is_no_plain_absolute_path_is_refused(tmp_path: Path, target: str) -> None:
    with pytest.raises(ConfigError, match=r"mounts\[0\]\.target"):
        check_spec(spec_with(tmp_path, target))


@pytest.mark.parametrize("target", ["/rock", "/rock/run", "/proc", "/proc/self", "/sys/x", "/dev"])
def test_a_target_inside_the_sandboxs_own_directories_is_refused(
    tmp_path: Path, target: str
) -> None:
    with pytest.raises(ConfigError, match="belongs to the sandbox itself"):
        check_spec(spec_with(tmp_path, target))


def test_a_working_directory_must_be_absolute_and_a_lifetime_positive() -> None:
    with pytest.raises(ConfigError, match="workdir"):
        check_spec(SandboxSpec(workdir="here"))
    with pytest.raises(ConfigError, match="lifetime_seconds"):
        check_spec(SandboxSpec(lifetime_seconds=0))
