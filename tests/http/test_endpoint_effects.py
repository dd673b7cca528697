"""What a real server makes of an endpoint's answers to effects: only an outcome that belongs to the request settles an attempt."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ryusen_protocol.limits import MIB, REQUEST_BYTES_MAX
from ryusen_server.engine.config import EngineConfig
from tests.http.raw_endpoint import Asked, RawEndpoint, raw_endpoint, response, until
from tests.http.shop_server import DONE, NULL, shop_server, well_behaved


async def misbehaving_once(asked: Asked, mode: str, behave: Callable[[Asked], Awaitable[None]], seen: list[Asked]) -> None:
    """Misbehave at the first request of a mode, and do well otherwise."""
    if asked.mode == mode and not seen:
        seen.append(asked)
        await behave(asked)
    else:
        await well_behaved(asked)


# An effect that has happened, and then


async def status_500(asked: Asked) -> None:
    await asked.respond(asked.outcome(DONE), 500)


async def status_503(asked: Asked) -> None:
    await asked.respond({"code": "busy", "detail": "come back"}, 503, Retry_After="1")


async def status_429(asked: Asked) -> None:
    await asked.respond(b"", 429)


async def status_201(asked: Asked) -> None:
    await asked.respond(asked.outcome(DONE), 201)


async def an_error_without_end(asked: Asked) -> None:
    await asked.write(b"HTTP/1.1 502 Bad\r\nContent-Length: 1000\r\n\r\nhalf")
    await asyncio.sleep(30)


async def disconnected(asked: Asked) -> None:
    asked.writer.close()


async def reset(asked: Asked) -> None:
    asked.reset()


async def no_answer_in_time(asked: Asked) -> None:
    await asyncio.sleep(30)


async def a_head_without_a_body(asked: Asked) -> None:
    await asked.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n")
    await asyncio.sleep(30)


async def malformed(asked: Asked) -> None:
    await asked.respond(b'{"type": "outcome", "outcome"')


async def not_an_outcome(asked: Asked) -> None:
    await asked.respond({"ok": True})


async def not_http(asked: Asked) -> None:
    await asked.write(b"\x16\x03\x01 what\r\n\r\n")


async def not_text(asked: Asked) -> None:
    done = asked.outcome({"type": "succeeded", "result": {"type": "string", "value": "X"}})
    await asked.respond(json.dumps(done).encode().replace(b'"X"', b'"\xff"'))


async def packed(asked: Asked) -> None:
    await asked.respond(b"\x1f\x8b\x08\x00\x00", Content_Encoding="gzip")


async def truncated(asked: Asked) -> None:
    await asked.write(response(asked.outcome(DONE))[:-7])


async def truncated_chunks(asked: Asked) -> None:
    body = json.dumps(asked.outcome(DONE)).encode()
    await asked.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"%x\r\n" % len(body) + body + b"\r\n")


async def too_large(asked: Asked) -> None:
    await asked.write(f"HTTP/1.1 200 OK\r\nContent-Length: {REQUEST_BYTES_MAX + 1}\r\n\r\n".encode())


async def too_large_in_chunks(asked: Asked) -> None:
    chunk = b"%x\r\n" % MIB + b" " * MIB + b"\r\n"
    await asked.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        for _ in range(REQUEST_BYTES_MAX // MIB + 1):
            await asked.write(chunk)
        await asyncio.sleep(30)


async def another_request(asked: Asked) -> None:
    await asked.respond(asked.outcome(DONE, request_id="rq_another"))


async def another_run(asked: Asked) -> None:
    await asked.respond(asked.outcome(DONE, run_id="rn_another"))


async def another_attempt(asked: Asked) -> None:
    await asked.respond(asked.outcome({**DONE, "attempt": 2}))


async def another_generation(asked: Asked) -> None:
    await asked.respond(asked.outcome({**DONE, "attempt_generation": 2}))


async def no_generation(asked: Asked) -> None:
    document = asked.outcome(DONE)
    del document["outcome"]["attempt_generation"]
    await asked.respond(document)


async def another_kind(asked: Asked) -> None:
    await asked.respond(asked.outcome({"type": "completed", "result": NULL}))


async def another_version(asked: Asked) -> None:
    await asked.respond(asked.outcome(DONE, protocol_version=2))


async def a_rejection_of_another_generation(asked: Asked) -> None:
    await asked.respond(asked.outcome({"type": "rejected_before_start", "reason": "busy", "attempt_generation": 7}))


REASONS = {
    status_500: ("ACC-87", "it answered 500"),
    status_503: ("PRO-18", "it answered 503: come back"),
    status_429: ("PRO-18", "it answered 429"),
    status_201: ("HTT-08", "it answered 201"),
    an_error_without_end: ("ACC-87", "it answered 502"),
    disconnected: ("ACC-89", "Server disconnected"),
    reset: ("ACC-89", ""),
    no_answer_in_time: ("ACC-88", "no answer came within 700 ms"),
    a_head_without_a_body: ("ACC-88", "no answer came within 700 ms"),
    malformed: ("ACC-90", "its response is no outcome"),
    not_an_outcome: ("ACC-90", "its response is no outcome"),
    not_http: ("ACC-90", ""),
    not_text: ("ACC-90", "not valid UTF-8"),
    packed: ("ACC-90", "its response is no outcome"),
    truncated: ("ACC-90", "payload"),
    truncated_chunks: ("ACC-90", "payload"),
    too_large: ("ACC-90", "over 16777216 bytes"),
    too_large_in_chunks: ("ACC-90", "over 16777216 bytes"),
    another_request: ("ACC-91", "it names another request"),
    another_run: ("ACC-91", "it names another run"),
    another_attempt: ("ACC-91", "it names another attempt or generation"),
    another_generation: ("ACC-91", "it names another attempt or generation"),
    no_generation: ("ACC-91", "it names another attempt or generation"),
    another_kind: ("ACC-91", "an effect is answered as a discovery"),
    another_version: ("ACC-90", "protocol version 2 is not supported"),
    a_rejection_of_another_generation: ("ACC-91", "it names another attempt or generation"),
}
BOUNDED = EngineConfig(tick_ms=20, exchange_ms=700)


@pytest.mark.req("ACC-87", "ACC-88", "ACC-89", "ACC-90", "ACC-91", "HTT-07", "HTT-08", "PRO-18")
@pytest.mark.parametrize("behave", REASONS, ids=lambda behave: behave.__name__)
async def test_after_an_effect_anything_but_its_outcome_leaves_it_unknown(
    tmp_path: Path, behave: Callable[[Asked], Awaitable[None]]
) -> None:
    seen: list[Asked] = []
    async with (
        raw_endpoint(lambda asked: misbehaving_once(asked, "forward", behave, seen)) as endpoint,
        shop_server(tmp_path, endpoint.url, config=BOUNDED, memory=True) as shop,
    ):
        run_id = await shop.begin()
        unknown = await shop.attempt_in(run_id, "unknown")
        assert (unknown["attempt"], unknown["attempt_generation"]) == (1, 1)
        assert REASONS[behave][1] in (await shop.worker())["last_failure"]
        assert (await shop.run(run_id))["attention"] == "unknown"
        assert len(endpoint.of("forward")) == 1, "nothing is sent again"
        await shop.resolve(unknown, {"supply_success": {"result": NULL}})
        assert (await shop.ended(run_id))["outcome"] == "succeeded"
        assert len(endpoint.of("forward")) == 1


@pytest.mark.req("ACC-83", "HTT-04")
@pytest.mark.parametrize(
    "behave", [status_500, reset, truncated, malformed, another_request, no_answer_in_time], ids=lambda behave: behave.__name__
)
async def test_a_discovery_is_repeated_after_any_of_it(tmp_path: Path, behave: Callable[[Asked], Awaitable[None]]) -> None:
    seen: list[Asked] = []
    async with (
        raw_endpoint(lambda asked: misbehaving_once(asked, "discovery", behave, seen)) as endpoint,
        shop_server(tmp_path, endpoint.url, config=BOUNDED, memory=True) as shop,
    ):
        run_id = await shop.begin()
        assert (await shop.ended(run_id))["outcome"] == "succeeded"
        passes = [asked.target["pass"] for asked in endpoint.of("discovery")]
        assert passes == [1, 1, 2], "the same pass again, under another request"
        assert endpoint.of("discovery")[0].invocation["request_id"] != endpoint.of("discovery")[1].invocation["request_id"]
        assert [attempt["attempt"] for attempt in await shop.attempts(run_id)] == [1]


@pytest.mark.req("ACC-86", "HTT-07")
async def test_a_callbacks_success_and_failure_settle(tmp_path: Path) -> None:
    async def behave(asked: Asked) -> None:
        if asked.mode == "discovery":
            await well_behaved(asked, retry={"max_attempts": 2, "initial_ms": 0, "multiplier": 1.0, "maximum_ms": 0, "jitter": 0.0})
        elif asked.target["attempt"] == 1:
            failure = {"category": "Flaky", "message": "hung up", "retryable": True}
            await asked.respond(asked.outcome({"type": "callback_failed", "failure": failure}))
        else:
            await asked.respond(asked.outcome({"type": "succeeded", "result": {"type": "string", "value": "ch_1"}}))

    async with raw_endpoint(behave) as endpoint, shop_server(tmp_path, endpoint.url, memory=True) as shop:
        run = await shop.ended(await shop.begin())
        first, second = run["steps"][0]["attempts"]
        assert (first["state"], first["error"]["message"]) == ("failed", "hung up")
        assert (second["state"], second["worker"]["transport"]) == ("succeeded", "http")
        assert run["steps"][0]["result"]["value"] == "ch_1"
        assert first["operation_id"] == second["operation_id"]


# Proofs that it never began


@pytest.mark.req("ACC-84", "HTT-05", "STOP-12")
async def test_a_refused_connection_puts_the_same_attempt_back(tmp_path: Path) -> None:
    endpoint: RawEndpoint

    async def behave(asked: Asked) -> None:
        if asked.mode == "discovery" and not asked.invocation["history"]["steps"]:
            assert endpoint._server is not None
            endpoint._server.close()  # from here on connections are refused, while this one is answered
        await well_behaved(asked)

    async with raw_endpoint(behave) as endpoint, shop_server(tmp_path, endpoint.url, memory=True) as shop:
        run_id = await shop.begin()
        await shop.recorded(run_id, "attempt_requeued")
        worker = await shop.worker()
        assert (worker["connected"], worker["last_success_at_ms"] is not None) == (False, True)
        assert f"{endpoint.port}" in worker["last_failure"]
        assert endpoint.of("forward") == []
        assert (await shop.run(run_id))["attention"] == "no_worker", "its endpoint is not reachable, and somebody should know"
        with contextlib.suppress(ValueError):
            await endpoint.shut()
        await endpoint.open()
        assert (await shop.ended(run_id))["outcome"] == "succeeded"
        (attempt,) = await shop.attempts(run_id)
        assert (attempt["attempt"], attempt["attempt_generation"], attempt["state"]) == (1, 1, "succeeded")
        assert len(endpoint.of("forward")) == 1
        assert (await shop.worker())["connected"]


@pytest.mark.req("ACC-85", "HTT-06")
@pytest.mark.parametrize("reason", ["busy", "draining", "unsupported_target"])
async def test_a_rejection_before_the_start_puts_the_same_attempt_back(tmp_path: Path, reason: str) -> None:
    seen: list[Asked] = []

    async def reject(asked: Asked) -> None:
        await asked.respond(asked.outcome({"type": "rejected_before_start", "reason": reason}))

    async with (
        raw_endpoint(lambda asked: misbehaving_once(asked, "forward", reject, seen)) as endpoint,
        shop_server(tmp_path, endpoint.url, memory=True) as shop,
    ):
        run_id = await shop.begin()
        assert (await shop.ended(run_id))["outcome"] == "succeeded"
        first, second = endpoint.of("forward")
        assert first.target == second.target, "the same ordinal, generation and operation"
        assert first.invocation["request_id"] != second.invocation["request_id"]
        kinds = [record["kind"] for record in await shop.records(run_id)]
        assert "attempt_unknown" not in kinds
        assert [attempt["attempt"] for attempt in await shop.attempts(run_id)] == [1]


@pytest.mark.req("STOP-13", "HTT-06")
async def test_a_rejection_while_the_run_is_being_stopped_ends_it(tmp_path: Path) -> None:
    held, go_on = asyncio.Event(), asyncio.Event()

    async def behave(asked: Asked) -> None:
        if asked.mode == "discovery":
            await well_behaved(asked)
            return
        held.set()
        await go_on.wait()
        await asked.respond(asked.outcome({"type": "rejected_before_start", "reason": "busy"}))

    async with raw_endpoint(behave) as endpoint, shop_server(tmp_path, endpoint.url, memory=True) as shop:
        run_id = await shop.begin()
        await asyncio.wait_for(held.wait(), 10)
        await shop.api.post(f"/v1/workspaces/default/runs/{run_id}/cancel", {}, 202)
        assert (await shop.run(run_id))["status"] == "stopping"
        go_on.set()
        run = await shop.ended(run_id)
        assert (run["outcome"], run["recovery_reason"]) == ("cancelled", "empty_unwind")
        assert [attempt["state"] for attempt in await shop.attempts(run_id)] == ["fenced"]
        assert len(endpoint.of("forward")) == 1


# What leaves


@pytest.mark.req("HTT-02", "HTT-01")
async def test_a_local_call_is_one_plain_unsigned_post(tmp_path: Path) -> None:
    async with raw_endpoint(well_behaved) as endpoint, shop_server(tmp_path, endpoint.url, memory=True) as shop:
        await shop.ended(await shop.begin())
    for asked in endpoint.asked:
        assert (asked.method, asked.path, asked.headers["content-type"]) == ("POST", "/ryusen", "application/json")
        assert not [name for name in asked.headers if name.startswith("ryusen") or name in ("authorization", "cookie")]
        assert asked.invocation["type"] == "invocation"
        assert asked.invocation["history"]["mode"] == "full"
        assert asked.headers["connection"] == "close"


async def test_a_proxy_of_the_environment_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with raw_endpoint(well_behaved) as proxy, raw_endpoint(well_behaved) as endpoint:
        for variable in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(variable, proxy.url)
        monkeypatch.setenv("no_proxy", "")
        async with shop_server(tmp_path, endpoint.url, memory=True) as shop:
            assert (await shop.ended(await shop.begin()))["outcome"] == "succeeded"
        assert proxy.asked == []


@pytest.mark.parametrize("status", [301, 307, 308])
async def test_a_redirect_is_not_followed(tmp_path: Path, status: int) -> None:
    async with raw_endpoint(well_behaved) as elsewhere:

        async def redirect(asked: Asked) -> None:
            await asked.respond(b"", status, Location=elsewhere.url)

        seen: list[Asked] = []
        async with (
            raw_endpoint(lambda asked: misbehaving_once(asked, "forward", redirect, seen)) as endpoint,
            shop_server(tmp_path, endpoint.url, memory=True) as shop,
        ):
            # Where it leads to would answer well, so that following it would settle the attempt.
            await shop.attempt_in(await shop.begin(), "unknown")
            assert f"it answered {status}" in (await shop.worker())["last_failure"]
        assert seen
        assert elsewhere.asked == []


async def test_no_more_is_out_than_the_capacity(tmp_path: Path) -> None:
    open_now, most = 0, 0
    go_on = asyncio.Event()

    async def behave(asked: Asked) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        if asked.mode == "forward":
            await go_on.wait()
        await well_behaved(asked)
        open_now -= 1

    async with raw_endpoint(behave) as endpoint, shop_server(tmp_path, endpoint.url, memory=True, http_capacity=2) as shop:
        runs = [await shop.begin() for _ in range(5)]
        await until(lambda: len(endpoint.of("forward")) == 2)
        assert (await shop.worker())["in_flight"] == 2
        go_on.set()
        for run_id in runs:
            assert (await shop.ended(run_id))["outcome"] == "succeeded"
        assert most == 2


@pytest.mark.req("HTT-03")
async def test_without_a_configured_endpoint_work_stays_queued(tmp_path: Path) -> None:
    async with shop_server(tmp_path) as shop:
        run_id = await shop.begin()
        run = await shop.run(run_id)
        assert (run["status"], run["attention"]) == ("running", "no_worker")
    async with raw_endpoint(well_behaved) as endpoint, shop_server(tmp_path, endpoint.url, publish=False) as shop:
        assert (await shop.ended(run_id))["outcome"] == "succeeded"
        assert (await shop.worker())["functions"] == ["fulfil"]


async def test_an_endpoint_runs_what_the_active_manifest_names(tmp_path: Path) -> None:
    async with raw_endpoint(well_behaved) as endpoint, shop_server(tmp_path, endpoint.url, publish=False, memory=True) as shop:
        assert (await shop.worker())["functions"] == []
        first = await shop.api.publish()
        assert (await shop.worker())["functions"] == ["fulfil"]
        await shop.api.publish(function="refund", parent=first["manifest_generation"])
        worker = await shop.worker()
        assert (worker["functions"], worker["transport"], worker["release_id"]) == (["refund"], "http", None)
        assert worker["instance_id"] == endpoint.url


@pytest.mark.req("ACC-72", "STOP-06", "STOP-07")
async def test_a_response_held_over_a_cancel_counts_and_is_undone(tmp_path: Path) -> None:
    held, go_on = asyncio.Event(), asyncio.Event()

    async def behave(asked: Asked) -> None:
        if asked.mode == "forward":
            held.set()
            await go_on.wait()
        await well_behaved(asked)

    async with raw_endpoint(behave) as endpoint, shop_server(tmp_path, endpoint.url, memory=True) as shop:
        run_id = await shop.begin()
        await asyncio.wait_for(held.wait(), 10)
        await shop.api.post(f"/v1/workspaces/default/runs/{run_id}/cancel", {}, 202)
        assert (await shop.run(run_id))["status"] == "stopping"
        go_on.set()
        run = await shop.ended(run_id)
        assert (run["outcome"], run["recovery"]) == ("cancelled", "fully_compensated")
        assert [asked.mode for asked in endpoint.asked] == ["discovery", "forward", "compensation"]
        assert endpoint.of("compensation")[0].target["forward_result"] == NULL


async def test_a_stop_of_the_server_leaves_an_open_effect_unknown_at_once(tmp_path: Path) -> None:
    held = asyncio.Event()

    async def hold(asked: Asked) -> None:
        if asked.mode == "discovery":
            await well_behaved(asked)
            return
        held.set()
        await asyncio.sleep(30)

    async with raw_endpoint(hold) as endpoint:
        async with shop_server(tmp_path, endpoint.url) as shop:
            run_id = await shop.begin()
            await asyncio.wait_for(held.wait(), 10)
        async with shop_server(tmp_path, endpoint.url, publish=False) as shop:
            attempt = (await shop.attempts(run_id))[0]
            assert (attempt["state"], attempt["attempt"]) == ("unknown", 1)
            assert len(endpoint.of("forward")) == 1


async def test_a_server_does_not_wait_for_a_hung_endpoint_to_stop(tmp_path: Path) -> None:
    async def hold(asked: Asked) -> None:
        await asyncio.sleep(30)

    async with asyncio.timeout(10), raw_endpoint(hold) as endpoint, shop_server(tmp_path, endpoint.url, memory=True) as shop:
        await shop.begin()
        await until(lambda: bool(endpoint.asked))


async def test_of_two_endpoints_the_one_that_answers_is_used(tmp_path: Path) -> None:
    async with raw_endpoint(well_behaved) as lost, raw_endpoint(well_behaved) as good:
        gone = lost.url
        await lost.shut()
        async with shop_server(tmp_path, gone, good.url, memory=True) as shop:
            runs = [await shop.begin() for _ in range(4)]
            for run_id in runs:
                assert (await shop.ended(run_id))["outcome"] == "succeeded"
        await lost.open()
