"""The Python SDK's handlers over HTTP, held to every case that a handler of any language is held to."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from ryusen_conformance import executions, fixtures, http_suite
from ryusen_conformance.registry import app
from ryusen_conformance.report import Impossible, Result
from tests.http.hosting import AsgiServer, wsgi_server


async def run(url: str, secret: str | None = None) -> list[Result]:
    return [result async for result in http_suite.run(url, secret)]


def assert_all_passed(results: list[Result], secret: str | None) -> None:
    assert [(result.suite, result.case, result.why) for result in results if not result.passed] == []
    ran = Counter(result.suite for result in results)
    assert ran[executions.SUITE] == len(fixtures.cases("executions"))
    exchanges = [case for case in fixtures.cases("exchanges") if secret or case.document.get("needs") != "secret"]
    assert ran[http_suite.SUITE] == len(exchanges)


@pytest.mark.req("CNF-01", "CNF-10", "PRO-01", "SDK-11", "SDK-12")
async def test_the_asgi_handler_passes_every_case_signed() -> None:
    async with AsgiServer(app.asgi(secret="secret")).serving() as server:
        assert_all_passed(await run(server.url, "secret"), "secret")


async def test_the_wsgi_handler_passes_every_case_unsigned() -> None:
    with wsgi_server(app.wsgi()) as url:
        assert_all_passed(await run(url), None)


async def test_what_is_no_handler_is_told_as_that() -> None:
    with pytest.raises(Impossible, match="no address of a handler"):
        await run("localhost:80")
    with pytest.raises(Impossible, match="no handler of the contract registry answers: no response"):
        await run("http://127.0.0.1:1/")

    async def nothing(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    async with AsgiServer(nothing, lifespan=False).serving() as server:
        with pytest.raises(Impossible, match="the response is no JSON object"):
            await run(server.url)


async def test_another_secret_is_told_at_once() -> None:
    async with AsgiServer(app.asgi(secret="one")).serving() as server:
        with pytest.raises(Impossible, match="status 401"):
            await run(server.url, "two")
