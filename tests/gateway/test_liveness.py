"""The deadlines of a connection, on instants given by hand."""

from __future__ import annotations

from ryusen_server.transports.connected.liveness import Liveness


def liveness(now_ms: int = 0) -> Liveness:
    return Liveness(now_ms, register_within_ms=5_000, ping_after_ms=10_000, silent_after_ms=25_000)


def test_a_connection_that_never_registers_is_told_at_its_deadline() -> None:
    watched = liveness()
    watched.heard(4_000)
    assert watched.look_again_in_ms(4_000) == 1_000
    assert watched.verdict(4_999) == "wait"
    assert watched.verdict(5_000) == "unregistered"


def test_silence_is_met_with_one_ping_and_then_given_up() -> None:
    watched = liveness()
    watched.registered()
    assert watched.look_again_in_ms(0) == 10_000
    assert watched.verdict(9_999) == "wait"
    assert watched.verdict(10_000) == "ping"
    assert watched.verdict(10_001) == "wait"
    assert watched.look_again_in_ms(10_001) == 14_999
    assert watched.verdict(24_999) == "wait"
    assert watched.verdict(25_000) == "silent"


def test_any_sign_of_life_starts_the_silence_again() -> None:
    watched = liveness()
    watched.registered()
    assert watched.verdict(10_000) == "ping"
    watched.heard(20_000)
    assert watched.verdict(25_000) == "wait"
    assert watched.look_again_in_ms(25_000) == 5_000
    assert watched.verdict(30_000) == "ping"
    assert watched.verdict(45_000) == "silent"


def test_the_next_look_is_never_at_once() -> None:
    watched = liveness()
    assert watched.look_again_in_ms(1_000_000) == 1
