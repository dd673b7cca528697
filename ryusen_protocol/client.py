"""The API client without a socket: what to send for each route, and what the answer means.

A caller sends `Request.method`, `Request.target`, `Request.headers` and `Request.body` to the server's base URL by whatever means
it has, then gives status and body of the answer to `Request.read`. Retries, timeouts and connections are the caller's; a request
that was lost may be sent again as it is, since every mutation here is idempotent (an event only with a key).
"""

from __future__ import annotations

import base64
from typing import Final, Generic, Literal, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from ryusen_protocol.api import (
    ApplicationDocument,
    AttemptDocument,
    AttemptLogDocument,
    AttemptState,
    Attention,
    CancelReceipt,
    EventDetail,
    EventReceipt,
    EventSubmission,
    EventSummary,
    FunctionDocument,
    Health,
    HistoryEntryDocument,
    ManifestDocument,
    Page,
    PruneReceipt,
    PruneRequest,
    Recovery,
    RediscoverReceipt,
    ReleaseDocument,
    RoutingDocument,
    RunDetail,
    RunOutcome,
    RunStatus,
    RunSummary,
    ServerInfo,
    WorkerDocument,
)
from ryusen_protocol.limits import LONG_POLL_MS_MAX
from ryusen_protocol.manifest import Publication, PublicationReceipt
from ryusen_protocol.operator import Acknowledgement, RefusalEnvelope, ResolveCommand, encode_command
from ryusen_protocol.operator import parse as parse_command
from ryusen_protocol.problems import Problem

T = TypeVar("T")

_JSON: Final = "application/json"
_EXCERPT_BYTES: Final = 200
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for text that is no JSON, not of the type, not UTF-8, or nested beyond all sense."""


class ApiProblem(Exception):
    """The server refused and said why. `document` is its whole answer."""

    def __init__(self, document: Problem) -> None:
        super().__init__(document.detail)
        self.code = document.code
        self.status = document.status
        self.detail = document.detail
        self.document = document


class CommandRefused(Exception):
    """An operator command was refused: nothing was changed and its key is not used up. `document` is the whole answer."""

    def __init__(self, status: int, document: RefusalEnvelope) -> None:
        super().__init__(document.refusal.message)
        self.status = status
        self.code = document.refusal.code
        self.document = document


class UnreadableAnswer(Exception):
    """The answer is neither what the route gives nor a problem: another program, a proxy, or a server too new to read.

    What a mutation did is not known then.
    """

    def __init__(self, status: int, body: bytes, reason: str) -> None:
        excerpt = body[:_EXCERPT_BYTES].decode("utf-8", "replace")
        super().__init__(f"the answer (HTTP {status}) is not one of a Ryusen server: {reason}; it begins {excerpt!r}")
        self.status = status
        self.reason = reason


class Request(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One HTTP request. `path` is percent-encoded already; `answers` is the type of a 2xx body."""

    method: Literal["GET", "POST"]
    path: str
    answers: type[T]
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    headers: dict[str, str] = {}

    @property
    def target(self) -> str:
        """Path and query, to be appended to the server's base URL as it is."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    def read(self, status: int, body: bytes) -> T:
        """The answer's document. Raises `ApiProblem` or `UnreadableAnswer`."""
        return parse(status, body, self.answers)


class ResolveRequest(Request[Acknowledgement], frozen=True, kw_only=True):
    """An operator command. Lost or unreadable, it is sent again as it is: the key makes it the same command."""

    def read(self, status: int, body: bytes) -> Acknowledgement:
        """The acknowledgement. Raises `CommandRefused`; `ApiProblem` if it did not get to the operator route; `UnreadableAnswer`."""
        if not 200 <= status < 300:
            try:
                refused = msgspec.json.decode(body, type=RefusalEnvelope)
            except _UNREADABLE:
                raise _problem(status, body) from None
            raise CommandRefused(status, refused)
        return parse(status, body, self.answers)


class StreamRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose answer goes on: server-sent events, to be read with `ryusen_protocol.sse`."""

    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: dict[str, str] = {}

    @property
    def target(self) -> str:
        """Path and query, to be appended to the server's base URL as it is."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path


def parse(status: int, body: bytes, answers: type[T]) -> T:
    """A 2xx body as `answers`. Raises `ApiProblem` for a problem document, `UnreadableAnswer` for anything else."""
    if not 200 <= status < 300:
        raise _problem(status, body)
    try:
        return msgspec.json.decode(body, type=answers)
    except _UNREADABLE as error:
        raise UnreadableAnswer(status, body, str(error)) from error


def _problem(status: int, body: bytes) -> ApiProblem | UnreadableAnswer:
    try:
        return ApiProblem(msgspec.json.decode(body, type=Problem))
    except _UNREADABLE as error:
        return UnreadableAnswer(status, body, str(error))


def segment(identity: str) -> str:
    """One path segment that cannot leave its place. Raises `ValueError` for the empty text, which names no segment."""
    if not identity:
        raise ValueError("an empty id names nothing; give the id the server or the manifest shows")
    # Dots are unreserved, yet a segment of only dots is a step in the tree: encoded, no client folds it away.
    return quote(identity, safe="") if identity.strip(".") else identity.replace(".", "%2E")


class Api:
    """Builds the requests of one workspace for one caller. Immutable; holds no connection.

    `token` is sent as a bearer token; a server without a login ignores it.
    """

    def __init__(self, workspace: str = "default", token: str | None = None) -> None:
        self._root = f"/v1/workspaces/{segment(workspace)}"
        self._headers = {"accept": _JSON}
        if token is not None:
            if not token.isascii() or not token.isprintable() or " " in token:
                raise ValueError("a token is printable ASCII without blanks; check for a line break copied with it")
            self._headers["authorization"] = f"Bearer {token}"

    def health(self) -> Request[Health]:
        """Liveness."""
        return self._get("/v1/health", Health)

    def server(self) -> Request[ServerInfo]:
        """What the server is, where it listens, how it is set up."""
        return self._get("/v1/server", ServerInfo)

    def send_event(
        self,
        name: str,
        *,
        data: bytes | None = None,
        payload: bytes | None = None,
        metadata: dict[str, str] | None = None,
        key: str | None = None,
        wait_ms: int | None = None,
    ) -> Request[EventReceipt]:
        """Submit an event: `data` is JSON text, sent as it is; `payload` is any bytes. Exactly one of them.

        Raises `ValueError` if there is not exactly one or `data` is not JSON. Without a `key` every sending is a new event.
        """
        if (data is None) == (payload is None):
            raise ValueError("an event has either data (JSON text) or payload (bytes); give exactly one of them")
        submission = EventSubmission(
            name=name,
            data=msgspec.UNSET if data is None else _json_text(data),
            payload_base64=None if payload is None else base64.b64encode(payload).decode(),
            metadata=metadata or {},
            idempotency_key=key,
        )
        return self._post(f"{self._root}/events", EventReceipt, submission, _wait(wait_ms))

    def list_events(self, *, cursor: str | None = None, limit: int | None = None) -> Request[Page[EventSummary]]:
        """Events, newest first."""
        return self._get(f"{self._root}/events", Page[EventSummary], _page(cursor, limit))

    def get_event(self, event_id: str, *, wait_ms: int | None = None) -> Request[EventDetail]:
        """One event with its matches; with `wait_ms` the answer comes when all its runs have ended, or at that time."""
        return self._get(f"{self._root}/events/{segment(event_id)}", EventDetail, _wait(wait_ms))

    def list_runs(
        self,
        *,
        status: RunStatus | None = None,
        outcome: RunOutcome | None = None,
        recovery: Recovery | None = None,
        function: str | None = None,
        application: str | None = None,
        event: str | None = None,
        attention: Attention | None = None,
        q: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> Request[Page[RunSummary]]:
        """Runs, newest first. Filters are joined by *and*; a cursor goes with the filters it came from."""
        query = _present(
            status=status,
            outcome=outcome,
            recovery=recovery,
            function=function,
            application=application,
            event=event,
            attention=attention,
            q=q,
        )
        return self._get(f"{self._root}/runs", Page[RunSummary], query + _page(cursor, limit))

    def get_run(self, run_id: str, *, wait_ms: int | None = None) -> Request[RunDetail]:
        """One run in full; with `wait_ms` the answer comes when it has ended, or at that time."""
        return self._get(self._run(run_id), RunDetail, _wait(wait_ms))

    def history(self, run_id: str, *, after: int | None = None, limit: int | None = None) -> Request[Page[HistoryEntryDocument]]:
        """Committed transactions of a run in commit order, those after position `after`."""
        query = _present(after=after, limit=limit)
        return self._get(f"{self._run(run_id)}/history", Page[HistoryEntryDocument], query)

    def logs(
        self, run_id: str, *, attempt: str | None = None, cursor: str | None = None, limit: int | None = None
    ) -> Request[Page[AttemptLogDocument]]:
        """What the run's callbacks printed and logged, one item for each attempt that did, oldest first; of one attempt id if given."""
        query = _present(attempt=attempt) + _page(cursor, limit)
        return self._get(f"{self._run(run_id)}/logs", Page[AttemptLogDocument], query)

    def stream(self, *, after: int | None = None) -> StreamRequest:
        """The changes of the workspace behind position `after`, or from now on; events of `ryusen_protocol.changes`."""
        headers = {**self._headers, "accept": "text/event-stream"}
        return StreamRequest(path=f"{self._root}/stream", query=_present(after=after), headers=headers)

    def cancel(self, run_id: str) -> Request[CancelReceipt]:
        """Ask a run to stop. Safe to send again."""
        return self._post(f"{self._run(run_id)}/cancel", CancelReceipt, {})

    def rediscover(self, run_id: str) -> Request[RediscoverReceipt]:
        """Ask a blocked run to run its current code again. Safe to send again."""
        return self._post(f"{self._run(run_id)}/rediscover", RediscoverReceipt, {})

    def prune(self, older_than_ms: int) -> Request[PruneReceipt]:
        """Remove ended runs and their events that are older than that. Safe to send again; to be sent again until it is complete."""
        return self._post(f"{self._root}/prune", PruneReceipt, PruneRequest(older_than_ms=older_than_ms))

    def list_attempts(
        self, *, state: AttemptState | None = None, cursor: str | None = None, limit: int | None = None
    ) -> Request[Page[AttemptDocument]]:
        """Attempts, oldest first, of one state if given."""
        query = _present(state=state) + _page(cursor, limit)
        return self._get(f"{self._root}/attempts", Page[AttemptDocument], query)

    def get_attempt(self, attempt_id: str) -> Request[AttemptDocument]:
        """One attempt, with the commands it allows now."""
        return self._get(f"{self._root}/attempts/{segment(attempt_id)}", AttemptDocument)

    def resolve_attempt(self, command: ResolveCommand) -> ResolveRequest:
        """Resolve an Unknown attempt. Raises `ValueError` with the server's words if no server would read the command."""
        body = encode_command(command)
        read = parse_command(body, path_attempt_id=command.attempt_id)
        if isinstance(read, RefusalEnvelope):
            raise ValueError(read.refusal.message)
        return ResolveRequest(
            method="POST",
            path=f"{self._root}/attempts/{segment(command.attempt_id)}/resolve",
            answers=Acknowledgement,
            body=body,
            headers={**self._headers, "content-type": _JSON},
        )

    def list_workers(self, *, cursor: str | None = None, limit: int | None = None) -> Request[Page[WorkerDocument]]:
        """Worker instances the server knows of."""
        return self._get(f"{self._root}/workers", Page[WorkerDocument], _page(cursor, limit))

    def list_releases(self, *, cursor: str | None = None, limit: int | None = None) -> Request[Page[ReleaseDocument]]:
        """Releases in durable first-seen order."""
        return self._get(f"{self._root}/releases", Page[ReleaseDocument], _page(cursor, limit))

    def list_functions(self, *, cursor: str | None = None, limit: int | None = None) -> Request[Page[FunctionDocument]]:
        """Functions of every active manifest."""
        return self._get(f"{self._root}/functions", Page[FunctionDocument], _page(cursor, limit))

    def list_applications(self, *, cursor: str | None = None, limit: int | None = None) -> Request[Page[ApplicationDocument]]:
        """Applications and their active manifests."""
        return self._get(f"{self._root}/applications", Page[ApplicationDocument], _page(cursor, limit))

    def get_application(self, application: str) -> Request[ApplicationDocument]:
        """One application. `not_found` until its first publication."""
        return self._get(self._application(application), ApplicationDocument)

    def get_manifest(self, application: str, manifest_generation: str) -> Request[ManifestDocument]:
        """One manifest generation, active or not."""
        path = f"{self._application(application)}/manifests/{segment(manifest_generation)}"
        return self._get(path, ManifestDocument)

    def publish_manifest(self, application: str, publication: Publication) -> Request[PublicationReceipt]:
        """Publish and activate a manifest. Safe to send again: it answers its first activation."""
        return self._post(f"{self._application(application)}/manifests", PublicationReceipt, publication)

    def list_routing(self, *, cursor: str | None = None, limit: int | None = None) -> Request[Page[RoutingDocument]]:
        """Routing generations, newest first; the first one is active."""
        return self._get(f"{self._root}/routing", Page[RoutingDocument], _page(cursor, limit))

    def get_routing(self, routing_generation: str) -> Request[RoutingDocument]:
        """One routing generation, active or not."""
        return self._get(f"{self._root}/routing/{segment(routing_generation)}", RoutingDocument)

    def _run(self, run_id: str) -> str:
        return f"{self._root}/runs/{segment(run_id)}"

    def _application(self, application: str) -> str:
        return f"{self._root}/applications/{segment(application)}"

    def _get(self, path: str, answers: type[T], query: tuple[tuple[str, str], ...] = ()) -> Request[T]:
        return Request(method="GET", path=path, answers=answers, query=query, headers=self._headers)

    def _post(self, path: str, answers: type[T], document: object, query: tuple[tuple[str, str], ...] = ()) -> Request[T]:
        return Request(
            method="POST",
            path=path,
            answers=answers,
            query=query,
            body=msgspec.json.encode(document),
            headers={**self._headers, "content-type": _JSON},
        )


def _present(**parameters: str | int | None) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(value)) for name, value in parameters.items() if value is not None)


def _page(cursor: str | None, limit: int | None) -> tuple[tuple[str, str], ...]:
    return _present(cursor=cursor, limit=limit)


def _wait(wait_ms: int | None) -> tuple[tuple[str, str], ...]:
    """Longer waits are asked for again by the caller; the server holds none longer than its bound."""
    return () if wait_ms is None else _present(wait_ms=max(0, min(wait_ms, LONG_POLL_MS_MAX)))


def _json_text(data: bytes) -> msgspec.Raw:
    """Checked, because text pasted into a document unread could close it and write members of its own."""
    try:
        msgspec.json.decode(data)
    except _UNREADABLE as error:
        from ryusen_protocol import strict_json  # only to explain: most data is JSON, and a short command starts sooner

        why = "the document is empty" if not data.strip() else strict_json.reason(data, error)
        raise ValueError(f"the data is not JSON: {why}") from error
    return msgspec.Raw(data)
