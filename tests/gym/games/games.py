"""Small environments for the tests, loaded in sandboxes by `call:games:…`. Imports no rock."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Counter(gymnasium.Env[Any, Any]):
    """Counts up to ten. Actions: 0 count, 1 raise, 2 hang, 3 die, 4 print, 5 die once, 6 draw."""

    metadata = {"render_modes": ["ansi", "human"], "render_fps": 4}  # noqa: RUF012 - as Gymnasium does

    def __init__(
        self, start: int = 0, render_mode: str | None = None, marker: str = "/tmp/died-once"
    ) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Dict(
            {"count": spaces.Discrete(1000), "noise": spaces.Box(0.0, 1.0, (2,), np.float32)}
        )
        self.action_space = spaces.Discrete(7)
        self._start = start
        self._marker = Path(marker)
        self._count = 0

    def _observation(self) -> dict[str, Any]:
        return {"count": self._count, "noise": self.np_random.random(2, dtype=np.float32)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._count = (options or {}).get("count", self._start)
        return self._observation(), {"started": (self._count, None), "handle": object()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == 1:
            raise ValueError("one is not taken")
        if action == 2:
            time.sleep(600)
        if action == 3 or (action == 5 and not self._marker.exists()):
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if action == 4:
            print('{"ok": "a line that is no answer"}', flush=True)  # noqa: T201 - what is tested
        self._count += 1
        reward = float("nan") if action == 6 else 1.0
        return self._observation(), reward, self._count >= 10, False, {}

    def render(self) -> str:
        return f"count {self._count}"


class Odd(Counter):
    """Does in each step what `how` says: nothing of it may hang, or be taken for another answer."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self._how = how

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        seen = super().step(0)
        self._do()
        if self._how == "recurses":
            return self.step(action)
        if self._how == "answers without end":
            return np.zeros(12_000_000), *seen[1:]
        if self._how == "returns four":
            return seen[:4]  # type: ignore[return-value]  # pyright: ignore[reportReturnType] - it is wrong
        return seen[0], "one" if self._how == "rewards with text" else 1.0, *seen[2:]

    def _do(self) -> None:
        match self._how:
            case "exits":
                raise SystemExit(3)
            case "exits at once":
                os._exit(0)
            case "floods its output":
                for _ in range(500):
                    os.write(1, b"x" * 100_000)
            case "leaves a child":
                if os.fork() == 0:
                    time.sleep(300)
            case "forgets its surroundings":
                os.chdir("/")
                os.environ.clear()
            case _:
                pass

    def close(self) -> None:
        if self._how == "never closes":
            time.sleep(300)
        raise RuntimeError("it does not close")


class Fleeting(Counter):
    """What no seed decides."""

    def _observation(self) -> dict[str, Any]:
        noise = np.frombuffer(os.urandom(8), np.uint32).astype(np.float32) / 2**33
        return {"count": self._count, "noise": noise}


class Liar(Counter):
    """Owns its process: it writes answers of its own where the server writes them."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        lines = {  # 4 is the number of the question: made, reset, and one step before
            1: b'{"id": 4, "ok": [1]}\n',
            2: b'{"id": 4, "ok": 5, "info": 5}\n' * 9,
            3: b"[" * 100_000 + b"\n",
            4: b'{"id": 3, "ok": [1]}\n',
        }
        for fd in range(3, 10):
            with contextlib.suppress(OSError):
                os.write(fd, lines.get(int(action), b""))
        return super().step(0)


class Guess:
    """A text game of the shape that GEM's have: no spaces, texts in and out."""

    def reset(self, seed: int = 0) -> tuple[str, dict[str, Any]]:
        self.secret = seed % 10
        return "guess a digit", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = action.strip() == str(self.secret)
        return ("right" if right else "wrong"), float(right), right, False, {}
