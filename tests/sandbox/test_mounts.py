"""Mounts are checked before anything starts, and never hand a sandbox the engine."""

import socket
from pathlib import Path

import pytest

from rock.errors import ConfigError
from rock.sandbox.base import Mount
from rock.sandbox.mounts import checked


def test_a_good_mount_comes_back_in_plain_form(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    mount = Mount(source=tmp_path / "link", target="/data//x/./y/", read_only=False)
    assert checked([mount]) == [
        Mount(source=tmp_path / "data", target="/data/x/y", read_only=False)
    ]


@pytest.mark.parametrize(
    "source", ["/var/run/docker.sock", "/run/docker.sock", "/run", "/var/run", "/"]
)
def test_the_engine_socket_is_refused_however_it_is_named(source: str) -> None:
    with pytest.raises(ConfigError, match=r"mounts\[0\]\.source: .*(engine's socket|not there)"):
        checked([Mount(source=Path(source), target="/x")])


def test_a_link_to_an_engine_socket_and_a_directory_above_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(tmp_path / "deep" / "own.sock"))
        (tmp_path / "innocent").symlink_to("deep/own.sock")
        for source in (tmp_path / "innocent", tmp_path, tmp_path / "deep"):
            with pytest.raises(ConfigError, match="engine's socket"):
                checked(
                    [Mount(source=source, target="/x")],
                    sockets=[str(tmp_path / "deep" / "own.sock")],
                )


def test_a_socket_with_an_engines_name_is_refused_anywhere(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(tmp_path / "docker.sock"))
        with pytest.raises(ConfigError, match="engine's socket"):
            checked([Mount(source=tmp_path / "docker.sock", target="/x")])


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    good = Mount(source=tmp_path, target="/good")
    with pytest.raises(ConfigError, match=r"mounts\[1\]\.source: .*absent is not there"):
        checked([good, Mount(source=tmp_path / "absent", target="/x")])


def test_a_relative_source_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"mounts\[0\]\.source: expected an absolute host path"):
        checked([Mount(source=Path("tests"), target="/x")])


@pytest.mark.parametrize("target", ["", "data", "/a/../b", "/", "//", "/a:b", "/a\0b"])
def test_a_target_that_is_no_plain_absolute_path_is_refused(tmp_path: Path, target: str) -> None:
    with pytest.raises(ConfigError, match=r"mounts\[0\]\.target"):
        checked([Mount(source=tmp_path, target=target)])


@pytest.mark.parametrize("target", ["/rock", "/rock/run", "/proc", "/proc/self", "/sys/x", "/dev"])
def test_a_target_inside_the_sandboxs_own_directories_is_refused(
    tmp_path: Path, target: str
) -> None:
    with pytest.raises(ConfigError, match="belongs to the sandbox itself"):
        checked([Mount(source=tmp_path, target=target)])
