"""Calls while they live: queue, leases, sessions, what the journal is told and when."""
