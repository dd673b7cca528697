"""Authorization on a real server: every route and every capability, the gateway, and what a caller without one can tell apart."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import msgspec
import pytest
from websockets.exceptions import InvalidStatus

from ryusen_protocol.ids import AttemptId
from ryusen_protocol.operator import ResolveCommand, SupplySuccess, encode_command
from ryusen_server.api.credentials import FORBIDDEN, UNAUTHORIZED
from ryusen_server.api.route import Route
from ryusen_server.api.table import ROUTES
from ryusen_server.bootstrap import StartRefused, build
from ryusen_server.bootstrap.settings import ServerSettings, http_endpoint
from tests.api.api_harness import ApiHarness, W, api_server, eventually
from tests.api.token_holders import HOLDERS, STRANGER, bearer, token, write_credentials
from tests.gateway.worker_peer import publication, register_frame, string, worker_peer

JSON = {"content-type": "application/json"}
SUCCESS = SupplySuccess(msgspec.Raw(b'{"type":"null"}'))


class Guarded(ApiHarness):
    """The harness of a server with credentials; its own requests hold every capability of `default` and its shop."""

    def __init__(self, inner: ApiHarness, plain: httpx.AsyncClient, credentials: Path) -> None:
        super().__init__(inner.server, inner.client)
        self.plain = plain
        self.credentials = credentials
        self.client.headers.update(bearer("everything"))

    async def as_(self, holder: str | None, method: str, path: str, content: bytes | None = None) -> httpx.Response:
        """What a holder is answered; none sends no token."""
        headers = {} if holder is None else bearer(holder)
        return await self.plain.request(method, path, content=content, headers={**headers, **(JSON if method == "POST" else {})})


@pytest.fixture
async def api(tmp_path: Path) -> AsyncGenerator[Guarded, None]:
    credentials = write_credentials(tmp_path / "credentials.toml")
    async with (
        api_server(tmp_path, credentials=credentials, lease_ms=200) as harness,
        httpx.AsyncClient(base_url=harness.server.url, trust_env=False, timeout=20) as plain,
    ):
        yield Guarded(harness, plain, credentials)


async def things(api: Guarded) -> dict[str, str]:
    """One of everything that a path can name."""
    receipt = (await api.client.post(f"{W}/applications/shop/manifests", json=publication())).json()
    event = await api.send(data={"secret": "payload"})
    runs = (await api.get(f"{W}/runs"))["items"]
    return {
        "workspace": "default",
        "application": "shop",
        "event_id": event["event_id"],
        "run_id": runs[0]["run_id"],
        "attempt_id": "at_none",
        "manifest_generation": receipt["manifest_generation"],
        "routing_generation": receipt["routing_generation"],
    }


def filled(route: Route, names: dict[str, str]) -> str:
    path = route.path
    for name, value in names.items():
        path = path.replace(f"{{{name}}}", value)
    return path


GUARDED = [route for route in ROUTES if route.capability is not None]


def allowed(holder: str, route: Route) -> bool:
    workspaces, applications = HOLDERS[holder]
    in_workspace = workspaces.get("default", [])
    in_application = applications.get("default/shop", []) if "{application}" in route.path else []
    if route.everywhere:
        return False  # nobody here reads every workspace of the file
    if "{workspace}" not in route.path:
        return any(route.capability in held for held in workspaces.values())
    return route.capability in in_workspace or route.capability in in_application or bool(set(route.also_by) & set(in_application))


@pytest.mark.req("SEC-03", "SEC-02", "API-01")
async def test_each_capability_opens_its_routes_and_no_other(api: Guarded) -> None:
    names = await things(api)
    for route in GUARDED:
        for holder in HOLDERS:
            if "stream" in route.path and allowed(holder, route):
                continue  # it does not end; its own tests open it
            answer = await api.as_(holder, route.method, filled(route, names), b"{}" if route.method == "POST" else None)
            if allowed(holder, route):
                assert answer.status_code not in {401, 403}, (holder, route.path, answer.text)
            else:
                assert (answer.status_code, answer.json()["detail"]) == (403, FORBIDDEN.detail), (holder, route.path, answer.text)
        for holder in (None, STRANGER):
            answer = await api.as_(holder, route.method, filled(route, names), b"{}" if route.method == "POST" else None)
            assert (answer.status_code, answer.json()["detail"]) == (401, UNAUTHORIZED.detail)
            assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.req("SEC-04")
async def test_what_exists_and_what_does_not_are_answered_alike_without_the_capability(api: Guarded) -> None:
    names = await things(api)
    wrong = {name: f"{value}0" for name, value in names.items() if name != "workspace"}
    for route in GUARDED:
        variants = [filled(route, names), filled(route, {**names, **wrong}), filled(route, {**names, "workspace": "other0"})]
        variants += [f"{variants[0]}?limit=nonsense", f"{variants[0]}?nonsense=1"]
        for holder in ("neighbour", None):
            if holder == "neighbour" and "{workspace}" not in route.path and not route.everywhere:
                continue
            for content in (b"{}", b"not JSON", b"x" * 70_000) if route.method == "POST" else (None,):
                answers = [await api.as_(holder, route.method, path, content) for path in variants]
                heads = [{key: value for key, value in answer.headers.items() if key != "date"} for answer in answers]
                assert len({answer.content for answer in answers}) == 1, (route.path, [answer.text for answer in answers])
                assert all(head == heads[0] for head in heads)
                assert answers[0].status_code == (401 if holder is None else 403)


@pytest.mark.req("ACC-55")
async def test_an_unauthorized_operator_cannot_tell_an_existing_attempt_from_a_missing_one(api: Guarded) -> None:
    attempt = await unknown_attempt(api)
    before = [entry async for entry in dump(api)]
    for holder, status in (("reader", 403), ("runner", 403), ("neighbour", 403), (STRANGER, 401), (None, 401)):
        bodies: set[bytes] = set()
        for attempt_id in (attempt["attempt_id"], "at_missing"):
            command = ResolveCommand(attempt_id=AttemptId(attempt_id), attempt_generation=1, idempotency_key="k", command=SUCCESS)
            for content in (encode_command(command), b"{", b"[]"):
                answer = await api.as_(holder, "POST", f"{W}/attempts/{attempt_id}/resolve", content)
                assert answer.status_code == status
                bodies.add(answer.content)
        assert len(bodies) == 1
    assert [entry async for entry in dump(api)] == before
    assert (await api.get(f"{W}/attempts/{attempt['attempt_id']}"))["state"] == "unknown"


async def unknown_attempt(api: Guarded) -> dict[str, str]:
    await things(api)
    async with worker_peer(api.server.url, headers=bearer("runner")) as peer:
        await peer.declare(await peer.expect("invoke"), "charge")
        await peer.expect("invoke")

    async def is_unknown() -> bool:
        return bool((await api.get(f"{W}/attempts", state="unknown"))["items"])

    await eventually(is_unknown)
    return (await api.get(f"{W}/attempts", state="unknown"))["items"][0]


async def dump(api: Guarded) -> AsyncGenerator[str, None]:
    """Everything in the database."""
    assert api.server.settings.db is not None
    with sqlite3.connect(api.server.settings.db) as database:
        for line in database.iterdump():
            yield line
    database.close()


@pytest.mark.req("SEC-01", "SEC-02")
async def test_publication_needs_deploy_in_exactly_its_application(api: Guarded) -> None:
    for holder in ("runner", "reader", "operator", "sender", "neighbour"):
        answer = await api.as_(holder, "POST", f"{W}/applications/shop/manifests", b"{}")
        assert answer.status_code == 403, holder
    refused = await api.as_("deployer", "POST", f"{W}/applications/till/manifests", msgspec.json.encode(publication()))
    assert refused.status_code == 403
    taken = await api.as_("deployer", "POST", f"{W}/applications/shop/manifests", msgspec.json.encode(publication()))
    assert taken.status_code == 201
    assert (await api.as_("deployer", "GET", f"{W}/applications/shop")).status_code == 200, "a publisher reads what it builds on"
    assert (await api.as_("runner", "GET", f"{W}/applications/shop")).status_code == 200


@pytest.mark.req("SEC-01", "SEC-05")
async def test_a_worker_registers_for_what_its_token_may_execute_and_nothing_else(api: Guarded) -> None:
    for holder, status in ((None, 401), (STRANGER, 401), ("sender", 403), ("everything-but", 401), ("deployer", 403), ("operator", 403)):
        with pytest.raises(InvalidStatus) as caught:
            async with worker_peer(api.server.url, registers=False, headers={} if holder is None else bearer(holder)):
                pass
        assert caught.value.response.status_code == status, holder
    answers: set[str] = set()
    for scope in (
        {"workspace": "default", "application": "till"},
        {"workspace": "other", "application": "shop"},
        {"workspace": "", "application": ""},
    ):
        async with worker_peer(api.server.url, registers=False, headers=bearer("runner")) as peer:
            await peer.send(register_frame(scope=scope, capacity=0))
            rejected = await peer.receive()
            assert (rejected["type"], rejected["code"]) == ("registration_rejected", "forbidden")
            answers.add(rejected["message"])
    assert len(answers) == 1
    assert (await api.get(f"{W}/workers"))["items"] == []


@pytest.mark.req("SEC-03")
async def test_to_wait_for_results_needs_more_than_to_send(api: Guarded) -> None:
    await things(api)
    body = b'{"name":"order/placed","data":{}}'
    assert (await api.as_("sender", "POST", f"{W}/events", body)).status_code == 201
    for query in ("wait_ms=0", "wait_ms=1", "wait%5Fms=1"):
        assert (await api.as_("sender", "POST", f"{W}/events?{query}", body)).status_code == 403
        assert (await api.as_("everything", "POST", f"{W}/events?{query}", body)).status_code == 201


async def test_commands_are_signed_with_the_name_of_their_token(api: Guarded) -> None:
    names = await things(api)
    assert (await api.as_("operator", "POST", f"{W}/runs/{names['run_id']}/cancel", b"{}")).status_code == 202
    history = await api.get(f"{W}/runs/{names['run_id']}/history")
    assert "operator" in [record.get("by") for entry in history["items"] for record in entry["records"]]
    attempt = await unknown_attempt(api)
    given = ResolveCommand(attempt_id=AttemptId(attempt["attempt_id"]), attempt_generation=1, idempotency_key="k", command=SUCCESS)
    command = encode_command(given)
    assert (await api.as_("everything", "POST", f"{W}/attempts/{attempt['attempt_id']}/resolve", command)).status_code == 200
    history = await api.get(f"{W}/runs/{attempt['run_id']}/history")
    assert "everything" in [record.get("operator") for entry in history["items"] for record in entry["records"]]


@pytest.mark.parametrize(
    "values",
    [
        [],
        ["Bearer"],
        ["Bearer "],
        ["Basic dXNlcjpwYXNz"],
        [f"Bearer {token('reader')}x"],
        [f"Bearer {token('reader')[:-1]}"],
        [f"Bearer {token('reader')}, Bearer {token('reader')}"],
        [f"Bearer {token('reader')}", f"Bearer {token('reader')}"],
        [f"Token {token('reader')}"],
        ["Bearer " + "x" * 5_000],
        ["Bearer \xff"],
    ],
)
async def test_only_one_known_token_is_taken(api: Guarded, values: list[str]) -> None:
    head = [f"GET {W}/runs HTTP/1.1", f"Host: {api.authority}", *(f"Authorization: {value}" for value in values), "", ""]
    status, headers, _ = await api.raw("\r\n".join(head).encode("latin-1"))
    assert status == 401
    assert headers["www-authenticate"] == 'bearer realm="ryusen"'


async def test_the_scheme_is_read_in_any_case(api: Guarded) -> None:
    for scheme in ("bearer", "BEARER"):
        head = f"GET {W}/runs HTTP/1.1\r\nHost: {api.authority}\r\nAuthorization: {scheme} {token('reader')}\r\n\r\n"
        assert (await api.raw(head.encode()))[0] == 200


async def test_a_large_body_is_refused_before_it_is_sent_when_nobody_may_send_it(api: Guarded) -> None:
    head = f"POST {W}/events HTTP/1.1\r\nHost: {api.authority}\r\nContent-Type: application/json\r\nContent-Length: 10000000\r\n\r\n"
    status, _, _ = await api.raw(head.encode())
    assert status == 401


async def test_what_everybody_may_see_needs_no_token(api: Guarded) -> None:
    for route in ROUTES:
        if route.capability is None:
            for holder in (None, STRANGER, "runner"):
                assert (await api.as_(holder, "GET", route.path)).status_code == 200
    assert (await api.as_(None, "GET", "/v1/nothing")).status_code == 404


async def test_a_changed_file_counts_at_once_and_a_bad_one_changes_nothing(api: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    await things(api)
    async with worker_peer(api.server.url, headers=bearer("runner")) as peer:
        api.credentials.write_text("[[token]]\n")
        api.server.reload_credentials()
        assert "line 1: sha256 is missing" in caplog.text
        assert "still counts" in caplog.text
        assert (await api.as_("reader", "GET", f"{W}/runs")).status_code == 200
        fewer = {name: held for name, held in HOLDERS.items() if name not in {"runner", "reader"}}
        write_credentials(api.credentials, fewer)
        api.server.reload_credentials()
        assert (await api.as_("reader", "GET", f"{W}/runs")).status_code == 401
        code, reason = await peer.closed()
        assert (code, reason) == (1008, "the token no longer allows this session")
    assert token("runner") not in caplog.text
    write_credentials(api.credentials, {**HOLDERS, "reader": ({"default": ["operate"]}, {})})

    async def is_read_again() -> bool:
        return (await api.as_("reader", "GET", f"{W}/runs")).status_code == 403

    await eventually(is_read_again)


async def test_figures_over_all_workspaces_are_for_those_who_read_all_of_them(api: Guarded) -> None:
    await things(api)
    async with worker_peer(api.server.url, headers=bearer("runner")):
        own = (await api.as_("reader", "GET", "/v1/server")).json()["counts"]
        foreign = (await api.as_("neighbour", "GET", "/v1/server")).json()["counts"]
    assert (own["events"], own["runs"], own["moving"], own["workers"]) == (1, 1, 1, 1)
    assert set(foreign.values()) == {0}
    assert (await api.as_("reader", "GET", "/v1/metrics")).status_code == 403
    write_credentials(api.credentials, {**HOLDERS, "watcher": ({"default": ["read"], "other": ["read"]}, {})})
    api.server.reload_credentials()
    assert (await api.as_("watcher", "GET", "/v1/metrics")).status_code == 200
    assert (await api.as_("watcher", "GET", "/v1/server")).json()["counts"]["runs"] == 1


async def test_a_stream_ends_when_its_token_is_taken_away(api: Guarded) -> None:
    async with api.plain.stream("GET", f"{W}/stream", headers=bearer("reader")) as stream:
        assert stream.status_code == 200
        pieces = stream.aiter_bytes()
        assert b"heartbeat" in await anext(pieces)
        await api.publish()
        assert b"manifest_activated" in await anext(pieces)
        write_credentials(api.credentials, {name: held for name, held in HOLDERS.items() if name != "reader"})
        api.server.reload_credentials()
        await api.send()
        async with asyncio.timeout(10):  # a stream that went on would not end
            rest = b"".join([piece async for piece in pieces])
        assert b"event_accepted" not in rest
    assert (await api.as_("reader", "GET", f"{W}/stream")).status_code == 401


async def test_a_server_with_credentials_may_be_reached_from_elsewhere_and_says_nothing_of_a_missing_login(tmp_path: Path) -> None:
    credentials = write_credentials(tmp_path / "credentials.toml")
    for given, warned in ((credentials, False), (None, True)):
        folder = tmp_path / str(warned)
        folder.mkdir()
        async with api_server(folder, memory=True, host="0.0.0.0", credentials=given) as api:
            assert any("no login" in warning for warning in api.server.warnings) is warned


@pytest.mark.req("SEC-01")
async def test_an_endpoint_runs_only_what_some_token_may_execute(tmp_path: Path) -> None:
    credentials = write_credentials(tmp_path / "credentials.toml", {"runner": HOLDERS["runner"]})
    db = tmp_path / "ryusen.db"
    foreign = ServerSettings(db=db, port=0, credentials=credentials, http_endpoints=(http_endpoint("till=http://127.0.0.1:9/"),))
    with pytest.raises(StartRefused, match="may execute default/till"):
        await build(foreign).start()
    assert not db.exists()
    own = (http_endpoint("shop=http://127.0.0.1:9/"),)
    async with api_server(tmp_path, memory=True, credentials=credentials, http_endpoints=own) as api:
        write_credentials(credentials, {"reader": HOLDERS["reader"]})
        api.server.reload_credentials()
        api.client.headers.update(bearer("reader"))
        assert [worker["draining"] for worker in (await api.get(f"{W}/workers"))["items"]] == [True]
        write_credentials(credentials, {"reader": HOLDERS["reader"], "runner": HOLDERS["runner"]})
        api.server.reload_credentials()
        assert [worker["draining"] for worker in (await api.get(f"{W}/workers"))["items"]] == [False]


@pytest.mark.req("ACC-20", "ACC-21")
async def test_the_credential_of_one_application_neither_publishes_nor_serves_another(api: Guarded, tmp_path: Path) -> None:
    first = (await api.as_("deployer", "POST", f"{W}/applications/shop/manifests", msgspec.json.encode(publication()))).json()
    foreign = msgspec.json.encode(publication("other", parent=first["manifest_generation"]))
    assert (await api.as_("neighbour", "POST", f"{W}/applications/shop/manifests", foreign)).status_code == 403
    assert (await api.get(f"{W}/applications/shop"))["manifest_generation"] == first["manifest_generation"]
    async with worker_peer(api.server.url, registers=False, headers=bearer("neighbour")) as peer:
        assert (await peer.register(release_id="r1"))["code"] == "forbidden"
    assert [(await api.get(f"{W}/{what}"))["items"] for what in ("workers", "releases")] == [[], []]
    credentials = write_credentials(tmp_path / "neighbour.toml", {"neighbour": HOLDERS["neighbour"]})
    endpoint = (http_endpoint("shop=http://127.0.0.1:9/"),)
    with pytest.raises(StartRefused, match="may execute default/shop"):
        await build(ServerSettings(db=tmp_path / "never.db", port=0, credentials=credentials, http_endpoints=endpoint)).start()


@pytest.mark.req("ACC-22", "ACC-23")
async def test_one_event_starts_a_run_in_each_application_and_each_runs_on_its_own_workers_alone(api: Guarded) -> None:
    for holder, application in (("deployer", "shop"), ("neighbour", "till")):
        answer = await api.as_(holder, "POST", f"{W}/applications/{application}/manifests", msgspec.json.encode(publication()))
        assert answer.status_code == 201
    till = {"workspace": "default", "application": "till"}
    async with worker_peer(api.server.url, headers=bearer("neighbour"), scope=till) as neighbour:
        sent = await api.as_("sender", "POST", f"{W}/events", b'{"name": "order/placed", "data": 7}')
        assert (sent.status_code, sent.json()["matched"]) == (201, 2)
        with pytest.raises(InvalidStatus) as caught:
            async with worker_peer(api.server.url, registers=False, headers=bearer("sender")):
                pass
        assert caught.value.response.status_code == 403
        runs = {run["application"]: run["run_id"] for run in (await api.get(f"{W}/runs"))["items"]}
        invoked = await neighbour.expect("invoke")
        assert invoked["invocation"]["run"]["run_id"] == runs["till"]
        await neighbour.answer(invoked, {"type": "completed", "result": string("till")})
        assert (await api.get(f"{W}/runs/{runs['till']}", wait_ms=10_000))["outcome"] == "succeeded"
        waiting = await api.get(f"{W}/runs/{runs['shop']}")
        assert (waiting["status"], waiting["attention"]) == ("running", "no_worker")
        assert [(worker["application"], worker["in_flight"]) for worker in (await api.get(f"{W}/workers"))["items"]] == [("till", 0)]
        async with worker_peer(api.server.url, headers=bearer("runner")) as own:
            invoked = await own.expect("invoke")
            assert invoked["invocation"]["run"]["run_id"] == runs["shop"]
            await own.answer(invoked, {"type": "completed", "result": string("shop")})
            assert (await api.get(f"{W}/runs/{runs['shop']}", wait_ms=10_000))["outcome"] == "succeeded"


async def test_a_bad_file_refuses_the_start_and_touches_nothing(tmp_path: Path) -> None:
    credentials = tmp_path / "credentials.toml"
    credentials.touch(mode=0o600)
    credentials.write_text("\n\nx = 1\n")
    db = tmp_path / "ryusen.db"
    with pytest.raises(StartRefused, match=r"credentials\.toml cannot be used: line 3: there is no x here"):
        await build(ServerSettings(db=db, port=0, credentials=credentials)).start()
    assert not db.exists()
