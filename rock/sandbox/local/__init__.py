"""The `local` provider: Linux namespaces, without an engine and without root."""

from __future__ import annotations

from rock.sandbox.local.local import LocalProvider

__all__ = ["LocalProvider"]
