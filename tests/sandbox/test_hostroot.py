"""The root made from this machine: programs and what they need, none of its people's files."""

import io
import tarfile
from pathlib import Path

from rock.sandbox.box.identity import AGENT_UID
from rock.sandbox.docker import hostroot


def a_host(root: Path) -> Path:
    """A small machine with things to show and things to hide."""
    for name in (
        "usr/bin",
        "usr/lib",
        "etc/ssl/certs",
        "etc/ssl/private",
        "etc/ssh",
        "root",
        "home/ann",
    ):
        (root / name).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    (root / "sbin").mkdir()
    etc = root / "etc"
    (etc / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\nann:x:1000:1000:SECRET:/:/\n")
    (etc / "group").write_text("root:x:0:ann\nann:x:1000:\n")
    (etc / "shadow").write_text("root:SECRET:::::::\n")
    (etc / "ssh" / "ssh_host_key").write_text("SECRET")
    (etc / "ssl" / "private" / "key.pem").write_text("SECRET")
    (etc / "ssl" / "certs" / "ca.pem").write_text("certificate")
    (etc / "profile").write_text("SECRET")
    (etc / "profile").chmod(0o600)
    (etc / "services").write_text("http 80/tcp\n")
    (root / "usr" / "lib" / "os-release").write_text("NAME=x\n")
    (etc / "os-release").symlink_to("../usr/lib/os-release")
    (etc / "pip.conf").write_text("SECRET")
    (root / "root" / "token").write_text("SECRET")
    return root


def members(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: member for member in tar.getmembers()}


def text_of(data: bytes, name: str) -> str:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        file = tar.extractfile(name)
        assert file is not None
        return file.read().decode()


def test_secrets_are_not_in_the_root(tmp_path: Path) -> None:
    data = hostroot.archive(a_host(tmp_path))
    assert b"certificate" in data
    assert b"SECRET" not in data
    assert {"etc/shadow", "etc/ssh", "etc/ssl/private", "etc/pip.conf", "home/ann"}.isdisjoint(
        members(data)
    )


def test_accounts_are_new_and_name_one_agent(tmp_path: Path) -> None:
    data = hostroot.archive(a_host(tmp_path))
    names = [line.split(":")[0] for line in text_of(data, "etc/passwd").splitlines()]
    assert names == ["root", "agent", "nobody"]
    assert "ann" not in text_of(data, "etc/group")


def test_links_stay_links_and_directories_become_mount_points(tmp_path: Path) -> None:
    host = a_host(tmp_path)
    found = members(hostroot.archive(host))
    assert (found["bin"].issym(), found["bin"].linkname) == (True, "usr/bin")
    assert found["etc/os-release"].issym()
    assert found["usr"].isdir()
    assert found["sbin"].isdir()
    assert "usr/bin" not in found
    assert hostroot.program_directories(host) == [host / "usr", host / "sbin"]


def test_the_agents_home_is_the_agents_and_tmp_is_everyones(tmp_path: Path) -> None:
    found = members(hostroot.archive(a_host(tmp_path)))
    assert found["home/agent"].uid == AGENT_UID
    assert (found["tmp"].mode, found["var/tmp"].mode, found["root"].mode) == (
        0o1777,
        0o1777,
        0o700,
    )


def test_the_same_machine_gives_the_same_bytes(tmp_path: Path) -> None:
    host = a_host(tmp_path)
    assert hostroot.archive(host) == hostroot.archive(host)


def test_a_machine_without_etc_still_gives_a_root(tmp_path: Path) -> None:
    data = hostroot.archive(tmp_path)
    assert text_of(data, "etc/passwd").startswith("root:x:0:0:")
