"""An operator's word on an Unknown attempt, row by row."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from ryusen_protocol.ids import AttemptId
from ryusen_protocol.limits import MIB, REPLAY_BUDGET_BYTES_MAX, REPLAY_RESERVE_BYTES
from ryusen_protocol.operator import AuthorizeRetry, DeclareFailure, SupplySuccess
from ryusen_server.core.commands.resolve_attempt import ResolveAttempt, allowed_commands
from ryusen_server.core.decision import Decision, Refusal
from ryusen_server.core.records import AttemptQueued, AttemptSettled
from tests.core.driving import Driver, error, kinds, only, raw, step

COMMANDS: list[Callable[[Driver], Decision | Refusal]] = [Driver.supply, Driver.declare_failure, Driver.authorize_retry]


def code(answer: Decision | Refusal) -> str:
    assert isinstance(answer, Refusal), answer
    return answer.code


def lost(*, deadline_ms: int | None = None, before: bool = True, **policy: object) -> Driver:
    """A running run whose pending step is Unknown, behind a completed one."""
    driver = Driver(deadline_ms=deadline_ms)
    if before:
        driver.run_step("paid")
    driver.declare(step("held", **policy), assign=True)  # type: ignore[arg-type]
    driver.lose()
    return driver


def lost_compensation() -> Driver:
    driver = Driver()
    driver.run_step("paid", "receipt")
    driver.run_step("packed", "box")
    driver.uncaught()
    driver.authorize()
    driver.lose()
    return driver


# the order of refusals


@pytest.mark.req("OPR-02", "UNK-08")
@pytest.mark.parametrize("command", [SupplySuccess(raw(1)), DeclareFailure(error()), AuthorizeRetry()])
def test_an_attempt_that_is_missing_or_of_another_generation_is_stale(command: SupplySuccess | DeclareFailure | AuthorizeRetry) -> None:
    driver = lost()
    assert code(driver.send(ResolveAttempt(AttemptId("at_none"), 1, command, "kim"))) == "stale"
    assert code(driver.resolve(command, attempt_generation=2)) == "stale"
    assert driver.attempt.state == "unknown"


@pytest.mark.parametrize("command", COMMANDS)
def test_only_an_unknown_attempt_is_resolved(command: Callable[[Driver], Decision | Refusal]) -> None:
    driver = Driver()
    driver.declare("a")
    assert code(command(driver)) == "stale"
    driver.authorize()
    assert code(command(driver)) == "stale"
    driver.succeed()
    settled = driver.run.attempts[driver.step("a").attempts[-1]]
    assert code(driver.resolve(AuthorizeRetry(), attempt=settled)) == "stale"


@pytest.mark.req("OPR-16", "OPR-19", "ACC-62")
def test_a_cancelled_run_forbids_a_forward_retry_even_once_its_deadline_has_passed() -> None:
    driver = lost(deadline_ms=1_000)
    driver.cancel()
    assert code(driver.authorize_retry()) == "retry_forbidden"
    driver.wait(10_000)
    assert code(driver.authorize_retry()) == "retry_forbidden"
    assert driver.run.status == "stopping"


@pytest.mark.req("OPR-17", "OPR-18")
def test_a_passed_deadline_refuses_a_forward_retry_and_records_nothing_not_even_the_timeout() -> None:
    driver = lost(deadline_ms=1_000)
    driver.wait(1_000)
    rows = len(driver.rows)
    assert code(driver.authorize_retry()) == "deadline_elapsed"
    assert (len(driver.rows), driver.run.stop) == (rows, None)
    driver.deadline()
    driver.wait(-5_000)
    assert code(driver.authorize_retry()) == "deadline_elapsed"


@pytest.mark.req("OPR-14")
def test_what_does_not_fit_beside_the_declaration_is_refused() -> None:
    driver = Driver(checked=False)
    driver.declare(msgspec.structs.replace(step("held"), name="n" * (3 * MIB)), assign=True)
    driver.lose()
    rows = len(driver.rows)
    assert code(driver.supply("x" * (MIB + MIB // 2))) == "limit_exceeded"
    assert len(driver.rows) == rows
    assert isinstance(driver.supply("x"), Decision)


@pytest.mark.req("OPR-14", "ACC-57")
@pytest.mark.parametrize("resolution", [SupplySuccess(raw("x" * 60_000)), DeclareFailure(error("y" * 60_000))])
def test_what_the_run_cannot_remember_is_refused(resolution: SupplySuccess | DeclareFailure) -> None:
    driver = Driver(checked=False)
    for index in range(4):
        driver.run_step(f"s{index}", "x" * (2 * MIB - 15_000))
    driver.declare("held", assign=True)
    driver.lose()
    rows = len(driver.rows)
    assert code(driver.resolve(resolution)) == "limit_exceeded"
    assert len(driver.rows) == rows
    assert isinstance(driver.supply("small"), Decision)


@pytest.mark.req("OPR-14")
def test_a_failure_may_take_the_reserve_so_that_a_full_run_is_never_beyond_everybodys_word() -> None:
    driver = Driver(checked=False)
    driver.run_step("paid")
    driver.run.replay_bytes = REPLAY_BUDGET_BYTES_MAX - REPLAY_RESERVE_BYTES
    driver.declare("held", assign=True)
    driver.lose()
    driver.cancel()
    assert code(driver.supply()) == "limit_exceeded"
    assert code(driver.authorize_retry()) == "retry_forbidden"
    assert code(driver.resolve(DeclareFailure(error("y" * REPLAY_RESERVE_BYTES)))) == "limit_exceeded"
    assert isinstance(driver.resolve(DeclareFailure(error("y" * 3_000))), Decision)
    assert driver.run.replay_bytes <= REPLAY_BUDGET_BYTES_MAX
    assert (driver.run.status, driver.run.outcome) == ("compensating", "cancelled")


# the table


@pytest.mark.req("OPR-01", "OPR-23", "UNK-03")
def test_a_supplied_success_completes_the_step_as_if_the_worker_had_said_it() -> None:
    driver = lost()
    answer = driver.supply({"charge": 7})
    assert kinds(answer) == ["attempt_settled", "step_completed", "discovery_queued"]
    assert isinstance(answer, Decision)
    settled = only(answer.records, AttemptSettled)
    assert (settled.state, settled.operator, settled.answer_digest) == ("succeeded", "kim", None)
    assert driver.step("held").result == raw({"charge": 7})
    assert driver.run.status == "running"


@pytest.mark.req("OPR-01", "OPR-23")
def test_a_declared_failure_follows_the_retry_policy_of_its_step() -> None:
    driver = lost()
    operation = driver.attempt.operation_id
    assert kinds(driver.declare_failure(retryable=True)) == ["attempt_settled", "attempt_queued"]
    assert (driver.attempt.attempt, driver.attempt.due_at_ms, driver.attempt.operation_id) == (2, driver.now_ms + 1_000, operation)
    driver.until(driver.attempt.due_at_ms)
    driver.authorize()
    driver.lose()
    assert kinds(driver.declare_failure(retryable=False)) == ["attempt_settled", "step_completed", "discovery_queued"]
    assert driver.step("held").state == "failed"


@pytest.mark.req("OPR-01", "OPR-15", "UNK-04", "UNK-05", "UNK-06", "UNK-09")
def test_an_authorized_retry_settles_the_generation_and_queues_the_next_in_one_transaction() -> None:
    driver = lost()
    before = driver.attempt
    answer = driver.authorize_retry()
    assert kinds(answer) == ["attempt_settled", "attempt_queued"]
    assert isinstance(answer, Decision)
    queued = only(answer.records, AttemptQueued)
    assert (before.state, driver.step("held").state, driver.step("held").failures) == ("retry_authorized", "pending", 0)
    assert (queued.attempt_generation, queued.attempt, queued.operation_id, queued.due_at_ms) == (2, 2, before.operation_id, driver.now_ms)
    driver.authorize()
    driver.succeed("second")
    assert driver.step("held").result == raw("second")


@pytest.mark.req("UNK-07", "UNK-08", "ACC-41")
@pytest.mark.parametrize("late_first", [True, False])
def test_a_late_result_of_the_old_generation_is_a_stale_diagnostic(late_first: bool) -> None:
    driver = lost()
    old = driver.request
    driver.authorize_retry()
    new = driver.authorize()
    late = lambda: driver.succeed("late", request=old)  # noqa: E731
    current = lambda: driver.succeed("current", request=new)  # noqa: E731
    first, second = (late, current) if late_first else (current, late)
    dispositions = {first().disposition, second().disposition}
    assert dispositions == {"stale", "accepted"}
    assert driver.step("held").result == raw("current")
    assert [record.__struct_config__.tag for record in driver.records()].count("submission_stale") == 1
    assert late().disposition == "stale"
    assert [record.__struct_config__.tag for record in driver.records()].count("submission_stale") == 1


@pytest.mark.req("OPR-20", "ACC-14", "ACC-15")
@pytest.mark.parametrize(("command", "plan"), [(Driver.supply, ["held", "paid"]), (Driver.declare_failure, ["paid"])])
def test_past_the_deadline_it_settles_under_the_timeout_it_implies(
    command: Callable[[Driver], Decision | Refusal], plan: list[str]
) -> None:
    driver = lost(deadline_ms=1_000)
    driver.wait(1_000)
    answer = command(driver)
    assert "stop_requested" in kinds(answer)
    assert "discovery_queued" not in kinds(answer)
    assert driver.run.outcome == "timed_out"
    assert [target.step_id for target in driver.run.unwind] == plan


@pytest.mark.req("OPR-21", "OPR-24", "ACC-18", "ACC-60")
def test_while_stopping_a_supplied_success_joins_the_unwind_and_the_reason_stays() -> None:
    driver = lost(deadline_ms=1_000)
    driver.cancel()
    driver.wait(5_000)
    driver.supply()
    assert (driver.run.outcome, driver.run.status) == ("cancelled", "compensating")
    assert [target.step_id for target in driver.run.unwind] == ["held", "paid"]


@pytest.mark.req("OPR-24", "ACC-61", "STOP-08")
def test_while_stopping_a_declared_failure_is_not_retried_and_an_empty_unwind_ends() -> None:
    driver = lost(before=False)
    driver.cancel()
    driver.declare_failure(retryable=True)
    assert (driver.run.status, driver.run.outcome, driver.run.recovery) == ("ended", "cancelled", "not_required")


@pytest.mark.req("CMP-12", "OPR-23")
def test_in_compensation_a_supplied_success_goes_on_with_the_unwind() -> None:
    driver = lost_compensation()
    assert kinds(driver.supply()) == ["attempt_settled", "target_settled", "attempt_queued"]
    assert driver.target("packed").state == "succeeded"
    assert driver.attempt.step_id == "paid"


@pytest.mark.req("CMP-12", "OPR-23")
def test_in_compensation_a_declared_failure_follows_the_compensators_policy() -> None:
    driver = lost_compensation()
    assert kinds(driver.declare_failure(retryable=True)) == ["attempt_settled", "attempt_queued"]
    driver.until(driver.attempt.due_at_ms)
    driver.authorize()
    driver.lose()
    driver.declare_failure(retryable=False)
    assert driver.target("packed").state == "failed"
    assert driver.attempt.step_id == "paid"


@pytest.mark.req("OPR-15")
def test_in_compensation_a_retry_is_allowed_whatever_stopped_the_run() -> None:
    driver = Driver(deadline_ms=1_000)
    driver.run_step("paid")
    driver.cancel()
    driver.authorize()
    driver.lose()
    driver.wait(60_000)
    assert kinds(driver.authorize_retry()) == ["attempt_settled", "attempt_queued"]
    driver.authorize()
    driver.succeed()
    assert (driver.run.outcome, driver.run.recovery) == ("cancelled", "fully_compensated")


# what may be done


@pytest.mark.req("OPR-15")
def test_the_allowed_commands_are_those_that_would_be_obeyed() -> None:
    def allowed(driver: Driver) -> list[str]:
        return list(allowed_commands(driver.run, driver.attempt, driver.now_ms)[0])

    def forbidden(driver: Driver) -> dict[str, str]:
        return {name: refusal.code for name, refusal in allowed_commands(driver.run, driver.attempt, driver.now_ms)[1]}

    driver = Driver(deadline_ms=1_000)
    driver.declare("a")
    assert (allowed(driver), set(forbidden(driver).values())) == ([], {"stale"})
    driver.authorize()
    driver.lose()
    assert (allowed(driver), forbidden(driver)) == (["supply_success", "declare_failure", "authorize_retry"], {})
    driver.wait(1_000)
    assert forbidden(driver) == {"authorize_retry": "deadline_elapsed"}
    driver.wait(-1_000)
    driver.cancel()
    assert (allowed(driver), forbidden(driver)) == (["supply_success", "declare_failure"], {"authorize_retry": "retry_forbidden"})
