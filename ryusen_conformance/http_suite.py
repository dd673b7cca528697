"""Holds an HTTP handler, in whatever language, to the fixtures: `ryusen conformance http URL`.

The same message conformance as over a connection, then the exchange itself: what a handler refuses without running anything, what it signs,
and that a request which arrives again is not run again. Follows no redirect and sends nothing twice but where a case says so.
"""

from __future__ import annotations

import copy
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import msgspec

from ryusen_conformance import executions, fixtures
from ryusen_conformance.expectation import JsonDict, Unreadable, difference, outcome_body
from ryusen_conformance.report import Impossible, Result
from ryusen_protocol.exchange import MEDIA_TYPE, SIGNATURE_HEADER, TIMESTAMP_HEADER, WINDOW_S, sign, signature_problem
from ryusen_protocol.limits import REQUEST_BYTES_MAX

SUITE: Final = "exchanges"
PATIENCE_S: Final = 20.0
_OLD_S: Final = WINDOW_S + 60


class Answer(NamedTuple):
    """A response as it arrived."""

    status: int
    headers: dict[str, str]
    body: bytes


class HttpPeer:
    """Sends invocations to one handler, as a server does."""

    def __init__(self, client: aiohttp.ClientSession, url: str, secret: bytes | None) -> None:
        self._client = client
        self._url = url
        self.secret = secret

    async def ask(self, invocation: JsonDict) -> JsonDict:
        """The outcome document of an invocation. Raises `NoAnswer`, or `Unread` where the handler refuses to read it."""
        body = msgspec.json.encode(invocation)
        answer = await self.send("POST", body, self._signed(body))
        if 400 <= answer.status < 500:
            raise executions.Unread(f"status {answer.status}: {answer.body[:300].decode('utf-8', 'replace')}")
        if answer.status != 200:
            raise executions.NoAnswer(f"status {answer.status}: {answer.body[:300].decode('utf-8', 'replace')}")
        wrong = self._signature_problem(answer)
        if wrong is not None:
            raise executions.NoAnswer(f"the response does not count: {wrong}")
        try:
            return msgspec.json.decode(answer.body, type=dict[str, Any])
        except msgspec.MsgspecError as refused:
            raise executions.NoAnswer(f"the response is no JSON object: {refused}") from None

    async def send(self, method: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        """One request. Raises `NoAnswer` when no complete response came back."""
        try:
            async with self._client.request(
                method, self._url, data=body, headers={"Content-Type": MEDIA_TYPE, **headers}, allow_redirects=False
            ) as response:
                content = await response.content.read(REQUEST_BYTES_MAX + 1)
                while not response.content.at_eof() and len(content) <= REQUEST_BYTES_MAX:
                    content += await response.content.read(REQUEST_BYTES_MAX)
                return Answer(response.status, dict(response.headers), content)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise executions.NoAnswer(f"no response: {error or type(error).__name__}") from None

    def headers(self, how: str, body: bytes) -> dict[str, str]:
        """The signature headers of a case: `right`, `missing`, `wrong`, `old` or `of_another_body`."""
        now = str(int(time.time()))
        secret = self.secret or b""
        match how:
            case "missing":
                return {}
            case "wrong":
                return {TIMESTAMP_HEADER: now, SIGNATURE_HEADER: sign(secret + b"x", now, body)}
            case "old":
                old = str(int(time.time()) - _OLD_S)
                return {TIMESTAMP_HEADER: old, SIGNATURE_HEADER: sign(secret, old, body)}
            case "of_another_body":
                return {TIMESTAMP_HEADER: now, SIGNATURE_HEADER: sign(secret, now, body + b" ")}
            case _:
                return self._signed(body)

    def _signed(self, body: bytes) -> dict[str, str]:
        if self.secret is None:
            return {}
        now = str(int(time.time()))
        return {TIMESTAMP_HEADER: now, SIGNATURE_HEADER: sign(self.secret, now, body)}

    def _signature_problem(self, answer: Answer) -> str | None:
        headers = {name.lower(): content for name, content in answer.headers.items()}
        timestamp, signature = headers.get(TIMESTAMP_HEADER.lower()), headers.get(SIGNATURE_HEADER.lower())
        return signature_problem(self.secret, timestamp, signature, answer.body, int(time.time()))


async def run(url: str, secret: str | None = None, patience_s: float = PATIENCE_S) -> AsyncIterator[Result]:
    """Every case, one result each; those of signatures only with a secret. Raises `Impossible` when nothing answers at the address."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise Impossible(f"{url!r} is no address of a handler; write http://HOST:PORT/PATH")
    timeout = aiohttp.ClientTimeout(total=patience_s)
    async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as client:
        peer = HttpPeer(client, url, secret.encode() if secret else None)
        token = secrets.token_hex(4)
        await _answers(peer, token)
        async for result in executions.run(peer.ask, token):
            yield result
        for case in fixtures.cases(SUITE):
            if case.document.get("needs") != "secret" or secret:
                yield Result(SUITE, case.name, case.exercises, await _exchanged(peer, case.document, token))


async def _answers(peer: HttpPeer, token: str) -> None:
    """Whether there is a handler of the contract at all."""
    try:
        await executions.calls_of(peer.ask, "rn_none", f"rq_hello_{token}")
    except (executions.NoAnswer, Unreadable) as failed:
        raise Impossible(f"no handler of the contract registry answers: {failed}") from None


async def _exchanged(peer: HttpPeer, case: JsonDict, token: str) -> str | None:
    try:
        body, run_id = _body(case, token)
        headers = peer.headers(case.get("signature", "right"), body)
        for _ in range(case.get("times", 1)):
            answer = await peer.send(case.get("method", "POST"), body, headers)
            wrong = _wrong(answer, case, run_id)
            if wrong is not None:
                return wrong
        noted = await executions.calls_of(peer.ask, run_id, f"rq_calls_{secrets.token_hex(6)}")
    except (executions.NoAnswer, Unreadable) as failed:
        return str(failed)
    return None if noted == case["calls"] else f"callbacks ran: {noted}, not {case['calls']}"


def _body(case: JsonDict, token: str) -> tuple[bytes, str]:
    """The bytes to send, under ids of this run of the suite, and the run they are about."""
    document = copy.deepcopy(case["invocation"])
    document["request_id"] += "_" + token
    document["run"]["run_id"] += "_" + token
    body = msgspec.json.encode(document)
    return body[: len(body) // 2] if case.get("truncated") else body, document["run"]["run_id"]


def _wrong(answer: Answer, case: JsonDict, run_id: str) -> str | None:
    if "outcome" in case and answer.status == 200:
        return difference(outcome_body(msgspec.json.decode(answer.body)), case["outcome"], (), run_id)
    if answer.status in case["status"]:
        return None
    return f"status {answer.status} with {answer.body[:200].decode('utf-8', 'replace')}, not one of {case['status']}"
