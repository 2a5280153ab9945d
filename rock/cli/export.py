"""`rock export`: a run's trajectories as files that a trainer reads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import typer

from rock.cli.arguments import pairs
from rock.errors import ConfigError
from rock.rollout.export.engine import Progress, export
from rock.rollout.export.manifest import Manifest
from rock.rollout.export.options import default_directory, options_of


def run_export(
    run: Path,
    *,
    format_name: str,
    out: Path | None,
    chosen: dict[str, Any],
    settings: list[str],
    as_json: bool,
) -> None:
    """`chosen` are options given as flags of their own, `settings` are NAME=VALUE."""
    values = pairs(settings, "--set")
    for name in chosen.keys() & values.keys():
        raise ConfigError(f"--set: {name} has a flag of its own: --{name}")
    options = options_of(**values, **chosen)
    where = out or default_directory(run, format_name)
    manifest = export(
        run, where, format_name, options, on_progress=None if as_json else _show_progress
    )
    if as_json:
        typer.echo(msgspec.json.encode(_summary(where, manifest)).decode())
    else:
        _print(where, manifest)


def _show_progress(progress: Progress) -> None:
    if sys.stderr.isatty():
        print(
            f"\r{progress.groups_done}/{progress.groups} groups, {progress.samples} samples",
            end="" if progress.groups_done < progress.groups else "\n",
            file=sys.stderr,
        )


def _summary(where: Path, manifest: Manifest) -> dict[str, Any]:
    return {
        "out": str(where),
        "format": manifest.format,
        "run_id": manifest.run_id,
        "samples": manifest.samples,
        "tokens": manifest.tokens,
        "sampled_tokens": manifest.sampled_tokens,
        "left_out": manifest.left_out,
        "files": [file.name for file in manifest.files],
        "digest": manifest.digest,
    }


def _print(where: Path, manifest: Manifest) -> None:
    print(
        f"{manifest.samples} samples, {manifest.tokens} tokens, "
        f"{manifest.sampled_tokens} of them sampled"
    )
    for reason, count in manifest.left_out.items():
        print(f"  left out: {reason} ({count})")
    size = sum(file.bytes for file in manifest.files)
    print(f"{len(manifest.files)} files, {size:,} bytes in {where}")
    print(f"digest {manifest.digest}")
