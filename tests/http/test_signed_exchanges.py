"""With a secret, requests are signed and only signed responses count; and it goes to nobody."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ryusen_protocol.exchange import WINDOW_S, signature_problem
from ryusen_sdk import Event, Ryusen, Step
from tests.api.api_harness import W
from tests.http.hosting import AsgiServer
from tests.http.raw_endpoint import Asked, raw_endpoint
from tests.http.shop_server import DONE, NULL, declared, shop_server

SECRET = "s3cret"


async def sign_as(asked: Asked, document: Any, how: str) -> None:
    """Respond with a signature of that kind."""
    now_s = int(time.time())
    match how:
        case "right":
            await asked.respond(document, secret=SECRET.encode(), now_s=now_s)
        case "missing":
            await asked.respond(document)
        case "another secret":
            await asked.respond(document, secret=b"other", now_s=now_s)
        case "too old":
            await asked.respond(document, secret=SECRET.encode(), now_s=now_s - WINDOW_S - 60)
        case _:
            await asked.respond(document, secret=SECRET.encode(), now_s=now_s, Ryusen_Timestamp=str(now_s + 1))


async def discovered(asked: Asked) -> dict[str, Any]:
    return asked.outcome({"type": "completed", "result": NULL} if asked.invocation["history"]["steps"] else declared())


@pytest.mark.parametrize("how", ["missing", "another secret", "too old", "another timestamp"])
@pytest.mark.parametrize("body", [DONE, {"type": "rejected_before_start", "reason": "busy"}], ids=["success", "rejection"])
@pytest.mark.req("HTT-06", "HTT-07")
async def test_an_answer_that_is_not_signed_rightly_is_none(tmp_path: Path, how: str, body: dict[str, Any]) -> None:
    async def behave(asked: Asked) -> None:
        if asked.mode == "discovery":
            await sign_as(asked, await discovered(asked), "right")
        else:
            await sign_as(asked, asked.outcome(body), how)

    async with raw_endpoint(behave) as endpoint, shop_server(tmp_path, endpoint.url, memory=True, http_secret=SECRET) as shop:
        run_id = await shop.begin()
        assert (await shop.attempt_in(run_id, "unknown"))["attempt"] == 1
        assert "does not count" in (await shop.worker())["last_failure"]
        assert len(endpoint.of("forward")) == 1


async def test_requests_are_signed_over_their_exact_bytes_and_hold_no_secret(tmp_path: Path) -> None:
    async def behave(asked: Asked) -> None:
        body = await discovered(asked) if asked.mode == "discovery" else asked.outcome(DONE)
        await sign_as(asked, body, "right")

    async with raw_endpoint(behave) as endpoint, shop_server(tmp_path, endpoint.url, memory=True, http_secret=SECRET) as shop:
        assert (await shop.ended(await shop.begin()))["outcome"] == "succeeded"
        shown = [(await shop.api.client.get(path)).text for path in (f"{W}/workers", "/v1/server", "/v1/metrics")]
    for asked in endpoint.asked:
        signed = (asked.headers["ryusen-timestamp"], asked.headers["ryusen-signature"])
        assert signature_problem(SECRET.encode(), *signed, asked.body, int(time.time())) is None
        assert not [value for value in asked.headers.values() if SECRET in value]
        assert SECRET.encode() not in asked.body
    assert not [text for text in shown if SECRET in text]


@pytest.mark.parametrize(("there", "ends"), [(SECRET, True), ("another", False), (None, False)], ids=["same", "another", "none"])
async def test_server_and_handler_agree_only_on_the_same_secret(tmp_path: Path, there: str | None, ends: bool) -> None:
    app = Ryusen("shop")
    ran: list[str] = []

    @app.function(id="fulfil")
    async def fulfil(event: Event, step: Step) -> None:
        ran.append("body")
        await step.run("charge", ran.append, "effect")

    async with (
        AsgiServer(app.asgi(there)).serving() as hosted,
        shop_server(tmp_path, hosted.url, memory=True, http_secret=SECRET) as shop,
    ):
        run_id = await shop.begin()
        if ends:
            assert (await shop.ended(run_id))["outcome"] == "succeeded"
            assert ran == ["body", "body", "effect", "body"]
            return
        failure = (await shop.failing())["last_failure"]
        assert "secret" in failure
        assert await shop.attempts(run_id) == []
        assert ran.count("effect") == 0
        assert (ran == []) == (there is not None), "a handler with a secret runs nothing that it cannot check"
