"""Every page and dialog: accessible, by keyboard alone, inert to hostile data, in the words of terminals, in tabs that share a stream."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect

from ryusen_protocol import plain, words
from ryusen_protocol.api import UnwindCounts
from ryusen_protocol.durations import format_ms
from tests.acceptance.product import W, eventually
from tests.api.token_holders import bearer, token, write_credentials
from tests.cli.processes import Running
from tests.web.browsing import Lost, Shop
from tests.web.cutting import follow_through_cuts

pytestmark = pytest.mark.xdist_group("web-pages")

TABS = ("timeline", "attempts", "history", "data", "logs", "why")


@pytest.fixture(scope="module")
def stands(the_shop: Shop) -> dict[str, str]:
    """Run ids by how the run stands, and an event's id."""
    running = the_shop.running
    sent = {
        "failed": running.send("order/placed", {"fail": "no carrier takes it"}),
        "blocked": running.send("twice", {}),
        "waiting": running.send("waits", {}),
        "unknown": running.send("held", {"name": "stands"}),
        "succeeded": running.send("order/placed", {"order": 1}),
    }
    runs = {name: the_shop.run_of(event) for name, event in sent.items()}
    the_shop.unknown(runs["unknown"])
    the_shop.settled_run(runs["failed"])
    return {**runs, "event": sent["failed"]["event_id"]}


def check_axe(page: Page, what: str) -> None:
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    assert [(one["id"], [node["html"][:150] for node in one["nodes"]]) for one in found] == [], what


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page_or_dialog(at: Shop, stands: dict[str, str], scheme: str) -> None:
    at.allowed = ("404",)
    page = at.tab("/", color_scheme=scheme)
    paths = [
        "/",
        "/unknown",
        "/events",
        f"/events/{stands['event']}",
        "/functions",
        "/workers",
        "/server",
        "/?q=nothing+at+all",
        "/runs/none",
    ]
    paths += [f"/runs/{stands['failed']}?tab={tab}" for tab in TABS]
    paths += [f"/runs/{stands[name]}" for name in ("blocked", "waiting", "unknown")]
    for path in paths:
        at.turn(page, path)
        check_axe(page, path)
    for path, keys in (
        (f"/runs/{stands['unknown']}", "R1"),
        ("/unknown", "R2"),
        ("/unknown", "R3"),
        ("/events", "s"),
        ("/", "?"),
        (f"/runs/{stands['blocked']}", "X"),
    ):
        at.turn(page, path)
        page.keyboard.press(keys[0])
        page.wait_for_selector("dialog[open]")
        expect(page.get_by_role("dialog").locator("button, input").first).to_be_visible()
        for key in keys[1:]:
            page.keyboard.press(key)
            page.wait_for_selector("dialog input:checked")
        check_axe(page, f"{path} {keys}")


@pytest.mark.req("UI-02")
def test_a_run_page_explains_what_the_server_chose_by_itself(at: Shop, stands: dict[str, str]) -> None:
    page = at.tab(f"/runs/{stands['failed']}?tab=why")
    run = at.running.get(f"{W}/runs/{stands['failed']}")
    charge = page.get_by_role("table", name="Retry policies").get_by_role("row", name=re.compile("charge"))
    expect(charge).to_contain_text("up to 4 attempts: after 1s, then \u00d72 up to 1m, spread by 10 % (the default)")
    reserve = page.get_by_role("table", name="Retry policies").get_by_role("row", name=re.compile("reserve"))
    expect(reserve).to_contain_text("up to 3 attempts: after 30ms")
    lease_ms = at.running.get("/v1/server")["lease_ms"]
    expect(page.locator("main")).to_contain_text(f"silent for the lease of {format_ms(lease_ms)}")
    for said in (run["trigger_id"], run["manifest_generation"], run["routing_generation"], "the function's timeout"):
        expect(page.locator("main")).to_contain_text(said)
    at.go(page, f"/runs/{stands['blocked']}")
    notice = page.locator(".notice")
    blocker = at.running.get(f"{W}/runs/{stands['blocked']}")["blocker"]
    expect(notice).to_contain_text(f"shop.py:{blocker['first']['line']}")
    expect(notice).to_contain_text(f"shop.py:{blocker['duplicate']['line']}")
    expect(notice).to_contain_text(blocker["message"].splitlines()[0])


def test_the_keys_of_the_terminal_do_the_same_here(at: Shop, stands: dict[str, str]) -> None:
    page = at.tab("/")
    press = page.keyboard.press
    rows = page.locator("[data-row]")
    press("j")
    expect(rows.nth(0)).to_be_focused()
    press("j")
    expect(rows.nth(1)).to_be_focused()
    press("k")
    expect(rows.nth(0)).to_be_focused()
    press("G")
    expect(rows.last).to_be_focused()
    press("g")
    chosen = rows.nth(0).inner_text()
    press("Enter")
    expect(page).to_have_url(re.compile(f"/runs/{chosen}$"))
    press("Escape")
    expect(page).to_have_url(f"{at.running.url}/")
    press("/")
    expect(page.get_by_label("Find")).to_be_focused()
    page.keyboard.type("wait")
    expect(page).to_have_url(re.compile(r"\?q=wait$"))
    expect(rows).to_have_count(1)
    press("Enter")
    expect(rows.nth(0)).to_be_focused()
    press("/")
    press("Escape")
    expect(page).to_have_url(f"{at.running.url}/")
    press("u")
    expect(page).to_have_url(re.compile(f"/runs/{stands['unknown']}$"))
    expect(page.get_by_role("button", name=re.compile("^Resolve"))).to_be_visible()
    press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    for key, title in (("2", "Unknown"), ("3", "Events"), ("4", "Workers"), ("5", "Functions"), ("6", "Server"), ("1", "Runs")):
        press(key)
        expect(page.get_by_role("heading", level=1)).to_have_text(title)


def test_the_time_axis_zooms_pans_and_folds_and_logs_come_by_pages(at: Shop, stands: dict[str, str]) -> None:
    run_id = at.run_of(at.running.send("long", {"steps": 23, "loud": True}))
    at.settled_run(run_id)
    page = at.tab(f"/runs/{run_id}")
    press = page.keyboard.press
    controls = page.get_by_role("group", name="Time axis")

    def frame() -> list[float]:
        return [float(number) for number in (page.locator("svg.bars").first.get_attribute("viewBox") or "").split()]

    start, _, whole, _ = frame()
    assert start == 0
    press("+")
    press("+")
    expect(controls).to_contain_text("\u00d74")
    assert frame()[0] == pytest.approx(whole * 3 / 8, rel=0.01)
    assert frame()[2] == pytest.approx(whole / 4, rel=0.01)
    for _ in range(8):
        press("l")
    expect(controls.get_by_role("button", name="Later")).to_be_disabled()
    assert sum(frame()[::2]) == pytest.approx(whole, rel=0.01)
    press("0")
    expect(controls.get_by_role("button", name="Zoom out")).to_be_disabled()
    assert frame()[::2] == [0, whole]
    at.turn(page, f"/runs/{stands['waiting']}")
    expect(page.get_by_label("Fold long waits")).to_be_visible()
    press("z")
    expect(page.get_by_label("Fold long waits")).to_be_checked()
    expect(page.locator(".scale")).to_contain_text("\u22ef")

    at.turn(page, f"/runs/{run_id}?tab=attempts")
    page.get_by_role("link", name="Logs of step-0003, attempt 1").click()
    expect(page.locator("ol.logs")).to_have_text([re.compile("3 taken")])
    page.get_by_role("link", name="All logs of the run").click()
    expect(page.locator("ol.logs")).to_have_count(20)
    page.get_by_role("link", name="Newer").click()
    expect(page.locator("ol.logs")).to_have_text([re.compile(f"{number} taken") for number in (20, 21, 22)])
    page.go_back()
    expect(page.locator("ol.logs")).to_have_count(20)


def test_the_run_beside_is_of_the_list_one_came_from_and_one_that_left_it_keeps_its_place(at: Shop) -> None:
    runs: list[str] = []
    for number in range(3):
        runs.append(at.run_of(at.running.send("held", {"name": f"beside {number}"})))
        at.settled_run(at.run_of(at.running.send("echo", number)))  # not in the list
    attempts = [at.unknown(run_id) for run_id in runs]
    page = at.tab("/?attention=unknown")
    press, shows = page.keyboard.press, expect(page)
    page.get_by_role("link", name=runs[2]).click()
    press("]")
    press("]")
    shows.to_have_url(re.compile(f"/runs/{runs[0]}$"))
    press("[")
    shows.to_have_url(re.compile(f"/runs/{runs[1]}$"))
    command = {"supply_success": {"result": {"type": "null"}}}
    body = {"version": 1, "idempotency_key": "beside", "command": command} | {
        name: attempts[1][name] for name in ("attempt_id", "attempt_generation")
    }
    settled = page.request.post(f"{at.running.url}{W}/attempts/{attempts[1]['attempt_id']}/resolve", data=body)
    assert settled.ok, settled.text()
    at.settled_run(runs[1])  # it has left the list
    press("]")
    shows.to_have_url(re.compile(f"/runs/{runs[0]}$"))
    press("[")
    shows.to_have_url(re.compile(f"/runs/{runs[2]}$"))
    press("[")
    expect(page.locator("#announce")).to_have_text("There is no newer run in this list")
    page.go_back()
    page.go_back()
    shows.to_have_url(re.compile(f"/runs/{runs[1]}$"))
    page.reload()  # the list is kept over it
    page.wait_for_selector("main[data-state=live]")
    press("[")
    shows.to_have_url(re.compile(f"/runs/{runs[2]}$"))


@pytest.mark.req("UI-07")
def test_an_event_whose_answer_was_lost_is_found_again_after_going_back_closed_its_dialog(at: Shop) -> None:
    at.allowed = ("ERR_CONNECTION_RESET",)
    page = at.tab("/events")
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Workers").click()
    lost = Lost(page, "/events")
    page.keyboard.press("s")
    page.keyboard.type("nobody/lost")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("alert")).to_contain_text("may have been done or not")
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("Events")
    expect(dialog).to_have_count(0)
    page.get_by_role("button", name="Send an event").click()
    dialog.get_by_role("button", name="Send again under the same key").click()
    expect(dialog).to_contain_text("Accepted before (replayed)")
    assert len(lost.bodies) == 2
    assert len(set(lost.bodies)) == 1


@pytest.mark.req("UI-07")
def test_an_event_whose_answer_was_out_is_owed_over_a_reload_and_is_sent_once(at: Shop) -> None:
    at.allowed = ("ERR_CONNECTION_RESET", "503")
    page = at.tab("/events")
    bodies: list[str] = []
    answers: list[str] = []

    def route(each: Route) -> None:
        if each.request.method != "POST":
            each.fallback()
            return
        bodies.append(each.request.post_data or "")
        if len(bodies) == 1:  # accepted, and the page is gone before it is told
            answers.append(each.fetch().text())
        elif len(bodies) == 2:  # whoever is turned away is not told what became of the first
            each.fulfill(status=503, json={"code": "storage_unavailable", "detail": "the disk is full"})
        else:
            each.fallback()

    page.route("**/events", route)
    dialog = page.get_by_role("dialog")
    page.keyboard.press("s")
    dialog.get_by_label("Name", exact=True).fill("nobody/reloaded")
    dialog.get_by_label("Data, as JSON").fill('{"order": 12345678901234567890}')
    dialog.get_by_text("Bytes, metadata").click()
    dialog.get_by_label("Metadata").fill("__proto__=kept")
    dialog.get_by_role("button", name="Send", exact=True).click()
    eventually(lambda: page.wait_for_timeout(20) or answers, "the server has accepted it")
    page.reload()
    page.get_by_role("button", name="Find out").click()
    expect(dialog.get_by_role("alert")).to_contain_text("may have been done or not")
    expect(dialog.get_by_label("Name", exact=True)).to_have_value("nobody/reloaded")
    expect(dialog.get_by_label("Name", exact=True)).to_be_disabled()
    check_axe(page, "a lost answer")
    again = dialog.get_by_role("button", name="Send again under the same key")
    again.click()
    expect(dialog.get_by_role("alert")).to_contain_text("the disk is full")
    page.reload()
    page.keyboard.press("s")
    again.click()
    expect(dialog).to_contain_text("Accepted before (replayed)")
    assert len(bodies) == 3
    assert len(set(bodies)) == 1
    assert json.loads(bodies[0])["metadata"] == {"__proto__": "kept"}
    assert [item["name"] for item in at.running.get(f"{W}/events?limit=500")["items"]].count("nobody/reloaded") == 1
    page.reload()
    page.wait_for_selector("main[data-state=live]")
    expect(page.get_by_role("button", name="Find out")).to_have_count(0)
    page.keyboard.press("s")
    expect(dialog.get_by_label("Name", exact=True)).to_be_enabled()
    expect(dialog.get_by_label("Name", exact=True)).to_have_value("")


def test_going_back_returns_to_the_row_one_came_from_in_the_list_as_it_was(at: Shop, stands: dict[str, str]) -> None:
    page = at.tab("/?function=fulfil-order")
    row = page.get_by_role("link", name=stands["failed"])
    row.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".state")).to_be_visible()
    page.get_by_role("link", name="Attempts").click()
    expect(page).to_have_url(re.compile("tab=attempts$"))
    page.keyboard.press("Escape")  # past the parts of the run that were looked at
    expect(page).to_have_url(f"{at.running.url}/?function=fulfil-order")
    expect(row).to_be_focused()
    page.go_forward()
    expect(page.locator(".state")).to_be_visible()
    page.go_back()
    expect(row).to_be_focused()
    row.click()
    expect(page.locator(".state")).to_be_visible()
    page.reload()  # the list has to be asked for again
    page.wait_for_selector("main[data-state=live]")
    page.go_back()
    expect(row).to_be_focused()
    page.keyboard.press("k")
    moved = page.evaluate("document.activeElement.textContent")
    new = at.run_of(at.running.send("order/placed", {"order": "behind"}))
    expect(page.get_by_role("row", name=re.compile(new))).to_contain_text("Succeeded")
    assert page.evaluate("document.activeElement.textContent") == moved


def test_an_unknown_attempt_is_settled_and_an_event_sent_with_the_keyboard_alone(at: Shop) -> None:
    run_id = at.run_of(at.running.send("held", {"name": "keyboard"}))
    at.unknown(run_id)
    page = at.tab(f"/runs/{run_id}")
    press = page.keyboard.press
    expect(page.get_by_role("button", name=re.compile("^Resolve"))).to_be_visible()
    press("R")
    expect(page.get_by_role("dialog").get_by_role("button", name="Cancel")).to_be_focused()
    press("R")  # the opening key confirms nothing
    press("2")
    page.get_by_role("radio", checked=True).focus()
    for text in (None, "operator\u0301s word"):
        press("Tab")
        if text:
            page.keyboard.type(text)
    press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Applied")
    press("Escape")
    assert at.settled_run(run_id)["outcome"] == "failed"
    press("s")
    expect(page.get_by_role("dialog").get_by_label("Name", exact=True)).to_be_focused()
    page.keyboard.type("nobody/keys")
    press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("No trigger matches")


HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "<script>globalThis.broken = true</script>",
    '"><svg onload=alert(1)>',
    "javascript:alert(1)//",
    "[/b]\u202egnp.exe\u001b[31m \u0000"[:-1],
    "{{constructor.constructor('globalThis.broken=1')()}}",
    "__proto__",
    "x" * 200,
)


def test_hostile_texts_are_shown_and_do_nothing(at: Shop) -> None:
    runs = []
    for text in (HOSTILE[0], HOSTILE[4], HOSTILE[6]):
        document = {
            "name": "echo",
            "data": {"id": text, **{each: [each] for each in HOSTILE}},
            "metadata": dict.fromkeys(HOSTILE[:7], text),
        }
        answer = at.running.client.post(f"{at.running.url}{W}/events", json=document)
        assert answer.status_code == 201, answer.text
        runs.append(at.run_of(answer.json()))
    failing = at.run_of(at.running.send("order/placed", {"fail": HOSTILE[0]}))
    named = at.running.send(HOSTILE[0], {})["event_id"]
    page = at.tab("/")
    page.on("dialog", lambda dialog: at.faults.append(f"dialog: {dialog.message}"))
    for run_id in (*runs, failing):
        run = at.settled_run(run_id)
        for tab in TABS:
            at.turn(page, f"/runs/{run_id}?tab={tab}")
        at.turn(page, f"/events/{run['event_id']}")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    at.turn(page, f"/runs/{runs[0]}")
    expect(page.get_by_role("table", name="Steps")).to_contain_text(HOSTILE[0])
    at.turn(page, f"/runs/{runs[1]}")
    expect(page.get_by_role("table", name="Steps")).to_contain_text(r"[/b]\u202egnp.exe\x1b[31m")
    at.turn(page, f"/events/{named}")
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE[0])
    assert page.evaluate("document.querySelectorAll('main img, main script, main svg:not(.bars)').length") == 0
    assert page.evaluate("globalThis.broken") is None
    page.goto(at.running.url + "/runs/%E0%A4%A")
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such page")
    page.goto(at.running.url + "/?q=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E&status=%3Cb%3E")
    at.allowed = ("400",)
    expect(page.locator(".notice")).to_contain_text("[invalid]")


def test_nothing_of_elsewhere_runs_even_if_it_gets_into_the_page(at: Shop) -> None:
    at.allowed = ("Content Security Policy", "TrustedHTML", "TrustedScript")
    page = at.tab("/")
    blocked = page.evaluate(
        """() => {
          const tried = [];
          try { document.body.insertAdjacentHTML('beforeend', '<img src=x>'); tried.push('markup'); } catch {}
          const script = document.createElement('script');
          try { script.textContent = 'globalThis.broken = true'; document.body.append(script); } catch {}
          return { tried, broken: globalThis.broken ?? null };
        }"""
    )
    assert blocked == {"tried": [], "broken": None}
    assert page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    at.faults = [fault for fault in at.faults if "127.0.0.1:9/" not in fault]


def test_eight_tabs_are_live_over_one_stream_and_another_leads_when_the_first_is_closed(at: Shop) -> None:
    context = at.context()
    streams: list[str] = []
    context.on("request", lambda request: streams.append(request.url) if "/stream?" in request.url else None)
    tabs = [at.tab(path, context) for path in ("/", "/?q=ful", "/events", "/", "/unknown", "/workers", "/", "/")]
    assert len(streams) == 1
    first = at.run_of(at.running.send("order/placed", {"order": "eight"}))
    listing = [tabs[0], tabs[1], tabs[3], tabs[6], tabs[7]]
    for tab in listing:
        expect(tab.get_by_role("row", name=re.compile(first))).to_contain_text("Succeeded")
    tabs[0].close()
    eventually(lambda: tabs[7].wait_for_timeout(20) or len(streams) == 2, "another tab leads")
    second = at.run_of(at.running.send("order/placed", {"order": "seven"}))
    for tab in listing[1:]:
        expect(tab.get_by_role("row", name=re.compile(second))).to_contain_text("Succeeded")
    positions = {tab.evaluate("ryusen.live.position") for tab in tabs[1:]}
    assert len(positions) <= 2


def test_updates_keep_focus_selection_and_what_is_typed(at: Shop) -> None:
    at.settled_run(at.run_of(at.running.send("order/placed", {"order": "kept"})))
    page = at.tab("/?function=fulfil-order")
    row = page.locator("[data-row]").first
    kept = row.inner_text()
    row.focus()
    row.evaluate("node => getSelection().selectAllChildren(node)")
    new = at.run_of(at.running.send("order/placed", {"order": "new"}))
    expect(page.get_by_role("row", name=re.compile(new))).to_contain_text("Succeeded")
    assert page.evaluate("document.activeElement.textContent") == kept
    assert page.evaluate("getSelection().toString()") == kept
    page.keyboard.press("s")
    page.get_by_role("dialog").get_by_label("Name", exact=True).fill("half typed")
    newer = at.run_of(at.running.send("order/placed", {"order": "newer"}))
    expect(page.locator("[data-row]", has_text=newer)).to_have_count(1)
    expect(page.get_by_role("dialog").get_by_label("Name", exact=True)).to_have_value("half typed")
    expect(page.get_by_role("dialog").get_by_label("Name", exact=True)).to_be_focused()


def test_reduced_motion_moves_nothing(at: Shop, stands: dict[str, str]) -> None:
    page = at.tab(f"/runs/{stands['failed']}", reduced_motion="reduce")
    moving = """[...document.querySelectorAll('*')].map(node => getComputedStyle(node))
      .filter(style => parseFloat(style.transitionDuration) || style.animationName !== 'none').length"""
    assert page.evaluate(moving) == 0


def test_b55_instants_name_the_zone_of_the_reader(at: Shop, stands: dict[str, str]) -> None:
    page = at.tab(f"/runs/{stands['failed']}", timezone_id="Europe/Berlin")
    for at_ms, said in (
        (1_774_745_999_999, "2026-03-29 01:59:59.999 +01:00"),
        (1_774_746_000_000, "2026-03-29 03:00:00.000 +02:00"),
        (1_792_886_400_000, "2026-10-25 02:00:00.000 +02:00"),
        (1_792_890_000_000, "2026-10-25 02:00:00.000 +01:00"),
    ):
        assert page.evaluate("async at => (await import('/assets/say.js')).instant(at)", at_ms) == said
    expect(page.locator("time").first).to_contain_text(re.compile(r"\+0[12]:00"))


def test_b52_passes_are_shown_as_passes_and_no_attempts(at: Shop, stands: dict[str, str]) -> None:
    page = at.tab(f"/runs/{stands['waiting']}")
    passes = [record for record in at.running.history(stands["waiting"]) if record["kind"] == "discovery_queued"]
    expect(page.locator(".lane.passes")).to_contain_text(f"{len(passes)} passes")
    expect(page.locator(".lane.passes title").first).to_have_text("discovery pass 1")


def test_words_spans_and_foreign_text_are_said_as_in_terminals(at: Shop) -> None:
    page = at.tab("/")

    def said(function: str, *cases: Any) -> Any:
        return page.evaluate(
            "async ([name, cases]) => { const say = await import('/assets/say.js'); return cases.map(each => say[name](...each)); }",
            [function, [list(case) for case in cases]],
        )

    spans = [
        0,
        1,
        999,
        1000,
        1049,
        1050,
        1500,
        59_949,
        59_950,
        60_000,
        125_000,
        3_599_499,
        3_599_500,
        9_000_000,
        86_399_999,
        100_000_000,
        -5,
    ]
    assert said("span", *[[ms] for ms in spans]) == [format_ms(ms) for ms in spans]
    texts = [chr(code) for code in (*range(0xA1), 0xAD, 0x61C, 0x200B, 0x200D, 0x202E, 0x2066, 0xFEFF, 0xFFFA, 0xE0001, 0x1F600)]
    assert said("printable", *[[text] for text in texts]) == [words.printable(text) for text in texts]
    assert said("printable", *[[text, True] for text in texts]) == [words.printable(text, multiline=True) for text in texts]
    runs = [
        (status, reason, outcome)
        for status, reason, outcome in itertools.product(
            ("running", "definition_blocked", "stopping", "compensating", "ended"),
            (None, "cancelled", "timed_out"),
            (None, "succeeded", "failed", "cancelled", "timed_out"),
        )
    ]
    shown = said(
        "runWord", *[[{"status": status, "stop": reason and {"reason": reason}, "outcome": outcome}] for status, reason, outcome in runs]
    )
    for run, word in zip(runs, shown, strict=True):
        told = words.run_word(*run)  # pyright: ignore[reportArgumentType]
        assert word == {"glyph": told.glyph, "text": told.text, "tone": told.tone}, run
    counts = {"pending": 0, "succeeded": 2, "failed": 1, "skipped": 3}
    for recovery in ("not_required", "fully_compensated", "partially_compensated", "compensation_failed"):
        told = words.recovery_word(recovery, None, UnwindCounts(**counts))
        assert said("recoveryWord", [recovery, counts])[0]["text"] == told.text
    for left_ms in (0, 1, 17_001, 119_000, 200_000):
        attempt = {"state": "authorized", "out_of_contact": True, "unknown_at_ms": left_ms, "settled_by": None}
        assert (
            said("attemptWord", [attempt, 0])[0]["text"]
            == words.attempt_word("authorized", out_of_contact=True, unknown_in_ms=left_ms).text
        )
    own, installed, made = (
        f'  File "{file}", line 7, in work\n    x()\n' for file in ("/a b/\u202eapp.py", "/v/site-packages/x.py", "<string>")
    )
    stacks = [
        "",
        "no frame",
        own,
        installed,
        own + installed + made,
        installed + own + own.replace("7", "8") + installed,
        made + installed,
    ]
    assert said("raisedAt", *[[stack] for stack in stacks]) == [plain.raised_at(stack) for stack in stacks]
    for reason, hidden in ((None, None), ("hidden", "a\u202eb"), ("hidden", None), ("not_met", None), ("new\x1b", None)):
        assert said("skipReason", [reason, hidden])[0] == words.skip_reason(reason, hidden)


def test_values_keep_every_digit_and_what_is_no_value_is_told(at: Shop) -> None:
    page = at.tab("/")
    read = """async text => {
      const { parseTagged } = await import('/assets/values.js');
      try { return parseTagged(text); } catch (error) { return error.message; }
    }"""
    assert page.evaluate(read, '[9223372036854775807, 18446744073709551615, -0, -0.0, 1.0, 1e3, true, null, "\\u00e9"]') == {
        "type": "array",
        "value": [
            {"type": "i64", "value": "9223372036854775807"},
            {"type": "u64", "value": "18446744073709551615"},
            {"type": "i64", "value": "0"},
            {"type": "f64", "value": "-0"},
            {"type": "f64", "value": 1},
            {"type": "f64", "value": 1000},
            {"type": "bool", "value": True},
            {"type": "null"},
            {"type": "string", "value": "é"},
        ],
    }
    wrong = {
        "18446744073709551616": "beyond 64 bits",
        "1e999": "no double",
        '{"a": 1, "a": 2}': "twice",
        "NaN": "no JSON value begins here",
        '"\\ud800"': "surrogate",
        "[1,]": "no JSON value",
        "01": "follows",
        "": "too early",
        "[" * 2000: "too deeply",
    }
    for text, why in wrong.items():
        assert why in page.evaluate(read, text), text
    tagged = '{"type":"object","value":{"__proto__":{"type":"u64","value":"18446744073709551615"},"x":{"type":"f64","value":1}}}'
    shown = page.evaluate("async text => (await import('/assets/values.js')).valueText(JSON.parse(text), 0)", tagged)
    assert shown == '{"__proto__": 18446744073709551615, "x": 1.0}'


REDUCED = """async () => {
  const { EMPTY, reduce, due, lookOf, runOf, runsOf } = await import('/assets/model.js');
  const told = [];
  const act = (action) => { state = reduce(state, action); };
  const run = (status, extra) => ({ run_id: 'r1', status, children: [], attention_run_id: null, ...extra });
  const runs = { kind: 'runs', key: '/runs' }, detail = { kind: 'run', key: '/runs/r1', id: 'r1' };
  const history = { kind: 'history', key: '/h', id: 'r1' };
  let state = EMPTY;
  act({ type: 'wanted', resources: [runs, detail, history] });
  told.push(['due', due(state).length, lookOf(state, state.resources['/runs'])]);
  act({ type: 'asked', key: '/runs' }); act({ type: 'asked', key: '/runs/r1' });
  act({ type: 'change', change: { position: 7, records: [{ kind: 'step_declared', run_id: 'r1' }] } });
  act({ type: 'answered', key: '/runs', document: { position: 6, items: [run('running')], next_cursor: null } });
  told.push(['a change while an answer was out', due(state).map((one) => one.key)]);
  act({ type: 'answered', key: '/runs/r1', document: { ...run('ended'), position: 9 } });
  told.push(['one run, one state', runOf(state, 'r1').status, runsOf(state, '/runs')[0].status]);
  act({ type: 'asked', key: '/runs' });
  act({ type: 'answered', key: '/runs', document: { position: 8, items: [run('running')], next_cursor: null } });
  told.push(['an older answer takes nothing back', runsOf(state, '/runs')[0].status]);
  act({ type: 'asked', key: '/runs/r1' });
  act({ type: 'failed', key: '/runs/r1', error: { message: 'gone' } });
  told.push(['stale keeps what there was', lookOf(state, state.resources['/runs/r1']), state.resources['/runs/r1'].document.status]);
  act({ type: 'asked', key: '/runs/r1' });
  act({ type: 'failed', key: '/runs/r1', error: { message: 'no such run', status: 404 } });
  told.push(['a refusal is not asked for again', due(state).map((one) => one.key)]);
  act({ type: 'change', change: { position: 12, records: [{ kind: 'run_ended', run_id: 'r1' }] } });
  told.push(['until something changes', due(state).map((one) => one.key)]);
  act({ type: 'asked', key: '/h' });
  act({ type: 'answered', key: '/h', document: { items: [{ position: 1 }, { position: 2 }], next_cursor: 'more' } });
  act({ type: 'answered', key: '/h', document: { items: [{ position: 2 }, { position: 5 }], next_cursor: null } });
  told.push(['history grows once', state.resources['/h'].document.items.map((one) => one.position)]);
  act({ type: 'resync', position: 5 });
  act({ type: 'asked', key: '/runs' });
  act({ type: 'answered', key: '/runs', document: { position: 6, items: [run('running')], next_cursor: null } });
  told.push(['over another database', runsOf(state, '/runs')[0].status]);
  act({ type: 'wanted', resources: [history] });
  told.push(['forgotten', Object.keys(state.resources), Object.keys(state.runs)]);
  const before = state; act({ type: 'heartbeat', position: 3 });
  told.push(['an old heartbeat changes nothing', before === state]);
  act({ type: 'resync', position: 2 });
  told.push(['resync', due(state).map((one) => one.key), state.position]);
  return told;
}"""


@pytest.mark.req("API-06")
def test_the_projection_never_misses_a_change_and_never_contradicts_itself(at: Shop) -> None:
    page = at.tab("/")
    assert page.evaluate(REDUCED) == [
        ["due", 3, "loading"],
        ["a change while an answer was out", ["/runs", "/h"]],
        ["one run, one state", "ended", "ended"],
        ["an older answer takes nothing back", "ended"],
        ["stale keeps what there was", "stale", "ended"],
        ["a refusal is not asked for again", ["/h"]],
        ["until something changes", ["/runs", "/runs/r1", "/h"]],
        ["history grows once", [1, 2, 5]],
        ["over another database", "running"],
        ["forgotten", ["/h"], []],
        ["an old heartbeat changes nothing", True],
        ["resync", ["/h"], 2],
    ]


@pytest.mark.req("API-06")
def test_b64_a_stream_that_is_cut_again_and_again_tells_every_tab_each_change_once_and_in_order(at: Shop) -> None:
    assert follow_through_cuts(at, 10) > 20


def test_with_credentials_the_page_asks_for_a_token_and_keeps_it_for_the_tab(browser: Browser, tmp_path: Path) -> None:
    credentials = write_credentials(tmp_path / "credentials.toml")
    running = Running(tmp_path, "serve", "--json", "--port", "0", "--db", "tokens.db", "--credentials", str(credentials))
    context = browser.new_context()
    try:
        url = running.ready()["addresses"][0]
        page = context.new_page()
        # A frame may be late, and whoever types does not wait for it: what is typed counts before it is drawn.
        page.add_init_script("globalThis.requestAnimationFrame = (frame) => setTimeout(() => frame(performance.now()), 500)")
        authorized: list[str | None] = []
        page.on("request", lambda request: authorized.append(request.headers.get("authorization")) if "/stream?" in request.url else None)
        page.goto(url)
        dialog = page.get_by_role("dialog", name="This server asks for a token")
        expect(page.locator("main .notice")).to_contain_text("[unauthorized]")
        check_axe(page, "the dialog for a token")
        dialog.get_by_label("Token").fill("no-such-token-0123456789")
        dialog.get_by_role("button", name="Use it").click()
        expect(page.get_by_role("dialog")).to_contain_text("Refused")
        page.get_by_role("dialog").get_by_label("Token").fill(token("sender"))
        page.keyboard.press("Enter")
        expect(page.locator("main .notice")).to_contain_text("[forbidden]")
        page.get_by_role("dialog").get_by_label("Token").fill(token("everything"))
        page.keyboard.press("Enter")
        page.wait_for_selector("main[data-state=live]")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.locator("main")).to_contain_text("There are no runs yet")
        assert authorized == [bearer("everything")["authorization"]]
        page.keyboard.press("s")
        page.keyboard.type("anything/new")
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_contain_text("No trigger matches")
        page.reload()
        page.wait_for_selector("main[data-state=live]")
        other = context.new_page()
        other.goto(url + "/events")
        expect(other.get_by_role("dialog", name="This server asks for a token")).to_be_visible()
        assert page.evaluate("localStorage.length") == 0
        assert page.evaluate("document.cookie") == ""
    finally:
        context.close()
        running.end()
