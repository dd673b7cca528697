"""What accepting a declared step commits, kind by kind, and what refuses one."""

from __future__ import annotations

import msgspec
import pytest

from ryusen_protocol.declarations import (
    ChildDeclaration,
    CompensationPolicy,
    Declaration,
    EmissionDeclaration,
    RetryPolicy,
    TimerDeclaration,
)
from ryusen_protocol.identity import emitted_event_id, run_id_for_child
from ryusen_protocol.ids import FunctionId, RunId, StepId
from ryusen_protocol.limits import CHILD_DEPTH_MAX, MIB
from ryusen_protocol.outcome import BlockReason, Declared
from ryusen_protocol.scope import Scope
from ryusen_server.core.commands.answer_discovery import AnswerDiscovery
from ryusen_server.core.commands.authorize_attempt import AuthorizeAttempt
from ryusen_server.core.decision import EmittedEvent
from ryusen_server.core.records import DiscoveryQueued, ParentRef, RunBlocked, RunCreated
from tests.core.driving import LEASE_MS, PACK, WORKER, Driver, child, emission, event_wait, kinds, only, raw, timer

SCOPE = Scope("default", "shop")  # type: ignore[arg-type]


@pytest.mark.req("EMT-07", "EMT-08", "EMT-10")
def test_an_emission_is_accepted_completes_and_goes_on_in_one_transaction() -> None:
    driver = Driver()
    transactions = len(driver.rows)
    decision = driver.declare(emission("tell", b"\x00raw", order="7"))
    assert kinds(decision) == ["step_declared", "step_completed", "discovery_queued"]
    assert len(driver.rows) == transactions + 1
    event_id = emitted_event_id(SCOPE, driver.run.run_id, StepId("tell"))
    assert decision.emitted == EmittedEvent(event_id, "shipped", b"\x00raw", {"order": "7"})
    assert (driver.step("tell").state, driver.step("tell").result) == ("succeeded", raw(str(event_id)))
    assert decision.effects == [], "nobody waits for the event's own runs"


@pytest.mark.req("EMT-07", "INV-02")
def test_the_identities_of_events_and_children_follow_from_scope_run_and_step_alone() -> None:
    run_id, other = RunId("rn_one"), Scope("default", "other")  # type: ignore[arg-type]
    places = [
        (SCOPE, run_id, StepId("a")),
        (other, run_id, StepId("a")),
        (SCOPE, RunId("rn_two"), StepId("a")),
        (SCOPE, run_id, StepId("b")),
    ]
    for derive in (emitted_event_id, run_id_for_child):
        assert len({derive(*place) for place in places}) == len(places)
        assert [derive(*place) for place in places] == [derive(*place) for place in places]


@pytest.mark.req("EMT-04")
def test_an_emission_without_metadata_has_none() -> None:
    decision = Driver().declare(emission("tell"))
    assert decision.emitted is not None
    assert decision.emitted.metadata == {}


@pytest.mark.req("EMT-07", "EMT-09")
def test_an_emission_that_is_delivered_or_declared_again_emits_nothing_more() -> None:
    driver = Driver()
    request = driver.start()
    driver.respond(Declared(emission("tell")), request=request)
    again = driver.respond(Declared(emission("tell")), request=request)
    assert (again.disposition, again.records, again.emitted) == ("discarded", [], None)
    driver.restart()
    replayed = driver.declare(emission("tell"))
    assert (kinds(replayed), replayed.emitted) == (["run_blocked"], None)


@pytest.mark.req("EMT-11")
def test_an_emission_is_never_undone() -> None:
    driver = Driver()
    driver.run_step("a")
    driver.declare(emission("tell"))
    driver.uncaught()
    assert [target.step_id for target in driver.run.unwind] == ["a"]


def test_an_emission_past_the_deadline_is_not_accepted() -> None:
    driver = Driver(deadline_ms=1_000)
    request = driver.start()
    driver.wait(1_000)
    decision = driver.respond(Declared(emission("tell")), request=request)
    assert (decision.disposition, decision.emitted) == ("discarded", None)
    assert driver.run.outcome == "timed_out"


@pytest.mark.req("INV-02", "INV-04")
def test_a_child_is_created_with_its_first_pass_in_the_parents_transaction() -> None:
    driver = Driver()
    transactions = len(driver.rows)
    decision = driver.declare(child("pack", value={"boxes": 2}))
    assert kinds(decision) == ["step_declared", "child_invoked"]
    assert len(driver.rows) == transactions + 1
    assert decision.birth is not None
    created, queued = decision.birth.records
    assert created == decision.birth.created
    assert queued == DiscoveryQueued(1)
    assert isinstance(created, RunCreated)
    child_run_id = run_id_for_child(SCOPE, driver.run.run_id, StepId("pack"))
    assert (created.run_id, created.function, created.event_id, created.trigger_id) == (child_run_id, "pack", None, None)
    assert (created.workspace, created.application) == (driver.run.workspace, driver.run.application)
    assert (created.manifest_generation, created.routing_generation) == (PACK.manifest_generation, PACK.routing_generation)
    assert created.parent == ParentRef(driver.run.run_id, StepId("pack"), 1)
    assert (created.input, created.deadline) == (raw({"boxes": 2}), None)
    assert driver.step("pack").child_run_id == child_run_id


@pytest.mark.parametrize("declaration", [timer("t"), event_wait("t"), child("t"), emission("t")])
def test_a_worker_that_was_chosen_gets_nothing_to_run_for_a_kind_without_a_callback(declaration: Declaration) -> None:
    driver = Driver()
    driver.start()
    decision = driver.respond(Declared(declaration), assign=True)
    assert decision.effects == []
    assert driver.run.attempts == {}


def refused(driver: Driver, declaration: Declaration) -> tuple[BlockReason, str]:
    """The blocker that a declaration comes to. Nothing of the step is committed."""
    steps = len(driver.run.steps)
    decision = driver.declare(declaration)
    assert kinds(decision) == ["run_blocked"]
    assert (decision.birth, decision.emitted, len(driver.run.steps)) == (None, None, steps)
    blocked = only(decision.records, RunBlocked)
    return blocked.reason, blocked.message


@pytest.mark.req("INV-01")
def test_a_function_that_the_active_manifest_lacks_is_refused_until_it_is_there() -> None:
    driver = Driver()
    reason, message = refused(driver, child("pack", "box"))
    assert (reason, "'box'" in message) == ("unknown_function", True)
    driver.functions[FunctionId("box")] = PACK
    driver.rediscover()
    assert driver.declare(child("pack", "box")).birth is not None
    assert driver.run.status == "running"


def test_a_child_is_refused_below_the_deepest_level() -> None:
    driver = Driver(parent=ParentRef(RunId("rn_parent"), StepId("call"), CHILD_DEPTH_MAX - 1))
    born = driver.declare(child("pack")).birth
    assert born is not None
    assert born.created.parent == ParentRef(driver.run.run_id, StepId("pack"), CHILD_DEPTH_MAX)
    deepest = Driver(parent=born.created.parent)
    reason, message = refused(deepest, child("pack"))
    assert (reason, str(CHILD_DEPTH_MAX) in message) == ("invalid_declaration", True)


RETRY = RetryPolicy(max_attempts=2)
INVALID: list[tuple[Declaration, str]] = [
    (TimerDeclaration(StepId("t")), "exactly one"),
    (TimerDeclaration(StepId("t"), delay_ms="1", deadline_ms="1"), "exactly one"),
    (TimerDeclaration(StepId("t"), delay_ms="-1"), "delay_ms"),
    (msgspec.structs.replace(timer("t"), has_compensation=True), "compensator"),
    (msgspec.structs.replace(event_wait("t"), compensation=CompensationPolicy()), "compensator"),
    (msgspec.structs.replace(child("t"), retry=RETRY), "retry"),
    (msgspec.structs.replace(emission("t"), retry=RETRY), "max_attempts is 2"),
    (EmissionDeclaration(StepId("t"), "shipped", raw({"a": 1})), "bytes"),
    (emission("t", b"x" * (MIB + 1)), "1 MiB"),
    (child("t", value="x" * MIB), "1 MiB"),
    (ChildDeclaration(StepId("t"), FunctionId("pack"), raw(1), "18446744073709551616"), "timeout_ms"),
    (timer("x" * 257), "257"),
]


@pytest.mark.req("TMR-08", "EVW-10", "INV-08", "EMT-11", "EMT-03")
@pytest.mark.parametrize(("declaration", "why"), INVALID)
def test_what_a_kind_does_not_take_is_refused_with_the_reason(declaration: Declaration, why: str) -> None:
    reason, message = refused(Driver(), declaration)
    assert reason == "invalid_declaration"
    assert why in message


CHANGED: list[tuple[Declaration, Declaration, str]] = [
    (child("x"), child("x", "other"), "'pack'"),
    (child("x"), child("x", value=8), "input"),
    (emission("x"), emission("x", name="lost"), "'shipped'"),
    (emission("x"), emission("x", b"[]"), "payload"),
    (emission("x"), emission("x", order="7"), "metadata"),
    (emission("x"), emission("x"), "outcome already"),
    (timer("x", 0), timer("x", 9_000), "outcome already"),
    (timer("x", 0), event_wait("x"), "`timer`"),
    (emission("x"), child("x"), "`emission`"),
]


@pytest.mark.req("INV-03", "EMT-07")
@pytest.mark.parametrize(("recorded", "declared", "why"), CHANGED)
def test_a_step_that_is_declared_otherwise_is_never_adopted(recorded: Declaration, declared: Declaration, why: str) -> None:
    driver = Driver()
    driver.functions[FunctionId("other")] = PACK
    driver.declare(recorded)
    if driver.run.pending is not None:
        (driver.child_ended if isinstance(recorded, ChildDeclaration) else driver.timer_due)()
    before = driver.step("x").result
    reason, message = refused(driver, declared)
    assert reason == "declaration_conflict"
    assert why in message
    assert (driver.step("x").declaration, driver.step("x").result) == (recorded, before)


def test_the_same_content_in_another_spelling_is_no_difference_worth_a_word() -> None:
    driver = Driver()
    driver.declare(child("x", value={"a": 1, "b": 2}))
    driver.child_ended()
    spelled = msgspec.Raw(b'{"value":{"b":{"value":"2","type":"i64"},"a":{"type":"i64","value":"1"}}, "type":"object"}')
    _, message = refused(driver, ChildDeclaration(StepId("x"), FunctionId("pack"), spelled))
    assert "outcome already" in message


def test_an_obsolete_run_step_is_not_declared_as_another_kind() -> None:
    driver = Driver()
    driver.declare("x", assign=True)
    driver.missing()
    assert refused(driver, timer("x"))[0] == "declaration_conflict"


def test_a_pass_that_was_overtaken_declares_nothing() -> None:
    driver = Driver()
    request = driver.start()
    driver.cancel()
    command = AnswerDiscovery(request, Declared(emission("tell")), None, None, AuthorizeAttempt(WORKER, LEASE_MS))
    decision = driver.decided(command)
    assert (decision.disposition, decision.records, decision.emitted) == ("discarded", [], None)
