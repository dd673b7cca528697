"""A browser at a real server with a real worker.

Whatever a page does that it must not do (an error, a request to elsewhere, a violated policy) fails the test that saw it.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Route, expect, sync_playwright

from tests.acceptance.product import Product, W, eventually, product

CHROMIUM = shutil.which("chromium")
SHOP = Path(__file__).with_name("shop.py")
PATIENCE_MS = 15_000
WIDE = {"width": 1280, "height": 800}
NARROW = {"width": 360, "height": 740}

expect.set_options(timeout=PATIENCE_MS)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """One browser. No test of another kind may run while it lives: its driver has a loop of its own on this thread."""
    assert CHROMIUM is not None
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


class Shop:
    """The product with the shop's functions, and tabs that are watched."""

    def __init__(self, running: Product, browser: Browser) -> None:
        self.running = running
        self.browser = browser
        self.faults: list[str] = []
        self.allowed: tuple[str, ...] = ()
        """Parts of console messages that the test brings about on purpose."""
        self._contexts: list[BrowserContext] = []

    def context(self, *, viewport: Any = WIDE, **options: Any) -> BrowserContext:
        made = self.browser.new_context(viewport=viewport, base_url=self.running.url, **options)
        made.set_default_timeout(PATIENCE_MS)
        made.on("request", self._requested)
        made.on("console", self._said)
        made.on("weberror", lambda error: self.faults.append(f"error: {error.error}"))
        self._contexts.append(made)
        return made

    def tab(self, path: str = "/", context: BrowserContext | None = None, **options: Any) -> Page:
        """A tab at a path, its stream live."""
        page = (context or self.context(**options)).new_page()
        self.go(page, path)
        return page

    def go(self, page: Page, path: str) -> None:
        page.goto(self.running.url + path)
        page.wait_for_selector("main[data-state=live]")

    def turn(self, page: Page, path: str) -> None:
        """Go to another page as a link does, without loading the document again."""
        page.evaluate("path => { history.pushState({}, '', path); dispatchEvent(new PopStateEvent('popstate')); }", path)
        page.wait_for_selector("main[data-state=live]")

    def _requested(self, request: Request) -> None:
        if not request.url.startswith((self.running.url + "/", "blob:", "data:")):
            self.faults.append(f"request to {request.url}")

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(part in message.text for part in self.allowed):
            self.faults.append(f"console {message.type}: {message.text}")

    def close(self) -> None:
        for context in self._contexts:
            context.close()
        self._contexts.clear()

    def check(self) -> None:
        faults, self.faults = self.faults, []
        assert faults == []

    def run_of(self, event: Any) -> str:
        """The id of an event's one run."""
        return eventually(lambda: self.running.runs_of(event["event_id"]), "the run exists")[0]["run_id"]

    def unknown(self, run_id: str) -> Any:
        """The run's Unknown attempt, once there is one."""

        def probe() -> Any:
            items = self.running.get(f"{W}/attempts?state=unknown&limit=200")["items"]
            return next((item for item in items if item["run_id"] == run_id), None)

        return eventually(probe, f"an attempt of {run_id} becomes Unknown")

    def let(self, name: str) -> None:
        """Open a gate that callbacks wait at."""
        (self.running.folder / name).touch()

    def settled_run(self, run_id: str) -> Any:
        """The run, once it has ended."""

        def probe() -> Any:
            run = self.running.get(f"{W}/runs/{run_id}")
            return run if run["status"] == "ended" else None

        return eventually(probe, f"{run_id} ends")


@contextlib.contextmanager
def shop(folder: Path, browser: Browser, **options: Any) -> Iterator[Shop]:
    """A shop of its own: server, worker, browser."""
    with product(folder, **options) as running:
        running.start_worker("--release", "r7", target=SHOP)
        made = Shop(running, browser)
        try:
            yield made
        finally:
            made.close()


class Lost:
    """Loses the answers of requests to paths that end so, after the server has given them. `held`: how many were."""

    def __init__(self, page: Page, ending: str, times: int = 1) -> None:
        self.bodies: list[str] = []
        self._times = times
        page.route(f"**/*{ending}", self._route)

    def _route(self, route: Route) -> None:
        if route.request.method != "POST":
            route.continue_()
            return
        self.bodies.append(route.request.post_data or "")
        if len(self.bodies) > self._times:
            route.continue_()
            return
        route.fetch()
        route.abort("connectionreset")
