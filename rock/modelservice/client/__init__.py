"""Clients of the control plane: the trainer's, the harness's, and the loop that serves a policy.

`TrainerClient` and `AdminClient` speak to one ModelService, `TrainerShards` and `AdminShards` to all
shards of one; `SyncTrainerClient` and `SyncAdminClient` are for code without an event loop.
`serve` claims calls, asks a policy and completes them until it is cancelled.
"""

from __future__ import annotations

from rock.modelservice.client.blocking import SyncAdminClient, SyncTrainerClient
from rock.modelservice.client.client import AdminClient, TrainerClient
from rock.modelservice.client.shards import AdminShards, TrainerShards
from rock.modelservice.client.worker import Policy, serve, serve_blocking, serve_streaming

__all__ = [
    "AdminClient",
    "AdminShards",
    "Policy",
    "SyncAdminClient",
    "SyncTrainerClient",
    "TrainerClient",
    "TrainerShards",
    "serve",
    "serve_blocking",
    "serve_streaming",
]
