"""Loaded into the work's process: a clock that plain data can move."""

from lru import Cache

now = [0.0]


def make(size, ttl=None):
    now[0] = 0.0
    return Cache(size, ttl, clock=lambda: now[0])


def at(seconds):
    now[0] = seconds
