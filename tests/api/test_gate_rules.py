"""The gate as a pure function of a request's head."""

from __future__ import annotations

import pytest

from ryusen_server.api.gate import URL_BYTES_MAX, gate_rules, refusal

RULES = gate_rules(7878, ("Console.internal", "proxy.example:443"))


def judge(headers: dict[str, list[str]], method: str = "GET", target: bytes = b"/v1/health") -> str | None:
    refused = refusal(RULES, method, target, lambda name: headers.get(name, []))
    return None if refused is None else refused.code


@pytest.mark.parametrize(
    "host", ["localhost:7878", "127.0.0.1:7878", "[::1]:7878", "LOCALHOST:7878", "console.internal:7878", "proxy.example:443"]
)
def test_known_hosts_with_the_right_port_pass(host: str) -> None:
    assert judge({"host": [host]}) is None


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        [""],
        ["  "],
        ["localhost"],
        ["localhost:80"],
        ["localhost:07878"],
        ["localhost.:7878"],
        ["localhost:7878:7878"],
        ["evil.example:7878"],
        ["localhost:7878.evil.example"],
        ["127.0.0.1.evil.example:7878"],
        ["::1:7878"],
        ["[::ffff:127.0.0.1]:7878"],
        ["127.1:7878"],
        ["2130706433:7878"],
        ["0.0.0.0:7878"],
        ["user@localhost:7878"],
        ["localhost:7878, localhost:7878"],
        ["localhost:7878", "localhost:7878"],
        ["localhost:7878", "evil.example"],
        ["proxy.example:7878"],
        ["console.internal"],
    ],
)
def test_any_other_host_is_refused(hosts: list[str]) -> None:
    assert judge({"host": hosts}) == "host_not_allowed"


def test_the_port_of_the_web_need_not_be_named() -> None:
    rules = gate_rules(80)
    assert refusal(rules, "GET", b"/", lambda name: ["localhost"] if name == "host" else []) is None
    assert refusal(rules, "GET", b"/", lambda name: ["localhost:80"] if name == "host" else []) is None


@pytest.mark.parametrize("origin", ["http://localhost:7878", "http://127.0.0.1:7878", "http://[::1]:7878", "https://proxy.example:443"])
def test_our_own_origins_pass(origin: str) -> None:
    assert judge({"host": ["localhost:7878"], "origin": [origin]}) is None


@pytest.mark.parametrize(
    "origins",
    [
        ["null"],
        [""],
        ["http://evil.example"],
        ["http://localhost"],
        ["http://localhost:7879"],
        ["ftp://localhost:7878"],
        ["http://localhost:7878/"],
        ["http://localhost:7878", "http://localhost:7878"],
        ["http://localhost:7878 http://evil.example"],
    ],
)
def test_any_other_origin_is_forbidden(origins: list[str]) -> None:
    assert judge({"host": ["localhost:7878"], "origin": origins}) == "forbidden"


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON", "application/json; charset=utf-8", 'application/json;charset="UTF-8"']
)
def test_a_mutation_is_json(content_type: str) -> None:
    assert judge({"host": ["localhost:7878"], "content-type": [content_type]}, "POST") is None


@pytest.mark.parametrize(
    "types",
    [
        [],
        [""],
        ["text/plain"],
        ["application/x-www-form-urlencoded"],
        ["multipart/form-data; boundary=x"],
        ["application/json, text/plain"],
        ["application/json; charset=latin-1"],
        ["application/jsonp"],
        ["application/problem+json"],
        ["application/json", "application/json"],
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "get", "TRACE"])
def test_any_other_mutation_is_refused(method: str, types: list[str]) -> None:
    assert judge({"host": ["localhost:7878"], "content-type": types}, method) == "unsupported_media_type"


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("encoding", ["gzip", "identity", ""])
def test_an_encoded_body_is_refused(method: str, encoding: str) -> None:
    headers = {"host": ["localhost:7878"], "content-type": ["application/json"], "content-encoding": [encoding]}
    assert judge(headers, method) == "unsupported_media_type"


def test_the_target_is_a_bounded_path() -> None:
    headers = {"host": ["localhost:7878"]}
    assert judge(headers, target=b"/" + b"a" * (URL_BYTES_MAX - 1)) is None
    assert judge(headers, target=b"/" + b"a" * URL_BYTES_MAX) == "uri_too_long"
    assert judge(headers, target=b"http://localhost:7878/v1/health") == "invalid"
    assert judge(headers, target=b"*") == "invalid"
    assert judge(headers, "OPTIONS", b"*") is None


def test_what_is_refused_first_is_told_first() -> None:
    """Nothing of a request is told to a page that may not ask."""
    headers = {"host": ["evil.example"], "origin": ["http://evil.example"], "content-encoding": ["gzip"]}
    assert judge(headers, "POST", b"nowhere") == "host_not_allowed"
    assert judge({**headers, "host": ["localhost:7878"]}, "POST", b"nowhere") == "forbidden"


def test_a_refusal_shows_foreign_text_safely() -> None:
    refused = refusal(RULES, "GET", b"/", lambda name: ["\x1b[2J\u202eevil" * 100] if name == "host" else [])
    assert refused is not None
    assert refused.detail.isascii()
    assert refused.detail.isprintable()
    assert len(refused.detail) < 2_000
