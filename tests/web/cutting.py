"""Pages whose change stream breaks off again and again, in the middle of what it says, while runs come and go."""

from __future__ import annotations

import threading
from typing import Any

import httpx
from playwright.sync_api import Page

from tests.acceptance.product import PATIENCE_S, W, eventually
from tests.web.browsing import Shop

# Every stream is cut within its third piece.
CUT = """(() => {
  const plain = globalThis.fetch;
  globalThis.cuts = 0;
  globalThis.fetch = async (path, options) => {
    const answer = await plain(path, options);
    if (!String(path).includes('/stream?')) return answer;
    const reader = answer.body.getReader();
    let left = 3;
    return new Response(new ReadableStream({ async pull(controller) {
      const { done, value } = await reader.read();
      if (done) return controller.close();
      left -= 1;
      controller.enqueue(left ? value : value.subarray(0, value.length >> 1));
      if (left) return;
      globalThis.cuts += 1;
      reader.cancel();
      controller.error(new Error('cut'));
    } }));
  };
})()"""
SEE = """() => {
  globalThis.seen = [];
  const tell = ryusen.live.tell;
  ryusen.live.tell = (name, document) => { if (name === 'change') seen.push(document.position); tell(name, document); };
}"""
HISTORY = "Object.values(ryusen.state.resources).find(one => one.kind === 'history').document.items.map(one => one.position)"
LISTED = """() => Object.values(ryusen.state.resources).find(one => one.kind === 'runs').document.items.map(({ run_id }) => {
  const { run } = ryusen.state.runs[run_id];
  return [run.run_id, run.status, run.outcome, run.steps_completed];
})"""


def follow_through_cuts(at: Shop, cuts: int) -> int:
    """Follow a run and the list of runs over so many cuts, two writers at work. Returns how many changes each tab was told, each once."""
    run_id = at.run_of(at.running.send("long", {"steps": 40, "gate": "go-cut"}))
    context = at.context()
    context.add_init_script(CUT)
    history = at.tab(f"/runs/{run_id}?tab=history", context)  # leads: it is its stream that is cut
    runs = at.tab("/", context)
    for page in (history, runs):
        page.evaluate(SEE)
    over = threading.Event()
    writers = [threading.Thread(target=_write, args=(at, over)) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        eventually(
            lambda: history.wait_for_timeout(50) or history.evaluate("cuts") >= cuts, "it is cut so often", within_s=PATIENCE_S + cuts
        )
    finally:
        over.set()
        for writer in writers:
            writer.join()
    at.let("go-cut")
    at.settled_run(run_id)
    _await_list(at, runs)
    _await_history(at, history, run_id)
    last = at.running.get(f"{W}/runs?limit=1")["position"]
    for page in (history, runs):
        eventually(
            lambda page=page: page.wait_for_timeout(20) or page.evaluate("ryusen.live.position") >= last, "the tab is told everything"
        )
        seen = page.evaluate("seen")
        assert seen == _committed(at, seen[0], seen[-1])
    assert runs.evaluate("cuts") == 0
    return len(history.evaluate("seen"))


def _write(at: Shop, over: threading.Event) -> None:
    with httpx.Client(timeout=PATIENCE_S) as client:
        while not over.wait(0.05):
            client.post(f"{at.running.url}{W}/events", json={"name": "order/placed", "data": {}}).raise_for_status()


def _await_list(at: Shop, page: Page) -> None:
    def probe() -> bool:
        items: list[Any] = at.running.get(f"{W}/runs?limit=100")["items"]
        told = [[item["run_id"], item["status"], item["outcome"], item["steps_completed"]] for item in items]
        page.wait_for_timeout(50)
        return page.evaluate(LISTED) == told and page.locator("[data-row]").all_inner_texts() == [run[0] for run in told]

    eventually(probe, "the list is the server's")


def _await_history(at: Shop, page: Page, run_id: str) -> None:
    told = [entry["position"] for entry in at.running.get(f"{W}/runs/{run_id}/history?limit=500")["items"]]
    eventually(lambda: page.wait_for_timeout(50) or page.evaluate(HISTORY) == told, "the history is the server's")


def _committed(at: Shop, first: int, last: int) -> list[int]:
    """The positions of every change from one to another, from a stream of our own that nobody cuts."""
    found: list[int] = []
    with httpx.stream("GET", f"{at.running.url}{W}/stream?after={first - 1}", timeout=PATIENCE_S) as answer:
        for line in answer.iter_lines():
            if line.startswith("id: "):
                found.append(int(line.removeprefix("id: ")))
                if found[-1] >= last:
                    break
    return found
