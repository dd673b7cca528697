"""Moves runs: decides commands in memory, commits what they came to, and performs their effects.

Owns which runs are in memory, which worker gets what, leases and timers. Knows no HTTP, no WebSocket and no SQL: those reach
it through ports.
"""
