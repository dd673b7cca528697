"""Answering an attempt, row by row: which answers count, then what they do forward and in an unwind."""

from __future__ import annotations

import msgspec
import pytest

from ryusen_protocol.declarations import CompensationPolicy, RetryPolicy
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.ids import RequestId, StepId
from ryusen_protocol.limits import ERROR_MESSAGE_BYTES_MAX, MIB
from ryusen_protocol.outcome import CallbackFailed, EffectOutcome, RejectedBeforeStart, Succeeded, TargetNotFound
from ryusen_server.core.agenda import agenda
from ryusen_server.core.commands.answer_attempt import AnswerAttempt
from ryusen_server.core.decision import Decision
from ryusen_server.core.records import AttemptQueued, AttemptSettled, StepCompleted, SubmissionStale
from tests.core.driving import NO_RETRY, STEADY, WORKER, Driver, digest_of, error, kinds, only, raw, step

ANY: list[EffectOutcome | RejectedBeforeStart] = [
    Succeeded(raw("late")),
    CallbackFailed(error(retryable=True)),
    CallbackFailed(error()),
    TargetNotFound("not_met"),
    RejectedBeforeStart("busy"),
]
EFFECTS = [outcome for outcome in ANY if not isinstance(outcome, RejectedBeforeStart)]


# Which answers count


def test_a_request_that_was_never_authorized_is_discarded() -> None:
    driver = Driver()
    driver.declare("a", assign=True)
    position = driver.position
    outcome = Succeeded(raw(1), 1, 1)
    decision = driver.decided(AnswerAttempt(RequestId("rq_none"), outcome, digest_of(outcome), WORKER.instance_id))
    assert (decision.disposition, driver.position) == ("discarded", position)


@pytest.mark.parametrize(("attempt", "generation"), [(2, 1), (1, 2), (2, 2), (None, None)])
def test_another_attempt_or_generation_is_stale(attempt: int | None, generation: int | None) -> None:
    driver = Driver()
    driver.declare("a", assign=True)
    outcome = Succeeded(raw(1), attempt, generation)
    decision = driver.decided(AnswerAttempt(driver.request, outcome, digest_of(outcome), WORKER.instance_id))
    assert decision.disposition == "stale"
    assert (driver.attempt.state, driver.step("a").state) == ("authorized", "pending")


@pytest.mark.req("UNK-08")
@pytest.mark.parametrize("outcome", ANY)
def test_a_settled_attempt_takes_no_second_answer(outcome: EffectOutcome | RejectedBeforeStart) -> None:
    driver = Driver()
    request = driver.run_step("a", "first")
    decision = driver.answer(outcome, request=request)
    assert decision.disposition == "stale"
    assert kinds(decision) == ["submission_stale"]
    assert driver.step("a").result == raw("first")


@pytest.mark.parametrize("outcome", ANY)
def test_the_accepted_answer_sent_again_is_acknowledged_as_replayed(outcome: EffectOutcome | RejectedBeforeStart) -> None:
    driver = Driver()
    driver.declare("a")
    request = driver.authorize()
    assert driver.answer(outcome, request=request).disposition == "accepted"
    position = driver.position
    for _ in range(3):
        again = driver.answer(outcome, request=request)
        assert (again.disposition, again.records, again.effects) == ("replayed", [], [])
    assert driver.position == position


def test_a_rejection_is_replayed_though_the_attempt_is_out_again_or_settled() -> None:
    driver = Driver()
    driver.declare("a")
    old = driver.authorize()
    driver.reject(request=old)
    driver.authorize()
    assert driver.reject(request=old).disposition == "replayed"
    assert driver.attempt.state == "authorized"
    driver.succeed()
    driver.restart()
    assert driver.reject(request=old).disposition == "replayed"


def test_a_rejection_that_fenced_the_attempt_is_replayed() -> None:
    driver = Driver()
    driver.declare("a")
    request = driver.authorize()
    driver.cancel()
    driver.reject(request=request)
    assert driver.run.status == "ended"
    assert driver.reject(request=request).disposition == "replayed"


@pytest.mark.req("UNK-07")
def test_a_stale_answer_is_kept_once_with_who_what_and_why() -> None:
    driver = Driver()
    driver.declare("a")
    request = driver.authorize()
    attempt_id = driver.attempt.attempt_id
    driver.fail(retryable=True, request=request)
    first = driver.succeed("late", request=request)
    outcome = Succeeded(raw("late"), 1, 1)
    assert only(first.records, SubmissionStale) == SubmissionStale(
        attempt_id, request, "succeeded", digest_of(outcome), WORKER.instance_id, "the attempt is failed"
    )
    again = driver.succeed("late", request=request)
    assert (again.disposition, again.records) == ("stale", [])
    other = driver.succeed("other", request=request)
    assert (other.disposition, kinds(other)) == ("stale", ["submission_stale"])
    assert (driver.attempt.attempt, driver.attempt.state, driver.step("a").state) == (2, "queued", "pending")


def test_stale_answers_are_still_recognised_after_a_restart() -> None:
    driver = Driver()
    request = driver.run_step("a")
    driver.fail(request=request)
    driver.restart()
    assert driver.fail(request=request).records == []
    assert driver.succeed(request=request).disposition == "replayed"


@pytest.mark.req("UNK-03")
@pytest.mark.parametrize("outcome", ANY)
def test_a_late_answer_settles_an_unknown_attempt_as_it_would_have_in_time(outcome: EffectOutcome | RejectedBeforeStart) -> None:
    prompt, late = Driver(), Driver()
    for driver in (prompt, late):
        driver.declare("a", assign=True)
    late.lose()
    expected, found = prompt.answer(outcome), late.answer(outcome)
    assert found == expected
    assert found.disposition == "accepted"


# Forward


@pytest.mark.req("SEM-08")
def test_a_success_completes_the_step_and_queues_a_pass() -> None:
    driver = Driver()
    driver.declare("a", assign=True)
    decision = driver.succeed({"id": 7})
    assert kinds(decision) == ["attempt_settled", "step_completed", "discovery_queued"]
    found = driver.step("a")
    assert (found.state, found.completion_order, found.result) == ("succeeded", 1, raw({"id": 7}))
    assert (driver.run.discovery_pass, driver.run.discovery_due_at_ms, driver.run.pending) == (2, 0, None)


@pytest.mark.req("DLN-10", "STOP-07")
def test_past_the_deadline_a_success_joins_the_unwind() -> None:
    driver = Driver(deadline_ms=1_000)
    driver.declare("a", assign=True)
    driver.wait(1_000)
    decision = driver.succeed()
    assert decision.disposition == "accepted"
    assert kinds(decision) == [
        "attempt_settled",
        "step_completed",
        "stop_requested",
        "outcome_decided",
        "compensation_started",
        "attempt_queued",
    ]
    assert (driver.run.outcome, [target.step_id for target in driver.run.unwind]) == ("timed_out", ["a"])


@pytest.mark.req("STOP-06", "STOP-07")
@pytest.mark.parametrize("unknown", [False, True])
def test_while_stopping_a_success_joins_the_unwind_and_nothing_is_discovered(unknown: bool) -> None:
    driver = Driver()
    driver.run_step("a")
    driver.declare("b", assign=True)
    driver.cancel()
    if unknown:
        driver.lose()
    decision = driver.succeed()
    assert kinds(decision) == ["attempt_settled", "step_completed", "outcome_decided", "compensation_started", "attempt_queued"]
    assert [target.step_id for target in driver.run.unwind] == ["b", "a"]
    assert driver.attempt.step_id == "b"


@pytest.mark.req("RTY-01", "RTY-02", "UNK-09")
def test_retries_follow_the_policy_and_no_pass_sees_a_failure_before_the_last() -> None:
    driver = Driver()
    driver.declare("a", assign=True)
    operation = driver.attempt.operation_id
    for failures, wait_ms in ((1, 1_000), (2, 2_000)):
        decision = driver.fail(retryable=True)
        assert kinds(decision) == ["attempt_settled", "attempt_queued"]
        queued = only(decision.records, AttemptQueued)
        assert (queued.attempt, queued.attempt_generation, queued.operation_id) == (failures + 1, failures + 1, operation)
        assert queued.due_at_ms == driver.now_ms + wait_ms
        assert (driver.run.discovery_pass, driver.step("a").state) == (None, "pending")
        driver.authorize()
    decision = driver.fail(retryable=True)
    assert kinds(decision) == ["attempt_settled", "step_completed", "discovery_queued"]
    assert (driver.step("a").failures, len(driver.step("a").attempts)) == (3, 3)


@pytest.mark.req("RTY-03", "RTY-07", "PRO-15")
@pytest.mark.parametrize("undo", [False, True])
def test_exhaustion_fails_the_step_and_not_the_run(undo: bool) -> None:
    driver = Driver()
    if undo:
        driver.run_step("a")
    driver.declare(step("b", retry=NO_RETRY), assign=True)
    decision = driver.fail("declined", retryable=True)
    assert kinds(decision) == ["attempt_settled", "step_completed", "discovery_queued"]
    assert only(decision.records, StepCompleted).failure == error("declined", retryable=True)
    assert (driver.run.status, driver.run.outcome, driver.step("b").state) == ("running", None, "failed")
    driver.uncaught()
    assert driver.run.outcome == "failed"
    assert [target.step_id for target in driver.run.unwind] == (["a"] if undo else [])
    assert (driver.run.recovery_reason == "empty_unwind") is not undo


@pytest.mark.req("RTY-09")
@pytest.mark.parametrize("message", ["", "None", "x" * MIB, "💥 " * 100])
@pytest.mark.parametrize("retryable", [False, True])
def test_the_flag_alone_decides_about_a_retry(message: str, retryable: bool) -> None:
    driver = Driver()
    driver.declare("a", assign=True)
    driver.answer(CallbackFailed(ErrorRecord("ValueError", message, retryable, stack="Traceback: TransientError")))
    assert driver.step("a").state == ("pending" if retryable else "failed")


@pytest.mark.req("STOP-08")
@pytest.mark.parametrize("retryable", [False, True])
def test_while_stopping_a_failure_gets_no_retry(retryable: bool) -> None:
    driver = Driver()
    driver.run_step("a")
    driver.declare("b", assign=True)
    driver.cancel()
    decision = driver.fail(retryable=retryable)
    assert kinds(decision) == ["attempt_settled", "step_completed", "outcome_decided", "compensation_started", "attempt_queued"]
    assert (driver.step("b").state, driver.run.outcome) == ("failed", "cancelled")
    assert [target.step_id for target in driver.run.unwind] == ["a"]


@pytest.mark.req("STOP-08", "DLN-10")
@pytest.mark.parametrize("retryable", [False, True])
def test_past_the_deadline_a_failure_gets_no_retry(retryable: bool) -> None:
    driver = Driver(deadline_ms=1_000)
    driver.declare("a", assign=True)
    driver.wait(1_000)
    decision = driver.fail(retryable=retryable)
    assert kinds(decision) == ["attempt_settled", "step_completed", "stop_requested", "outcome_decided", "run_ended"]
    assert (driver.run.outcome, driver.run.recovery_reason) == ("timed_out", "empty_unwind")


@pytest.mark.req("PRO-15")
def test_a_missing_target_is_obsolete_and_rediscovered_paced_when_it_repeats() -> None:
    driver = Driver()
    waits: list[int] = []
    due_at_ms = 0
    for _ in range(4):
        driver.declare("a", assign=True)
        assert kinds(driver.missing()) == ["attempt_settled", "step_obsolete", "discovery_queued"]
        due_at_ms = driver.run.discovery_due_at_ms
        waits.append(due_at_ms - driver.now_ms if due_at_ms else 0)
        assert driver.step("a").state == "obsolete"
    assert waits == [0, 1_000, 2_000, 4_000]
    driver.restart()
    assert agenda(driver.run).due_at_ms == due_at_ms


@pytest.mark.parametrize("stop", ["cancelled", "timed_out"])
def test_a_missing_target_under_a_stop_is_obsolete_and_the_gate_opens(stop: str) -> None:
    driver = Driver(deadline_ms=100_000)
    driver.run_step("a")
    driver.declare("b", assign=True)
    if stop == "cancelled":
        driver.cancel()
    else:
        driver.wait(100_000)
    decision = driver.missing("hidden", hidden_by="c")
    assert [kind for kind in kinds(decision) if kind != "stop_requested"] == [
        "attempt_settled",
        "step_obsolete",
        "outcome_decided",
        "compensation_started",
        "attempt_queued",
    ]
    assert (driver.run.outcome, driver.step("b").state) == (stop, "obsolete")
    assert [target.step_id for target in driver.run.unwind] == ["a"]


UNPORTABLE = [msgspec.Raw(b"[1]"), msgspec.Raw(b'{"type":"string","value":"' + b"x" * (2 * MIB) + b'"}')]


@pytest.mark.parametrize("result", UNPORTABLE, ids=["not portable", "too large"])
@pytest.mark.parametrize("stopping", [False, True])
def test_a_result_that_cannot_be_recorded_is_a_failure_without_retry(result: msgspec.Raw, stopping: bool) -> None:
    driver = Driver()
    driver.run_step("a")
    driver.declare("b", assign=True)
    if stopping:
        driver.cancel()
    decision = driver.answer(Succeeded(result))
    settled = only(decision.records, AttemptSettled)
    assert (settled.state, settled.failure is not None and settled.failure.category) == ("failed", "sdk.invalid_result")
    assert (driver.step("b").state, len(driver.step("b").attempts)) == ("failed", 1)
    assert driver.run.status == ("compensating" if stopping else "running")
    if stopping:
        assert [target.step_id for target in driver.run.unwind] == ["a"]


# Compensation


def unwinding(*, second: RetryPolicy | None = STEADY) -> Driver:
    """A run that undoes b, then a."""
    driver = Driver(deadline_ms=1_000)
    driver.run_step("a")
    driver.run_step(step("b", retry=NO_RETRY, compensation=None if second is None else CompensationPolicy(second)))
    driver.cancel()
    driver.authorize()
    return driver


@pytest.mark.req("CMP-13", "CMP-05")
def test_a_success_settles_the_target_and_queues_the_next() -> None:
    driver = unwinding()
    assert driver.attempt.operation_id != driver.step("b").operation_id
    driver.wait(10_000)
    decision = driver.succeed("refunded")
    assert kinds(decision) == ["attempt_settled", "target_settled", "attempt_queued"]
    assert (driver.target("b").state, driver.target("b").result) == ("succeeded", raw("refunded"))
    assert (driver.attempt.step_id, driver.attempt.phase, driver.attempt.attempt) == ("a", "compensation", 1)


@pytest.mark.parametrize("result", UNPORTABLE, ids=["not portable", "too large"])
def test_a_value_that_cannot_be_recorded_becomes_null_with_a_diagnostic_and_no_failure(result: msgspec.Raw) -> None:
    driver = unwinding()
    driver.answer(Succeeded(result))
    target = driver.target("b")
    assert (target.state, target.result, target.failure) == ("succeeded", raw(None), None)
    assert target.diagnostic is not None


@pytest.mark.req("CMP-13", "CMP-06")
def test_a_compensator_that_fails_is_tried_again_by_its_own_policy() -> None:
    driver = unwinding()
    operation = driver.attempt.operation_id
    driver.wait(10_000)
    decision = driver.fail(retryable=True)
    assert kinds(decision) == ["attempt_settled", "attempt_queued"]
    assert only(decision.records, AttemptQueued).due_at_ms == driver.now_ms + 1_000
    driver.authorize()
    assert (driver.attempt.attempt, driver.attempt.operation_id) == (2, operation)
    driver.succeed()
    assert (driver.target("b").state, driver.target("b").failures) == ("succeeded", 1)


def test_a_compensator_without_a_policy_has_the_default_of_four_attempts() -> None:
    driver = unwinding(second=None)
    for _ in range(3):
        driver.fail(retryable=True)
        driver.authorize()
    driver.fail(retryable=True)
    assert (driver.target("b").state, len(driver.target("b").attempts)) == ("failed", 4)


@pytest.mark.parametrize("retryable", [False, True])
def test_a_terminal_failure_settles_the_target_and_the_unwind_goes_on(retryable: bool) -> None:
    driver = unwinding(second=NO_RETRY)
    decision = driver.fail("refund refused", retryable=retryable)
    assert kinds(decision) == ["attempt_settled", "target_settled", "attempt_queued"]
    target = driver.target("b")
    assert (target.state, target.failure) == ("failed", error("refund refused", retryable=retryable))
    assert driver.attempt.step_id == "a"


@pytest.mark.req("CMP-03")
def test_a_missing_compensator_is_skipped_with_its_reason() -> None:
    driver = unwinding()
    decision = driver.missing("hidden", hidden_by="new")
    assert kinds(decision) == ["attempt_settled", "target_settled", "attempt_queued"]
    target = driver.target("b")
    assert (target.state, target.reason, target.hidden_by) == ("skipped", "hidden", StepId("new"))
    assert driver.run.attempts[target.attempts[0]].state == "skipped"


@pytest.mark.parametrize("reason", ["unsupported_target", "busy", "draining", "history_missing"])
def test_no_rejection_skips_a_compensation(reason: str) -> None:
    driver = unwinding()
    driver.answer(RejectedBeforeStart(reason))  # type: ignore[arg-type]  # one of the closed set
    assert (driver.target("b").state, driver.attempt.state, driver.attempt.attempt) == ("pending", "queued", 1)


@pytest.mark.req("CMP-12", "CMP-11")
@pytest.mark.parametrize("outcome", EFFECTS)
def test_a_late_answer_resumes_an_unwind_that_halted(outcome: EffectOutcome) -> None:
    driver = unwinding(second=NO_RETRY)
    driver.lose()
    driver.wait(10**9)
    assert agenda(driver.run).need == "nothing"
    driver.answer(outcome)
    assert driver.target("b").state != "pending"
    assert driver.attempt.step_id == "a"


@pytest.mark.req("CMP-15")
@pytest.mark.parametrize("outcome", EFFECTS)
def test_a_settled_target_is_not_reopened(outcome: EffectOutcome) -> None:
    driver = unwinding()
    request = driver.request
    driver.missing("no_compensator")
    for again in (driver.succeed("x", request=request), driver.answer(outcome, request=request)):
        assert isinstance(again, Decision)
        assert again.disposition == "stale"
    assert (driver.target("b").state, driver.attempt.step_id) == ("skipped", "a")


def test_an_error_of_a_compensator_keeps_its_words_though_the_replay_budget_is_used_up() -> None:
    driver = Driver(checked=False)
    for index in range(4):
        driver.run_step(f"s{index}", "x" * (2 * MIB - 1_600))
    driver.uncaught()
    driver.authorize()
    message = "y" * (ERROR_MESSAGE_BYTES_MAX - 100)
    driver.fail(message)
    failure = driver.target("s3").failure
    assert failure is not None
    assert failure.message == message
