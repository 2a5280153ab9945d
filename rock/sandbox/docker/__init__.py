"""The `docker` provider: one hardened container per sandbox."""

from __future__ import annotations

from rock.sandbox.docker.docker import DockerProvider

__all__ = ["DockerProvider"]
