"""Commands: exit codes, streams and documents, against a small real HTTP server that answers as it is told."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ryusen_protocol.api import WorkerDocument
from ryusen_protocol.sse import encode_event
from ryusen_tui.spans import Glyphs, plain
from ryusen_tui.tables import worker_state
from tests.cli.told import COMMAND, ROOT, Answer, problem, ryusen, told
from tests.tui.fixed import WORKERS


def receipt(matched: int = 1, runs: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    document = {"event_id": "ev_1", "status": "created", "routing_generation": "rg_1", "matched": matched, "expansion": "complete", **more}
    return document if runs is None else {**document, "runs": runs}


def ended(outcome: str = "succeeded", status: str = "ended") -> dict[str, Any]:
    failure = {"category": "carrier", "message": "no carrier", "retryable": False} if outcome == "failed" else None
    recovery = "fully_compensated" if outcome == "failed" else "not_required"
    return {"run_id": "rn_1", "status": status, "outcome": outcome, "recovery": recovery, "result": None, "failure": failure}


def functions(*workers: str) -> dict[str, Any]:
    trigger = {"trigger_id": "t", "event_name": "order/placed"}
    one = {
        "application": "shop",
        "function": "fulfil",
        "timeout_ms": None,
        "triggers": [trigger],
        "manifest_generation": "mg",
        "workers": workers,
    }
    return {"items": [one], "next_cursor": None}


def sending(event: Answer, *, workers: tuple[str, ...] = ("wi_1",), later: Answer = None) -> Callable[[str, str, Any], Answer]:
    def answer(method: str, path: str, _body: Any) -> Answer:
        if path.endswith("/functions"):
            return 200, functions(*workers)
        return event if method == "POST" else later

    return answer


def test_an_accepted_event_is_data_and_nothing_else() -> None:
    with told(sending((201, receipt()))) as server:
        done = ryusen("send", "order/placed", "-d", '{"order": 7}', "--meta", "shop=1", "--url", server.url)
    assert done.returncode == 0, done.stderr
    assert b"ev_1" in done.stdout
    assert done.stderr == b""
    [(_, path, body)] = [asked for asked in server.asked if asked[0] == "POST"]
    assert path == "/v1/workspaces/default/events"
    assert body["data"] == {"order": 7}
    assert body["metadata"] == {"shop": "1"}
    assert body["idempotency_key"]


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ((200, receipt(runs=[ended()])), 0),
        ((200, receipt(runs=[ended("failed")])), 6),
        ((200, receipt(2, [ended(), ended("cancelled")])), 6),
        ((200, receipt(0, [])), 4),
        ((200, receipt(runs=[ended(status="running")])), 7),
        (problem(409, "idempotency_key_reused"), 5),
        (problem(413, "limit_exceeded"), 5),
        (problem(503, "storage_unavailable"), 5),
        (problem(401, "unauthorized"), 5),
        (problem(404, "not_found"), 4),
        (problem(500, "internal"), 8),
        ((200, b"<html>"), 8),
        (None, 8),
    ],
)
def test_send_wait_ends_as_the_runs_did(event: Answer, code: int) -> None:
    detail = {"name": "order/placed", "metadata": {}, "received_at_ms": 1, "payload_base64": "", "matches": []}
    later = (200, {**event[1], **detail}) if isinstance(event, tuple) and isinstance(event[1], dict) else None
    with told(sending(event, later=later)) as server:
        done = ryusen("send", "order/placed", "--wait", "--timeout", "0.2s", "--json", "--url", server.url)
    assert done.returncode == code, done.stderr
    document = json.loads(done.stdout)
    if isinstance(event, tuple) and isinstance(event[1], dict):
        assert event[1].items() <= document.items()


def test_a_lost_answer_prints_the_key_and_was_sent_again_under_it() -> None:
    with told(sending(None)) as server:
        done = ryusen("send", "order/placed", "-d", "{}", "--url", server.url)
    assert done.returncode == 8
    keys = {body["idempotency_key"] for method, _, body in server.asked if method == "POST"}
    assert len(keys) == 1
    assert f"--key {keys.pop()}".encode() in done.stderr
    assert done.stdout == b""


def test_an_answer_lost_once_is_asked_for_again() -> None:
    answers = iter([None, (200, receipt(status="replayed"))])
    with told(lambda method, path, _: next(answers) if method == "POST" else (200, functions("wi_1"))) as server:
        done = ryusen("send", "order/placed", "--json", "--url", server.url)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "replayed"


def test_send_warns_where_nothing_will_run() -> None:
    with told(sending((201, receipt(0)))) as server:
        none = ryusen("send", "order/paid", "--json", "--url", server.url)
    with told(sending((201, receipt()), workers=())) as server:
        idle = ryusen("send", "order/placed", "--json", "--url", server.url)
    assert (none.returncode, idle.returncode) == (0, 0)
    assert b"no trigger matches" in none.stderr
    assert b"shop/fulfil" in idle.stderr
    assert json.loads(none.stdout)
    assert json.loads(idle.stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        ("send",),
        ("send", "a", "-d", "{'a': 1}"),
        ("send", "a", "-d", '{"a": 1, "a": 2}'),
        ("send", "a", "-d", "NaN"),
        ("send", "a", "-d", ""),
        ("send", "a", "-d", "1", "--bytes", "-"),
        ("send", "a", "-d", "@missing.json"),
        ("send", "a", "--meta", "novalue"),
        ("send", "a", "--timeout", "1s"),
        ("send", "a", "--wait", "--timeout", "soon"),
        ("send", "a", "--url", "127.0.0.1:7878"),
        ("send", "a", "--config", "missing.toml"),
        ("runs", "ls", "--limit", "many"),
        ("runs", "ls", "--status", "done"),
        ("runs", "show"),
        ("runs", "nothing"),
        ("nothing",),
        ("dev", "a.py", "a.py"),
        ("dev", "--tui"),
        ("dev", "a.py", "--ephemeral", "--db", "x.db"),
        ("serve", "--port", "70000"),
        ("serve", "--lease", "0"),
        ("worker",),
        ("worker", "a.py", "--capacity", "0"),
    ],
)
def test_what_makes_no_sense_ends_with_2_and_a_document(arguments: tuple[str, ...]) -> None:
    done = ryusen(*arguments, "--json")
    assert done.returncode == 2, done.stderr
    document = json.loads(done.stdout)
    assert document["code"] == "usage"
    assert document["exit_code"] == 2
    assert document["detail"]
    said = ryusen(*arguments)
    assert said.returncode == 2
    assert said.stdout == b""
    assert said.stderr


@pytest.mark.parametrize(
    "arguments", [("send", "a"), ("runs", "ls"), ("runs", "show", "r"), ("runs", "cancel", "r"), ("workers", "ls"), ("runs", "tail", "r")]
)
def test_no_server_ends_with_3_and_says_what_to_type(arguments: tuple[str, ...]) -> None:
    with socket.socket() as held:  # bound and not listening: nobody else can answer there meanwhile
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        done = ryusen(*arguments, "--url", url)
        assert done.returncode == 3
        assert done.stdout == b""
        assert url.encode() in done.stderr
        assert b"ryusen dev" in done.stderr
        assert json.loads(ryusen(*arguments, "--url", url, "--json").stdout)["code"] == "unreachable"


def test_the_url_comes_from_the_environment_too() -> None:
    with told(lambda *_: (200, {"items": [], "next_cursor": None})) as server:
        done = ryusen("runs", "ls", "--json", RYUSEN_URL=server.url, RYUSEN_WORKSPACE="ws")
    assert done.returncode == 0
    assert server.asked[0][1].startswith("/v1/workspaces/ws/runs")


def test_a_missing_run_ends_with_4_and_the_servers_own_document() -> None:
    with told(lambda *_: problem(404, "not_found", "There is no run r")) as server:
        shown = ryusen("runs", "show", "r", "--json", "--url", server.url)
        said = ryusen("runs", "show", "r", "--url", server.url)
    assert (shown.returncode, said.returncode) == (4, 4)
    assert json.loads(shown.stdout)["type"] == "urn:ryusen:problem:not_found"
    assert b"There is no run r" in said.stderr


def test_a_refused_cancel_and_a_lost_one_differ() -> None:
    with told(lambda *_: problem(409, "not_cancellable")) as server:
        refused = ryusen("runs", "cancel", "r", "--url", server.url)
    with told(lambda *_: None) as server:
        lost = ryusen("runs", "cancel", "r", "--url", server.url)
    assert (refused.returncode, lost.returncode) == (5, 8)
    assert b"ryusen runs cancel r" in lost.stderr


def test_fields_of_a_newer_server_are_kept_in_json() -> None:
    with told(lambda *_: (200, b'{"items":[],"next_cursor":null,"news":1.0}')) as server:
        done = ryusen("runs", "ls", "--json", "--url", server.url)
    assert done.stdout == b'{"items":[],"next_cursor":null,"news":1.0}\n'


def history(*records: dict[str, Any], position: int) -> dict[str, Any]:
    return {"position": position, "at_ms": 1_700_000_000_000 + position, "records": list(records)}


def test_tail_follows_the_history_to_the_end_of_the_run() -> None:
    created = {"kind": "run_created", "run_id": "r", "application": "shop", "function": "fulfil", "event_id": "ev"}
    last = {"kind": "run_ended", "recovery": "fully_compensated", "recovery_reason": None}
    pages = {
        "": [history(created, position=3)],
        "after=3": [history({"kind": "of_the_future", "x": "\x1b[2J"}, position=5), history(last, position=9)],
    }
    stream = encode_event("heartbeat", b'{"position":3}') + encode_event("change", b'{"position":4,"at_ms":1,"records":[]}', 4)

    def answer(_method: str, path: str, _body: Any) -> Answer:
        path, _, query = path.partition("?")
        return (200, stream) if path.endswith("/stream") else (200, {"items": pages[query], "next_cursor": None})

    with told(answer) as server:
        lines = ryusen("runs", "tail", "r", "--json", "--url", server.url)
        assert [path.partition("/runs/r/")[2] or path for _, path, _ in server.asked] == [
            "history", "/v1/workspaces/default/stream", "history?after=3",
        ]  # fmt: skip
        server.asked.clear()
        text = ryusen("runs", "tail", "r", "--url", server.url)
    assert lines.returncode == text.returncode == 0
    assert [json.loads(line)["position"] for line in lines.stdout.splitlines()] == [3, 5, 9]
    assert b"run created: fulfil of shop for event ev" in text.stdout
    assert b"of_the_future" in text.stdout
    assert b"\x1b" not in text.stdout
    assert b"Fully compensated" in text.stdout


def test_data_comes_from_files_and_pipes_byte_for_byte(tmp_path: Path) -> None:
    file = tmp_path / "order.json"
    file.write_bytes(b'{"n": 1.0}')
    with told(sending((201, receipt()))) as server:
        assert ryusen("send", "a", "-d", f"@{file}", "--url", server.url).returncode == 0
        assert ryusen("send", "a", "-d", "-", "--url", server.url, stdin=b"[1]").returncode == 0
        assert ryusen("send", "a", "--bytes", "-", "--url", server.url, stdin=b"\xff\x00").returncode == 0
        assert ryusen("send", "a", "--url", server.url).returncode == 0
    bodies = [body for method, _, body in server.asked if method == "POST"]
    assert [body.get("data", "missing") for body in bodies] == [{"n": 1.0}, [1], "missing", None]
    assert bodies[2]["payload_base64"] == "/wA="


def test_a_payload_over_the_limit_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    file = tmp_path / "large.bin"
    file.write_bytes(bytes(3 * 2**20))
    with told(sending((201, receipt()))) as server:
        done = ryusen("send", "a", "--bytes", str(file), "--json", "--url", server.url)
    assert done.returncode == 5
    assert json.loads(done.stdout)["code"] == "limit_exceeded"
    assert server.asked == []


def test_init_writes_an_example_once(tmp_path: Path) -> None:
    place = tmp_path / "new shop"
    first = ryusen("init", str(place))
    assert first.returncode == 0, first.stderr
    written = (place / "orders.py").read_bytes()
    compile(written, "orders.py", "exec")
    second = ryusen("init", str(place), "--json")
    assert second.returncode == 1
    assert "nothing is overwritten" in json.loads(second.stdout)["detail"]
    assert (place / "orders.py").read_bytes() == written


def test_version_and_settings_are_documents_too() -> None:
    assert json.loads(ryusen("version", "--json").stdout)["protocol_version"] == 1
    shown = json.loads(ryusen("config", "show", "--json", RYUSEN_PORT="1", RYUSEN_TOKEN="secret").stdout)
    by_name = {item["name"]: item for item in shown["items"]}
    assert by_name["port"] == {"name": "port", "command": "serve", "value": 1, "source": "RYUSEN_PORT"}
    assert by_name["token"]["value"] == "(set)"


def test_a_reader_that_goes_away_leaves_no_traceback() -> None:
    items = [{"position": n, "at_ms": n, "records": [{"kind": "x", "text": "y" * 10_000}]} for n in range(1, 300)]
    with told(lambda *_: (200, {"items": items, "next_cursor": None})) as server:
        process = subprocess.Popen([*COMMAND, "runs", "history", "r", "--url", server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        with process.stderr as errors:
            assert errors.read() == b""
        assert process.wait() == 1


def test_a_terminal_gets_colour_and_a_dumb_one_does_not() -> None:
    def shown(**environment: str) -> bytes:
        with told(lambda *_: (200, functions())) as server:
            leader, follower = pty.openpty()
            clean = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "TERM"}}
            command = [*COMMAND, "functions", "ls", "--url", server.url]
            process = subprocess.Popen(command, stdout=follower, stderr=follower, env={**clean, **environment})
            os.close(follower)
            text = b""
            try:
                while piece := os.read(leader, 4096):
                    text += piece
            except OSError:
                pass  # how Linux says that the other end is closed
            os.close(leader)
            assert process.wait() == 0
            return text

    assert b"\x1b[" in shown(TERM="xterm")
    assert b"\x1b[" not in shown(TERM="dumb")
    assert b"\x1b[" not in shown(TERM="xterm", NO_COLOR="1")
    assert b"shop/fulfil" in shown(TERM="dumb")


HEAVY = {"sanic", "httpx", "pydantic", "rich", "watchfiles", "websockets", "aiosqlite", "uvloop", "asyncio"}


@pytest.mark.parametrize(
    "arguments", [["--help"], ["dev", "--help"], ["version"], ["runs", "ls", "--url", "http://127.0.0.1:1"], ["config", "show"]]
)
def test_a_short_command_imports_nothing_heavy(arguments: list[str]) -> None:
    text = (
        f"import sys; sys.path.append({str(ROOT)!r}); from ryusen_cli.main import main; main({arguments!r}); "
        "names = {name.partition('.')[0] for name in sys.modules} | {name for name in sys.modules if name.startswith('ryusen_')}; "
        "print(*names, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", text], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stderr.split())
    assert "ryusen_cli.main" in loaded
    assert not HEAVY & loaded
    assert not {"ryusen_sdk", "ryusen_server"} & loaded
    if arguments == ["--help"]:
        assert not {"msgspec", "tomllib", "ryusen_cli.commands.runs"} & loaded  # a list of commands asks for none of them


def test_a_function_is_shown_by_its_id_or_with_its_application() -> None:
    one = {"application": "shop", "function": "fulfil", "timeout_ms": 60_000, "triggers": [], "manifest_generation": "mg_1", "workers": []}
    page = {"items": [one, {**one, "application": "other"}, {**one, "function": "pack", "workers": ["wk_1"]}], "next_cursor": None}
    with told(lambda *_: (200, page)) as server:
        at = ("--url", server.url)
        shown = ryusen("functions", "show", "shop/fulfil", *at)
        assert (shown.returncode, b"shop/fulfil" in shown.stdout, b"no connected worker" in shown.stderr) == (0, True, True)
        assert json.loads(ryusen("functions", "show", "pack", "--json", *at).stdout)["workers"] == ["wk_1"]
        assert b"other/fulfil" in ryusen("functions", "show", "fulfil", *at).stderr
        assert [ryusen("functions", "show", name, *at).returncode for name in ("fulfil", "none")] == [2, 4]


@pytest.mark.parametrize(
    ("words", "listed"),
    [
        (("runs", "show", "x"), "runs ls"),
        (("runs", "cancel", "x"), "runs ls"),
        (("attempts", "show", "x"), "attempts ls"),
        (("events", "show", "x"), "events ls"),
        (("apps", "show", "x"), "apps ls"),
        (("routing", "show", "x"), "routing ls"),
    ],
)
def test_what_is_not_there_is_answered_with_the_command_that_lists_what_is(words: tuple[str, ...], listed: str) -> None:
    with told(lambda *_: problem(404, "not_found", "There is no such thing")) as server:
        said = ryusen(*words, "--url", server.url, "--workspace", "shop")
        told_json = ryusen(*words, "--url", server.url, "--workspace", "shop", "--json")
    assert said.returncode == told_json.returncode == 4
    command = f"ryusen {listed} --url {server.url} --workspace shop"
    assert f"try: {command}" in said.stderr.decode()
    assert json.loads(told_json.stdout)["hint"] == command


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("runs", "ls", "--status", "runing"), "--status running"),
        (("runs", "ls", "--outcome", "zzz"), "--outcome succeeded"),
        (("attempts", "ls", "--state", "authorised"), "--state authorized"),
        (("send", "a", "-d", "@no such.json"), "it is looked for in"),
        (("send", "a", "-d", "@"), "@order.json"),
        (("send", "a", "--bytes", "missing.bin"), "it is looked for in"),
        (("send", "a", "-d", "{'a': 1}"), "-d '{\"order\": 7}'"),
        (("send", "a", "-d", "-"), "--bytes -"),
        (("unknown", "resolve", "at_1", "--generation", "1", "--result", "@missing", "--yes"), "it is looked for in"),
    ],
)
def test_what_makes_no_sense_is_answered_with_what_to_type(words: tuple[str, ...], hint: str) -> None:
    said = ryusen(*words, stdin=b"{'a': 1}")
    assert said.returncode == 2
    assert hint in said.stderr.decode().partition("try: ")[2]


def test_a_file_that_is_not_json_is_named_and_may_be_sent_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "my order.json"
    file.write_text("{'a': 1}")
    said = ryusen("send", "a", "-d", f"@{file}").stderr.decode()
    assert said.startswith(f"error: {file}: the data is not JSON")
    assert f"--bytes '{file}'" in said


def test_a_cursor_of_another_list_is_answered_with_what_to_do() -> None:
    with told(lambda *_: problem(400, "invalid", "The cursor is not one of this list")) as server:
        said = ryusen("runs", "ls", "--cursor", "abc", "--url", server.url)
        other = ryusen("runs", "ls", "--url", server.url)
    assert said.returncode == other.returncode == 5
    assert b"try: leave --cursor out" in said.stderr
    assert b"try:" not in other.stderr


@pytest.mark.parametrize(
    ("connected", "draining", "said"),
    [(True, False, "connected"), (True, True, "draining"), (False, False, "away"), (False, True, "drained")],
)
def test_a_worker_is_said_to_drain_as_long_as_it_is_there(connected: bool, draining: bool, said: str) -> None:
    given = {**WORKERS[0], "connected": connected, "draining": draining}
    with told(lambda *_: (200, {"items": [given], "next_cursor": None})) as server:
        listed = ryusen("workers", "ls", "--url", server.url).stdout.decode()
    assert listed.splitlines()[1].split()[4] == said
    shown = plain(worker_state(msgspec.convert(given, WorkerDocument), Glyphs()))
    assert shown.split(maxsplit=1)[1] == said.capitalize()
