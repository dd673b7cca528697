"""The pages against a real server and a real worker: what a person does and sees, from sending an event to settling what nobody knows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.acceptance.product import W, eventually
from tests.web.browsing import NARROW, Lost, Shop, shop

pytestmark = pytest.mark.xdist_group("web-acceptance")


def send(page: Page, name: str, data: str) -> Any:
    """Send from the dialog; the receipt is left open."""
    page.get_by_role("button", name="Send an event").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill(name)
    dialog.get_by_label("Data, as JSON").fill(data)
    dialog.get_by_role("button", name="Send", exact=True).click()
    expect(dialog.get_by_text("Accepted", exact=True)).to_be_visible()
    return dialog


def open_resolve(page: Page) -> Any:
    page.get_by_role("button", name=re.compile("^Resolve")).first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    expect(dialog.get_by_text(re.compile("op_"))).to_be_visible()
    return dialog


def head(page: Page) -> Any:
    return page.locator(".state")


@pytest.mark.req("ACC-92", "UI-01", "UI-03")
def test_an_event_sent_from_the_page_shows_how_it_was_routed_and_what_it_started(at: Shop) -> None:
    page = at.tab("/events")
    dialog = send(page, "order/placed", '{"order": 12345678901234567890}')
    dialog.get_by_role("link", name=re.compile("^ev_")).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("order/placed")
    event = at.running.get(f"{W}/events/{page.url.rsplit('/', 1)[1]}")
    (match,) = event["matches"]
    routing = page.locator("section", has=page.get_by_role("heading", name="Routing generation", exact=True))
    expect(routing).to_contain_text(event["routing_generation"])
    manifest = page.locator("section", has=page.get_by_role("heading", name="Manifests it was routed by"))
    expect(manifest).to_contain_text(match["manifest_generation"])
    expect(manifest).to_contain_text("sha256:")
    row = page.get_by_role("row", name=re.compile("fulfil-order"))
    expect(row).to_contain_text(match["trigger_id"])
    expect(row).to_contain_text("Succeeded")
    expect(page.get_by_text('"order": 12345678901234567890')).to_be_visible()  # every digit, as it was typed
    row.get_by_role("link", name=match["run_id"]).click()
    expect(head(page)).to_contain_text("Succeeded")


@pytest.mark.req("ACC-93", "UI-04")
def test_a_run_is_followed_through_failure_and_compensation_without_a_reload(at: Shop) -> None:
    run_id = at.run_of(at.running.send("order/placed", {"gate": "go-follow", "fail": "no carrier takes it"}))
    page = at.tab(f"/runs/{run_id}")
    page.evaluate("globalThis.same = true")
    expect(head(page)).to_contain_text("Running")
    expect(page.locator(".lane", has_text="gate")).to_contain_text("Executing")
    expect(page.locator(".lane.passes")).to_contain_text("passes")
    at.let("go-follow")
    expect(head(page)).to_contain_text("Failed")
    expect(head(page)).to_contain_text("ryusen_sdk.Terminal: no carrier takes it")
    expect(head(page)).to_contain_text("Partially compensated (2 undone, 2 had nothing to undo)")
    undone = page.get_by_role("table", name="What is undone").get_by_role("row")
    expect(undone).to_have_count(5)
    assert [re.sub(r"\s+", " ", text) for text in undone.locator("td:nth-child(2)").all_inner_texts()] == [
        "gate",
        "note",
        "reserve",
        "charge",
    ]
    expect(undone.nth(1)).to_contain_text("no compensator")
    expect(page.locator(".lane.unwind")).to_have_count(4)
    page.get_by_role("link", name="Input and output").click()
    expect(page.locator(".failure").first).to_contain_text(re.compile(r"at \S*shop\.py:[0-9]+ in fulfil_order"))
    assert page.evaluate("globalThis.same") is True


@pytest.mark.req("ACC-94", "UI-05")
def test_the_transport_of_a_worker_can_be_inspected_and_follows_what_it_does(at: Shop) -> None:
    (worker,) = at.running.get(f"{W}/workers")["items"]
    page = at.tab("/workers")
    card = page.get_by_role("article", name=f"Worker {worker['instance_id']}")
    for said in ("Connected", "r7", "shop", f"0 of {worker['capacity']}", "connected", "Last contact"):
        expect(card).to_contain_text(said)
    card.get_by_text("Transport and contract").click()
    for said in (worker["session_id"], worker["sdk"]["version"], worker["runtime"]["version"], worker["manifest_digest"], "fulfil-order"):
        expect(card).to_contain_text(said)
    at.running.send("order/placed", {"gate": "go-load"})
    expect(card).to_contain_text(f"1 of {worker['capacity']}")
    at.let("go-load")
    expect(card).to_contain_text(f"0 of {worker['capacity']}")


@pytest.mark.req("ACC-97", "UI-06")
def test_an_unresolved_attempt_is_resolved_by_an_explicit_retry_and_its_successor_is_shown(at: Shop) -> None:
    run_id = at.run_of(at.running.send("held", {"name": "again"}))
    attempt = at.unknown(run_id)
    page = at.tab(f"/runs/{run_id}")
    dialog = open_resolve(page)
    for said in (run_id, "held", "1, generation 1", attempt["operation_id"], attempt["worker"]["instance_id"]):
        expect(dialog).to_contain_text(said)
    page.keyboard.press("3")
    confirm = dialog.get_by_role("button", name="Confirm")
    expect(confirm).to_be_disabled()
    dialog.get_by_label("Type retry").fill("retry")
    confirm.click()
    expect(dialog).to_contain_text("Next: attempt 2, generation 2")
    dialog.get_by_role("button", name="Close").click()
    expect(head(page)).to_contain_text("Succeeded")
    expect(page.get_by_label("Settled here")).to_contain_text("Next: attempt 2, generation 2")
    page.get_by_role("link", name="Attempts").click()
    rows = page.get_by_role("table", name="Attempts").get_by_role("row", name=re.compile("held"))
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("Settled by operator")
    expect(rows.nth(1)).to_contain_text("Succeeded")


@pytest.mark.req("ACC-98", "UI-06")
def test_a_compensation_shows_a_real_refusal_before_it_is_settled_and_its_acknowledgement_after(at: Shop) -> None:
    run_id = at.run_of(at.running.send("undo", {}))
    attempt = at.unknown(run_id)
    page = at.tab("/unknown")
    row = page.get_by_role("row", name=re.compile(run_id))
    expect(row).to_contain_text("compensation")
    row.get_by_role("button", name=re.compile("Resolve")).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("no answer came after its timeout")
    at.allowed = ("413",)
    dialog.get_by_label(re.compile("It was undone")).check()
    result = dialog.get_by_label("Result, as JSON")
    result.fill('{"a": 1, "a": 2}')
    expect(dialog).to_contain_text('the name "a" is there twice')
    expect(dialog.get_by_role("button", name="Confirm")).to_be_disabled()
    result.fill("[" * 70 + "]" * 70)
    dialog.get_by_role("button", name="Confirm").click()
    expect(dialog.get_by_role("alert")).to_contain_text("[limit_exceeded]")
    assert at.running.get(f"{W}/attempts/{attempt['attempt_id']}")["state"] == "unknown"
    result.fill("null")
    dialog.get_by_role("button", name="Confirm").click()
    expect(dialog).to_contain_text("Applied")
    expect(row).to_have_count(0)
    dialog.get_by_role("button", name="Close").click()
    expect(page.get_by_label("Settled here")).to_contain_text(run_id)
    assert at.settled_run(run_id)["recovery"] == "fully_compensated"


@pytest.mark.req("ACC-99", "UI-07")
def test_a_lost_answer_is_told_as_ambiguous_and_sent_again_under_the_same_key_even_after_a_reload(at: Shop) -> None:
    run_id = at.run_of(at.running.send("held", {"name": "lost"}))
    at.unknown(run_id)
    page = at.tab(f"/runs/{run_id}")
    at.allowed = ("ERR_CONNECTION_RESET",)
    lost = Lost(page, "/resolve", times=2)
    dialog = open_resolve(page)
    page.keyboard.press("1")
    dialog.get_by_label("Result, as JSON").fill('"as it was"')
    dialog.get_by_role("button", name="Confirm").click()
    expect(dialog.get_by_role("alert")).to_contain_text("may have been done or not")
    expect(dialog.get_by_label("Result, as JSON")).to_be_disabled()
    expect(head(page)).to_contain_text("Succeeded")  # it was applied, and still this tab does not know by whom
    dialog.get_by_role("button", name="Send again under the same key").click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    eventually(lambda: len(lost.bodies) == 2, "it was sent again")
    expect(dialog.get_by_role("button", name="Send again under the same key")).to_be_enabled()
    dialog.get_by_role("button", name="Close").click()
    at.go(page, f"/runs/{run_id}")
    page.get_by_role("button", name="Find out").click()
    dialog.get_by_role("button", name="Send again under the same key").click()
    expect(dialog).to_contain_text("Applied before (replayed)")
    assert len(lost.bodies) == 3
    assert len(set(lost.bodies)) == 1
    assert at.settled_run(run_id)["result"]["value"] == "as it was"


@pytest.mark.req("UI-07")
def test_a_lost_command_can_be_forgotten_and_the_next_one_has_a_key_of_its_own(at: Shop) -> None:
    run_id = at.run_of(at.running.send("held", {"name": "forgotten"}))
    at.unknown(run_id)
    page = at.tab(f"/runs/{run_id}")
    at.allowed = ("ERR_CONNECTION_REFUSED",)
    bodies: list[str] = []

    def never_arrives(route: Route) -> None:
        bodies.append(route.request.post_data or "")
        route.abort("connectionrefused") if len(bodies) == 1 else route.continue_()

    page.route("**/resolve", never_arrives)
    dialog = open_resolve(page)
    page.keyboard.press("1")
    dialog.get_by_label("Result, as JSON").fill('"it happened"')
    dialog.get_by_role("button", name="Confirm").click()
    expect(dialog.get_by_role("alert")).to_contain_text("may have been done or not")
    dialog.get_by_role("button", name="Forget it").click()
    expect(dialog.get_by_role("alert")).to_have_count(0)
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name="Find out")).to_have_count(0)
    open_resolve(page)
    page.keyboard.press("1")
    dialog.get_by_label("Result, as JSON").fill('"something else"')
    dialog.get_by_role("button", name="Confirm").click()
    expect(dialog).to_contain_text("Settled")
    keys = [json.loads(body)["idempotency_key"] for body in bodies]
    assert len(set(keys)) == 2
    assert at.settled_run(run_id)["result"]["value"] == "something else"


@pytest.mark.req("UI-07")
def test_b07_a_double_click_sends_one_event_and_one_command_while_the_first_answer_is_out(at: Shop) -> None:
    page = at.tab("/events")
    bodies: list[str] = []

    def hold(route: Route) -> None:
        if route.request.method != "POST":
            route.fallback()
            return
        bodies.append(route.request.post_data or "")
        answer = route.fetch()
        page.wait_for_timeout(400)
        route.fulfill(response=answer)

    page.route("**/events", hold)
    page.route("**/resolve", hold)
    name = "nobody/double"
    page.get_by_role("button", name="Send an event").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill(name)
    dialog.get_by_role("button", name="Send", exact=True).dblclick()
    expect(dialog).to_contain_text("No trigger matches")
    assert [item["name"] for item in at.running.get(f"{W}/events?limit=500")["items"]].count(name) == 1
    assert len({json.loads(body)["idempotency_key"] for body in bodies}) == 1
    dialog.get_by_role("button", name="Close").click()

    bodies.clear()
    run_id = at.run_of(at.running.send("held", {"name": "double"}))
    attempt = at.unknown(run_id)
    at.go(page, f"/runs/{run_id}")
    dialog = open_resolve(page)
    page.keyboard.press("1")
    dialog.get_by_label("Result, as JSON").fill("1")
    dialog.get_by_role("button", name="Confirm").dblclick()
    expect(dialog).to_contain_text("Applied")
    assert len({json.loads(body)["idempotency_key"] for body in bodies}) == 1
    resolved = [
        record
        for record in at.running.history(run_id)
        if record.get("attempt_id") == attempt["attempt_id"] and record["kind"] == "attempt_settled"
    ]
    assert len(resolved) == 1


@pytest.mark.req("ACC-19", "UI-06", "UI-09")
def test_a_refused_retry_past_the_deadline_is_shown_and_the_run_reads_timed_out(at: Shop) -> None:
    page = at.tab("/")  # loaded before the time runs
    run_id = at.run_of(at.running.send("late", {"name": "late"}))
    at.turn(page, f"/runs/{run_id}")
    at.unknown(run_id)
    dialog = open_resolve(page)
    page.keyboard.press("3")
    dialog.get_by_label("Type retry").fill("retry")
    # The tab learns nothing more of the attempt, as one that was left open over the deadline.
    page.route("**/attempts/*", lambda route: route.abort() if route.request.method == "GET" else route.fallback())
    at.allowed = ("ERR_FAILED", "409")
    eventually(lambda: at.running.get(f"{W}/runs/{run_id}")["stop"], "the deadline is recorded")
    dialog.get_by_role("button", name="Confirm").click()
    expect(dialog.get_by_role("alert")).to_contain_text("[deadline_elapsed]")
    page.unroute("**/attempts/*")
    page.keyboard.press("Escape")
    expect(head(page)).to_contain_text("Timing out")
    dialog = open_resolve(page)
    expect(dialog.get_by_label(re.compile("Run it again"))).to_be_disabled()
    expect(dialog.locator(".reason")).to_contain_text("[deadline_elapsed]")
    dialog.get_by_label(re.compile("It happened")).check()
    dialog.get_by_label("Result, as JSON").fill("{}")
    dialog.get_by_role("button", name="Confirm").click()
    expect(dialog).to_contain_text("Applied")
    dialog.get_by_role("button", name="Close").click()
    expect(head(page)).to_contain_text("Timed out")
    expect(head(page)).not_to_contain_text("Succeeded")
    expect(page.get_by_label("Settled here")).to_contain_text("Applied")
    at.go(page, "/")
    expect(page.get_by_role("row", name=re.compile(run_id))).to_contain_text("Timed out")


@pytest.mark.req("UI-06")
def test_a_late_answer_that_wins_disables_the_controls(at: Shop) -> None:
    run_id = at.run_of(at.running.send("held", {"name": "race"}))
    at.unknown(run_id)
    page = at.tab(f"/runs/{run_id}")
    early: list[tuple[Route, Any]] = []

    def hold(route: Route) -> None:
        if early:
            route.fallback()
        else:
            early.append((route, route.fetch()))

    page.route("**/attempts/*", hold)
    dialog = open_resolve(page)
    page.keyboard.press("3")
    eventually(lambda: page.wait_for_timeout(20) or early, "what is allowed is asked for")
    at.let("go-race")
    at.settled_run(run_id)
    expect(head(page)).to_contain_text("Succeeded")
    route, answer = early[0]
    route.fulfill(response=answer)  # an answer from before, behind the change that it does not know of
    page.wait_for_timeout(300)
    expect(dialog.get_by_role("alert")).to_contain_text("It was settled meanwhile")
    expect(dialog.get_by_role("button", name="Confirm")).to_have_count(0)
    expect(dialog.locator("fieldset")).to_have_attribute("disabled", "")


@pytest.mark.req("ACC-96", "API-06")
def test_what_commits_between_the_snapshot_and_the_stream_is_rendered(at: Shop) -> None:
    run_id = at.run_of(at.running.send("order/placed", {"gate": "go-between"}))
    eventually(lambda: at.running.get(f"{W}/runs/{run_id}")["steps_completed"] == 3, "it waits at the gate")
    context = at.context()
    page = context.new_page()

    def between(route: Route) -> None:
        shown = page.evaluate("ryusen.state.runs") or {}
        assert shown[run_id]["run"]["status"] == "running"  # the snapshot is there
        at.let("go-between")
        at.settled_run(run_id)
        after.append(int(route.request.url.split("after=")[1]))
        route.continue_()

    after: list[int] = []
    page.route("**/stream?*", between, times=1)
    page.route("**/stream?*", lambda route: (page.wait_for_selector("[data-row]"), route.fallback())[1], times=1)
    at.go(page, "/")
    expect(page.get_by_role("row", name=re.compile(run_id))).to_contain_text("Succeeded")
    ended = [entry["position"] for entry in at.running.get(f"{W}/runs/{run_id}/history?limit=500")["items"]][-1]
    assert after[0] < ended


@pytest.mark.req("ACC-95")
def test_a_restart_keeps_history_scroll_selection_and_what_is_shown(browser: Browser, tmp_path: Path) -> None:
    with shop(tmp_path, browser) as at:
        at.allowed = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE", "503")
        run_id = at.run_of(at.running.send("order/placed", {"fail": "no carrier takes it"}))
        for number in range(30):
            at.running.send("order/placed", {"order": number})
        at.settled_run(run_id)
        page = at.tab(f"/runs/{run_id}?tab=history")
        before = page.locator("ol.history > li").all_inner_texts()
        assert len(before) > 8
        runs = at.tab("/", page.context)
        expect(runs.locator("tbody tr")).to_have_count(31)
        chosen = runs.locator("[data-row]").nth(20)
        chosen.focus()
        runs.evaluate("scrollTo(0, 300)")
        chosen.evaluate("node => getSelection().selectAllChildren(node)")
        at.running.kill_server()
        expect(runs.locator("#header")).to_contain_text("Reconnecting")
        expect(runs.locator("tbody tr")).to_have_count(31)
        at.running.start_server()
        expect(runs.locator("#header")).to_contain_text("Live")
        new = at.run_of(at.running.send("order/placed", {"order": "after"}))
        expect(runs.get_by_role("row", name=re.compile(new))).to_be_visible()
        selected = chosen.inner_text()
        assert runs.evaluate("document.activeElement.hasAttribute('data-row')")
        assert runs.evaluate("getSelection().toString()") == runs.evaluate("document.activeElement.textContent")
        assert runs.evaluate("Math.round(scrollY)") >= 290
        assert selected
        expect(page.locator("ol.history > li")).to_have_text([re.compile(re.escape(line.splitlines()[0])) for line in before])
        at.go(page, f"/runs/{run_id}?tab=history")
        assert page.locator("ol.history > li").all_inner_texts() == before
        event = at.running.get(f"{W}/runs/{run_id}")["event_id"]
        at.go(page, f"/events/{event}")
        expect(page.get_by_role("row", name=re.compile(run_id))).to_contain_text("Failed")
        runs.locator("[data-row]").nth(20).click()
        expect(runs.locator(".state")).to_be_visible()
        runs.go_back()
        eventually(lambda: runs.evaluate("scrollY") >= 290, "it is where it was left")
        # Over another database the position means nothing, and the page begins again.
        at.allowed = (*at.allowed, "404")
        at.running.kill_server()
        for file in tmp_path.glob("*.db*"):
            file.unlink()
        at.running.start_server()
        expect(runs.locator("main")).to_contain_text("There are no runs yet")
        expect(runs.locator("#header")).to_contain_text("Live")
        at.check()


@pytest.mark.req("UI-05")
def test_what_no_change_tells_of_is_followed_too_contact_with_a_worker_and_what_a_callback_prints(browser: Browser, tmp_path: Path) -> None:
    with shop(tmp_path, browser, lease_ms=6_000) as at:
        run_id = at.run_of(at.running.send("order/placed", {"gate": "go-contact"}))
        page = at.tab(f"/runs/{run_id}")
        lane = page.locator(".lane", has_text="gate")
        expect(lane).to_contain_text("Executing")
        logs = at.tab(f"/runs/{run_id}?tab=logs", page.context)
        workers = at.tab("/workers", page.context)
        contact = workers.locator(".facts > div", has_text="Last contact").locator("time")
        before = contact.get_attribute("datetime") or ""
        eventually(lambda: workers.wait_for_timeout(100) or (contact.get_attribute("datetime") or "") > before, "a later contact is shown")
        at.let("go-contact.say")
        expect(logs.locator("ol.logs")).to_contain_text(["still waiting for go-contact"])
        at.running.workers[0].kill()
        expect(lane).to_contain_text(re.compile("Out of contact, Unknown in [0-9]s"))
        expect(workers.get_by_role("article")).to_contain_text("Away")
        expect(lane).to_contain_text("Unknown")
        expect(lane).not_to_contain_text("Out of contact")
        at.check()


@pytest.mark.req("ACC-100", "UI-08")
def test_a_narrow_screen_reaches_every_command(at: Shop) -> None:
    held = at.run_of(at.running.send("held", {"name": "narrow"}))
    blocked = at.run_of(at.running.send("twice", {}))
    at.unknown(held)
    page = at.tab("/events", viewport=NARROW)
    dialog = send(page, "nobody/narrow", "{}")
    expect(dialog).to_contain_text("No trigger matches")
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Unknown").click()
    row = page.get_by_role("row", name=re.compile(held))
    row.get_by_role("button", name=re.compile("Resolve")).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label(re.compile("It failed")).check()
    dialog.get_by_label("Message").fill("the bank says no")
    for control in ("Category", "Message", "It may be retried"):
        dialog.get_by_label(control).scroll_into_view_if_needed()
        expect(dialog.get_by_label(control)).to_be_in_viewport()
    dialog.get_by_role("button", name="Confirm").click()
    expect(dialog).to_contain_text("Applied")
    dialog.get_by_role("button", name="Close").click()
    at.go(page, f"/runs/{blocked}")
    expect(page.locator(".notice")).to_contain_text("shop.py:")
    page.get_by_role("button", name="Ask the code again").click()
    expect(page.locator("#announce")).to_contain_text("asked")
    page.get_by_role("button", name="Cancel run").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel run").click()
    expect(page.get_by_role("dialog")).to_contain_text("The stop is recorded")
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    expect(head(page)).to_contain_text("Cancelled")
    for path in ("/", "/unknown", "/events", "/functions", "/workers", "/server", f"/runs/{blocked}", f"/runs/{held}?tab=attempts"):
        at.go(page, path)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
