"""What callbacks print and log: kept beside their outcome, and nothing of it to be noticed where they print."""

from __future__ import annotations

import asyncio
import contextvars
import io
import json
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ryusen_protocol.ids import RequestId
from ryusen_protocol.limits import LOG_BYTES_MAX
from ryusen_sdk import Event, Ryusen, Step, SyncStep, run_logger
from ryusen_sdk.capture import Lines, install
from ryusen_sdk.host import Host
from tests.sdk.hosted import answer
from tests.sdk.peer import NULL, JsonDict, compensation, discovery, done, forward

Printed = list[tuple[str, str]]


def steps(callback: Callable[..., Any], *, sync: bool, compensate: Callable[..., Any] | None = None) -> Ryusen:
    app = Ryusen("shop")

    async def body(_event: Event, step: Step) -> None:
        print("the body runs again and again")
        await step.run("s", callback, compensate=compensate)

    def sync_body(_event: Event, step: SyncStep) -> None:
        print("the body runs again and again")
        step.run("s", callback, compensate=compensate)

    app.function(id="fulfil")(sync_body if sync else body)
    return app


async def printed(app: Ryusen, document: JsonDict) -> Printed:
    given = await answer(app, document)
    assert isinstance(given, bytes), given
    return [(line["level"], line["text"]) for line in json.loads(given).get("logs", [])]


def say() -> str:
    print("one", end=" ")
    print("line")
    print("bad", file=sys.stderr)
    logging.getLogger("shop").warning("low on %s", "stock")
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        logging.getLogger("shop").exception("broken")
    sys.stdout.write("no end")
    return "ok"


async def async_say() -> str:
    await asyncio.sleep(0)
    return say()


def checked(lines: Printed) -> None:
    assert lines[:3] == [("stdout", "one line"), ("stderr", "bad"), ("warning", "low on stock")]
    assert lines[3][0] == "error"
    assert lines[3][1].startswith("broken\nTraceback")
    assert lines[3][1].endswith("ZeroDivisionError: division by zero")
    assert lines[4:] == [("stdout", "no end")]


@pytest.mark.parametrize("callback", [say, async_say])
@pytest.mark.parametrize("sync", [False, True])
async def test_everything_is_kept_once_and_still_reaches_its_stream(
    callback: Callable[..., Any], sync: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger("shop").addHandler(handler)
    try:
        checked(await printed(steps(callback, sync=sync), forward("s")))
    finally:
        logging.getLogger("shop").removeHandler(handler)
    seen = capsys.readouterr()
    assert seen.out == "the body runs again and again\none line\nno end"
    assert seen.err.startswith("bad\nlow on stock\nbroken\nTraceback")


async def test_compensators_are_kept_and_bodies_are_not() -> None:
    app = steps(say, sync=False, compensate=lambda _result: print("undone"))  # type: ignore[misc]
    assert await printed(app, compensation("s", done("s", NULL))) == [("stdout", "undone")]

    async def body(_event: Event, step: Step) -> None:
        run_logger().warning("news")
        print("again")
        await step.run("s", say)

    app = Ryusen("shop")
    app.function(id="fulfil")(body)
    assert await printed(app, discovery()) == []


async def test_tasks_and_copied_contexts_count_and_other_threads_do_not() -> None:
    async def spread() -> None:
        async def task(number: int) -> None:
            await asyncio.sleep(0)
            print(f"task {number}")

        await asyncio.gather(task(1), task(2))
        await asyncio.to_thread(print, "to_thread")
        for context in (contextvars.copy_context(), contextvars.Context()):
            thread = threading.Thread(target=context.run, args=(print, "thread"))
            thread.start()
            await asyncio.to_thread(thread.join)

    lines = await printed(steps(spread, sync=False), forward("s"))
    assert lines == [("stdout", "task 1"), ("stdout", "task 2"), ("stdout", "to_thread"), ("stdout", "thread")]


async def test_callbacks_that_run_side_by_side_keep_their_own() -> None:
    both = threading.Barrier(2)

    def callback(name: str) -> None:
        for number in range(50):
            both.wait(10)
            print(f"{name}{number}", end="")
            both.wait(10)
            print()

    async def one(name: str) -> Printed:
        return await printed(steps(lambda: callback(name), sync=False), forward("s"))

    first, second = await asyncio.gather(one("a"), one("b"))
    assert first == [("stdout", f"a{number}") for number in range(50)]
    assert second == [("stdout", f"b{number}") for number in range(50)]


async def test_what_a_callback_prints_on_is_what_it_was() -> None:
    """Identity, type and every property of the streams; and a broken handler, formatter or stream raises what it would."""
    stream, kind = sys.stdout, sys.stdout.__class__
    found: list[object] = []

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise LookupError("broken handler")

    def callback() -> None:
        found.extend((sys.stdout is stream, sys.stdout.__class__ is kind, isinstance(sys.stdout, io.TextIOBase), sys.stdout.isatty()))
        with pytest.raises(TypeError):
            sys.stdout.write(b"bytes")  # type: ignore[arg-type]
        log = logging.Logger("broken")  # noqa: LOG001 - known to this test alone
        log.addHandler(Broken())
        with pytest.raises(LookupError):
            log.warning("still kept")
        record: list[logging.LogRecord] = []
        plain = logging.Logger("plain")  # noqa: LOG001 - as above
        plain.addHandler(logging.Handler())
        plain.handlers[0].emit = record.append  # type: ignore[method-assign]
        try:
            _ = 1 / 0
        except ZeroDivisionError:
            plain.exception("seen")
        assert record[0].exc_text is None, "the record is handed on as it was"

    lines = await printed(steps(callback, sync=False), forward("s"))
    assert found == [True, True, True, stream.isatty()]
    assert [text.partition("\n")[0] for _, text in lines] == ["still kept", "seen"]


async def test_nothing_that_is_printed_fails_the_attempt() -> None:
    class Hostile(str):
        __slots__ = ()

        def __str__(self) -> str:
            raise RuntimeError("no")

        def split(self, *_: object) -> list[str]:  # type: ignore[override]
            raise RuntimeError("no")

    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("no")

    def callback() -> str:
        sys.stdout.write(Hostile("a subclass\n"))
        logging.raiseExceptions = False
        try:
            logging.getLogger("shop").warning("%d and %s", "x", Unprintable())
        finally:
            logging.raiseExceptions = True
        alone = logging.Logger("alone")  # noqa: LOG001 - no report of this test may hold what follows
        alone.addHandler(logging.NullHandler())
        alone.warning("lone \udc80 [b]\x1b[31m\x00")
        return "ok"

    given = await answer(steps(callback, sync=False), forward("s"))
    assert isinstance(given, bytes)
    document = json.loads(given)
    assert document["outcome"]["type"] == "succeeded"
    texts = [line["text"] for line in document["logs"]]
    assert texts == ["a subclass", "%d and %s (its arguments do not fit)", "lone \\udc80 [b]\x1b[31m\x00"]


async def test_a_callback_that_prints_without_end_keeps_the_first_and_the_last() -> None:
    def callback() -> None:
        for number in range(20_000):
            print(f"line {number}")
        print("x" * 100_000)
        print("last")

    given = await answer(steps(callback, sync=False), forward("s"))
    assert isinstance(given, bytes)
    logs = json.loads(given)["logs"]
    assert len(json.dumps(logs, separators=(",", ":"), ensure_ascii=False).encode()) <= LOG_BYTES_MAX
    assert logs[0]["text"] == "line 0"
    assert logs[-1]["text"] == "last"
    assert "characters cut]" in logs[-2]["text"]
    assert [line["level"] for line in logs].count("cut") == 1


async def test_a_progress_bar_is_its_last_state() -> None:
    def callback() -> None:
        for number in range(1000):
            sys.stderr.write(f"\r{number} of 1000")
        sys.stderr.write("\ndone\r\n")

    assert await printed(steps(callback, sync=False), forward("s")) == [("stderr", "999 of 1000"), ("stderr", "done")]


async def test_what_a_callback_leaves_behind_prints_for_itself_alone() -> None:
    release = asyncio.Event()
    left: list[asyncio.Task[None]] = []

    async def callback() -> None:
        async def later() -> None:
            await release.wait()
            print("too late")

        left.append(asyncio.create_task(later()))

    assert await printed(steps(callback, sync=False), forward("s")) == []
    release.set()
    await left[0]


def test_news_are_told_once_until_they_are_asked_for() -> None:
    told: list[Lines] = []
    lines = Lines(RequestId("rq_1"), told.append)
    lines.wrote("stdout", "half")
    assert told == []
    lines.wrote("stdout", " a line\nand")
    lines.wrote("stdout", " another\n")
    assert told == [lines]
    assert [line.text for line in lines.untold()] == ["half a line", "and another"]
    assert lines.untold() == []
    lines.wrote("stdout", "more\n")
    assert told == [lines, lines]
    assert [line.text for line in lines.end()] == ["half a line", "and another", "more"]
    assert lines.untold() == [], "the outcome tells"


def test_taps_are_set_once_and_on_new_streams(capsys: pytest.CaptureFixture[str]) -> None:
    install()
    first = sys.stdout.write
    install()
    assert sys.stdout.write is first
    before = sys.stdout
    sys.stdout = io.StringIO()
    try:
        install()
        assert sys.stdout.write is not first
    finally:
        sys.stdout = before
    assert logging.Logger.callHandlers.__name__ == "tapped"
    assert Host.__module__ == "ryusen_sdk.host"
    print("through")
    assert capsys.readouterr().out == "through\n"
