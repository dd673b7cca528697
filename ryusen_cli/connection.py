"""The socket under the API client: one keep-alive connection to one server, on the standard library alone.

Owns the difference that matters to a caller: a request that never left, a request whose answer was lost, and an answer. Knows no
route. `http.client` and not a larger library, because importing it is most of what a short command would spend.
"""

from __future__ import annotations

import http.client
import time
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

import msgspec

from ryusen_cli.exits import CliError, Exit, exit_of, usage
from ryusen_protocol.client import ApiProblem, CommandRefused, Request, UnreadableAnswer, parse
from ryusen_protocol.sse import StreamBroken, StreamParser
from ryusen_protocol.words import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ryusen_protocol.client import StreamRequest
    from ryusen_protocol.operator import RefusalEnvelope
    from ryusen_protocol.sse import StreamEvent

T = TypeVar("T")

CONNECT_S: Final = 5.0
ANSWER_S: Final = 30.0
SILENCE_S: Final = 35.0
"""A stream that is silent for several heartbeats is lost."""
STREAM_READ_BYTES: Final = 65_536
RESENDS: Final = 3
RESEND_PAUSE_S: Final = 0.3
_TELLS_NOTHING: Final = frozenset(
    ("busy", "unavailable", "storage_unavailable", "request_timeout", "unauthorized", "forbidden", "internal", "server")
)
"""Refusals of one sending that say nothing of another whose answer was lost."""
_LISTS: Final = {"runs": "runs", "attempts": "attempts", "events": "events", "applications": "apps", "routing": "routing"}
"""What stands in a route before an id, and the commands that list what there is."""


class Reply(msgspec.Struct, Generic[T], frozen=True):
    """An answer: the document, and its exact text for `--json`, with whatever members a newer server added."""

    document: T
    text: bytes


class NeverLeft(Exception):
    """No connection: the server did not see the request."""


class AnswerLost(Exception):
    """The request went out and no whole answer came back: the server may have acted on it."""


class Connection:
    """Requests to one base URL, in turn. Not for several threads. `typed` makes the command line that a person is told to type."""

    def __init__(self, url: str, typed: Callable[..., str] | None = None) -> None:
        self.url = url.rstrip("/")
        self._typed = typed
        self._secure, self._host, self._port, self._prefix = _parts(url)
        self._open: http.client.HTTPConnection | None = None

    def ask(self, request: Request[T], *, wait_ms: int = 0) -> Reply[T]:
        """The answer to a request that changes nothing, or a `CliError`. `wait_ms` is how long the server may hold it."""
        try:
            status, body = self.exchange(request, wait_ms=wait_ms)
        except NeverLeft as error:
            raise self.unreachable(str(error)) from error
        except AnswerLost as error:
            message = f"{self.url} took the request, but no whole answer came back: {error}"
            raise CliError(message, exit_code=Exit.UNREACHABLE, hint="ask again") from error
        return self._read(request, status, body, mutation=False)

    def change(self, request: Request[T], *, wait_ms: int = 0, repeat: str, key: str | None = None) -> Reply[T]:
        """The answer to a mutation that is safe to send again, or a `CliError`.

        A lost answer is asked for again with the very same request. If it stays lost the outcome is not known, and `repeat` tells
        the person how to find out, under which `key` if the request has one.
        """
        lost: Exception | None = None
        for attempt in range(1 + RESENDS):
            if attempt:
                time.sleep(RESEND_PAUSE_S)
            try:
                status, body = self.exchange(request, wait_ms=wait_ms)
                return self._read(request, status, body, mutation=True)
            except CliError as error:
                if error.exit_code is Exit.NOT_KNOWN:
                    raise not_known(error.message, repeat, key, code=error.code, extra=error.extra) from error
                if lost is None or error.code not in _TELLS_NOTHING:
                    raise
            except NeverLeft as error:
                if lost is None:
                    raise self.unreachable(str(error)) from error
            except AnswerLost as error:
                lost = error
            except UnreadableAnswer as error:
                raise not_known(str(error), repeat, key) from error
        raise not_known(f"the request went out to {self.url}, but no whole answer came back: {lost}", repeat, key)

    def exchange(self, request: Request[T], *, wait_ms: int = 0) -> tuple[int, bytes]:
        """Status and body of one answer. Raises `NeverLeft` or `AnswerLost`."""
        answer_s = ANSWER_S + wait_ms / 1_000
        reused = self._open is not None
        try:
            return self._send(request, answer_s)
        except AnswerLost as lost:
            # An idle connection may have been closed under us; the same request on a fresh one is safe, as all here are.
            if not reused:
                raise
            try:
                return self._send(request, answer_s)
            except NeverLeft:
                raise lost from None  # the first one went out, whatever is known of the second

    def _read(self, request: Request[T], status: int, body: bytes, *, mutation: bool) -> Reply[T]:
        try:
            return Reply(request.read(status, body), body)
        except ApiProblem as problem:
            error = refused(problem, mutation=mutation)
            if error.exit_code is Exit.NOT_FOUND and self._typed is not None:
                error.hint = _what_there_is(request.target, self._typed)
            elif problem.code == "invalid" and "cursor=" in request.target and "cursor" in problem.detail:
                error.hint = "leave --cursor out, and give the same filters with the cursor that comes with a page"
            raise error from problem
        except CommandRefused as error:
            raise command_refused(error.document) from error
        except UnreadableAnswer as error:
            if mutation:
                raise
            raise CliError(printable(str(error)), hint="check --url: another program may answer there") from error

    def _send(self, request: Request[T], answer_s: float) -> tuple[int, bytes]:
        connection = self._connected()
        try:
            if connection.sock is not None:
                connection.sock.settimeout(answer_s)
            connection.request(request.method, self._prefix + request.target, body=request.body, headers=request.headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise AnswerLost(_cause(error)) from error
        except BaseException:
            self.close()
            raise

    def _connected(self) -> http.client.HTTPConnection:
        if self._open is None:
            self._open = self._connect()
        return self._open

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=CONNECT_S)
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            raise NeverLeft(_cause(error)) from error
        return connection

    def stream(self, request: StreamRequest) -> Iterator[StreamEvent]:
        """The events of a stream on a connection of its own, until the server ends it. Raises `NeverLeft`, `AnswerLost` or a `CliError`."""
        connection = self._connect()
        try:
            if connection.sock is not None:
                connection.sock.settimeout(SILENCE_S)
            try:
                connection.request("GET", self._prefix + request.target, headers=request.headers)
                answer = connection.getresponse()
                if answer.status != 200:
                    raise _stream_refused(answer.status, answer.read())
                parser = StreamParser()
                while received := answer.read1(STREAM_READ_BYTES):
                    yield from parser.feed(received)
            except (OSError, http.client.HTTPException, StreamBroken) as error:
                raise AnswerLost(_cause(error)) from error
        finally:
            connection.close()

    def close(self) -> None:
        """Drop the connection; the next request opens another."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def unreachable(self, cause: str) -> CliError:
        """No server answers at this URL."""
        return CliError(
            f"no server answers at {self.url}: {cause}",
            exit_code=Exit.UNREACHABLE,
            hint="start one with `ryusen dev`, or name another with --url (or RYUSEN_URL)",
        )


def not_known(
    message: str, repeat: str, key: str | None = None, *, code: str | None = None, extra: dict[str, Any] | None = None
) -> CliError:
    """A mutation that may or may not have happened. `key` is what makes a repeat the same mutation."""
    known = {**(extra or {}), **({} if key is None else {"idempotency_key": key})}
    said = f"whether it happened is not known: {message}"
    return CliError(said, exit_code=Exit.NOT_KNOWN, hint=repeat, code=code, extra=known)


def refused(problem: ApiProblem, *, mutation: bool) -> CliError:
    """The server's own words, and its document for `--json`."""
    return CliError(
        problem.detail,
        exit_code=exit_of(problem.document, mutation=mutation),
        code=problem.code,
        extra=msgspec.to_builtins(problem.document),
        hint="check --token (or RYUSEN_TOKEN)" if problem.code in {"unauthorized", "forbidden"} else None,
    )


def command_refused(envelope: RefusalEnvelope) -> CliError:
    """A refusal of an operator command, found by the server or before it was sent: nothing was changed."""
    refusal = envelope.refusal
    return CliError(refusal.message, exit_code=Exit.REFUSED, code=refusal.code, extra=msgspec.to_builtins(envelope))


def _what_there_is(target: str, typed: Callable[..., str]) -> str | None:
    """The command that lists what the one that is asked for is not among."""
    kinds = [_LISTS[part] for part in target.partition("?")[0].split("/")[4:5] if part in _LISTS]
    return typed(kinds[0], "ls") if kinds else None


def _stream_refused(status: int, body: bytes) -> CliError:
    try:
        parse(status, body, object)
    except ApiProblem as problem:
        return refused(problem, mutation=False)
    except UnreadableAnswer as error:
        return CliError(printable(str(error)), hint="check --url: another program may answer there")
    raise AssertionError("a refusal has no 2xx status")


def _parts(url: str) -> tuple[bool, str, int | None, str]:
    wrong = usage(f"{url!r} is not the URL of a server", "write it as http://127.0.0.1:7878")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise wrong from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment or parts.username is not None:
        raise wrong
    return parts.scheme == "https", parts.hostname, port, parts.path.rstrip("/")


def _cause(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
