"""How long to wait before the same thing is tried again.

Three kinds: a reported failure follows the step's own retry policy; what is repeated without a reported failure (proven never began, a
lost discovery, an id obsolete again) goes at once the first time, then after one second, doubling to one minute; and a blocked run's
code is tried again after half a minute, doubling to ten, for workers that cannot tell that it has changed.
"""

from __future__ import annotations

from ryusen_protocol.declarations import RetryPolicy

PACE_FIRST_MS = 1_000
PACE_MAX_MS = 60_000
PROBE_FIRST_MS = 30_000
PROBE_MAX_MS = 600_000


def pace_ms(repeats: int) -> int:
    """The wait before a repeat, where `repeats` is how often it has come back already."""
    if repeats <= 0:
        return 0
    return min(PACE_FIRST_MS << min(repeats - 1, 16), PACE_MAX_MS)


def probe_ms(seen: int) -> int:
    """The wait before a blocked run's current code is tried again, after its blocker has been seen `seen` times in a row."""
    return min(PROBE_FIRST_MS << min(max(seen, 1) - 1, 16), PROBE_MAX_MS)


def backoff_ms(policy: RetryPolicy, failures: int, jitter: float) -> int:
    """The wait after the `failures`-th reported failure; `jitter` is uniform in [-1, 1)."""
    try:
        delay = min(policy.initial_ms * policy.multiplier ** (failures - 1), policy.maximum_ms)
    except OverflowError:
        delay = policy.maximum_ms if policy.initial_ms else 0
    return max(0, round(delay * (1 + policy.jitter * jitter)))


def may_retry(policy: RetryPolicy, failures: int, *, retryable: bool) -> bool:
    """Whether another attempt follows the `failures`-th reported failure."""
    return retryable and failures < policy.max_attempts
