"""Environments as Gymnasium sees them: `reset` and `step`, and everything else is elsewhere.

Made by `rock.make`, or by `gymnasium.make` for names that were registered. An environment is as safe and
as separate as its sandbox; this object holds spaces, no state. `spawn` makes another one like it.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self, SupportsFloat, cast

import gymnasium

from rock.errors import ConfigError, EnvironmentFailed
from rock.gym.definition import Definition
from rock.gym.loop import Loop, loop
from rock.gym.service import Answer, Service
from rock.gym.spaces import AnyText, build
from rock.gym.tasked import SUBMIT, TaskEpisodes, find_task
from rock.sandbox.base import Provider, Sandbox

MAX_SEED = 2**31


class RockEnv(gymnasium.Env[Any, Any]):
    """What both kinds share."""

    definition: Definition

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self._loop: Loop = loop()
        self._closed = False

    @property
    @abstractmethod
    def restored(self) -> int:
        """How often a crash was survived, since this object was made."""

    @property
    @abstractmethod
    def sandbox(self) -> Sandbox | None:
        """Where it runs now, to be looked into."""

    @abstractmethod
    def spawn(self, *, same_state: bool = False) -> Self:
        """Another environment like this one, in a sandbox of its own; `same_state` begins it where this
        one is. Raises `EnvironmentFailed` when that state cannot be made again."""

    async def _provider(self) -> Provider:
        return await self._loop.provider(self.definition.provider)

    def _check_open(self) -> None:
        if self._closed:
            raise EnvironmentFailed(f"{self.definition.source}: this environment is closed")


class ServedEnv(RockEnv):
    """A Python environment that runs as a service in a sandbox, with dependencies of its own."""

    def __init__(self, definition: Definition, *, render_mode: str | None = None) -> None:
        super().__init__(definition)
        self._service = Service(definition, self._provider, render_mode=render_mode)
        about = self._loop.run(self._service.open())
        try:
            self.observation_space = build(about.get("observation_space"))
            self.action_space = build(about.get("action_space"))
        except BaseException:
            self.close()
            raise
        metadata = about.get("metadata")
        self.metadata = dict(cast("dict[str, Any]", metadata)) if isinstance(metadata, dict) else {}
        modes = cast("list[Any]", self.metadata.get("render_modes") or [])
        # No sandbox has a screen.
        self.metadata["render_modes"] = [mode for mode in modes if mode != "human"]
        self.render_mode = render_mode

    @property
    def restored(self) -> int:
        return self._service.restored

    @property
    def sandbox(self) -> Sandbox | None:
        return self._service.sandbox

    @property
    def pid(self) -> int | None:
        """The environment's process, as it is numbered in its sandbox."""
        return self._service.pid

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Without a seed the episode gets one from this environment's generator: every episode can be
        played again."""
        super().reset(seed=seed)
        self._check_open()
        chosen = int(self.np_random.integers(MAX_SEED)) if seed is None else seed
        before = self.restored
        answer = self._loop.run(self._service.reset(chosen, options))
        return answer.ok, self._info(answer, before)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        self._check_open()
        before = self.restored
        answer = self._loop.run(self._service.step(action))
        observation, reward, terminated, truncated = answer.ok
        return observation, reward, terminated, truncated, self._info(answer, before)

    def _info(self, answer: Answer, before: int) -> dict[str, Any]:
        info = dict(answer.info)
        if self.restored > before:
            info["rock_restored"] = self.restored - before
        return info

    def render(self) -> Any:
        self._check_open()
        return self._loop.run(self._service.render())

    def spawn(self, *, same_state: bool = False) -> ServedEnv:
        self._check_open()
        made = ServedEnv(self.definition, render_mode=self.render_mode)
        try:
            if same_state:
                if self._service.history.began is None:
                    raise EnvironmentFailed("spawn: there is no episode to be in the state of")
                self._loop.run(made._service.replay(self._service.history))
        except BaseException:
            made.close()
            raise
        return made

    def close(self) -> None:
        self._closed = True
        self._loop.run(self._service.close())


class TaskEnv(RockEnv):
    """A task in a sandbox: actions are shell scripts, `submit` ends it, the grader gives the reward.

    Rewards before the end are 0. A grader that gives no reward raises `EnvironmentFailed`.
    """

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition)
        self.observation_space = AnyText()
        self.action_space = AnyText()
        self._loaded = find_task(definition)
        self._episodes = TaskEpisodes(definition, self._loaded, self._provider)

    @property
    def restored(self) -> int:
        return self._episodes.restored

    @property
    def sandbox(self) -> Sandbox | None:
        return self._episodes.sandbox

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """The instruction is the first observation. A task is the same for every seed."""
        super().reset(seed=seed)
        self._check_open()
        seen = self._loop.run(self._episodes.reset())
        return seen.observation, seen.info

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        self._check_open()
        before = self.restored
        if action.strip() == SUBMIT:
            observation, info, ends = "", dict[str, Any](), True
        else:
            seen = self._loop.run(self._episodes.step(action))
            observation, info, ends = seen.observation, seen.info, False
        truncated = not ends and self._episodes.steps >= self.definition.max_steps
        reward = 0.0
        if ends or truncated:
            grade = self._loop.run(self._episodes.grade())
            reward = float(grade.reward or 0.0)
            info |= {"grade": grade.detail, "parts": dict(grade.parts)}
        if self.restored > before:
            info["rock_restored"] = self.restored - before
        return observation, reward, ends, truncated, info

    def spawn(self, *, same_state: bool = False) -> TaskEnv:
        self._check_open()
        made = TaskEnv(self.definition)
        try:
            if same_state:
                self._loop.run(self._episodes.fork(made._episodes))
        except BaseException:
            made.close()
            raise
        return made

    def close(self) -> None:
        self._closed = True
        self._loop.run(self._episodes.close())


def environment(definition: Definition, *, render_mode: str | None = None) -> RockEnv:
    """The environment that `definition` describes, running."""
    if definition.kind != "task":
        return ServedEnv(definition, render_mode=render_mode)
    if render_mode is not None:
        raise ConfigError(
            f"render_mode: {definition.source} has no pictures, given {render_mode!r}"
        )
    return TaskEnv(definition)
