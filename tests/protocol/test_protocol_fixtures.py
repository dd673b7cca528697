"""Every fixture of the protocol, read and written by the Python side.

Every area is claimed by a test below; a case, a file or an index entry that nobody claims fails.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ryusen_protocol import PROTOCOL_VERSION, VALUE_CODEC_VERSION, codec, values
from ryusen_protocol.declaration_checks import InvalidDeclaration, check_declaration
from ryusen_protocol.errors import ErrorRecord
from ryusen_protocol.exchange import sign, signature_problem
from ryusen_protocol.manifest import Publication
from ryusen_protocol.manifests import check_publication, content_digest, sdk_contents
from ryusen_protocol.outcome import Declared

FIXTURES = Path(__file__).parents[2] / "fixtures"
READ_HERE = {"values", "errors", "invocations", "outcomes", "declarations", "frames", "manifests", "signatures"}
READ_ELSEWHERE = {"operator_commands", "executions", "exchanges", "worker_sessions", "server_sessions"}
"""The first by the tests of operator commands, the others by those of conformance, which hold what ran against the index."""
AREAS = READ_HERE | READ_ELSEWHERE

Fixture = dict[str, Any]


def _index() -> Fixture:
    return json.loads((FIXTURES / "index.json").read_text("utf-8"))


def _file(name: str) -> dict[str, Fixture]:
    return json.loads((FIXTURES / name).read_text("utf-8"))


def _data(fixture: Fixture) -> bytes:
    if "base64" in fixture:
        return base64.b64decode(fixture["base64"])
    if "parts" in fixture:
        return "".join(text * times for text, times in fixture["parts"]).encode()
    if "text" in fixture:
        return fixture["text"].encode()
    return json.dumps(fixture["document"]).encode()


def _value_accepted(fixture: Fixture) -> None:
    data = _data(fixture)
    expected = fixture["canonical"].encode() if "canonical" in fixture else data
    assert "sha256:" + hashlib.sha256(expected).hexdigest() == fixture["digest"]  # the fixture agrees with itself

    canonical = values.canonicalize(data)
    assert canonical == expected
    assert values.digest(canonical) == fixture["digest"]
    again = values.decode(canonical)
    assert again == values.decode(data)
    assert values.encode(again) == canonical
    assert values.canonicalize(memoryview(data)) == canonical
    assert values.canonicalize(msgspec.Raw(data)) == canonical


def _value_refused(fixture: Fixture) -> None:
    with pytest.raises(values.InvalidValue) as refused:
        values.canonicalize(_data(fixture))
    assert isinstance(refused.value, values.ValueTooLarge) == (fixture["refusal"] == "too_large")
    if "path" in fixture:
        assert refused.value.path == fixture["path"]
        assert refused.value.why


def _read_error(data: bytes) -> object:
    """An error record has no document of its own: it is read inside an outcome."""
    outcome = codec.decode_outcome(_within_outcome({"type": "uncaught", "failure": msgspec.Raw(data)}))
    return json.loads(codec.encode(outcome))["outcome"]["failure"]


def _read_declaration(data: bytes) -> object:
    outcome = codec.decode_outcome(_within_outcome({"type": "declared", "declaration": msgspec.Raw(data)}))
    assert isinstance(outcome.outcome, Declared)
    check_declaration(outcome.outcome.declaration)
    return json.loads(codec.encode(outcome))["outcome"]["declaration"]


def _within_outcome(body: Fixture) -> bytes:
    head = {"protocol_version": PROTOCOL_VERSION, "type": "outcome", "request_id": "rq_1", "run_id": "rn_1"}
    return msgspec.json.encode({**head, "outcome": body})


def _read_invocation(data: bytes) -> object:
    invocation = codec.decode_invocation(data)
    assert codec.decode_invocation(codec.encode(invocation)) == invocation
    return json.loads(codec.encode(invocation))


def _read_outcome(data: bytes) -> object:
    outcome = codec.decode_outcome(data)
    assert codec.decode_outcome(codec.encode(outcome)) == outcome
    return json.loads(codec.encode(outcome))


def _read_worker_frame(data: bytes) -> object:
    frame = codec.decode_worker_frame(data)
    assert codec.decode_worker_frame(codec.encode(frame).decode()) == frame
    return json.loads(codec.encode(frame))


def _read_server_frame(data: bytes) -> object:
    frame = codec.decode_server_frame(data)
    assert codec.decode_server_frame(codec.encode(frame).decode()) == frame
    return json.loads(codec.encode(frame))


READERS: dict[str, Callable[[bytes], object]] = {
    "errors": _read_error,
    "declarations": _read_declaration,
    "invocations": _read_invocation,
    "outcomes": _read_outcome,
    "worker": _read_worker_frame,
    "server": _read_server_frame,
}


def _accepted(area: str, fixture: Fixture) -> None:
    written = READERS[fixture.get("from", area)](_data(fixture))
    assert fixture["holds"]
    for pointer, expected in fixture["holds"].items():
        assert _at(written, pointer) == expected, pointer


def _refused(area: str, fixture: Fixture) -> None:
    if fixture["refusal"] == "invalid_declaration":
        with pytest.raises(InvalidDeclaration):
            READERS[area](_data(fixture))
        return
    kinds = {
        "malformed": codec.MalformedDocument,
        "unknown_variant": codec.UnknownVariant,
        "unsupported_version": codec.UnsupportedProtocolVersion,
    }
    with pytest.raises(codec.MalformedDocument) as refused:
        READERS[fixture.get("from", area)](_data(fixture))
    assert type(refused.value) is kinds[fixture["refusal"]]
    assert refused.value.why
    if isinstance(refused.value, codec.UnknownVariant):
        assert (refused.value.variant, refused.value.at) == (fixture["variant"], fixture["at"])


def _at(document: Any, pointer: str) -> Any:
    for step in pointer.split("/")[1:]:
        document = document[int(step)] if isinstance(document, list) else document[step]
    return document


def _cases(*areas: str) -> list[Any]:
    return [
        pytest.param(entry, _file(entry["file"])[entry["name"]], id=f"{entry['file']}:{entry['name']}")
        for entry in _index()["cases"]
        if entry["area"] in areas
    ]


@pytest.mark.req("VAL-01", "VAL-05", "VAL-12", "VAL-13")
@pytest.mark.parametrize(("entry", "fixture"), _cases("values"))
def test_value(entry: Fixture, fixture: Fixture) -> None:
    {"values/accepted.json": _value_accepted, "values/refused.json": _value_refused}[entry["file"]](fixture)


@pytest.mark.req("VAL-09")
@pytest.mark.parametrize(("entry", "fixture"), _cases("errors"))
def test_error(entry: Fixture, fixture: Fixture) -> None:
    _document(entry, fixture)


@pytest.mark.req("PRO-22", "PRO-02", "TMR-01", "TMR-02", "EVW-01", "INV-01", "EMT-01", "EMT-03", "EMT-05")
@pytest.mark.parametrize(("entry", "fixture"), _cases("invocations", "outcomes", "declarations", "frames"))
def test_document(entry: Fixture, fixture: Fixture) -> None:
    _document(entry, fixture)


def _document(entry: Fixture, fixture: Fixture) -> None:
    area = entry["area"]
    {f"{area}/accepted.json": _accepted, f"{area}/refused.json": _refused}[entry["file"]](area, fixture)


@pytest.mark.req("VAL-05", "MAN-03")
@pytest.mark.parametrize(("entry", "fixture"), _cases("manifests"))
def test_manifest(entry: Fixture, fixture: Fixture) -> None:
    canonical = fixture["canonical"].encode()
    assert "sha256:" + hashlib.sha256(canonical).hexdigest() == fixture["digest"]  # the fixture agrees with itself

    publication = msgspec.convert(fixture["publication"], Publication)
    assert check_publication(publication) is None
    assert content_digest(publication.contents, publication.functions, publication.triggers) == fixture["digest"]
    if entry["name"] == "contents-of-an-sdk":
        assert base64.b64encode(sdk_contents(publication.functions, publication.triggers)).decode() == publication.contents


@pytest.mark.parametrize(("entry", "fixture"), _cases("signatures"))
def test_signature(entry: Fixture, fixture: Fixture) -> None:
    secret, body, timestamp = fixture["secret"].encode(), fixture["body"].encode(), fixture["timestamp"]
    assert sign(secret, timestamp, body) == fixture["signature"]
    assert signature_problem(secret, timestamp, fixture["signature"], body, int(timestamp)) is None
    assert signature_problem(secret, timestamp, fixture["signature"], body + b" ", int(timestamp)) is not None


@pytest.mark.req("CNF-07")
def test_index_and_files_name_the_same_cases() -> None:
    listed = [(entry["file"], entry["name"]) for entry in _index()["cases"]]
    stored = [
        (path.relative_to(FIXTURES).as_posix(), name)
        for path in FIXTURES.rglob("*.json")
        if path.name != "index.json"
        for name in json.loads(path.read_text("utf-8"))
    ]
    assert len(set(listed)) == len(listed)
    assert sorted(listed) == sorted(stored)


@pytest.mark.req("CNF-07")
def test_every_area_is_claimed() -> None:
    """A new area comes with its own tests and is named in `AREAS` by the change that adds them."""
    assert {entry["area"] for entry in _index()["cases"]} == AREAS


def test_index_says_what_each_case_is_for() -> None:
    index = _index()
    assert (index["protocol_version"], index["value_codec"]) == (PROTOCOL_VERSION, VALUE_CODEC_VERSION)
    for entry in index["cases"]:
        assert entry["exercises"], entry["name"]
        assert entry["file"].startswith(entry["area"] + "/")


def _envelopes() -> list[Any]:
    return [
        pytest.param(_file(entry["file"])[entry["name"]], entry["area"], id=f"{entry['area']}:{entry['name']}")
        for entry in _index()["cases"]
        if entry["file"] in ("invocations/accepted.json", "outcomes/accepted.json", "frames/accepted.json")
    ]


@pytest.mark.req("PRO-20")
@pytest.mark.parametrize(("fixture", "area"), _envelopes())
def test_document_without_its_version_is_refused(fixture: Fixture, area: str) -> None:
    unversioned = {name: content for name, content in fixture["document"].items() if name != "protocol_version"}
    with pytest.raises(codec.MalformedDocument, match="protocol_version"):
        READERS[fixture.get("from", area)](json.dumps(unversioned).encode())


@pytest.mark.req("PRO-20")
@pytest.mark.parametrize(("fixture", "area"), _envelopes())
def test_document_of_another_version_is_refused(fixture: Fixture, area: str) -> None:
    with pytest.raises(codec.UnsupportedProtocolVersion) as refused:
        READERS[fixture.get("from", area)](json.dumps({**fixture["document"], "protocol_version": 2}).encode())
    assert refused.value.found == 2


@pytest.mark.req("PRO-22")
@pytest.mark.parametrize(("fixture", "area"), _envelopes())
def test_unknown_members_change_nothing(fixture: Fixture, area: str) -> None:
    reader = READERS[fixture.get("from", area)]
    document = fixture["document"]
    grown = {
        name: {**content, "x_unknown": [1]} if name in ("scope", "run", "target", "outcome", "contract", "sdk") else content
        for name, content in document.items()
    }
    assert reader(json.dumps({**grown, "x_unknown": {"a": None}}).encode()) == reader(json.dumps(document).encode())


def test_error_record_is_written_without_absent_members() -> None:
    record = ErrorRecord("shop.CardDeclined", "the card was declined", retryable=False)
    assert msgspec.json.encode(record) == b'{"category":"shop.CardDeclined","message":"the card was declined","retryable":false}'
