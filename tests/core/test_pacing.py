"""How long to wait before the same thing is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ryusen_protocol.declarations import DEFAULT_RETRY, RetryPolicy
from ryusen_server.core.pacing import PROBE_MAX_MS, backoff_ms, may_retry, pace_ms, probe_ms

STEADY = RetryPolicy(max_attempts=10, initial_ms=1_000, multiplier=2.0, maximum_ms=60_000, jitter=0.0)


def test_a_repeat_goes_at_once_then_after_a_second_doubling_to_a_minute() -> None:
    assert [pace_ms(repeats) for repeats in range(10)] == [0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]
    assert pace_ms(10**9) == 60_000


@pytest.mark.req("BLK-09")
def test_a_probe_waits_half_a_minute_doubling_to_ten() -> None:
    assert [probe_ms(seen) // 1_000 for seen in range(1, 8)] == [30, 60, 120, 240, 480, 600, 600]
    assert probe_ms(10**9) == PROBE_MAX_MS


def test_a_retry_waits_ever_longer_up_to_the_maximum() -> None:
    assert [backoff_ms(STEADY, failures, 0.5) for failures in range(1, 9)] == [
        1_000,
        2_000,
        4_000,
        8_000,
        16_000,
        32_000,
        60_000,
        60_000,
    ]


def test_the_default_is_four_attempts_a_second_apart_doubling_with_a_tenth_of_jitter() -> None:
    assert RetryPolicy(max_attempts=4, initial_ms=1_000, multiplier=2.0, maximum_ms=60_000, jitter=0.1) == DEFAULT_RETRY
    assert backoff_ms(DEFAULT_RETRY, 1, -1.0) == 900
    assert backoff_ms(DEFAULT_RETRY, 1, 1.0) == 1_100
    assert backoff_ms(DEFAULT_RETRY, 2, 0.0) == 2_000


@given(
    st.builds(
        RetryPolicy,
        max_attempts=st.integers(1, 2**31 - 1),
        initial_ms=st.integers(0, 2**53 - 1),
        multiplier=st.floats(1, 1e6),
        maximum_ms=st.integers(0, 2**53 - 1),
        jitter=st.floats(0, 1),
    ),
    st.integers(1, 2**31),
    st.floats(-1, 1, exclude_max=True),
)
def test_every_accepted_policy_gives_a_wait_within_its_bounds(policy: RetryPolicy, failures: int, jitter: float) -> None:
    wait_ms = backoff_ms(policy, failures, jitter)
    longest = policy.maximum_ms if policy.initial_ms else 0
    assert 0 <= wait_ms <= round(longest * (1 + policy.jitter)) + 1
    assert backoff_ms(policy, failures, 0.0) <= longest


@pytest.mark.parametrize(
    ("attempts", "failures", "retryable", "expected"),
    [(4, 3, True, True), (4, 4, True, False), (4, 5, True, False), (1, 1, True, False), (4, 1, False, False), (2, 1, True, True)],
)
def test_another_attempt_follows_while_the_failure_allows_it_and_the_policy_has_room(
    attempts: int, failures: int, retryable: bool, expected: bool
) -> None:
    assert may_retry(RetryPolicy(max_attempts=attempts), failures, retryable=retryable) is expected
