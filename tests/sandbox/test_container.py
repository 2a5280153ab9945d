"""What the engine is asked for: the safe values, whatever the specification says."""

from pathlib import Path
from typing import Any

from rock.sandbox.base import Limits, Mount, SandboxSpec
from rock.sandbox.docker.container import HELPER_CAPABILITIES, container_config


def config_of(spec: SandboxSpec) -> dict[str, Any]:
    return container_config(
        spec,
        programs=[Path("/usr")],
        helper=Path("/host/rock-init"),
        run_directory=Path("/host/run"),
        labels={"rock.owner-pid": "7"},
    )


def test_the_defaults_are_the_safe_ones() -> None:
    host = config_of(SandboxSpec())["host_config"]
    assert host["network_mode"] == "none"
    assert host["cap_drop"] == ["ALL"]
    assert host["cap_add"] == list(HELPER_CAPABILITIES)
    assert host["security_opt"] == ["no-new-privileges:true"]
    assert host["privileged"] is False
    assert host["auto_remove"] is True
    assert (host["mem_limit"], host["memswap_limit"]) == (2 * 1024**3, 2 * 1024**3)
    assert host["pids_limit"] == 512
    assert [(limit["Name"], limit["Hard"]) for limit in host["ulimits"]] == [
        ("core", 1),
        ("nofile", 4096),
    ]


def test_the_helpers_capabilities_give_no_way_out() -> None:
    ways_out = {"SYS_ADMIN", "SYS_PTRACE", "SYS_MODULE", "DAC_READ_SEARCH", "NET_ADMIN", "MKNOD"}
    assert ways_out.isdisjoint(HELPER_CAPABILITIES)


def test_limits_that_are_lifted_are_not_sent() -> None:
    unlimited = Limits(memory_bytes=None, pids=None, cpus=None, open_files=None)
    host = config_of(SandboxSpec(limits=unlimited))["host_config"]
    assert {"mem_limit", "memswap_limit", "pids_limit", "nano_cpus"}.isdisjoint(host)
    assert [limit["Name"] for limit in host["ulimits"]] == ["core"]


def test_part_of_a_processor_is_a_number_of_nanoseconds() -> None:
    host = config_of(SandboxSpec(limits=Limits(cpus=1.5)))["host_config"]
    assert host["nano_cpus"] == 1_500_000_000


def test_everything_shown_from_the_host_is_named_and_read_only_unless_asked() -> None:
    mount = Mount(source=Path("/host/data"), target="/data", read_only=False)
    binds = config_of(SandboxSpec(mounts=(mount,)))["host_config"]["mounts"]
    assert [(bind["Source"], bind["Target"], bind["ReadOnly"]) for bind in binds] == [
        ("/host/rock-init", "/rock/rock-init", True),
        ("/host/run", "/rock/run", False),
        ("/usr", "/usr", True),
        ("/host/data", "/data", False),
    ]


def test_a_specs_own_labels_cannot_hide_the_owner() -> None:
    spec = SandboxSpec(labels={"task": "t", "rock.owner-pid": "1"})
    assert config_of(spec)["labels"] == {"task": "t", "rock.owner-pid": "7"}


def test_the_helper_gets_the_lifetime_rounded_up() -> None:
    command = config_of(SandboxSpec(lifetime_seconds=0.2))["command"]
    assert command == ["serve", "/rock/run/box.sock", "--lifetime", "1"]
