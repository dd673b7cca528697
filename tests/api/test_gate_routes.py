"""The gate in front of every route of a real server, of what is no route, and of the upgrade."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from ryusen_protocol.problems import CODES, CONTENT_TYPE
from ryusen_server.api.route import EVENT_STREAM, Text
from ryusen_server.api.table import ROUTES
from tests.api.api_harness import ApiHarness, W, api_server

PATHS = sorted({route.path.replace("{workspace}", "default").replace("{", "").replace("}", "") for route in ROUTES})
ANY = [*PATHS, "/v1/connect", "/", "/nope", "/v1/workspaces//runs", "/%00", "/v1/../v1/health"]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncGenerator[ApiHarness, None]:
    async with api_server(tmp_path, memory=True) as harness:
        yield harness


def request(api: ApiHarness, method: str, path: str, *headers: str, host: str | None = None, body: bytes = b"") -> bytes:
    given = f"Host: {api.authority if host is None else host}"
    length = [f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([f"{method} {path} HTTP/1.1", given, *headers, *length, "", ""]).encode("latin-1") + body


async def code(api: ApiHarness, raw: bytes) -> tuple[int, str]:
    """Status and code of a problem, which every refusal is."""
    status, headers, body = await api.raw(raw)
    assert headers["content-type"] == CONTENT_TYPE
    assert not [name for name in headers if name.startswith("access-control")]
    document = msgspec.json.decode(body)
    assert document["status"] == status
    assert document["code"] in CODES
    assert "Traceback" not in document["detail"]
    return status, document["code"]


@pytest.mark.parametrize("path", ANY)
async def test_no_path_is_reached_under_a_foreign_host_or_origin(api: ApiHarness, path: str) -> None:
    for method in ("GET", "POST", "OPTIONS", "HEAD", "DELETE"):
        json = "Content-Type: application/json"
        upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
        for raw, expected in (
            (request(api, method, path, json, host="evil.example"), 421),
            (request(api, method, path, json, *upgrade, host="evil.example"), 421),
            (request(api, method, path, json, "Host: evil.example"), 421),
            (f"{method} {path} HTTP/1.1\r\n{json}\r\n\r\n".encode(), 421),
            (f"{method} {path} HTTP/1.0\r\n{json}\r\n\r\n".encode(), 421),
            (request(api, method, path, json, "Origin: http://evil.example"), 403),
            (request(api, method, path, json, "Origin: null", *upgrade), 403),
        ):
            if method == "HEAD":  # a HEAD has no body to hold against the rest
                status, _, _ = await head(api, raw)
            else:
                status, _ = await code(api, raw)
            assert status == expected, raw


async def head(api: ApiHarness, raw: bytes) -> tuple[int, dict[str, str], bytes]:
    import asyncio

    host, _, port = api.authority.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(raw)
    first = (await reader.readuntil(b"\r\n\r\n")).decode()
    writer.close()
    return int(first.split(" ", 2)[1]), {}, b""


@pytest.mark.parametrize("path", ANY)
async def test_no_mutation_is_taken_without_its_content_type_or_with_an_encoding(api: ApiHarness, path: str) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for headers in ((), ("Content-Type: text/plain",), ("Content-Type: application/json", "Content-Encoding: gzip")):
            assert await code(api, request(api, method, path, *headers, body=b"{}")) == (415, "unsupported_media_type")


@pytest.mark.parametrize("path", PATHS)
async def test_a_route_says_which_methods_it_takes(api: ApiHarness, path: str) -> None:
    served = {"GET": {"GET", "HEAD"}, "POST": {"POST"}}
    takes = {method for route in ROUTES if _same(route.path, path) for method in served[route.method]}
    for method in ("GET", "POST", "OPTIONS", "PUT", "TRACE"):
        if method in takes:
            continue
        status, headers, body = await api.raw(request(api, method, path, "Content-Type: application/json"))
        assert (status, msgspec.json.decode(body)["code"]) == (405, "method_not_allowed")
        assert set(headers["allow"].upper().split(", ")) == takes


def _same(template: str, path: str) -> bool:
    parts, found = template.split("/"), path.split("/")
    return len(parts) == len(found) and all(part.startswith("{") or part == given for part, given in zip(parts, found, strict=True))


@pytest.mark.req("SEC-06")
async def test_the_server_needs_no_credential_and_listens_on_loopback_alone(api: ApiHarness) -> None:
    assert (await api.get("/v1/health"))["status"] == "ok"
    await api.get(f"{W}/runs")
    for address in api.server.addresses:
        assert address.startswith(("http://127.0.0.1:", "http://[::1]:"))
    assert api.server.warnings == ()


async def test_our_own_pages_may_ask(api: ApiHarness) -> None:
    for origin in (f"http://{api.authority}", f"http://localhost:{api.authority.rpartition(':')[2]}"):
        status, headers, _ = await api.raw(request(api, "GET", "/v1/health", f"Origin: {origin}"))
        assert status == 200
        assert not [name for name in headers if name.startswith("access-control")]


async def test_a_host_can_be_allowed(tmp_path: Path) -> None:
    async with api_server(tmp_path, memory=True, allow_hosts=("console.internal",)) as api:
        port = api.authority.rpartition(":")[2]
        status, _, _ = await api.raw(request(api, "GET", "/v1/health", host=f"console.internal:{port}"))
        assert status == 200
        assert (await api.raw(request(api, "GET", "/v1/health", host=f"other.internal:{port}")))[0] == 421


async def test_get_changes_nothing(api: ApiHarness) -> None:
    await api.publish()
    receipt = await api.send()
    before = await api.get("/v1/server")
    (run,) = (await api.get(f"{W}/runs"))["items"]
    ids = {"run_id": run["run_id"], "event_id": receipt["event_id"], "application": "shop"}
    for route in ROUTES:
        if route.method == "GET" and route.answers[200] != Text(EVENT_STREAM):  # a stream does not end
            path = route.path.replace("{workspace}", "default")
            for name, value in ids.items():
                path = path.replace(f"{{{name}}}", value)
            answer = await api.client.get(path.replace("{", "").replace("}", ""))
            assert answer.status_code in {200, 404}
    assert (await api.get("/v1/server"))["counts"] == before["counts"]
    assert (await api.get(f"{W}/runs/{run['run_id']}"))["position"] == (await api.get(f"{W}/runs/{run['run_id']}"))["position"]


@pytest.mark.req("API-01")
def test_every_route_names_the_capability_it_needs() -> None:
    needed = {(route.method, route.path.removeprefix("/v1/workspaces/{workspace}")): route.capability for route in ROUTES}
    for path in ("/v1/health", "/v1/openapi.json"):
        assert needed.pop(("GET", path)) is None
    assert needed[("POST", "/events")] == "events:send"
    assert needed[("GET", "/events")] == "events:read"
    assert needed[("POST", "/runs/{run_id}/cancel")] == "operate"
    assert needed[("POST", "/applications/{application}/manifests")] == "deploy"
    assert all(capability == "read" for (method, path), capability in needed.items() if method == "GET" and not path.startswith("/events"))
    assert len(needed) + 2 == len(ROUTES)
