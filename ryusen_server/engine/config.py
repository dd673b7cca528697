"""The engine's settings. Every default is visible in `GET /v1/server`; correctness needs none of them changed."""

import msgspec


class EngineConfig(msgspec.Struct, frozen=True):
    """Durations in milliseconds.

    `lease_ms`: how long an authorized attempt may stay without contact. `heartbeat_ms`: how often workers are asked to speak.
    `reconnect_grace_ms`: the least lease after a restart. `exchange_ms`: how long an exchange with an endpoint may stay open where the
    step sets no timeout. `fan_out_batch`: runs created in one transaction.
    `merge` authorizes an attempt in the transaction that declares its step; `early` lets a discovery leave before the records
    it is built on are durable. Crash tests turn both off to reach every boundary.
    """

    lease_ms: int = 30_000
    heartbeat_ms: int = 10_000
    reconnect_grace_ms: int = 30_000
    exchange_ms: int = 3_600_000
    fan_out_batch: int = 64
    default_run_timeout_ms: int | None = None
    max_run_timeout_ms: int | None = None
    runs_in_memory: int = 20_000
    storage_retry_ms: int = 500
    tick_ms: int = 250
    merge: bool = True
    early: bool = True
