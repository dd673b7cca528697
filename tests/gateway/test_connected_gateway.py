"""The gateway of a real server, with a worker played over a real WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from ryusen_server.bootstrap import running_server
from ryusen_server.bootstrap.server import Server
from ryusen_server.transports.connected.connection import ConnectedConfig
from tests.gateway.worker_peer import SUBPROTOCOL, publication, register_frame, string, worker_peer

W = "/v1/workspaces/default"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[Server, None]:
    async with running_server(tmp_path) as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncGenerator[httpx.AsyncClient, None]:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=15) as client:
        (await client.post(f"{W}/applications/shop/manifests", json=publication())).raise_for_status()
        yield client


async def send_event(client: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    answer = await client.post(f"{W}/events", params=query, json={"name": "order/placed", "data": {}})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def only_run(client: httpx.AsyncClient) -> dict[str, Any]:
    (run,) = (await client.get(f"{W}/runs")).json()["items"]
    return (await client.get(f"{W}/runs/{run['run_id']}")).json()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until memory shows it: the server runs on this loop."""

    async def now() -> bool:
        return condition()

    await eventually(now)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)


async def only_attempt(client: httpx.AsyncClient) -> dict[str, Any]:
    (attempt,) = (await client.get(f"{W}/attempts")).json()["items"]
    return attempt


@pytest.mark.req("CON-01")
async def test_a_run_is_played_through_over_one_connection(server: Server, client: httpx.AsyncClient) -> None:
    async with worker_peer(server.url) as peer:
        playing = asyncio.create_task(peer.play(["charge", "reserve", "ship"]))
        receipt = await send_event(client, wait_ms=10_000)
        playing.cancel()
    (run,) = receipt["runs"]
    assert (run["status"], run["outcome"], run["result"]) == ("ended", "succeeded", string("done"))
    detail = await only_run(client)
    assert [(step["step_id"], step["state"], step["result"]) for step in detail["steps"]] == [
        (name, "succeeded", string(name)) for name in ("charge", "reserve", "ship")
    ]


async def test_an_effect_is_acknowledged_after_its_commit_and_a_discovery_never(server: Server, client: httpx.AsyncClient) -> None:
    async with worker_peer(server.url) as peer:
        await send_event(client)
        await peer.declare(await peer.expect("invoke"), "charge")
        forward = await peer.expect("invoke")
        await peer.answer(forward, {"type": "succeeded", "result": string("ok")})
        frames = {frame["type"]: frame for frame in (await peer.receive(), await peer.receive())}
        assert frames["outcome_ack"]["disposition"] == "accepted"
        assert frames["outcome_ack"]["request_id"] == forward["invocation"]["request_id"]
        assert frames["invoke"]["invocation"]["target"]["mode"] == "discovery"
        # the same answer once more is known already
        await peer.answer(forward, {"type": "succeeded", "result": string("ok")})
        assert (await peer.expect("outcome_ack"))["disposition"] == "replayed"


@pytest.mark.req("CON-05")
async def test_a_result_delivered_after_a_reconnect_is_accepted_once(server: Server, client: httpx.AsyncClient) -> None:
    async with worker_peer(server.url, instance_id="wk_re") as peer:
        await send_event(client)
        await peer.declare(await peer.expect("invoke"), "charge")
        forward = await peer.expect("invoke")
        session = peer.session_id
        peer.socket.transport.abort()
    invocation = forward["invocation"]
    target = invocation["target"]
    held = {
        "request_id": invocation["request_id"],
        "run_id": invocation["run"]["run_id"],
        "attempt": target["attempt"],
        "attempt_generation": target["attempt_generation"],
    }
    async with worker_peer(server.url, registers=False) as peer:
        answer = await peer.register(instance_id="wk_re", connection=2, previous_session=session, held=[held])
        assert answer["wanted"] == [invocation["request_id"]]
        for disposition in ("accepted", "replayed"):
            await peer.answer(forward, {"type": "succeeded", "result": string("ok")})
            while (frame := await peer.receive())["type"] != "outcome_ack":
                pass
            assert frame["disposition"] == disposition
    assert (await only_attempt(client))["state"] == "succeeded"


@pytest.mark.req("CON-04")
async def test_a_disconnect_before_authorization_leaves_the_work_to_another_worker(server: Server, client: httpx.AsyncClient) -> None:
    async with worker_peer(server.url) as first:
        await send_event(client)
        lost = await first.expect("invoke")
        assert lost["invocation"]["target"]["mode"] == "discovery"
    async with worker_peer(server.url) as second:
        again = await second.expect("invoke")
        assert again["invocation"]["run"]["run_id"] == lost["invocation"]["run"]["run_id"]
        assert again["invocation"]["request_id"] != lost["invocation"]["request_id"]
    assert (await client.get(f"{W}/attempts")).json()["items"] == []


@pytest.mark.req("CON-04")
async def test_a_disconnect_after_authorization_leaves_the_effect_ambiguous(tmp_path: Path) -> None:
    async with running_server(tmp_path, lease_ms=300, reconnect_grace_ms=300) as server:  # noqa: SIM117 - as below
        async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
            (await client.post(f"{W}/applications/shop/manifests", json=publication())).raise_for_status()
            async with worker_peer(server.url) as peer:
                await send_event(client)
                await peer.declare(await peer.expect("invoke"), "charge")
                await peer.expect("invoke")
            away = await only_attempt(client)
            assert away["state"] in {"authorized", "unknown"}

            async def unknown() -> bool:
                return (await only_attempt(client))["state"] == "unknown"

            await eventually(unknown)
            attempt = await only_attempt(client)
            assert attempt["unknown_at_ms"] is not None
            assert attempt["allowed_commands"] == ["supply_success", "declare_failure", "authorize_retry"]
            assert attempt["forbidden_commands"] == []
            (listed,) = (await client.get(f"{W}/runs?attention=unknown")).json()["items"]
            assert listed["attention"] == "unknown"


@pytest.mark.req("CON-06")
async def test_a_draining_worker_gets_no_new_work(server: Server, client: httpx.AsyncClient) -> None:
    async with worker_peer(server.url) as peer:
        await send_event(client)
        first = await peer.expect("invoke")
        await peer.send({"protocol_version": 1, "type": "draining"})
        await until(lambda: server.engine.workers("default")[0].draining)  # type: ignore[arg-type]
        await send_event(client)
        await peer.answer(first, {"type": "completed", "result": string("done")})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.socket.recv(), 0.3)
    (worker,) = (await client.get(f"{W}/workers")).json()["items"]
    assert worker["draining"]
    (waiting,) = (await client.get(f"{W}/runs?attention=no_worker")).json()["items"]
    assert waiting["status"] == "running"


@pytest.mark.req("CON-07")
async def test_no_more_than_the_capacity_is_in_flight(server: Server, client: httpx.AsyncClient) -> None:
    async with worker_peer(server.url, capacity=2) as peer:
        for _ in range(5):
            await send_event(client)
        first, second = await peer.expect("invoke"), await peer.expect("invoke")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.socket.recv(), 0.3)
        (worker,) = (await client.get(f"{W}/workers")).json()["items"]
        assert (worker["capacity"], worker["in_flight"]) == (2, 2)
        await peer.answer(first, {"type": "completed", "result": string("done")})
        third = await peer.expect("invoke")
        assert third["invocation"]["run"]["run_id"] not in {
            first["invocation"]["run"]["run_id"],
            second["invocation"]["run"]["run_id"],
        }


@pytest.mark.req("CON-07", "SEC-07")
async def test_work_goes_only_to_the_application_and_functions_a_worker_registered(server: Server, client: httpx.AsyncClient) -> None:
    async with (
        worker_peer(server.url, functions=["other"]) as lacks,
        worker_peer(server.url, scope={"workspace": "default", "application": "kiosk"}) as foreign,
        worker_peer(server.url, scope={"workspace": "elsewhere", "application": "shop"}) as elsewhere,
    ):
        await send_event(client)
        for peer in (lacks, foreign, elsewhere):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(peer.socket.recv(), 0.2)
        async with worker_peer(server.url) as right:
            assert (await right.expect("invoke"))["invocation"]["scope"] == {"workspace": "default", "application": "shop"}


async def test_a_registration_under_a_live_instance_replaces_its_session(server: Server) -> None:
    async with worker_peer(server.url, instance_id="wk_same") as first, worker_peer(server.url, registers=False) as second:
        assert (await second.register(instance_id="wk_same", connection=2))["type"] == "registered"
        replaced = await first.expect("error")
        assert replaced["code"] == "replaced"
        await first.closed()
        await until(lambda: server.engine.workers("default")[0].connected)  # type: ignore[arg-type]
        (view,) = server.engine.workers("default")  # type: ignore[arg-type]
        assert view.session_id == second.session_id


async def test_an_older_connection_does_not_replace_a_newer_one(server: Server) -> None:
    async with worker_peer(server.url, instance_id="wk_same", connection=2) as newer, worker_peer(server.url, registers=False) as older:
        answer = await older.register(instance_id="wk_same", connection=1)
        assert answer["type"] == "registration_rejected"
        await newer.send({"protocol_version": 1, "type": "telemetry"})
        assert (await newer.expect("error"))["code"] == "unknown_frame"


@pytest.mark.req("CON-03")
async def test_a_release_with_another_contract_is_rejected_visibly(server: Server) -> None:
    contract = {"protocol_version": 1, "value_codec": 1, "features": ["x"]}
    async with worker_peer(server.url, release_id="r1"), worker_peer(server.url, registers=False) as other:
        answer = await other.register(release_id="r1", contract=contract)
        assert answer["type"] == "registration_rejected"
        assert answer["message"]
        code, _ = await other.closed()
        assert code == 1008


async def test_malformed_and_unknown_frames_do_not_end_the_session(server: Server, client: httpx.AsyncClient) -> None:
    async with worker_peer(server.url) as peer:
        await peer.send({"protocol_version": 1, "type": "telemetry"})
        assert (await peer.expect("error"))["code"] == "unknown_frame"
        await peer.socket.send("{")
        assert (await peer.expect("error"))["code"] == "malformed_frame"
        await peer.socket.send(b"\x00\x01")
        assert (await peer.expect("error"))["code"] == "malformed_frame"
        await peer.socket.send('{"protocol_version":1,"type":"heartbeat","request_ids":["\\ud800"]}')
        assert (await peer.expect("error"))["code"] == "malformed_frame"
        await peer.socket.send("[" * 200_000)
        assert (await peer.expect("error"))["code"] == "malformed_frame"
        await send_event(client)
        await peer.expect("invoke")


async def test_an_unreadable_outcome_of_an_effect_is_answered_malformed_and_a_readable_one_still_counts(
    server: Server, client: httpx.AsyncClient
) -> None:
    async with worker_peer(server.url) as peer:
        await send_event(client)
        await peer.declare(await peer.expect("invoke"), "charge")
        forward = await peer.expect("invoke")
        await peer.answer(forward, {"type": "invented"})
        ack = await peer.expect("outcome_ack")
        assert (ack["disposition"], ack["request_id"]) == ("malformed", forward["invocation"]["request_id"])
        assert ack["message"]

        async def unknown() -> bool:
            return (await only_attempt(client))["state"] == "unknown"

        await eventually(unknown)
        await peer.answer(forward, {"type": "succeeded", "result": string("ok")})
        while (frame := await peer.receive())["type"] != "outcome_ack":
            pass
        assert frame["disposition"] == "accepted"
        assert (await only_attempt(client))["state"] == "succeeded"


async def test_an_unreadable_outcome_of_a_discovery_is_repeated(server: Server, client: httpx.AsyncClient) -> None:
    async with worker_peer(server.url) as peer:
        await send_event(client)
        first = await peer.expect("invoke")
        await peer.answer(first, {"type": "invented"})
        while (frame := await peer.receive())["type"] != "invoke":
            pass
        assert frame["invocation"]["run"]["run_id"] == first["invocation"]["run"]["run_id"]
        assert frame["invocation"]["request_id"] != first["invocation"]["request_id"]


async def test_frames_sent_behind_the_register_frame_without_waiting_are_handled_in_order(server: Server) -> None:
    async with worker_peer(server.url, registers=False) as peer:
        await peer.send(register_frame())
        await peer.send({"protocol_version": 1, "type": "telemetry"})
        await peer.send({"protocol_version": 1, "type": "draining"})
        assert (await peer.receive())["type"] == "registered"
        assert (await peer.receive())["code"] == "unknown_frame"
        await until(lambda: server.engine.workers("default")[0].draining)  # type: ignore[arg-type]


async def test_frames_in_front_of_a_close_are_not_lost(server: Server, client: httpx.AsyncClient) -> None:
    async with worker_peer(server.url, capacity=64) as peer:
        for _ in range(40):
            await send_event(client)
        for invoke in [await peer.expect("invoke") for _ in range(40)]:
            await peer.answer(invoke, {"type": "completed", "result": string("done")})

    async def all_ended() -> bool:
        return len((await client.get(f"{W}/runs?outcome=succeeded&limit=100")).json()["items"]) == 40

    await eventually(all_ended)


async def test_fragmented_messages_are_put_together(server: Server) -> None:
    async with worker_peer(server.url, registers=False) as peer:
        text = msgspec.json.encode(register_frame(functions=[f"{'é' * 100}{number}" for number in range(3)])).decode()
        await peer.socket.send([text[:10], "", text[10:500], text[500:]])
        assert (await peer.receive())["type"] == "registered"


async def test_a_frame_over_the_limit_closes_the_connection_and_says_so(tmp_path: Path) -> None:
    async with running_server(tmp_path, connected_config=ConnectedConfig(frame_bytes_max=10_000)) as server:
        async with worker_peer(server.url) as peer:
            await peer.socket.send("x" * 10_000)
            assert (await peer.expect("error"))["code"] == "malformed_frame"
            await peer.socket.send("x" * 10_001)
            code, _ = await peer.closed()
            assert code == 1009
        await until(lambda: not server.engine.workers("default")[0].connected)  # type: ignore[arg-type]


async def test_a_connection_that_does_not_register_is_closed(tmp_path: Path) -> None:
    async with running_server(tmp_path, connected_config=ConnectedConfig(register_within_ms=100)) as server:
        async with worker_peer(server.url, registers=False) as peer:
            code, reason = await peer.closed()
        assert code == 1008
        assert reason == "no register frame came in time"


async def raw_upgrade(server: Server, *, receive_buffer: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """An upgraded connection whose peer does nothing by itself."""
    host, port = server.url.removeprefix("http://").split(":")
    plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if receive_buffer is not None:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=plain, limit=2**16)
    writer.write(
        f"GET /v1/connect HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    assert b"sec-websocket-extensions" not in head.lower()
    return reader, writer


def client_text(text: bytes) -> bytes:
    """A masked text frame, with a mask that changes nothing."""
    size = len(text)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return b"\x81" + length + b"\x00\x00\x00\x00" + text


async def test_a_silent_peer_is_pinged_and_then_given_up(tmp_path: Path) -> None:
    config = ConnectedConfig(ping_after_ms=100, silent_after_ms=300)
    async with running_server(tmp_path, connected_config=config) as server:
        reader, writer = await raw_upgrade(server)
        writer.write(client_text(msgspec.json.encode(register_frame("wk_quiet"))))
        received = b""
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionResetError):
                while chunk := await reader.read(4096):
                    received += chunk
        assert b"registered" in received
        assert received.endswith(b"\x89\x00"), "the last thing a silent peer gets is a ping"
        await until(lambda: not server.engine.workers("default")[0].connected)  # type: ignore[arg-type]
        (view,) = server.engine.workers("default")  # type: ignore[arg-type]
        assert view.last_failure is not None
        assert "silent" in view.last_failure
        writer.close()


async def test_a_peer_that_answers_pings_is_kept(tmp_path: Path) -> None:
    config = ConnectedConfig(ping_after_ms=50, silent_after_ms=400)
    async with running_server(tmp_path, connected_config=config) as server, worker_peer(server.url) as peer:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.socket.recv(), 1.0)
        assert server.engine.workers("default")[0].connected  # type: ignore[arg-type]


async def test_a_worker_that_does_not_read_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = ConnectedConfig(unread_bytes_max=200_000)
    async with running_server(tmp_path, connected_config=config) as server:
        reader, writer = await raw_upgrade(server, receive_buffer=4096)
        writer.write(client_text(msgspec.json.encode(register_frame("wk_stuck", capacity=64))))
        await until(lambda: bool(server.engine.workers("default")))  # type: ignore[arg-type]
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=15) as client:
            (await client.post(f"{W}/applications/shop/manifests", json=publication())).raise_for_status()
            with caplog.at_level(logging.WARNING, "ryusen_server"):
                for _ in range(40):
                    body = {"name": "order/placed", "data": "x" * 200_000}
                    assert (await client.post(f"{W}/events", json=body)).status_code == 201
                    if not server.engine.workers("default")[0].connected:  # type: ignore[arg-type]
                        break
        assert "does not read" in caplog.text
        assert not server.engine.workers("default")[0].connected  # type: ignore[arg-type]
        writer.close()
        del reader


async def test_what_a_client_sends_behind_its_handshake_is_read(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = (
        f"GET /v1/connect HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n"
    )
    writer.write(head.encode() + client_text(msgspec.json.encode(register_frame())))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    assert b'"type":"registered"' in await asyncio.wait_for(reader.readuntil(b'"wanted":[]}'), 5)
    writer.close()


@pytest.mark.parametrize("offered", [None, [Subprotocol("ryusen.v2.json")]])
async def test_a_handshake_without_the_subprotocol_is_refused(server: Server, offered: list[Subprotocol] | None) -> None:
    target = server.url.replace("http://", "ws://") + "/v1/connect"
    with pytest.raises(InvalidStatus) as refused:
        async with connect(target, subprotocols=offered, proxy=None):
            pass
    assert refused.value.response.status_code == 400
    body = msgspec.json.decode(refused.value.response.body or b"")
    assert body["code"] == "invalid"
    assert SUBPROTOCOL in body["detail"]


async def test_a_stopping_server_tells_its_workers_and_closes(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server, worker_peer(server.url) as peer:
        stopping = asyncio.create_task(server.stop())
        assert (await peer.receive())["type"] == "drain"
        code, reason = await peer.closed()
        assert (code, reason) == (1001, "the server is shutting down")
        await stopping


async def test_a_stop_waits_for_what_is_in_flight(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server, httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
        (await client.post(f"{W}/applications/shop/manifests", json=publication())).raise_for_status()
        async with worker_peer(server.url) as peer:
            await send_event(client)
            await peer.declare(await peer.expect("invoke"), "charge")
            forward = await peer.expect("invoke")
            stopping = asyncio.create_task(server.stop(drain_ms=5_000))
            await peer.expect("drain")
            assert (await client.get("/v1/health")).json()["status"] == "draining"
            async with worker_peer(server.url, registers=False) as late:
                rejected = await late.register()
                assert (rejected["type"], rejected["code"]) == ("registration_rejected", "unavailable")
            assert not stopping.done()
            await peer.answer(forward, {"type": "succeeded", "result": string("ok")})
            assert (await peer.expect("outcome_ack"))["disposition"] == "accepted"
            await peer.closed()
            await stopping


@pytest.mark.req("CON-02")
async def test_a_worker_registers_again_with_a_server_that_comes_back(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server, worker_peer(server.url, instance_id="wk_old", release_id="r1") as peer:
        session = peer.session_id
    async with running_server(tmp_path) as server:
        async with worker_peer(server.url, registers=False) as peer:
            answer = await peer.register(instance_id="wk_old", release_id="r1", connection=2, previous_session=session)
            assert answer["type"] == "registered"
        (release,) = server.engine.releases("default")  # type: ignore[arg-type]
        assert release.release_id == "r1"
