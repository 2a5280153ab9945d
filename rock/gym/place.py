"""Where a Python environment runs: the sandbox's mounts, and how Python is started in it.

A Python of this host is shown under paths of its own (`/opt/environment-…`), wherever it lies here: a
home directory would be closed in the sandbox. For a virtual environment (PEP 405) the Python it was made
from is started, and its packages are added, with their `.pth` files.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from rock.errors import ConfigError
from rock.gym.definition import Definition
from rock.sandbox.base import Limits, Mount, SandboxSpec

BASE = "/opt/environment-python"
VENV = "/opt/environment-venv"
PATHS = "/opt/environment-path"
SHOWN = ("/usr", "/lib")
"""These directories of the host are in every sandbox without an image."""
START = (
    "import runpy, site, sys\n"
    "for folder in sys.argv[2:]: site.addsitedir(folder)\n"
    "module = sys.argv[1]\n"
    "sys.argv[1:] = []\n"
    "runpy.run_module(module, run_name='__main__', alter_sys=True)\n"
)


@dataclass(frozen=True, slots=True)
class Place:
    spec: SandboxSpec
    argv: tuple[str, ...]


def mounts_of(definition: Definition) -> tuple[Mount, ...]:
    """The host paths that the definition names itself."""
    return tuple(
        Mount(source=host.absolute(), target=inside) for inside, host in definition.mounts.items()
    )


def place_of(definition: Definition, folder: str, module: str) -> Place:
    """How to run `module`, which is in `folder` of the sandbox. Raises `ConfigError` for no Python."""
    paths = {f"{PATHS}/{n}": path.absolute() for n, path in enumerate(definition.path)}
    mounts = [Mount(source=host, target=inside) for inside, host in paths.items()]
    if definition.image is not None:
        python, sites, more = definition.python or "python3", [], []
    else:
        python, sites, more = _of_host(Path(definition.python or sys.executable))
    variables = {"PYTHONPATH": ":".join([folder, *paths])}
    if any(mount.target == BASE for mount in more):
        variables["LD_LIBRARY_PATH"] = f"{BASE}/lib"  # where a shared libpython is
    spec = SandboxSpec(
        image=definition.image,
        mounts=(*more, *mounts, *mounts_of(definition)),
        env=variables,
        limits=Limits(memory_bytes=definition.memory_bytes),
        labels={"environment": definition.source[:60]},
    )
    return Place(spec, (python, "-c", START, module, *sites))


def _of_host(python: Path) -> tuple[str, list[str], list[Mount]]:
    """The interpreter's path in the sandbox, folders of packages, and what shows them there."""
    if not python.is_file():
        raise ConfigError(f"python: there is no {python} on this host")
    real = python.resolve()
    base = real.parent.parent
    mounts: list[Mount] = []
    inside = str(real)
    if not any(real.is_relative_to(shown) for shown in SHOWN):
        mounts.append(Mount(source=base, target=BASE))
        inside = f"{BASE}/{real.relative_to(base)}"
    venv = python.absolute().parent.parent
    if not (venv / "pyvenv.cfg").is_file():
        return inside, [], mounts
    mounts.append(Mount(source=venv, target=VENV))
    packages = sorted(venv.glob("lib/python3.*/site-packages"))
    return inside, [f"{VENV}/{path.relative_to(venv)}" for path in packages], mounts
