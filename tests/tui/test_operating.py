"""The dashboard end to end: what happens on a real server and worker is watched, and what is Unknown is settled by keyboard alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from ryusen_tui.resolve import Resolve
from tests.tui.stage import Driven, Stage, dashboard, off_loop, stage


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("acting")) as made:
        yield made


async def resolving(driven: Driven, attempt: str) -> Resolve:
    """The dialog on that attempt, opened by keys; Cancel has the focus, and R or Enter on it change nothing."""
    await driven.press("2")
    table = await driven.until(
        lambda: next((t for t in driven.app.screen.query("#unknown-table") if attempt in t._at), None), "it is listed"
    )
    table.mark(attempt)
    await driven.press("R")
    await driven.sees("Resolve an Unknown attempt", attempt, "generation 1")
    dialog = driven.app.screen
    assert isinstance(dialog, Resolve)
    assert dialog.focused is not None
    assert dialog.focused.id == "cancel"
    return dialog


async def fill(driven: Driven, choice: str, text: str) -> None:
    """One of the three, its text, and Enter twice: on the entry, then on Apply."""
    await driven.press(choice)
    await driven.press(*text)
    await driven.press("enter")
    await driven.until(lambda: driven.app.focused is not None and driven.app.focused.id == "apply", "Apply has the focus")
    await driven.press("enter")


@pytest.mark.req("OPR-01")
async def test_a_run_is_watched_as_it_fails_and_unwinds(acting: Stage) -> None:
    async with dashboard(acting.url) as driven:
        await driven.sees("live")
        await driven.press("s")
        name, data = driven.app.screen.query("Input")
        name.value, data.value = "order/placed", '{"fail": "no carrier"}'  # type: ignore[attr-defined]
        data.focus()
        await driven.press("enter")
        await driven.sees("accepted")
        await driven.press("escape")
        await driven.sees("Failed", "Fully compensated", "3/3")
        await driven.press("g", "enter")
        shown = await driven.sees("Fully compensated (2 undone)", "no carrier", "undone")
    lanes = [line.split()[0:2] for line in shown.splitlines() if "█" in line]
    assert [" ".join(one).lstrip("▸").split(" █")[0].split("█")[0].strip() for one in lanes] == [
        "charge",
        "reserve",
        "ship",
        "↺ reserve",
        "↺ charge",
    ]


@pytest.mark.req("OPR-01", "OPR-09", "OPR-23")
async def test_a_supplied_result_goes_on_and_its_acknowledgement_stays(acting: Stage) -> None:
    run_id, attempt = await off_loop(lambda: acting.make_unknown("supply"))
    async with dashboard(acting.url) as driven:
        await driven.sees("needs you")
        await resolving(driven, attempt)
        await driven.sees("; its worker was out of contact")
        await driven.press("1", *'{"a": ')
        await driven.sees("not JSON")
        await driven.press(*"7}", "enter")
        await driven.until(lambda: driven.app.focused is not None and driven.app.focused.id == "apply", "Apply has the focus")
        assert acting.run(run_id)["status"] == "running", "Enter in the entry applies nothing"
        await driven.press("enter")
        await driven.sees("Applied:", "step succeeded")
        run = await off_loop(lambda: acting.ended(run_id))
        await driven.until(lambda: not driven.app.feed.board.unknown, "it leaves the list")
        await driven.sees("Applied:", attempt)
        await driven.press("1", "enter")
        await driven.sees("Nothing is Unknown")
    assert (run["outcome"], run["steps"][1]["attempts"][0]["settled_by"]) == ("succeeded", "operator")


@pytest.mark.req("OPR-01", "OPR-23")
async def test_a_declared_failure_unwinds(acting: Stage) -> None:
    run_id, attempt = await off_loop(lambda: acting.make_unknown("declare"))
    async with dashboard(acting.url, size=(80, 24)) as driven:
        await driven.sees("live")
        await resolving(driven, attempt)
        await fill(driven, "2", "courier.lost: no trace of it")
        await driven.sees("Applied:", "step failed")
        run = await off_loop(lambda: acting.ended(run_id))
    assert (run["outcome"], run["recovery"]) == ("failed", "fully_compensated")
    assert run["steps"][1]["failure"]["category"] == "courier.lost"


@pytest.mark.req("OPR-01", "OPR-15")
async def test_a_retry_asks_for_its_word_and_runs_once_more(acting: Stage) -> None:
    run_id, attempt = await off_loop(lambda: acting.make_unknown("again"))
    acting.let("again")
    async with dashboard(acting.url, size=(50, 16)) as driven:
        await driven.sees("live")
        dialog = await resolving(driven, attempt)
        await driven.press("3", *"yes", "enter")
        assert dialog.query_one("#apply").disabled
        await driven.press("backspace", "backspace", "backspace", *"retry", "enter", "enter")
        await driven.sees("Applied:", "attempt 2")
        run = await off_loop(lambda: acting.ended(run_id))
    attempts = run["steps"][1]["attempts"]
    assert run["outcome"] == "succeeded"
    assert [one["attempt"] for one in attempts] == [1, 2]
    assert len({one["operation_id"] for one in attempts}) == 1


@pytest.mark.req("OPR-10", "OPR-17")
async def test_a_refusal_stays_open_with_its_code_and_the_server_s_reason_stands_beside_what_is_forbidden(acting: Stage) -> None:
    run_id, attempt = await off_loop(lambda: acting.make_unknown("late", "timed"))
    await off_loop(lambda: acting.until(run_id, lambda run: run["stop"] is not None))
    async with dashboard(acting.url) as driven:
        await driven.sees("live")
        dialog = await resolving(driven, attempt)
        await driven.sees("3 authorize retry", "refused now: deadline_elapsed")
        await fill(driven, "3", "retry")
        await driven.sees("Refused, deadline_elapsed")
        assert dialog.state.is_open
        assert dialog.state.attempt.attempt_id == attempt
        await fill(driven, "1", "null")
        await driven.sees("Applied:")
        assert dialog.state.sent is not None
        assert len(dialog.state.keys) == 2, "another command has another key"
        run = await off_loop(lambda: acting.ended(run_id))
    assert run["outcome"] == "timed_out"


@pytest.mark.req("OPR-01")
async def test_a_late_result_that_wins_disables_the_controls(acting: Stage) -> None:
    run_id = acting.run_of("hold", {"name": "slow"})
    acting.product.await_marker("holding-slow")
    os.kill(acting.worker.pid, signal.SIGSTOP)
    attempt = await off_loop(lambda: acting.unknown_attempt(run_id))
    async with dashboard(acting.url) as driven:
        await driven.sees("live")
        dialog = await resolving(driven, attempt)
        await driven.press("1", *"null")
        acting.let("slow")
        os.kill(acting.worker.pid, signal.SIGCONT)
        await driven.sees("Settled meanwhile by a late result of its worker: succeeded")
        assert dialog.query_one("#apply").disabled
        assert not dialog.query_one("#entry").display
        await driven.press("2", "enter")
        await driven.sees("Unknown", without="Settled meanwhile")
        run = await off_loop(lambda: acting.ended(run_id))
    assert run["steps"][1]["attempts"][0]["settled_by"] == "worker"


@pytest.mark.req("UI-05")
async def test_a_worker_that_is_away_is_seen_though_nothing_of_the_run_changes(tmp_path: Path) -> None:
    with stage(tmp_path, lease_ms=60_000) as away:
        run_id = away.run_of("hold", {"name": "away"})
        away.product.await_marker("holding-away")
        async with dashboard(away.url) as driven:
            await driven.sees("live", run_id[:12])
            await driven.press("g", "enter")
            await driven.sees("Executing")
            await off_loop(away.kill_worker)
            await driven.sees("Out of contact", without="Executing")


class Lossy:
    """Between a dashboard and its server: passes everything on, and cuts the line instead of the answers to some commands."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.losses = 0
        self.bodies: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        is_lost = False

        async def back() -> None:
            while piece := await up_reader.read(65_536):
                if is_lost:
                    break
                writer.write(piece)
            writer.close()

        answers = asyncio.create_task(back())
        with contextlib.suppress(OSError):
            while piece := await reader.read(65_536):
                head, blank, body = piece.partition(b"\r\n\r\n")
                if b"/resolve HTTP" in head:
                    body = body or await reader.read(65_536)
                    self.bodies.append(body)
                    is_lost, self.losses = self.losses > 0, self.losses - 1
                # The server answers to its own name alone.
                up_writer.write(re.sub(rb"(?i)host: [^\r]+", b"Host: 127.0.0.1:%d" % self._port, head) + blank + body)
        up_writer.close()
        writer.close()
        await answers


@contextlib.asynccontextmanager
async def lossy(url: str) -> AsyncGenerator[tuple[Lossy, str]]:
    """The line and its address."""
    line = Lossy(int(url.rsplit(":", 1)[1]))
    server = await asyncio.start_server(line.serve, "127.0.0.1", 0)
    try:
        yield line, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.req("OPR-22")
async def test_a_lost_answer_says_so_and_is_asked_for_again_under_the_same_key(acting: Stage) -> None:
    run_id, attempt = await off_loop(lambda: acting.make_unknown("lost"))
    async with lossy(acting.url) as (line, address), dashboard(address) as driven:
        await driven.sees("live")
        dialog = await resolving(driven, attempt)
        line.losses = 2
        await fill(driven, "1", '"supplied"')
        await driven.sees("Not known yet", "answer was lost", "same key")
        await driven.sees("Applied:", "it had happened")
        assert dialog.state.phase == "done"
        run = await off_loop(lambda: acting.ended(run_id))
    assert len(line.bodies) == 3
    assert len(set(line.bodies)) == 1, "the very same command, key and all"
    settled = [
        record for record in acting.product.history(run_id) if record["kind"] == "attempt_settled" and record["attempt_id"] == attempt
    ]
    assert len(settled) == 1
    assert run["outcome"] == "succeeded"


async def test_the_dashboard_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    with stage(tmp_path) as own:
        first = own.run_of("order/placed", {})
        own.ended(first)
        async with dashboard(own.url) as driven:
            await driven.sees("Succeeded", "live")
            await off_loop(own.product.kill_server)
            await driven.sees("reconnecting", "as it was before contact was lost", "Succeeded")
            await off_loop(own.product.start_server)
            await driven.sees("live", without="reconnecting")
            run_id = await off_loop(lambda: own.run_of("nap", {}))
            await driven.until(lambda: [one for one in driven.app.feed.board.runs or () if one.run_id == run_id], "news come again")
            await driven.sees("nap", "Succeeded")


async def test_no_server_is_another_sight_than_no_runs(tmp_path: Path) -> None:
    async with dashboard("http://127.0.0.1:9") as driven:
        await driven.sees("No server at http://127.0.0.1:9", "trying again", "connecting")
        assert "No run yet" not in driven.text()
    with stage(tmp_path) as own:
        async with dashboard(own.url) as driven:
            await driven.sees("No run yet", "s sends an event")
            await driven.press("3")
            await driven.sees("No event yet")
        async with dashboard(own.url, workspace="elsewhere") as driven:
            await driven.press("4")
            await driven.sees("No worker has connected")
