"""The SDK's HTTP handlers on real web servers: what they refuse, what they run, and what becomes of it. ASGI and WSGI alike."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import pytest

from ryusen_protocol.exchange import SIGNATURE_HEADER, TIMESTAMP_HEADER, WINDOW_S, sign, signature_problem
from ryusen_protocol.limits import REQUEST_BYTES_MAX
from ryusen_sdk import Event, Ryusen, Step, SyncStep, operation
from ryusen_sdk.errors import MisuseError
from tests.http.hosting import AsgiServer, wsgi_server
from tests.http.invocations import invocation, post
from tests.http.raw_endpoint import until

Hosted = Callable[..., AbstractAsyncContextManager[str]]


@asynccontextmanager
async def hosted_by_asgi(app: Ryusen, secret: str | None = None, **options: Any) -> AsyncGenerator[str, None]:
    async with AsgiServer(app.asgi(secret, **options)).serving() as server:
        yield server.url


@asynccontextmanager
async def hosted_by_wsgi(app: Ryusen, secret: str | None = None, **options: Any) -> AsyncGenerator[str, None]:
    with wsgi_server(app.wsgi(secret, **options)) as url:
        yield url


@pytest.fixture(params=[hosted_by_asgi, hosted_by_wsgi], ids=["asgi", "wsgi"])
def hosted(request: pytest.FixtureRequest) -> Hosted:
    return request.param


class Shop:
    """An application whose callbacks a test can hold, with what they did."""

    def __init__(self, **options: Any) -> None:
        self.app = Ryusen("shop", **options)
        self.effects: list[str] = []
        self.in_callback = threading.Event()
        self.go_on = threading.Event()
        self.app.function(on="order/placed")(self.fulfil_order)
        self.app.function()(self.sync_order)

    async def fulfil_order(self, event: Event, step: Step) -> str:
        charge = await step.run("charge", self.charge, compensate=self.refund)
        await step.run("hold", self.hold)
        await step.run("leave", self.leave)
        return charge

    def sync_order(self, event: Event, step: SyncStep) -> str:
        return step.run("charge", self.charge)

    async def charge(self) -> str:
        await asyncio.sleep(0)
        self.effects.append(f"charge {operation().attempt}")
        return "ch_1"

    async def refund(self, charge: str) -> None:
        self.effects.append(f"refund {charge}")

    def hold(self) -> str:
        self.in_callback.set()
        assert self.go_on.wait(20)
        self.effects.append("held")
        return "held"

    def leave(self) -> None:
        self.effects.append("left")
        raise SystemExit(3)


CHARGED = {"charge": {"type": "string", "value": "ch_1"}}


async def asked(url: str, document: Any, **options: Any) -> httpx.Response:
    return await asyncio.to_thread(post, url, document, **options)


async def outcome(url: str, document: Any, **options: Any) -> Any:
    answer = await asked(url, document, **options)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert (found["request_id"], found["run_id"]) == (document["request_id"], document["run"]["run_id"])
    return found["outcome"]


@pytest.mark.req("SDK-11", "SDK-12")
async def test_the_registered_functions_run_as_everywhere(hosted: Hosted) -> None:
    shop = Shop()
    async with hosted(shop.app) as url:
        declared = await outcome(url, invocation())
        assert (declared["type"], declared["declaration"]["step_id"]) == ("declared", "charge")
        assert shop.effects == []
        done = await outcome(url, invocation(step_id="charge"))
        assert done == {"type": "succeeded", "result": CHARGED["charge"], "attempt": 1, "attempt_generation": 1}
        undone = await outcome(url, invocation(steps=CHARGED, step_id="charge", compensate=CHARGED["charge"]))
        assert undone["type"] == "succeeded"
        assert (await outcome(url, invocation("sync-order", steps=CHARGED)))["type"] == "completed"
        assert (await outcome(url, invocation("sync-order", step_id="charge")))["type"] == "succeeded"
        assert shop.effects == ["charge 1", "refund ch_1", "charge 1"]


async def test_what_may_not_run_is_rejected_unbegun(hosted: Hosted) -> None:
    shop = Shop()
    async with hosted(shop.app, capacity=1) as url:
        unknown = await outcome(url, invocation("another", step_id="charge"))
        assert unknown == {"type": "rejected_before_start", "reason": "unsupported_target", "attempt": 1, "attempt_generation": 1}
        foreign = await outcome(url, invocation(step_id="charge", application="billing"))
        assert foreign["reason"] == "unsupported_target"
        delta = {"mode": "delta", "digest": "sha256:1", "base": {"count": 1, "digest": "sha256:0"}, "steps": []}
        assert (await outcome(url, invocation(history=delta, input=None)))["reason"] == "history_missing"
        held = asyncio.create_task(outcome(url, invocation(steps=CHARGED, step_id="hold")))
        await until(shop.in_callback.is_set)
        refused = invocation(step_id="charge")
        assert (await outcome(url, refused))["reason"] == "busy"
        shop.go_on.set()
        assert (await held)["type"] == "succeeded"
        assert (await outcome(url, refused))["reason"] == "busy", "what was proven never to begin does not begin when it arrives again"
        assert shop.effects == ["held"]


async def test_one_request_runs_once_however_often_it_arrives(hosted: Hosted) -> None:
    shop = Shop()
    async with hosted(shop.app) as url:
        document = invocation(steps=CHARGED, step_id="hold")
        first = asyncio.create_task(outcome(url, document))
        await until(shop.in_callback.is_set)
        second = asyncio.create_task(outcome(url, document))
        await asyncio.sleep(0.05)
        shop.go_on.set()
        assert await first == await second == await outcome(url, document)
        assert shop.effects == ["held"]


async def test_a_client_that_hangs_up_stops_nothing(hosted: Hosted) -> None:
    shop = Shop()
    async with hosted(shop.app) as url:
        document = invocation(steps=CHARGED, step_id="hold")
        body = json.dumps(document).encode()
        with socket.create_connection(("127.0.0.1", httpx.URL(url).port or 0)) as client:
            head = f"POST /ryusen HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            await until(shop.in_callback.is_set)
        shop.go_on.set()
        await until(lambda: shop.effects == ["held"])
        assert (await outcome(url, document))["type"] == "succeeded", "and the answer is there for who asks again"
        assert shop.effects == ["held"]


@pytest.mark.parametrize(
    ("what", "status", "code"),
    [
        ({"method": "GET"}, 405, "method_not_allowed"),
        ({"method": "PUT"}, 405, "method_not_allowed"),
        ({"path": "/other"}, 404, "not_found"),
        ({"content_type": "text/plain"}, 415, "unsupported_media_type"),
        ({"content_type": ""}, 415, "unsupported_media_type"),
        ({"encoding": "gzip"}, 415, "unsupported_media_type"),
        ({"body": b""}, 400, "invalid"),
        ({"body": b"{"}, 400, "invalid"),
        ({"body": b'{"type": "outcome", "protocol_version": 1}'}, 400, "invalid"),
        ({"body": b"[" * 100_000}, 400, "invalid"),
        ({"body": b'"\xff"'}, 400, "invalid"),
        ({"body": b'{"type": "invocation", "protocol_version": 2}'}, 400, "unsupported_version"),
    ],
)
async def test_anything_else_is_told_what_is_wrong(hosted: Hosted, what: dict[str, Any], status: int, code: str) -> None:
    shop = Shop()
    async with hosted(shop.app, path="/ryusen") as url, httpx.AsyncClient(trust_env=False) as client:
        body = what.get("body", json.dumps(invocation(step_id="charge")).encode())
        headers = {"Content-Type": what.get("content_type", "application/json"), "Content-Encoding": what.get("encoding", "identity")}
        where = url.replace("/ryusen", what.get("path", "/ryusen"))
        answer = await client.request(what.get("method", "POST"), where, content=body, headers=headers)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert (problem["status"], problem["code"]) == (status, code)
        assert problem["detail"].endswith(".")
        assert (answer.headers.get("allow") == "POST") == (status == 405)
        assert shop.effects == []


async def test_a_body_over_the_limit_is_refused_as_it_arrives(hosted: Hosted) -> None:
    shop = Shop()
    async with hosted(shop.app) as url:
        host = httpx.URL(url)

        def announced() -> bytes:
            with socket.create_connection((host.host, host.port or 0)) as client:
                head = (
                    f"POST /ryusen HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {REQUEST_BYTES_MAX + 1}\r\n\r\n"
                )
                client.sendall(head.encode())
                return client.recv(65_536)

        assert b" 413 " in (await asyncio.to_thread(announced)).splitlines()[0]


async def test_a_body_that_never_says_its_length_is_refused_at_the_limit() -> None:
    shop = Shop()
    async with hosted_by_asgi(shop.app) as url:
        host = httpx.URL(url)

        def endless() -> bytes:
            with socket.create_connection((host.host, host.port or 0)) as client:
                client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
                chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
                with contextlib.suppress(ConnectionError):
                    for _ in range(REQUEST_BYTES_MAX // 0x100000 + 1):
                        client.sendall(chunk)
                return client.recv(65_536)

        assert b" 413 " in (await asyncio.to_thread(endless)).splitlines()[0]


# Signatures


async def test_with_a_secret_only_what_is_signed_runs_and_answers_are_signed(hosted: Hosted) -> None:
    shop = Shop()
    now_s = int(time.time())
    async with hosted(shop.app, "s3cret") as url:
        document = invocation(step_id="charge")
        body = json.dumps(document).encode()
        wrong = [
            await asked(url, document),
            await asked(url, document, secret="other"),
            await asked(url, document, secret="s3cret", at_s=now_s - WINDOW_S - 60),
            await asked(url, document, secret="s3cret", at_s=now_s + WINDOW_S + 60),
            await asked(url, document, **{SIGNATURE_HEADER: sign(b"s3cret", str(now_s), body)}),
            await asked(url, document, **{TIMESTAMP_HEADER: str(now_s), SIGNATURE_HEADER: sign(b"s3cret", str(now_s), body + b" ")}),
            await asked(url, document, **{TIMESTAMP_HEADER: "now", SIGNATURE_HEADER: sign(b"s3cret", "now", body)}),
        ]
        assert [answer.status_code for answer in wrong] == [401] * len(wrong)
        assert {answer.json()["code"] for answer in wrong} == {"unauthorized"}
        assert not [answer for answer in wrong if "s3cret" in answer.text]
        assert shop.effects == []
        right = await asked(url, document, secret="s3cret", at_s=now_s - WINDOW_S + 60)
        assert right.json()["outcome"]["type"] == "succeeded"
        assert shop.effects == ["charge 1"]
        told = (right.headers[TIMESTAMP_HEADER], right.headers[SIGNATURE_HEADER])
        assert signature_problem(b"s3cret", *told, right.content, int(time.time())) is None


def test_a_signature_is_over_timestamp_and_body() -> None:
    good = sign(b"key", "100", b"body")
    assert good == "v1=28fb9cb9d486bb963831e203359d157778d7fb678298de093a541da9486c39fa"
    assert signature_problem(b"key", "100", good, b"body", 100) is None
    assert signature_problem(b"key", "101", good, b"body", 100) is not None
    assert signature_problem(b"key", "100", good, b"bodY", 100) is not None
    assert signature_problem(b"key", "100", "v1=é", b"body", 100) is not None
    assert signature_problem(b"key", "100", good.upper(), b"body", 100) is not None
    assert signature_problem(b"key", "100", good, b"body", 100 + WINDOW_S) is None
    assert signature_problem(b"key", "100", good, b"body", 101 + WINDOW_S) is not None
    assert signature_problem(None, None, None, b"body", 0) is None


@pytest.mark.parametrize("options", [{"secret": ""}, {"capacity": 0}, {"path": "ryusen"}])
def test_options_that_would_do_no_good_are_refused_at_once(options: dict[str, Any]) -> None:
    for make in (Ryusen("shop").asgi, Ryusen("shop").wsgi):
        with pytest.raises(MisuseError):
            make(**options)


# The life of a process


class Counted:
    """A lifespan that counts."""

    def __init__(self) -> None:
        self.entered = 0
        self.left = 0
        self.fails = False

    async def __aenter__(self) -> None:
        if self.fails:
            raise ConnectionError("the database is down")
        self.entered += 1

    async def __aexit__(self, *_: object) -> None:
        self.left += 1


async def test_the_lifespan_is_entered_once_with_the_web_server() -> None:
    counted = Counted()
    shop = Shop(lifespan=lambda: counted)
    async with hosted_by_asgi(shop.app) as url:
        assert counted.entered == 1
        for _ in range(2):
            await outcome(url, invocation())
        assert (counted.entered, counted.left) == (1, 0)
    assert (counted.entered, counted.left) == (1, 1)


async def test_without_the_lifespan_protocol_it_is_entered_at_the_first_invocation() -> None:
    counted = Counted()
    shop = Shop(lifespan=lambda: counted)
    async with AsgiServer(shop.app.asgi(), lifespan=False).serving() as server:
        assert counted.entered == 0
        await asyncio.gather(*(outcome(server.url, invocation()) for _ in range(3)))
        assert counted.entered == 1
    await shop.app.lifespan().leave()


async def test_while_the_lifespan_cannot_be_entered_nothing_has_begun(hosted: Hosted, caplog: pytest.LogCaptureFixture) -> None:
    counted = Counted()
    counted.fails = True
    shop = Shop(lifespan=lambda: counted)
    handler = shop.app.asgi() if hosted is hosted_by_asgi else shop.app.wsgi()
    serving = AsgiServer(handler, lifespan=False).serving() if hosted is hosted_by_asgi else contextlib.nullcontext()
    with wsgi_server(handler) if hosted is hosted_by_wsgi else contextlib.nullcontext() as wsgi_url:
        async with serving as asgi:
            url = wsgi_url or asgi.url  # type: ignore[union-attr]
            assert (await outcome(url, invocation(step_id="charge")))["type"] == "rejected_before_start"
            assert shop.effects == []
            assert "the database is down" in caplog.text
            counted.fails = False
            assert (await outcome(url, invocation(step_id="charge")))["type"] == "succeeded"


async def test_a_shut_down_waits_for_what_nobody_waits_for_any_more() -> None:
    shop = Shop()
    handler = shop.app.asgi()
    async with AsgiServer(handler).serving() as server:
        body = json.dumps(invocation(steps=CHARGED, step_id="hold")).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            await until(shop.in_callback.is_set)
        threading.Timer(0.1, shop.go_on.set).start()
    assert shop.effects == ["held"]


async def test_user_code_that_ends_the_process_gives_no_outcome_and_goes_to_the_web_server() -> None:
    shop = Shop()
    server = AsgiServer(shop.app.asgi())
    handled: list[BaseException] = []

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        try:
            await handler(scope, receive, send)
        except SystemExit as error:  # past this, asyncio would end the test
            handled.append(error)

    handler, server.application = server.application, watched
    async with server.serving():
        steps = {**CHARGED, "hold": {"type": "string", "value": "held"}}
        answer = await asked(server.url, invocation(steps=steps, step_id="leave"))
        assert answer.status_code == 500
        assert "outcome" not in answer.json()
        await until(lambda: len(handled) == 1)
        assert shop.effects == ["left"]


async def test_a_websocket_and_other_protocols_are_refused() -> None:
    handler = Shop().app.asgi()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await handler({"type": "websocket"}, asyncio.Queue[Any]().get, send)
    assert sent == [{"type": "websocket.close", "code": 1000}]
    with pytest.raises(MisuseError):
        await handler({"type": "mqtt"}, asyncio.Queue[Any]().get, send)
