"""The server's log as JSON: one object a line, with the ids it is about and nothing a user sent."""

from __future__ import annotations

import json
import logging
import urllib.request
from pathlib import Path

import pytest

from ryusen_server.bootstrap.logs import OneDocument
from tests.cli.processes import Running


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("ryusen_server.engine", logging.WARNING, "", 1, message, arguments, None)
    made.__dict__.update(extra)
    return made


def test_a_line_is_an_object_with_the_ids_it_is_about() -> None:
    line = OneDocument().format(record("run %s\n\x1b[2J", "rn_1", run_id="rn_1", attempt_id="at_1", payload="secret"))
    assert "\n" not in line
    document = json.loads(line)
    assert {name: document[name] for name in ("level", "logger", "run_id", "attempt_id")} == {
        "level": "WARNING", "logger": "ryusen_server.engine", "run_id": "rn_1", "attempt_id": "at_1",
    }  # fmt: skip
    assert "\x1b" not in document["message"]
    assert "secret" not in line


def test_a_traceback_stays_on_its_line() -> None:
    made = record("it failed")
    try:
        int("why")
    except ValueError as error:
        made.exc_info = (type(error), error, error.__traceback__)
    document = json.loads(OneDocument().format(made))
    assert document["trace"][-1].startswith("ValueError: ")


@pytest.mark.parametrize("form", ["json", "text"])
def test_serve_logs_in_the_format_it_is_given(tmp_path: Path, form: str) -> None:
    serving = Running(tmp_path, "serve", "--port", "0", "--log-format", form)
    line = serving.until("ready at")
    url = next(word for word in line.replace(",", " ").split() if word.startswith("http://"))
    body = json.dumps({"name": "a", "data": "PAYLOAD"}).encode()
    request = urllib.request.Request(f"{url}/v1/workspaces/default/events", body, {"content-type": "application/json"})
    urllib.request.urlopen(request).close()
    assert serving.end() == 130
    logged = [text for text in serving.lines if "ryusen_server" in text]
    assert logged
    assert all(json.loads(text)["logger"] for text in logged) if form == "json" else all(text[0].isdigit() for text in logged)
    assert not any("PAYLOAD" in text for text in serving.lines)


def test_another_format_is_refused(tmp_path: Path) -> None:
    serving = Running(tmp_path, "serve", "--port", "0", "--log-format", "xml")
    assert "none of text, json" in serving.until("xml")
    assert serving.process.wait(20) == 2
