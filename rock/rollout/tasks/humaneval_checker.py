"""Grades one HumanEval solution. Runs inside the sandbox, with nothing but a Python 3.7 at hand.

    python3 -I checker.py SOLUTION   <  NONCE newline {"prompt", "test", "entry_point"}

Two processes. This one holds the published test and the nonce, and never runs a line of the
solution. The other one runs the solution and answers calls: arguments go over as a pickle (from
the trusted side to the other), results come back as a Python literal, so that a result is plain
data: an object that claims to equal everything cannot pass. This process is made undumpable before
the other one starts, so that no process of the same user can read its memory or its pipes.

Whatever happens it prints one line, `NONCE REWARD` or `NONCE error REASON`. A solution that ends
this process cannot print it, since it never learns the nonce.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import json
import os
import pickle
import selectors
import signal
import struct
import subprocess  # noqa: TID251 - runs in the sandbox, where there is no rock
import sys
import time
from pathlib import Path
from typing import Any

LIMIT_SECONDS = 10.0
MAX_REPLY_BYTES = 8 * 1024 * 1024
PR_SET_DUMPABLE = 4

SOLVER = r"""
import os, pickle, struct, sys
fd_in, fd_out, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
sys.argv = [path]
PLAIN = (int, float, str, bool, bytes, complex, type(None))
def plain(value):
    kind = type(value)
    if kind in PLAIN:
        return repr(value)
    if kind is list:
        return "[" + ",".join(map(plain, value)) + "]"
    if kind is tuple:
        return "(" + "".join(plain(v) + "," for v in value) + ")"
    if kind in (set, frozenset):
        return "{" + ",".join(map(plain, value)) + "}" if value else "set()"
    if kind is dict:
        return "{" + ",".join(plain(k) + ":" + plain(v) for k, v in value.items()) + "}"
    raise TypeError("a result of type %s is not plain data" % kind.__name__)
def read(size):
    data = b""
    while len(data) < size:
        part = os.read(fd_in, size - len(data))
        if not part:
            os._exit(0)
        data += part
    return data
def write(kind, text):
    data = kind + text.encode("utf-8", "backslashreplace")
    data = struct.pack("!I", len(data)) + data
    while data:
        data = data[os.write(fd_out, data):]
names = {"__name__": "solution", "__file__": path}
try:
    with open(path, "rb") as file:
        exec(compile(file.read(4 << 20), path, "exec"), names)
except BaseException as exc:
    write(b"!", "%s: %s" % (type(exc).__name__, exc))
    os._exit(0)
write(b"=", "None")
while True:
    (size,) = struct.unpack("!I", read(4))
    name, args, kwargs = pickle.loads(read(size))
    try:
        write(b"=", plain(names[name](*args, **kwargs)))
    except BaseException as exc:
        write(b"!", "%s: %s" % (type(exc).__name__, exc))
"""


class SolutionFailed(Exception):
    """The solution raised, ended, was too slow, or gave something that is not plain data."""


class Solver:
    """The process that runs the solution, and calls into it."""

    def __init__(self, path: str, deadline: float) -> None:
        their_in, self.to_solver = os.pipe()
        self.from_solver, their_out = os.pipe()
        self.deadline = deadline
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", SOLVER, str(their_in), str(their_out), path],
            pass_fds=(their_in, their_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=str(Path(path).parent),
            start_new_session=True,
        )
        os.close(their_in)
        os.close(their_out)
        os.set_blocking(self.to_solver, False)

    def start(self) -> None:
        self.reply()

    def call(self, name: str, args: Any, kwargs: Any) -> Any:
        data = pickle.dumps((name, args, kwargs))
        self.send(struct.pack("!I", len(data)) + data)
        return self.reply()

    def send(self, data: bytes) -> None:
        while data:
            self.wait(self.to_solver, selectors.EVENT_WRITE)
            try:
                data = data[os.write(self.to_solver, data) :]
            except BlockingIOError:
                continue
            except OSError as exc:
                raise SolutionFailed("the solution's process ended") from exc

    def reply(self) -> Any:
        (size,) = struct.unpack("!I", self.read(4))
        if not 1 <= size <= MAX_REPLY_BYTES:
            raise SolutionFailed("the result is too large")
        data = self.read(size)
        text = data[1:].decode("utf-8", "replace")
        if data[:1] != b"=":
            raise SolutionFailed(text)
        return literal(text)

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            self.wait(self.from_solver, selectors.EVENT_READ)
            part = os.read(self.from_solver, size - len(data))
            if not part:
                raise SolutionFailed("the solution's process ended")
            data += part
        return data

    def wait(self, fd: int, event: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(fd, event)
            if not selector.select(max(0.0, self.deadline - time.monotonic())):
                raise SolutionFailed(f"the solution took more than {LIMIT_SECONDS:g} s")

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def literal(text: str) -> Any:
    """Plain data from text. `nan` and `inf` are no literals, so they are put back as floats."""
    try:
        tree = ast.parse(text, mode="eval")
        return ast.literal_eval(Floats().visit(tree))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as exc:
        raise SolutionFailed("the result is not plain data") from exc


class Floats(ast.NodeTransformer):
    """`inf` and `nan`, as repr writes them, become constants."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in ("inf", "nan"):
            return ast.copy_location(ast.Constant(float(node.id)), node)
        return node


def main() -> None:
    nonce = sys.stdin.readline().strip()
    emit = sys.stdout.write
    try:
        # Without this a solution of the same user could read the nonce out of /proc/PID/mem.
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
        problem = json.loads(sys.stdin.read())
        names: dict[str, Any] = {"__name__": "published"}
        exec(compile(problem["prompt"], "prompt", "exec"), names)
        exec(compile(problem["test"], "test", "exec"), names)
        reward, detail = grade(names, problem["entry_point"], sys.argv[1])
        emit(f"{detail}\n")
        line = str(reward)
    except Exception as exc:  # noqa: BLE001 - anything else that breaks is the grader's own fault
        line = f"error {type(exc).__name__}: {' '.join(str(exc).split())[:300]}"
    emit(f"{nonce} {line}\n")
    sys.stdout.flush()
    os._exit(0)


def grade(names: dict[str, Any], entry_point: str, path: str) -> tuple[float, str]:
    solver = Solver(path, time.monotonic() + LIMIT_SECONDS)

    def candidate(*args: Any, **kwargs: Any) -> Any:
        return solver.call(entry_point, args, kwargs)

    # Some tests call the function by its own name, too.
    names[entry_point] = candidate
    try:
        solver.start()
        names["check"](candidate)
    except SolutionFailed as exc:
        return 0.0, f"failed: {exc}"
    except BaseException as exc:  # noqa: BLE001 - whatever the test raises is a failed test
        return 0.0, f"failed: {type(exc).__name__}: {exc}"
    finally:
        solver.stop()
    return 1.0, "passed"


if __name__ == "__main__":
    main()
