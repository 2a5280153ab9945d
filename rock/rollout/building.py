"""Tasks that bring a Dockerfile: their image is built, or their files are taken without it.

Which of the two is decided by the run file and the provider, before anything starts; never by what happens
to fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rock.errors import ConfigError
from rock.rollout.inputs.runfile import BuildMode
from rock.rollout.inputs.task import LoadedTask
from rock.sandbox.base import BuildNetwork, Provider

_NETWORKS: Mapping[BuildMode, BuildNetwork] = {"auto": "engine", "offline": "none", "host": "host"}


@dataclass(frozen=True, slots=True)
class Ready:
    """A task whose image and files are settled, and what its build said; None where nothing was built."""

    loaded: LoadedTask
    log: str | None = None


def builds(loaded: LoadedTask, provider: Provider, mode: BuildMode) -> bool:
    """Whether the task's image is built."""
    return loaded.task.build is not None and mode != "never" and provider.builds_images


def refuse_unbuilt(tasks: Iterable[LoadedTask], provider: Provider, mode: BuildMode) -> None:
    """Raises `ConfigError` naming the first task that needs an image which nobody builds."""
    for item in tasks:
        build = item.task.build
        if build is None or builds(item, provider, mode) or mode == "never" or build.only_files:
            continue
        raise ConfigError(
            f"tasks: {item.task_id}: its {build.dockerfile} does more than copy files, and the "
            f"{provider.name} provider builds no images (expected the docker provider, or `build: never` "
            "in the run file for its files alone)"
        )


async def make_ready(loaded: LoadedTask, provider: Provider, mode: BuildMode) -> Ready:
    """The task with its image built, if it is to be. Raises what `Provider.build_image` raises."""
    task = loaded.task
    build = task.build
    if build is None:
        return Ready(loaded)
    if not builds(loaded, provider, mode):
        files = {**build.otherwise, **task.files}
        return Ready(_changed(loaded, {"files": files}))
    built = await provider.build_image(
        loaded.folder / build.context,
        dockerfile=build.dockerfile,
        timeout_seconds=build.timeout_seconds,
        network=_NETWORKS[mode],
    )
    return Ready(_changed(loaded, {"image": built.reference}), built.log)


def _changed(loaded: LoadedTask, update: Mapping[str, object]) -> LoadedTask:
    task = loaded.task.model_copy(update={**update, "build": None})
    return LoadedTask(task, loaded.folder)
