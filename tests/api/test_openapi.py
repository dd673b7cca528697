"""The OpenAPI document: it says everything of every route, and it is what the server does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from ryusen_protocol.problems import CODES, status_of
from ryusen_server.api.openapi import ANY_ROUTE_REFUSES, openapi_document, operation_id
from ryusen_server.api.route import Route
from ryusen_server.api.table import ROUTES

DOCUMENT: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(openapi_document(ROUTES, "0")))
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]


def operation(route: Route) -> dict[str, Any]:
    return DOCUMENT["paths"][route.path][route.method.lower()]


def valid(name: str, document: Any) -> bool:
    return jsonschema_rs.validator_for({"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}).is_valid(document)


@pytest.mark.parametrize("route", ROUTES, ids=operation_id)
def test_every_route_is_described(route: Route) -> None:
    described = operation(route)
    assert re.fullmatch(r"[A-Z].{10,140}\.", described["summary"]), "one sentence that says what it is for"
    assert described.get("x-capability") == route.capability
    in_path = {parameter["name"] for parameter in described["parameters"] if parameter["in"] == "path"}
    assert in_path == set(re.findall(r"\{(\w+)\}", route.path))
    for parameter in described["parameters"]:
        assert parameter["in"] == "path" or parameter["description"].endswith("."), parameter
        assert {"enum", "maximum", "maxLength"} & set(parameter["schema"]), f"{parameter['name']} has no bound"
    assert {str(status) for status in route.answers} <= set(described["responses"])
    for code in {*ANY_ROUTE_REFUSES, *route.refuses}:
        assert code in CODES
        told = described["responses"][str(status_of(code))]
        assert f"`{code}`" in told["description"]
        (schema,) = [content["schema"] for kind, content in told["content"].items() if kind == "application/problem+json"]
        assert code in schema["allOf"][1]["properties"]["code"]["enum"]
    assert ("requestBody" in described) == (route.method == "POST")


def test_operations_have_names_of_their_own() -> None:
    names = [one["operationId"] for path in DOCUMENT["paths"].values() for one in path.values()]
    assert len(set(names)) == len(names) == len(ROUTES) + 1, "every route, and the gateway"


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def test_every_schema_is_one_and_is_used() -> None:
    for name, schema in SCHEMAS.items():
        jsonschema_rs.meta.validate(schema)
        assert schema, name
    used = {reference.removeprefix("#/components/schemas/") for reference in _references(DOCUMENT)}
    assert used == set(SCHEMAS)


EVENT = {"name": "order/placed", "data": {}}
COMMAND = {"version": 1, "attempt_id": "at", "attempt_generation": 1, "idempotency_key": "k", "command": {"authorize_retry": {}}}
PUBLICATION = {
    "protocol_version": 1,
    "expected_parent": None,
    "functions": [{"id": "f", "timeout_ms": 1}],
    "triggers": [],
    "contents": "e30=",
}


@pytest.mark.parametrize(
    ("name", "document", "is_taken"),
    [
        ("EventSubmission", EVENT, True),
        ("EventSubmission", {"name": "n", "payload_base64": "YQ=="}, True),
        ("EventSubmission", {**EVENT, "payload_base64": None, "idempotency_key": None}, True),
        ("EventSubmission", {"name": "n"}, False),
        ("EventSubmission", {**EVENT, "payload_base64": "YQ=="}, False),
        ("EventSubmission", {"name": "n", "payload_base64": "YR=="}, False),
        ("EventSubmission", {"name": "n", "payload_base64": "YQ="}, False),
        ("EventSubmission", {**EVENT, "name": ""}, False),
        ("EventSubmission", {**EVENT, "name": "a\x00b"}, False),
        ("EventSubmission", {**EVENT, "name": "n" * 257}, False),
        ("EventSubmission", {**EVENT, "metadata": {"k": 1}}, False),
        ("EventSubmission", {**EVENT, "metadata": {"k": "v" * 1025}}, False),
        ("EventSubmission", {**EVENT, "metadata": {"": "v"}}, False),
        ("EventSubmission", {**EVENT, "metadata": {str(n): "v" for n in range(65)}}, False),
        ("Publication", PUBLICATION, True),
        ("Publication", {**PUBLICATION, "protocol_version": 2}, False),
        ("Publication", {**PUBLICATION, "contents": "e30"}, False),
        ("Publication", {**PUBLICATION, "functions": [{"id": ""}]}, False),
        ("Publication", {**PUBLICATION, "functions": [{"id": "f", "timeout_ms": 0}]}, False),
        ("Publication", {**PUBLICATION, "functions": [{"id": "f", "timeout_ms": 2**53}]}, False),
        ("Publication", {key: value for key, value in PUBLICATION.items() if key != "expected_parent"}, False),
        ("ResolveCommand", COMMAND, True),
        (
            "ResolveCommand",
            {**COMMAND, "command": {"supply_success": {"result": {"type": "array", "value": [{"type": "i64", "value": "-1"}]}}}},
            True,
        ),
        ("ResolveCommand", {**COMMAND, "command": {"supply_success": {"result": {"type": "i64", "value": "01"}}}}, False),
        ("ResolveCommand", {**COMMAND, "command": {"authorize_retry": {}, "supply_success": {"result": {"type": "null"}}}}, False),
        ("ResolveCommand", {**COMMAND, "command": {"authorize_retry": {"why": 1}}}, False),
        ("ResolveCommand", {**COMMAND, "extra": 1}, False),
        ("ResolveCommand", {**COMMAND, "version": 2}, False),
        ("ResolveCommand", {**COMMAND, "attempt_generation": 0}, False),
        ("ResolveCommand", {**COMMAND, "command": {"declare_failure": {"failure": {"category": "c", "message": "m"}}}}, False),
    ],
)
def test_bodies_are_described_with_every_bound(name: str, document: dict[str, Any], is_taken: bool) -> None:
    assert valid(name, document) is is_taken


def test_what_is_always_answered_is_required() -> None:
    assert set(SCHEMAS["EventReceipt"]["properties"]) - set(SCHEMAS["EventReceipt"]["required"]) == {"runs"}
    assert {"result", "failure", "steps", "position"} <= set(SCHEMAS["RunDetail"]["required"])
    assert {"items", "next_cursor"} <= set(SCHEMAS["RunSummaryPage"]["required"])
