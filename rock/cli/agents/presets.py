"""`rock agents`: the table of presets, one of them in full, and their installation."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
import yaml

from rock.config import read_environment
from rock.errors import ConfigError
from rock.rollout.inputs.presets import PRESETS, Preset
from rock.rollout.installing import build_with, install, packages_of
from rock.sandbox.base import BuildNetwork
from rock.sandbox.docker.docker import DockerProvider


class _Dumper(yaml.SafeDumper):
    """Scripts as people write them: line by line."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return yaml.ScalarNode("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def list_agents(into: Path | None, *, as_json: bool) -> None:
    folder = _folder(into)
    rows = [
        {
            "name": preset.name,
            "package": preset.package,
            "speaks": preset.speaks,
            "streams": preset.streams,
            "installed": _installed(preset, folder),
            "unverified": preset.unverified,
        }
        for preset in PRESETS.values()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    cells = [("preset", "package", "speaks", "here", "verified")]
    for preset in PRESETS.values():
        here = {True: "installed", False: "no", None: "image only"}[_installed(preset, folder)]
        verified = f"no: {preset.unverified}" if preset.unverified else "yes"
        cells.append((preset.name, preset.package, preset.speaks, here, verified))
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    for row in cells:
        # As wide as it is: packages are there to be copied.
        start = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        typer.echo(f"{start}  {row[-1]}")


def show_agent(name: str, into: Path | None, *, as_json: bool) -> None:
    preset, folder = _preset(name), _folder(into)
    found = {
        **{key: value for key, value in dataclasses.asdict(preset).items() if key != "command"},
        "install": f"rock agents install {name}" if preset.mounts else None,
        "install_into_image": f"rock agents install {name} --image IMAGE",
        "installed": _installed(preset, folder),
        "run_file": _run_file(preset, folder),
    }
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    here = {True: "installed", False: "not installed", None: "only from an image"}
    streams = "streamed" if preset.streams else "not streamed"
    lines = [
        f"{preset.name}: {preset.package}",
        f"speaks     {preset.speaks}, {streams}",
        f"ends       {preset.ends}",
        f"verified   {'no: ' + preset.unverified if preset.unverified else 'yes, by make test-clients'}",
        f"here       {here[_installed(preset, folder)]} ({folder})",
    ]
    if preset.mounts:
        lines.append(f"install    {found['install']}")
    needs = f" (IMAGE has {preset.image_needs})" if preset.image_needs else ""
    lines.append(f"image      {found['install_into_image']}{needs}")
    if preset.mounted is None:
        lines.append(f"           or {preset.in_an_image()}")
    text: str = yaml.dump(  # pyright: ignore[reportUnknownMemberType] (its stubs leave `width` open)
        found["run_file"], Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000
    )
    what = f"agent: {{preset: {name}{'' if preset.mounts else ', install: image'}}}"
    typer.echo("\n".join([*lines, "", f"{what} stands for", "", text.rstrip()]))


def install_agents(names: Sequence[str], into: Path | None) -> None:
    """Raises `ConfigError` for an unknown name, and for one that only runs from an image."""
    folder = _folder(into)
    presets = [_preset(name) for name in names]
    for preset in presets:
        if not preset.mounts:
            raise ConfigError(f"{preset.name}: {preset.how_to_install()}")
    for preset in presets:
        asyncio.run(install(packages_of(preset), folder, say=typer.echo))
        typer.echo(f"{preset.name} is in {folder}; in a run file: {_preset_line(preset, into)}")


def install_into_image(
    names: Sequence[str], into: Path | None, *, image: str, tag: str | None, network: BuildNetwork
) -> None:
    """Raises `ConfigError`, `InstallFailed`, and what the build of an image raises."""
    presets = [_preset(name) for name in names]
    wanted = tag or _default_tag(image, names)
    asyncio.run(_install_into_image(presets, _folder(into), image, wanted, network))
    for preset in presets:
        typer.echo(f"image: {wanted}\nagent: {{preset: {preset.name}, install: image}}")


async def _install_into_image(
    presets: Sequence[Preset], folder: Path, image: str, tag: str, network: BuildNetwork
) -> None:
    async with DockerProvider(host=read_environment().docker_host) as provider:
        for preset in presets:
            await install(packages_of(preset), folder, say=typer.echo)
            built = await build_with(
                preset, folder, image=image, images=provider.images, tag=tag, network=network
            )
            image = built.reference


def _default_tag(image: str, names: Sequence[str]) -> str:
    if "@" in image:
        raise ConfigError(
            "--tag: expected a name for the image, since IMAGE is given by its digest"
        )
    tagged = image if ":" in image.rpartition("/")[2] else f"{image}:latest"
    return "-".join([tagged, *names])


def _preset_line(preset: Preset, into: Path | None) -> str:
    place = f", install: {json.dumps(str(into.absolute()))}" if into else ""
    return f"agent: {{preset: {preset.name}{place}}}"


def _run_file(preset: Preset, folder: Path) -> dict[str, Any]:
    """The part of a run file that the preset stands for."""
    agent: dict[str, Any] = {"command": preset.command_for(in_image=not preset.mounts)}
    if preset.env:
        agent["env"] = dict(preset.env)
    if preset.mounts:
        agent["mounts"] = [
            {"source": str(folder / name), "target": target}
            for name, target in preset.mounts.items()
        ]
    limits = {"memory_bytes": preset.memory_bytes}
    return {"agent": agent, **({"limits": limits} if preset.memory_bytes else {})}


def _installed(preset: Preset, folder: Path) -> bool | None:
    """None for one that only runs from an image."""
    if not preset.mounts:
        return None
    return all(package.is_in(folder) for package in packages_of(preset))


def _preset(name: str) -> Preset:
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r} (expected one of {', '.join(PRESETS)})")
    return PRESETS[name]


def _folder(into: Path | None) -> Path:
    return (into or read_environment().clients_dir).absolute()
