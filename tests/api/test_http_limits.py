"""Bytes that are no request, requests over a limit, and a server that fails: always a document, and the server lives on."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import httpx
import msgspec
import pytest

from ryusen_protocol.limits import REQUEST_BYTES_MAX
from ryusen_protocol.problems import CONTENT_TYPE
from ryusen_server.bootstrap import running_server
from ryusen_server.store.sqlite import SqliteConfig, SqliteStore
from ryusen_server.transports.connected import upgrade
from tests.api.api_harness import JSON_BODY, ApiHarness, ClosableMemoryStore, W, api_server, eventually
from tests.gateway.worker_peer import worker_peer

EVENTS = f"{W}/events"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncGenerator[ApiHarness, None]:
    async with api_server(tmp_path, memory=True) as harness:
        yield harness


async def problem(api: ApiHarness, raw: bytes) -> tuple[int, str]:
    status, headers, body = await api.raw(raw)
    assert headers["content-type"] == CONTENT_TYPE
    document = msgspec.json.decode(body)
    assert document["status"] == status
    assert "Traceback" not in document["detail"]
    assert (await api.get("/v1/health"))["status"] == "ok"
    return status, document["code"]


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"GET /v1/health HTTP/1.1\r\nHost: {h}\r\nX: " + b"x" * 20_000, 413, "limit_exceeded"),
        (b"GET /v1/health?q=" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: {h}", 413, "limit_exceeded"),
        (b"GET /v1/health?q=" + b"x" * 9_000 + b" HTTP/1.1\r\nHost: {h}", 414, "uri_too_long"),
        (b"GET /v1/health HTTP/1.1\r\nHost: {h}" + b"\r\nx: y" * 101, 413, "limit_exceeded"),
        (b"GET /v1/health HTTP/2.0\r\nHost: {h}", 400, "invalid"),
        (b"GET /v1/health\r\nHost: {h}", 400, "invalid"),
        (b"GET /v1/health HTTP/1.1\r\nHost: {h}\r\nno colon", 400, "invalid"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "invalid"),
        (b"GET /v1/h\xc3\xa9alth HTTP/1.1\r\nHost: {h}", 400, "invalid"),
        (b"GET /v1/health HTTP/1.1\r\nHost: {h}\r\nHost : evil.example", 400, "invalid"),
        (b"GET /v1/health HTTP/1.1\r\nHost: {h}\r\n folded: onto it", 400, "invalid"),
        (b"GET /v1/health HTTP/1.1\r\nHost: {h}\r\n: nameless", 400, "invalid"),
        (b"GET /v1/health HTTP/1.1\r\nHost: {h}\r\nX: y\nOrigin: http://evil.example", 400, "invalid"),
        (b"GET /v1/health HTTP/1.1\r\nHost: {h}\r\nX: y\rOrigin: http://evil.example", 400, "invalid"),
        (b"GET /v1/health HTTP/1.1\r\nHost: {h}\r\nX: y\x00z", 400, "invalid"),
        (b"POST {e} HTTP/1.1\r\nHost: {h}\r\nContent-Type: application/json\r\nContent-Length : 2", 400, "invalid"),
        (b"POST {e} HTTP/1.1\r\nHost: {h}\r\nContent-Type: application/json\r\nContent-Length: -1", 400, "invalid"),
        (b"POST {e} HTTP/1.1\r\nHost: {h}\r\nContent-Type: application/json\r\nContent-Length: 1_0", 400, "invalid"),
        (b"POST {e} HTTP/1.1\r\nHost: {h}\r\nContent-Type: application/json\r\nContent-Length: 2\r\nContent-Length: 2", 400, "invalid"),
        (
            b"POST {e} HTTP/1.1\r\nHost: {h}\r\nContent-Type: application/json\r\nContent-Length: 2\r\nTransfer-Encoding: chunked",
            400,
            "invalid",
        ),
        (b"POST {e} HTTP/1.1\r\nHost: {h}\r\nContent-Type: application/json\r\nTransfer-Encoding: gzip, chunked", 400, "invalid"),
        (b"POST {e} HTTP/1.1\r\nHost: {h}\r\nContent-Type: application/json\r\nContent-Length: 2\r\nExpect: magic", 400, "invalid"),
        (b"POST {e} HTTP/1.1\r\nHost: {h}\r\nContent-Type: application/json\r\nContent-Length: 17000000", 413, "limit_exceeded"),
        (b"GET http://{h}/v1/health HTTP/1.1\r\nHost: {h}", 400, "invalid"),
        (b"GET \\v1\\health HTTP/1.1\r\nHost: {h}", 400, "invalid"),
        (b"GET %2fv1%2fhealth HTTP/1.1\r\nHost: {h}", 400, "invalid"),
        (b"OPTIONS \xff HTTP/1.1\r\nHost: {h}", 400, "invalid"),
        (b"GET /v1/health\x7f HTTP/1.1\r\nHost: {h}", 400, "invalid"),
    ],
)
async def test_bytes_that_are_no_request_of_ours_get_a_problem(
    api: ApiHarness, caplog: pytest.LogCaptureFixture, head: bytes, status: int, code: str
) -> None:
    raw = head.replace(b"{h}", api.authority.encode()).replace(b"{e}", EVENTS.encode()) + b"\r\n\r\n"
    assert await problem(api, raw) == (status, code)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], "what anybody can send fills no log"


async def test_a_body_over_the_limit_is_cut_off_as_it_arrives(api: ApiHarness) -> None:
    answer = await api.client.post(EVENTS, content=b"x" * (REQUEST_BYTES_MAX + 1), headers=JSON_BODY)
    assert (answer.status_code, answer.json()["limit"]) == (413, REQUEST_BYTES_MAX)
    head = f"POST {EVENTS} HTTP/1.1\r\nHost: {api.authority}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    unfinished = head.encode() + chunk * (REQUEST_BYTES_MAX // (1 << 20) + 1)
    assert await problem(api, unfinished) == (413, "limit_exceeded")


async def test_a_hostile_body_costs_little(api: ApiHarness) -> None:
    started = time.process_time()
    for body in (b"[" * (2 << 20), b"[" * 60 + b"1," * (1 << 20), b'{"a":' * 400_000, b'"' * (2 << 20), b"\\" * (2 << 20)):
        answer = await api.client.post(EVENTS, content=body, headers=JSON_BODY)
        assert answer.status_code in {400, 413}
    assert time.process_time() - started < 5


async def test_a_connection_answers_one_request_after_another(api: ApiHarness) -> None:
    host, _, port = api.authority.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    one = f"GET /v1/health HTTP/1.1\r\nHost: {api.authority}\r\n\r\n".encode()
    writer.write(one + one.replace(b"health", b"nope") + one)
    for expected in (200, 404, 200):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert int(head.split(" ")[1]) == expected
        assert "\r\nalt-svc" not in head
        assert "\r\nx-content-type-options: nosniff" in head
        await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
    writer.close()


async def test_a_request_behind_a_head_that_others_may_read_otherwise_is_not_read(api: ApiHarness) -> None:
    inner = f"POST {EVENTS} HTTP/1.1\r\nHost: {api.authority}\r\nContent-Type: application/json\r\nContent-Length: 21\r\n\r\n"
    hidden = inner.encode() + b'{"name":"x","data":1}'
    for length in ("Content-Length : ", "X: y\nContent-Length: ", "Content-Length\x00: "):
        head = f"GET /v1/health HTTP/1.1\r\nHost: {api.authority}\r\n{length}{len(hidden)}\r\n\r\n"
        status, headers, _ = await api.raw(head.encode() + hidden)
        assert (status, headers["connection"]) == (400, "close")
    assert (await api.get("/v1/server"))["counts"]["events"] == 0


async def test_a_smuggled_request_is_no_request(api: ApiHarness) -> None:
    inner = f"POST {EVENTS} HTTP/1.1\r\nHost: {api.authority}\r\nContent-Type: application/json\r\nContent-Length: 21\r\n\r\n"
    hidden = inner.encode() + b'{"name":"x","data":1}'
    head = f"POST {EVENTS} HTTP/1.1\r\nHost: evil.example\r\nContent-Type: application/json\r\nContent-Length: {len(hidden)}\r\n\r\n"
    status, _, _ = await api.raw(head.encode() + hidden)
    assert status == 421
    assert (await api.get("/v1/server"))["counts"]["events"] == 0


async def test_a_store_that_cannot_write_is_told_and_health_shows_it(api: ApiHarness) -> None:
    store = api.server.store
    assert isinstance(store, ClosableMemoryStore)
    store.fault = "The disk is full"
    answer = await api.client.post(EVENTS, json={"name": "x", "data": 1, "idempotency_key": "k"})
    assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
    assert "The disk is full" in answer.json()["detail"]
    assert answer.headers["retry-after"] == "1"
    assert (await api.get("/v1/health"))["status"] == "storage_unavailable"
    assert (await api.client.get(f"{W}/runs")).status_code == 503
    store.fault = None
    assert (await api.send(data=1, idempotency_key="k"))["status"] == "created"
    assert (await api.get("/v1/health"))["status"] == "ok"
    assert (await api.get("/v1/server"))["counts"]["events"] == 1


async def test_a_defect_is_a_document_without_its_traceback(
    api: ApiHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: object) -> object:
        raise ZeroDivisionError("secret \x1b[2J")

    monkeypatch.setattr(api.server.engine, "workers", broken)
    with caplog.at_level(logging.ERROR, "ryusen_server"):
        answer = await api.client.get(f"{W}/workers")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text
    assert any(record.exc_info for record in caplog.records)
    assert (await api.get("/v1/health"))["status"] == "ok"


async def test_a_registration_without_a_database_is_to_be_tried_again(api: ApiHarness) -> None:
    store = api.server.store
    assert isinstance(store, ClosableMemoryStore)
    store.fault = "The disk is full"
    async with worker_peer(api.server.url, registers=False) as peer:
        rejected = await peer.register(release_id="r1")
        assert (rejected["type"], rejected["code"]) == ("registration_rejected", "unavailable")
        assert (await peer.closed())[0] == 1013
    store.fault = None
    async with worker_peer(api.server.url, release_id="r1"):
        assert len((await api.get(f"{W}/workers"))["items"]) == 1


async def test_one_connection_too_many_is_told_to_come_back(api: ApiHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade, "CONNECTIONS_MAX", 4)
    host, _, port = api.authority.rpartition(":")
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(4)]
    status, headers, body = await api.raw(b"")
    assert (status, msgspec.json.decode(body)["code"]) == (429, "busy")
    assert headers["content-type"] == CONTENT_TYPE
    assert (headers["retry-after"], headers["cache-control"], headers["x-content-type-options"]) == ("1", "no-store", "nosniff")
    for _, writer in opened:
        writer.close()
        await writer.wait_closed()

    async def room() -> bool:
        return (await api.client.get("/v1/health")).status_code == 200

    await eventually(room)


@pytest.mark.parametrize("held_ms", [150, 1_500])
async def test_a_database_locked_by_another_program_is_waited_for_and_then_told(tmp_path: Path, held_ms: int) -> None:
    async def open_store(path: Path | None, on_fatal: Callable[[str], None]) -> SqliteStore:
        return await SqliteStore.open(path, on_fatal=on_fatal, config=SqliteConfig(busy_timeout_ms=700))

    async with running_server(tmp_path, store_factory=open_store) as server:  # noqa: SIM117 - it needs the address
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=20) as client:
            other = sqlite3.connect(tmp_path / "ryusen.db", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            posting = asyncio.create_task(client.post(EVENTS, json={"name": "x", "data": 1, "idempotency_key": "k"}))
            await asyncio.sleep(held_ms / 1000)
            other.execute("ROLLBACK")
            other.close()
            answer = await posting
            if held_ms < 700:
                assert answer.status_code == 201, answer.text
            else:
                assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
                assert "locked" in answer.json()["detail"]
                answer = await client.post(EVENTS, json={"name": "x", "data": 1, "idempotency_key": "k"})
                assert (answer.status_code, answer.json()["status"]) == (201, "created")
            assert (await client.get("/v1/server")).json()["counts"]["events"] == 1
