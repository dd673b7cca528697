"""What is told of a server: all of it once, later only what is different."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ryusen_cli.dev.facts import Facts, changed_lines, next_step, reachable, report_lines

WORKER = {
    "instance_id": "wi_1", "application": "shop", "session_id": "s", "release_id": "dev-1", "transport": "connected", "connected": True,
    "functions": ["fulfil"], "capacity": 32, "in_flight": 0, "draining": False, "manifest_digest": None,
    "contract": {"protocol_version": 1, "value_codec": 1}, "capabilities": [], "sdk": None, "runtime": None, "connected_at_ms": 1,
    "last_contact_at_ms": 1, "last_failure": None,
}  # fmt: skip


def facts(
    *, routing: str = "rg_1", workers: list[dict[str, Any]] | None = None, able: bool = True, address: str = "http://127.0.0.1:7878"
) -> Facts:
    trigger = {"trigger_id": "t", "event_name": "order/placed"}
    function = {"application": "shop", "function": "fulfil", "timeout_ms": None, "triggers": [trigger], "manifest_generation": "mg_1"}
    application = {
        "application": "shop", "manifest_generation": "mg_1", "digest": "d", "routing_generation": routing, "functions": 1, "triggers": 1,
        "activated_at_ms": 1, "activated_position": 1,
    }  # fmt: skip
    server = {
        "product_version": "1", "protocol_version": 1, "addresses": [address],
        "database": {"path": "/x/ryusen.db", "schema_version": 1}, "limits": limits(), "heartbeat_ms": 1, "lease_ms": 1,
        "reconnect_grace_ms": 1, "default_run_timeout_ms": None, "max_run_timeout_ms": None, "started_at_ms": 1,
        "counts": {"events": 0, "runs": 0, "moving": 0, "unknown": 0, "blocked": 0, "workers": 1},
    }  # fmt: skip
    generation = {
        "workspace": "default", "routing_generation": routing, "expected_parent": None, "content_digest": "d",
        "applications": {"shop": "mg_1"}, "active": True, "activated_at_ms": 1, "activated_position": 1,
    }  # fmt: skip
    document = {
        "workspace": "default", "server": server, "routing": generation, "applications": [application],
        "functions": [{**function, "workers": ["wi_1"] if able else []}], "workers": [WORKER] if workers is None else workers,
    }  # fmt: skip
    return msgspec.convert(document, Facts)


def limits() -> dict[str, Any]:
    from ryusen_protocol.limits import Limits

    return msgspec.to_builtins(Limits())


def test_the_report_names_everything_a_person_looks_for() -> None:
    text = "\n".join(report_lines(facts()))
    for said in (
        "http://127.0.0.1:7878",
        "/x/ryusen.db",
        "rg_1",
        "shop: mg_1",
        "1 connected",
        "capacity 32",
        "shop/fulfil",
        "no HTTP endpoints",
    ):
        assert said in text


@pytest.mark.req("CLI-06", "CLI-07")
def test_endpoints_are_told_of_apart_from_workers_and_so_is_how_they_fail() -> None:
    endpoint = {**WORKER, "instance_id": "http://127.0.0.1:9000/ryusen", "transport": "http", "release_id": None, "capacity": 7}
    text = report_lines(facts(workers=[WORKER, endpoint]))
    assert "workers     1 connected" in text
    assert "endpoints   1 HTTP endpoint" in text
    assert "  shop  http://127.0.0.1:9000/ryusen, capacity 7" in text
    failing = {**endpoint, "connected": False, "last_failure": "connection refused", "last_failure_at_ms": 9, "last_success_at_ms": 8}
    told = changed_lines(facts(workers=[WORKER, endpoint]), facts(workers=[WORKER, failing]))
    assert "  last failure of shop: connection refused" in told
    answering = {**failing, "connected": True, "last_success_at_ms": 10}
    assert not any("refused" in line for line in report_lines(facts(workers=[answering])))


def test_what_stays_the_same_is_not_told_again() -> None:
    assert changed_lines(facts(), facts()) == []
    assert changed_lines(None, facts()) == []
    busy = facts(workers=[{**WORKER, "in_flight": 3, "last_contact_at_ms": 9}])
    assert changed_lines(facts(), busy) == []


@pytest.mark.req("CLI-07")
def test_a_publication_a_lost_worker_and_a_function_without_one_are_told() -> None:
    assert any("rg_2" in line for line in changed_lines(facts(), facts(routing="rg_2")))
    lost = [{**WORKER, "connected": False, "last_failure": "the connection was lost"}]
    told = changed_lines(facts(), facts(workers=lost, able=False))
    assert "workers     0 connected" in told
    assert any("the connection was lost" in line for line in told)
    assert any("no worker can run it" in line for line in told)


def test_a_worker_that_drained_and_left_is_no_failure() -> None:
    left = {**WORKER, "connected": False, "draining": True, "last_failure": "closed"}
    assert changed_lines(facts(), facts(workers=[WORKER, left])) == []


@pytest.mark.parametrize(
    ("example", "address", "line"),
    [
        (None, "http://127.0.0.1:7878", "ryusen send order/placed -d '{}' --wait"),
        ("ryusen send order/placed -d '{\"order\": 7}'", "http://127.0.0.1:7878", "ryusen send order/placed -d '{\"order\": 7}'"),
        ("ryusen send order/other", "http://127.0.0.1:7878", "ryusen send order/placed -d '{}' --wait"),
        ("ryusen send 'open", "http://0.0.0.0:80", "ryusen send order/placed -d '{}' --wait --url http://127.0.0.1:80"),
    ],
)
def test_the_next_step_starts_a_real_trigger(example: str | None, address: str, line: str) -> None:
    assert next_step(facts(address=address), example) == line


def test_a_server_on_every_address_is_met_on_the_loopback() -> None:
    assert reachable("http://[::]:7878") == "http://[::1]:7878"
    assert reachable("http://10.0.0.1:7878") == "http://10.0.0.1:7878"
