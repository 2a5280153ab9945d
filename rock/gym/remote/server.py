"""One environment behind stdin and stdout: a line of JSON in, a line of JSON with the same `id` out.

    {"make": "gym", "name": "Taxi-v4", "modules": [], "arguments": {}, "render_mode": null}
    {"do": "reset", "seed": 7, "options": null}      {"do": "step", "action": 2}
    {"do": "render"}                                  {"do": "close"}

An answer is `{"ok": …, "info": …}` or `{"error": {"type": …, "message": …}}`. `ok` is the spaces, the
observation, `[observation, reward, terminated, truncated]`, or the frame, packed as in `wire`. What the
environment prints goes to stderr. The process ends when its stdin does.

`make` is `gym` (a name in Gymnasium's registry), `gem` (a name in GEM's), or `call` (`module:function`
that returns an object with `reset` and `step`).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import sys
from typing import IO, Any

from .wire import describe, pack, unpack


def make(request: dict[str, Any]) -> Any:
    for module in request["modules"]:
        importlib.import_module(module)
    kind, name = request["make"], request["name"]
    arguments = {key: unpack(value) for key, value in request["arguments"].items()}
    if request.get("render_mode") is not None:
        arguments["render_mode"] = request["render_mode"]
    if kind == "gym":
        gymnasium: Any = importlib.import_module("gymnasium")
        return gymnasium.make(name, disable_env_checker=True, **arguments)
    if kind == "gem":
        return importlib.import_module("gem").make(name, **arguments)
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)(**arguments)


def about(env: Any) -> dict[str, Any]:
    """What the other side has to know of the environment."""
    spec = getattr(env, "spec", None)
    metadata: dict[str, Any] = getattr(env, "metadata", None) or {}
    return {
        "observation_space": describe(getattr(env, "observation_space", None)),
        "action_space": describe(getattr(env, "action_space", None)),
        "metadata": pack(dict(metadata), lenient=True),
        "render_mode": getattr(env, "render_mode", None),
        "nondeterministic": bool(getattr(spec, "nondeterministic", False)),
    }


def answer(env: Any, request: dict[str, Any]) -> dict[str, Any]:
    what = request["do"]
    if what == "reset":
        return _reset(env, request["seed"], unpack(request["options"]))
    if what == "step":
        observation, reward, terminated, truncated, info = env.step(unpack(request["action"]))
        ok = [pack(observation), pack(float(reward)), bool(terminated), bool(truncated)]
        return {"ok": ok, "info": pack(info, lenient=True)}
    if what == "render":
        return {"ok": pack(env.render()), "info": {}}
    raise ValueError(f"do: {what!r}")


def _reset(env: Any, seed: int, options: Any) -> dict[str, Any]:
    # Also the generators of modules, which some environments draw from: the seed says all.
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    keywords = {} if options is None else {"options": options}
    observation, info = env.reset(seed=seed, **keywords)
    return {"ok": pack(observation), "info": pack(info, lenient=True)}


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    env: Any = None
    for line in requests:
        request: dict[str, Any] = json.loads(line)
        if request.get("do") == "close":
            break
        env, reply = _handle(env, request)
        reply["id"] = request["id"]
        replies.write(json.dumps(reply, allow_nan=False).encode("utf-8") + b"\n")
        replies.flush()
    if env is not None and hasattr(env, "close"):
        env.close()


def _handle(env: Any, request: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    try:
        if "make" in request:
            env = make(request)
            return env, {"ok": about(env), "info": {}}
        return env, answer(env, request)
    except (Exception, SystemExit, KeyboardInterrupt) as exc:  # noqa: BLE001 - its failure is an answer
        return env, {"error": {"type": type(exc).__name__, "message": str(exc)[:2000]}}


def main() -> None:
    # Whatever the environment prints must not be taken for an answer.
    with os.fdopen(os.dup(1), "wb") as replies:
        os.dup2(2, 1)
        with contextlib.suppress(KeyboardInterrupt):
            serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
