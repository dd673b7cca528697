"""Folding records: every kind has a handler, stored history gives the state, and a record that does not fit is a broken invariant."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import get_args

import msgspec
import pytest

from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.identity import attempt_id, operation_id
from ryusen_protocol.ids import AttemptId, RequestId, RunId, StepId
from ryusen_protocol.outcome import CallbackFailed
from ryusen_server.core import evolve as folding
from ryusen_server.core import records as r
from ryusen_server.core.evolve import EMPTY_HISTORY_DIGEST, BrokenInvariant, decode_records, encode_records, evolve, fold
from ryusen_server.core.rows import HistoryRow
from ryusen_server.core.state import Run
from tests.core.driving import NO_RETRY, WORKER, Driver, durable_snapshot, error, raw, step


def test_every_record_kind_has_its_handler_and_its_own_tag() -> None:
    assert set(folding._APPLY) == set(get_args(r.Record))
    tags = [kind.__struct_config__.tag for kind in get_args(r.Record)]
    assert len(tags) == len(set(tags))


def test_an_empty_history_is_no_run() -> None:
    assert fold([]) is None


def test_a_history_begins_with_the_creation() -> None:
    with pytest.raises(BrokenInvariant, match="begins with DiscoveryQueued"):
        fold([HistoryRow(1, 0, encode_records([r.DiscoveryQueued(1)]))])


@pytest.mark.parametrize("record", get_args(r.Record))
def test_a_stored_record_names_its_kind(record: type[msgspec.Struct]) -> None:
    assert record.__struct_config__.tag_field == "kind"


def test_absent_values_stay_absent_and_null_stays_null() -> None:
    written = [
        r.StepCompleted(StepId("a"), 1, failure=error()),
        r.StepCompleted(StepId("a"), 1, result=raw(None)),
        r.OutcomeDecided("cancelled"),
        r.TargetSettled(StepId("a"), "skipped", "not_met"),
    ]
    assert decode_records(encode_records(written)) == written


def test_a_restart_forgets_only_what_this_life_knew() -> None:
    driver = Driver()
    driver.run_step("a")
    driver.start()
    before = durable_snapshot(driver.run)
    driver.restart()
    assert driver.run.dispatch is None
    assert durable_snapshot(driver.run) == before


@pytest.mark.req("VAL-10")
def test_history_entries_are_chained_and_carry_no_stack() -> None:
    driver = Driver()
    assert driver.run.history_digest == EMPTY_HISTORY_DIGEST
    driver.run_step("a", 1)
    driver.declare(step("b", retry=NO_RETRY), assign=True)
    failure = ErrorRecord("x", "no", retryable=False, cause=ErrorRecord("y", "why", retryable=False, stack="secret"), stack="secret")
    driver.answer(CallbackFailed(failure))
    first, second = driver.run.history_entries
    assert first == b'{"step_id":"a","kind":"run","outcome":{"success":{"type":"i64","value":"1"}}}'
    assert b"secret" not in second
    assert b"why" in second
    assert driver.step("b").failure == failure, "the stack stays in the step's own record"
    digest = EMPTY_HISTORY_DIGEST
    for entry in (first, second):
        digest = "sha256:" + hashlib.sha256(digest.encode() + entry).hexdigest()
    assert driver.run.history_digest == digest
    assert driver.run.replay_bytes == len(first) + len(second)


def test_the_digest_depends_on_the_order_and_content_of_the_history() -> None:
    digests: set[str] = set()
    for names in (("a", "b"), ("b", "a"), ("ab",), ("a", "b", "c")):
        driver = Driver()
        for name in names:
            driver.run_step(name)
        digests.add(driver.run.history_digest)
    assert len(digests) == 4


# Records that do not fit


def fresh(driver: Driver) -> Run:
    return driver.run


def queued(driver: Driver) -> Run:
    driver.declare("a")
    return driver.run


def authorized(driver: Driver) -> Run:
    driver.declare("a", assign=True)
    return driver.run


def unknown(driver: Driver) -> Run:
    authorized(driver)
    driver.lose()
    return driver.run


def completed(driver: Driver) -> Run:
    driver.run_step("a")
    return driver.run


def stopping(driver: Driver) -> Run:
    authorized(driver)
    driver.cancel()
    return driver.run


def compensating(driver: Driver) -> Run:
    driver.run_step("a")
    driver.run_step("b")
    driver.uncaught()
    return driver.run


def ended(driver: Driver) -> Run:
    driver.complete()
    return driver.run


RUN_ID: RunId = Driver().run.run_id
A, B = StepId("a"), StepId("b")


def at(phase: str, ordinal: int, step_id: StepId = A) -> AttemptId:
    return attempt_id(RUN_ID, step_id, "forward" if phase == "forward" else "compensation", ordinal)


def attempt(ordinal: int, step_id: StepId = A, *, compensation: bool = False) -> r.AttemptQueued:
    phase = "compensation" if compensation else "forward"
    return r.AttemptQueued(at(phase, ordinal, step_id), step_id, phase, ordinal, ordinal, operation_id(RUN_ID, step_id, phase), 0)


FIRST = at("forward", 1)
AUTHORIZED = r.AttemptAuthorized(FIRST, RequestId("rq_x"), WORKER, 0, None)
DECLARED = r.StepDeclared(step("a"), operation_id(RUN_ID, A, "forward"))
PLAN = r.CompensationStarted((r.UnwindTarget(A, operation_id(RUN_ID, A, "compensation")),))

Reach = Callable[[Driver], Run]
MISFITS: list[tuple[str, Reach, r.Record]] = [
    ("created twice", fresh, Driver().records()[0]),
    ("declared while pending", queued, DECLARED),
    ("declared after its outcome", completed, DECLARED),
    ("a successor beside a queued attempt", queued, attempt(2)),
    ("a successor beside an authorized attempt", authorized, attempt(2)),
    ("a successor beside an unknown attempt", unknown, attempt(2)),
    ("an attempt of a completed step", completed, attempt(2)),
    ("undone out of order", compensating, attempt(1, A, compensation=True)),
    ("undone twice at a time", compensating, attempt(2, B, compensation=True)),
    ("authorized twice", authorized, AUTHORIZED),
    ("authorized while unknown", unknown, AUTHORIZED),
    ("authorized after its outcome", completed, AUTHORIZED),
    ("unknown while queued", queued, r.AttemptUnknown(FIRST, "x")),
    ("unknown twice", unknown, r.AttemptUnknown(FIRST, "x")),
    ("unknown after its outcome", completed, r.AttemptUnknown(FIRST, "x")),
    ("requeued while queued", queued, r.AttemptRequeued(FIRST, "x", 0)),
    ("requeued after its outcome", completed, r.AttemptRequeued(FIRST, "x", 0)),
    ("settled twice", completed, r.AttemptSettled(FIRST, "failed")),
    ("an outcome without an authorization", queued, r.AttemptSettled(FIRST, "succeeded")),
    ("a failure without an authorization", queued, r.AttemptSettled(FIRST, "failed")),
    ("completed twice", completed, r.StepCompleted(A, 2, result=raw(1))),
    ("a gap in the completion order", authorized, r.StepCompleted(A, 2, result=raw(1))),
    ("completed without an outcome", authorized, r.StepCompleted(A, 1)),
    ("obsolete after its outcome", completed, r.StepObsolete(A, "not_met", None)),
    ("stopped after its outcome", completed, r.StepStopped(A)),
    ("stopped twice", stopping, r.StopRequested("cancelled", "x")),
    ("two outcomes", ended, r.OutcomeDecided("failed")),
    ("an unwind without an outcome", completed, PLAN),
    ("an unwind of a run that succeeded", ended, PLAN),
    ("a second unwind", compensating, PLAN),
    ("an unwind beside a pending step", stopping, PLAN),
    ("a target out of order", compensating, r.TargetSettled(A, "succeeded")),
    ("an end without an outcome", completed, r.RunEnded("not_required", "empty_unwind")),
    ("an end with targets left", compensating, r.RunEnded("fully_compensated", None)),
    ("two ends", ended, r.RunEnded("not_required", "succeeded")),
]


@pytest.mark.req("UNK-08")
@pytest.mark.parametrize(("reach", "record"), [(reach, record) for _, reach, record in MISFITS], ids=[why for why, _, _ in MISFITS])
def test_a_record_that_does_not_fit_is_a_broken_invariant(reach: Reach, record: r.Record) -> None:
    run = reach(Driver())
    with pytest.raises(BrokenInvariant):
        evolve(run, [record], 0, 99)


def test_a_target_settles_once() -> None:
    driver = Driver()
    compensating(driver)
    driver.authorize()
    driver.succeed()
    with pytest.raises(BrokenInvariant):
        evolve(driver.run, [r.TargetSettled(B, "failed")], 0, 99)
