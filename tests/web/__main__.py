"""Pictures and figures of the pages: `python -m tests.web pictures FOLDER`, `figures [MINUTES]` and `cuts [NUMBER]`.

Pictures are of every page and dialog at 1280 and 360 pixels, light and dark, for a person to look at. Figures are what the pages promise of
smoothness: first content of a list of 10,000 runs and of a run of 1,000 steps, the longest task while changes come, what they cost the
processor, and memory over time. Cuts are of the change stream, while runs come and go.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Page

from tests.acceptance.product import W, product
from tests.web.browsing import NARROW, WIDE, Shop, chromium, shop
from tests.web.cutting import follow_through_cuts

HOSTILE_ID = "<img src=x onerror=alert(1)> " + "a-very-long-step-id-" * 9
TABS = ("attempts", "history", "data", "logs", "why")


def scenes(at: Shop) -> dict[str, tuple[str, str]]:
    """Name to path and the keys pressed there, in a shop where runs stand in every way there is."""
    running = at.running
    sent = {
        "succeeded": running.send("order/placed", {"order": 7, "note": "long " * 400}),
        "failed": running.send("order/placed", {"fail": "no carrier takes it"}),
        "unknown": running.send("held", {"name": "picture"}),
        "blocked": running.send("twice", {}),
        "waiting": running.send("waits", {}),
        "undoing": running.send("undo", {}),
        "long": running.send("long", {"steps": 500}),
        "hostile": running.send("echo", {"id": HOSTILE_ID[:250], "text": HOSTILE_ID * 20}),
    }
    nobody = running.send("nobody/listens", {})["event_id"]
    runs = {name: at.run_of(event) for name, event in sent.items()}
    for name in ("succeeded", "failed", "long", "hostile"):
        at.settled_run(runs[name])
    for name in ("unknown", "undoing"):
        at.unknown(runs[name])
    found = {
        "runs": ("/", ""),
        "runs-none-match": ("/?q=nothing", ""),
        "unknown": ("/unknown", ""),
        "events": ("/events", ""),
        "event": (f"/events/{sent['succeeded']['event_id']}", ""),
        "event-unmatched": (f"/events/{nobody}", ""),
        "functions": ("/functions", ""),
        "workers": ("/workers", ""),
        "server": ("/server", ""),
        "missing": ("/runs/rn_nothing", ""),
        "dialog-send": ("/events", "s"),
        "dialog-resolve": ("/unknown", "R"),
        "dialog-resolve-result": ("/unknown", "R1"),
        "dialog-resolve-failure": ("/unknown", "R2"),
        "dialog-resolve-retry": ("/unknown", "R3"),
        "dialog-cancel": (f"/runs/{runs['blocked']}", "X"),
        "dialog-keys": ("/", "?"),
        "focus": ("/", "jj"),
    }
    found |= {f"run-{name}": (f"/runs/{run_id}", "") for name, run_id in runs.items()}
    found |= {f"run-failed-{tab}": (f"/runs/{runs['failed']}?tab={tab}", "") for tab in TABS}
    found |= {f"run-hostile-{tab}": (f"/runs/{runs['hostile']}?tab={tab}", "") for tab in TABS}
    return found


def pictures(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser, tempfile.TemporaryDirectory() as data, tempfile.TemporaryDirectory() as bare:
        with shop(Path(data), browser) as at:
            take(at, folder, scenes(at))
        with product(Path(bare)) as running:
            at = Shop(running, browser)
            empty = {
                f"empty-{path.strip('/') or 'runs'}": (path, "")
                for path in ("/", "/unknown", "/events", "/functions", "/workers", "/server")
            }
            take(at, folder, empty)
            at.close()
    print(f"{len(list(folder.glob('*.png')))} pictures in {folder}")


def take(at: Shop, folder: Path, wanted: dict[str, tuple[str, str]]) -> None:
    for scheme in ("light", "dark"):
        for viewport in (WIDE, NARROW):
            page = at.tab("/", viewport=viewport, color_scheme=scheme)
            for name, (path, keys) in wanted.items():
                at.go(page, path)
                for key in keys:
                    page.keyboard.press(key)
                    page.wait_for_timeout(150)
                page.wait_for_timeout(100)
                page.screenshot(path=folder / f"{name}-{viewport['width']}-{scheme}.png", full_page=not keys)
                over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                if over > 0:
                    print(f"{name} at {viewport['width']}: {over} pixels too wide")
            at.close()
    for fault in at.faults:
        print(fault)


# --- Figures ---

WATCH = """
globalThis.longest = 0;
globalThis.longestAt = 0;
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) if (one.duration > longest) [longest, longestAt] = [one.duration, one.startTime];
}).observe({ type: 'longtask', buffered: true });
"""
FORGET = "longest = longestAt = 0"
TOLD_LATE_MS = 2_000
"""A task is told to its observer after its end, and behind what else the page has to do."""
FIRST_ROW = """selector => new Promise(resolve => {
  const done = () => {
    if (document.querySelector(selector)) resolve(performance.now());
    else requestAnimationFrame(done);
  };
  done();
})"""


def figures(minutes: float) -> None:
    with chromium() as browser, tempfile.TemporaryDirectory() as data, shop(Path(data), browser) as at:
        run_id = at.run_of(at.running.send("long", {"steps": 1000, "gate": "go-long"}))
        flood(at, 10_000)
        print(f"runs: {at.running.get('/v1/server')['counts']['runs']}")
        first_content(at, "list of 10,000 runs", "/", "[data-row]", f"{W}/runs?limit=100")
        first_content(at, "run of 1,000 steps", f"/runs/{run_id}", ".lane", f"{W}/runs/{run_id}")
        stay_smooth(at, {"list of 10,000 runs": "/", "run of 1,000 steps": f"/runs/{run_id}"}, minutes)
        grow(at)
        for fault in at.faults:
            print(fault)


def stay_smooth(at: Shop, paths: dict[str, str], minutes: float) -> None:
    """Have pages open side by side while changes come. Clearing a heap is a task of ours, so what it takes is counted out."""
    pages = {name: watched(at, path) for name, path in paths.items()}
    longest = dict.fromkeys(pages, (0.0, 0.0))
    halves: dict[str, float] = {}
    work_s = {name: busy_s(page) for name, page in pages.items()}

    def look() -> None:
        for name, page in pages.items():
            found = page.evaluate("[longest, longestAt / 1000]")
            longest[name] = max(longest[name], (found[0], found[1]))

    with Changes(at, 50):
        for page in pages.values():
            page.wait_for_timeout(TOLD_LATE_MS)
            page.evaluate(FORGET)
        next(iter(pages.values())).wait_for_timeout(minutes * 30_000)
        look()
        for name, page in pages.items():
            halves[name] = heap(page)
            page.wait_for_timeout(TOLD_LATE_MS)
            page.evaluate(FORGET)
        next(iter(pages.values())).wait_for_timeout(minutes * 30_000)
        look()
    for name, page in pages.items():
        longest_ms, at_s = longest[name]
        print(
            f"{name}, 50 changes a second for {minutes:g} min: longest task {longest_ms:.0f} ms"
            + (f" at {at_s:.0f} s" if longest_ms else "")
            + ", "
            f"{work_s[name]() / (minutes * 60):.1%} of a processor, "
            f"heap {halves[name]:.1f} MB half-way, {heap(page):.1f} MB at the end, position {page.evaluate('ryusen.live.position')}"
        )
        page.context.close()


def first_content(at: Shop, name: str, path: str, selector: str, request: str) -> None:
    page = watched(at, path)
    shown_ms = page.evaluate(FIRST_ROW, selector)
    page.reload()
    shown_ms = page.evaluate(FIRST_ROW, selector)
    answered_ms = page.evaluate(
        "path => performance.getEntriesByType('resource').find(one => one.name.endsWith(path))?.responseEnd", request
    )
    print(f"{name}: first content {shown_ms - answered_ms:.0f} ms after its answer, {shown_ms:.0f} ms after the navigation began")
    page.context.close()


def grow(at: Shop) -> None:
    """Follow a run through its 1,000 steps."""
    run_id = at.run_of(at.running.send("long", {"steps": 1000}))
    page = watched(at, f"/runs/{run_id}")
    page.evaluate(FORGET)
    work_s, began = busy_s(page), time.monotonic()
    at.settled_run(run_id)
    took_s = time.monotonic() - began
    page.wait_for_timeout(3_000)
    print(
        f"run that goes through 1,000 steps in {took_s:.0f} s: longest task {page.evaluate('longest'):.0f} ms, "
        f"{work_s() / (took_s + 3):.1%} of a processor"
    )
    page.context.close()


def busy_s(page: Page) -> Callable[[], float]:
    """What the page's own thread has worked since now, in seconds of processor time: others that are busy do not count."""
    session: Any = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def total_s() -> float:
        return next(each["value"] for each in session.send("Performance.getMetrics")["metrics"] if each["name"] == "TaskDuration")

    start_s = total_s()
    return lambda: total_s() - start_s


def watched(at: Shop, path: str) -> Page:
    context = at.context()
    context.add_init_script(WATCH)
    return at.tab(path, context)


def heap(page: Page) -> float:
    session: Any = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return used / 1e6


def flood(at: Shop, runs: int) -> None:
    def one(number: int) -> None:
        client.post(f"{at.running.url}{W}/events", json={"name": "echo", "data": number}).raise_for_status()

    with httpx.Client(timeout=60) as client, ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(runs)))
    while at.running.get("/v1/server")["counts"]["moving"] > 1:
        time.sleep(0.5)


def cut(times: int) -> None:
    with chromium() as browser, tempfile.TemporaryDirectory() as data, shop(Path(data), browser) as at:
        told = follow_through_cuts(at, times)
        print(f"{times} cuts: {told} changes, each told once and in order to both tabs; list and history are the server's")


class Changes:
    """About so many committed transactions a second while it lasts; a run of `echo` has four."""

    def __init__(self, at: Shop, a_second: int) -> None:
        self._send: Callable[[], Any] = lambda: at.running.send("echo", "change")
        self._pause_s = 4 / a_second
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        while not self._over.wait(self._pause_s):
            self._send()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["pictures", where]:
            pictures(Path(where))
        case ["cuts", *more]:
            cut(int(more[0]) if more else 100)
        case ["figures", *more]:
            figures(float(more[0]) if more else 1)
        case _:
            sys.exit(__doc__)
