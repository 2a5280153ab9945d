"""Installing agents: what is there is left alone, what fails changes nothing, images get the same program.

Here `uv` is a script in its place, so nothing is fetched; `make test-clients` installs for real.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rock.errors import BuildFailed, InstallFailed
from rock.rollout.inputs.presets import AT, PRESETS, Preset
from rock.rollout.installing import UV, Package, build_with, install, packages_of
from rock.sandbox.base import SandboxSpec
from rock.sandbox.docker.docker import DockerProvider
from tests.sandbox.test_builds import forget

UV_SCRIPT = """\
#!/bin/sh
echo "$@" >> "$(dirname "$0")/asked"
for last in "$@"; do :; done
case $1 in
venv) mkdir -p "$last/bin" "$last/lib/python3.11" && ln -s /usr/bin/python3 "$last/bin/python" ;;
pip) [ "$last" != "broken==1" ] || { echo "no such package on this index" >&2; exit 2; } ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where agents are installed, with the installer's own tools."""
    tools = tmp_path / "clients" / f".tools-{UV.rpartition('=')[2]}"
    (tools / "bin").mkdir(parents=True)
    (tools / ".installed").touch()
    (tools / "bin" / "uv").write_text(UV_SCRIPT)
    (tools / "bin" / "uv").chmod(0o755)
    return tmp_path / "clients"


def asked(folder: Path) -> list[str]:
    (log,) = folder.glob(".tools-*/bin/asked")
    return log.read_text().splitlines()


def names(folder: Path, pattern: str) -> list[str]:
    return sorted(path.name for path in folder.glob(pattern))


async def test_what_is_there_is_left_alone_and_another_version_takes_its_place(
    folder: Path,
) -> None:
    said: list[str] = []
    for pinned in ("tool==1", "tool==1", "tool==2"):
        await install([Package("tool", pinned)], folder, say=said.append)
    assert [line.partition(":")[0] for line in said] == ["tool 1", "tool 2"]
    assert len(asked(folder)) == 4
    assert Package("tool", "tool==2").is_in(folder)
    assert not Package("tool", "tool==1").is_in(folder)
    assert names(folder, "[!.]*") == ["tool"]


async def test_two_installers_at_once_install_once(folder: Path) -> None:
    said: list[str] = []
    one = Package("tool", "tool==1")
    await asyncio.gather(*(install([one], folder, say=said.append) for _ in range(2)))
    assert len(said) == 1


async def test_failed_installation_says_why_and_leaves_what_was_there(folder: Path) -> None:
    await install([Package("tool", "tool==1")], folder, say=lambda line: None)
    with pytest.raises(InstallFailed, match=r"uv exited with code 2: no such package"):
        await install([Package("tool", "broken==1")], folder, say=lambda line: None)
    assert Package("tool", "tool==1").is_in(folder)
    assert names(folder, ".new-*") == []


async def test_lock_file_is_used_for_the_python_that_it_is_for(folder: Path) -> None:
    (package,) = packages_of(PRESETS["mini-swe-agent"])
    assert package.lock is not None
    assert package.package in package.lock.read_text().splitlines()
    await install([package], folder, say=lambda line: None)
    python = (folder / package.name / "bin" / "python").resolve().name
    given = ["--no-deps", "-r", str(package.lock)] if python == "python3.11" else [package.package]
    assert asked(folder)[-1].endswith(" ".join(given))


TINY = Preset(
    name="tiny",
    package="tiny==1",
    command=("{program}", "{instruction}"),
    mounts={"tiny": AT},
    mounted=f"{AT}/bin/tiny",
    in_image="tiny",
    speaks="chat",
    streams=False,
    ends="at once",
)


@pytest.mark.docker
async def test_image_gets_what_is_mounted_elsewhere_under_the_presets_name(folder: Path) -> None:
    await install(packages_of(TINY), folder, say=lambda line: None)
    program = folder / "tiny" / "bin" / "tiny"
    program.write_text('#!/bin/sh\necho "$0: $1"\n')
    program.chmod(0o755)
    async with DockerProvider() as provider:
        built = await build_with(TINY, folder, image="rock-test:latest", images=provider.images)
        async with await provider.create(SandboxSpec(image=built.reference)) as sandbox:
            result = await sandbox.exec(["tiny", "a b"], timeout_seconds=10)
        assert result.stdout == b"/opt/agents/tiny/bin/tiny: a b\n"
        await forget(f"Successfully tagged {built.reference}")
        with pytest.raises(BuildFailed):  # it has no Python, which the agent would find too late
            await build_with(TINY, folder, image="rock-busybox:latest", images=provider.images)
    assert names(folder, ".image-*") == []
