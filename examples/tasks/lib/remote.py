"""Checks that the work under test cannot talk into passing: it runs in a process of its own.

    with Remote("textkit") as textkit:
        assert textkit.call("slugify", "Hello World") == "hello-world"

The other process gets names and plain data and gives plain data back; what is right is decided here.
`verdict` runs the checks and prints the nonce that the grader was given, which only this process knows.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import subprocess
import sys
import time

LIMIT_SECONDS = 30.0
PR_SET_DUMPABLE = 4

SERVER = r"""
import importlib, json, os, sys
replies = os.fdopen(int(sys.argv[1]), "w")
things = []
for line in sys.stdin:
    ask = json.loads(line)
    try:
        owner = things[ask["on"]] if ask["on"] is not None else importlib.import_module(ask["module"])
        value = getattr(owner, ask["name"])
        if ask["called"]:
            value = value(*ask["args"], **ask["kwargs"])
        if ask["keep"]:
            things.append(value)
            value = len(things) - 1
        reply = {"value": value}
        json.dumps(reply)
    except BaseException as exc:
        reply = {"error": type(exc).__name__, "text": str(exc)}
    replies.write(json.dumps(reply) + "\n")
    replies.flush()
"""


class Raised(Exception):
    """The work raised; `name` is the exception's class."""

    def __init__(self, name, text):
        super().__init__(f"{name}: {text}")
        self.name = name


class Remote:
    """One module of the work, in a process of its own, started in the working directory."""

    def __init__(self, module, workdir="/workspace", path=""):
        self.module, self.workdir, self.path = module, workdir, path

    def __enter__(self):
        mine, theirs = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-B", "-c", SERVER, str(theirs)],
            cwd=self.workdir,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs],
            env={**os.environ, "PYTHONPATH": os.path.join(self.workdir, self.path)},
        )
        os.close(theirs)
        self.replies, self.rest = mine, b""
        self.deadline = time.monotonic() + LIMIT_SECONDS
        return self

    def __exit__(self, *exc):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        os.close(self.replies)

    def call(self, name, *args, on=None, keep=False, called=True, **kwargs):
        """What `name(*args)` returns; with `keep` a number by which the result is used as `on`."""
        ask = dict(module=self.module, name=name, args=args, kwargs=kwargs)
        ask.update(on=on, keep=keep, called=called)
        try:
            self.process.stdin.write(json.dumps(ask).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise Raised("Ended", "the work ended its process") from None
        reply = json.loads(self.line())
        if "error" in reply:
            raise Raised(reply["error"], reply["text"])
        return reply["value"]

    def new(self, name, *args, **kwargs):
        return self.call(name, *args, keep=True, **kwargs)

    def line(self):
        while b"\n" not in self.rest:
            ready, _, _ = select.select([self.replies], [], [], self.deadline - time.monotonic())
            part = os.read(self.replies, 65536) if ready else b""
            if not part:
                raise Raised("Ended", "the work gave no answer")
            self.rest += part
        line, _, self.rest = self.rest.partition(b"\n")
        return line


def raises(name, function, *args, **kwargs):
    """Whether the work raises an exception of that class."""
    try:
        function(*args, **kwargs)
    except Raised as exc:
        return exc.name == name
    return False


def verdict(*checks):
    """Run every check; the reward is 1.0 if all of them passed."""
    nonce = sys.stdin.readline().strip()
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    failed = 0
    for check in checks:
        try:
            check()
            print(f"passed: {check.__name__}")
        except Exception as exc:
            failed += 1
            print(f"failed: {check.__name__}: {type(exc).__name__}: {exc}")
    print(f"{nonce} {0.0 if failed else 1.0}", flush=True)
    os._exit(0)
