"""Five hundred hostile strings in every text of a server's documents, through every view: no crash, no control byte, no text lost."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec

from ryusen_protocol.api import AttemptDocument, EventDetail, FunctionDocument, HistoryEntryDocument, RunDetail, WorkerDocument
from ryusen_protocol.words import printable
from ryusen_tui import story, tables, waterfall
from ryusen_tui.spans import Glyphs, Line, plain, wrapped
from tests.tui.test_lines import hostile, is_harmless
from tests.tui.test_waterfall import attempt, run, step

GLYPHS = Glyphs()


def sendable(text: str) -> str:
    """As it can come in a JSON document: no half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode()


def read(document: dict[str, Any], shape: type[Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(document), type=shape)


def shown(lines: list[Line], text: str, where: str) -> None:
    """All of it is there, and nothing of it acts on a terminal."""
    rows = [plain(row) for line in lines for row in wrapped(line, 60)]
    assert all(is_harmless(row) for row in rows), (where, ascii(text))
    assert printable(text) in "".join(plain(line) for line in lines) or "\n" in text, (where, ascii(text))


def error(text: str) -> dict[str, Any]:
    return {"category": text, "message": text, "retryable": False}


def detail(text: str) -> RunDetail:
    place = {"file": text, "line": 3}
    worker = {"instance_id": text, "session_id": None, "release_id": text, "transport": "connected"}
    tried = attempt(text, 0, 10, "failed", worker=worker, error=error(text))
    blocker = {
        "reason": text, "step_id": text, "message": text, "first": place, "duplicate": place, "count": 2, "first_seen_at_ms": 0,
        "last_seen_at_ms": 1, "release_id": None,
    }  # fmt: skip
    target = {"step_id": text, "state": "skipped", "reason": text, "hidden_by": text, "error": error(text), "attempts": [tried]}
    return run(
        step(text, 0, 20, tried, state="failed", failure=error(text), location=place),
        run_id=text, function=text, application=text, failure=error(text), blocker=blocker, unwind={"targets": [target]},
        input={"payload": {"type": "string", "value": text}},
    )  # fmt: skip


def views_of_a_run(text: str) -> dict[str, list[Line]]:
    one = detail(text)
    lanes = waterfall.lanes(one, GLYPHS, now_ms=1_000)
    entry = HistoryEntryDocument(
        position=1,
        at_ms=0,
        records=[msgspec.Raw(msgspec.json.encode({"kind": "run_blocked", "step_id": text, "reason": text, "failure": error(text)}))],
    )
    assert one.blocker is not None
    return {
        "row": list(tables.run_row(one, GLYPHS, now_ms=1).cells),
        "head": story.run_head(one, GLYPHS),
        "failure": [story.run_failure(one)],
        "blocker": story.blocker_lines(one.blocker, GLYPHS, now_ms=9),
        "attempts": story.attempts_lines(one, {}, GLYPHS, now_ms=9),
        "payload": story.payload_lines(one),
        "history": story.Teller(GLYPHS).lines(entry),
        "lanes": [line for lane in lanes for line in (lane.label, lane.note)],
    }


def views_of_the_rest(text: str) -> dict[str, list[Line]]:
    tried = msgspec.convert(attempt(text, 0, None, "unknown", run_id=text, operation_id=text), AttemptDocument)
    event = read(
        {
            "event_id": text, "name": text, "metadata": {text: text}, "received_at_ms": 1, "routing_generation": text, "matched": 1,
            "expansion": "complete", "payload_base64": base64.b64encode(json.dumps(text, ensure_ascii=False).encode()).decode(),
            "matches": [{"application": text, "trigger_id": text, "function": text, "manifest_generation": text, "run_id": text}],
        },
        EventDetail,
    )  # fmt: skip
    worker = read(
        {
            "instance_id": text, "application": text, "session_id": text, "release_id": text, "transport": "connected", "connected": True,
            "functions": [text], "capacity": 1, "in_flight": 0, "draining": False, "manifest_digest": None,
            "contract": {"protocol_version": 1, "value_codec": 1, "features": []}, "capabilities": [], "sdk": None, "runtime": None,
            "connected_at_ms": 1, "last_contact_at_ms": 1, "last_failure": text,
        },
        WorkerDocument,
    )  # fmt: skip
    function = read(
        {
            "application": text, "function": text, "timeout_ms": None, "triggers": [{"trigger_id": text, "event_name": text}],
            "manifest_generation": text, "workers": [text],
        },
        FunctionDocument,
    )  # fmt: skip
    return {
        "unknown row": list(tables.unknown_row(tried, GLYPHS, now_ms=1).cells),
        "identity": story.attempt_identity(tried, None, now_ms=1),
        "event row": list(tables.event_row(event, GLYPHS, now_ms=1).cells),
        "event": story.event_lines(event, GLYPHS),
        "matches": list(tables.match_row(event.matches[0], GLYPHS).cells),
        "worker row": list(tables.worker_row(worker, GLYPHS, now_ms=1).cells),
        "worker": story.worker_lines(worker, GLYPHS),
        "function row": list(tables.function_row(function, GLYPHS).cells),
        "function": story.function_lines(function),
    }


def test_hostile_strings_through_every_view() -> None:
    for given in hostile(500):
        text = sendable(given) or "x"
        for where, lines in {**views_of_a_run(text), **views_of_the_rest(text)}.items():
            shown(lines, text, where)
        assert json.loads(story.payload_document(detail(text)))["run_id"] == text
        assert story.payload_document(detail(text)).isascii()
