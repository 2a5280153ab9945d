"""Business rules on requests and responses, changed while the service runs.

A hook in Python needs `Block` and `HookEvent`; rules without Python are in `rock.modelservice.wire.interceptors`.
"""

from __future__ import annotations

from rock.modelservice.interceptors.hooks import Block, HookEvent

__all__ = ["Block", "HookEvent"]
