"""Policies that come with rock: a hosted model through litellm, an OpenAI-compatible engine, a script.

Each is an `async def (leases) -> completions` for `rock.modelservice.client.worker.serve`, or a backend of
the service itself (`rock serve --backend litellm:<model>`).
"""
