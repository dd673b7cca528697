"""A page of somebody else in a browser on this machine: whatever it sends is refused, and the database stays as it is."""

from __future__ import annotations

import asyncio
import itertools
import re
import sqlite3
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.api.api_harness import ApiHarness, W, api_server

HOSTS = (
    "evil.example",
    "evil.example:{port}",
    "localhost",
    "localhost:1",
    "127.0.0.1.evil.example:{port}",
    "",
    "localhost:{port}, evil.example",
)
"""What a browser sends for a name that was made to point here."""
ORIGINS = ("http://evil.example", "null", "http://localhost:1", "https://localhost:{port}.evil.example", "http://localhost:{port}/")
TYPES = (
    *("text/plain", "text/plain; application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""),
    *("application/jsonp", "application/json, text/plain", "text/json"),
)
"""What a form or a simple request can send, and what looks like JSON."""
METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS")
UPGRADE = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
PROTOCOL = "Sec-WebSocket-Protocol: ryusen.v1.json"
BODIES = {
    "/events": b'{"name":"order/placed","data":{}}',
    "/manifests": b'{"protocol_version":1,"expected_parent":null,"functions":[],"triggers":[],"contents":""}',
    "/prune": b'{"older_than_ms":1}',
}
"""What would change something if it were taken."""


@pytest.fixture
async def api(tmp_path: Path) -> AsyncGenerator[ApiHarness, None]:
    async with api_server(tmp_path) as harness:
        yield harness


async def dump(api: ApiHarness) -> list[str]:
    await api.server.store.flush()
    assert api.server.settings.db is not None
    with sqlite3.connect(api.server.settings.db) as database:
        lines = list(database.iterdump())
    database.close()
    return lines


async def paths(api: ApiHarness) -> list[str]:
    """Every path of the document, with ids that exist."""
    await api.publish()
    event = await api.send()
    (run,) = (await api.get(f"{W}/runs"))["items"]
    ids = {"workspace": "default", "application": "shop", "event_id": event["event_id"], "run_id": run["run_id"]}
    document: dict[str, Any] = await api.get("/v1/openapi.json")
    return [re.sub(r"\{(\w+)\}", lambda found: ids.get(found[1], "x"), path) for path in document["paths"]]


def variants(api: ApiHarness, method: str) -> Iterator[tuple[list[str], int]]:
    """Headers a page could make a browser send, and what refuses them."""
    port = api.authority.rpartition(":")[2]
    json = "Content-Type: application/json"
    own = f"Host: {api.authority}"
    for host in HOSTS:
        yield [f"Host: {host.format(port=port)}", json], 421
    yield [own, "Host: evil.example", json], 421
    yield [json], 421
    for origin in ORIGINS:
        yield [own, f"Origin: {origin.format(port=port)}", json], 403
    yield [own, f"Origin: http://{api.authority}", "Origin: http://evil.example", json], 403
    if method not in {"GET", "HEAD", "OPTIONS"}:
        for content_type in TYPES:
            yield [own, f"Content-Type: {content_type}"], 415
        yield [own], 415
    yield [own, json, "Content-Encoding: gzip"], 415


async def answers(api: ApiHarness, sent: list[tuple[bytes, int]]) -> None:
    """Each request on one of a few connections, and that it is refused as it must be."""
    host, _, port = api.authority.rpartition(":")
    for raw, expected in sent:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(raw)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        writer.close()
        assert int(head.split(b" ", 2)[1]) == expected, (raw, head)
        assert b"access-control" not in head.lower(), head


@pytest.mark.parametrize("method", METHODS)
async def test_nothing_of_a_hostile_page_is_taken_and_nothing_is_changed(api: ApiHarness, method: str) -> None:
    sent: list[tuple[bytes, int]] = []
    for path in [*await paths(api), "/", "/index.html"]:
        body = b"" if method in {"GET", "HEAD"} else next((body for end, body in BODIES.items() if path.endswith(end)), b"{}")
        for headers, expected in variants(api, method):
            for extra in ((), (*UPGRADE, PROTOCOL)) if path == "/v1/connect" and method == "GET" else ((),):
                length = [f"Content-Length: {len(body)}"] if body else []
                head = "\r\n".join([f"{method} {path} HTTP/1.1", *headers, *extra, *length, "Connection: close", "", ""])
                sent.append((head.encode("latin-1") + body, expected))
    before = await dump(api)
    shares = [sent[number::8] for number in range(8)]
    await asyncio.gather(*(answers(api, share) for share in shares))
    assert await dump(api) == before
    assert len(sent) > 300


async def test_what_the_hostile_requests_hold_would_change_something_if_our_own_page_sent_it(api: ApiHarness) -> None:
    """So that the test above can fail."""
    await paths(api)
    before = await dump(api)
    own = {"content-type": "application/json", "origin": f"http://{api.authority}"}
    for path, body in ((f"{W}/events", BODIES["/events"]), (f"{W}/applications/other/manifests", BODIES["/manifests"])):
        assert (await api.client.post(path, content=body, headers=own)).status_code == 201
        after = await dump(api)
        assert after != before
        before = after


async def test_every_answer_tells_a_browser_to_do_nothing_with_it(api: ApiHarness) -> None:
    for path, method in itertools.product((*await paths(api), "/", "/v1/nothing"), ("GET", "POST")):
        if path.endswith("/stream") and method == "GET":
            continue  # it does not end
        raw = f"{method} {path} HTTP/1.1\r\nHost: {api.authority}\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
        status, headers, body = await api.raw(raw.encode())
        assert headers["x-content-type-options"] == "nosniff", (status, path)
        assert headers["content-security-policy"].startswith("default-src 'none'"), path
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path
        assert headers["referrer-policy"] == "no-referrer", path
        assert headers["cache-control"] == "no-store", path
        assert not [name for name in headers if name.startswith("access-control")]
        if "json" in headers["content-type"]:
            msgspec.json.decode(body)
