"""`--json` of every command against a real server: one document of the type that is declared for it; and the codes commands end with."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ryusen_cli.checkup import Finding
from ryusen_cli.completion import tree_of
from ryusen_cli.tree import build
from ryusen_protocol import api
from ryusen_protocol.changes import Change
from ryusen_protocol.operator import Acknowledgement, RefusalEnvelope
from tests.acceptance.product import HERE, Product, W, eventually
from tests.acceptance.test_transports import served
from tests.cli.told import Done, ryusen

TALKING = HERE / "talking.py"


class ShownRun(api.RunDetail, frozen=True, kw_only=True):
    logs: list[api.AttemptLogDocument]


class ShownUnknown(msgspec.Struct, forbid_unknown_fields=True):
    attempt: api.AttemptDocument
    run: api.RunDetail
    logs: list[api.AttemptLogDocument]


class Setting(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    command: str
    value: Any
    source: str


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    items: list[Setting]
    next_cursor: None


class Findings(msgspec.Struct, forbid_unknown_fields=True):
    items: list[Finding]
    next_cursor: None
    problems: int


class Version(msgspec.Struct, forbid_unknown_fields=True):
    version: str
    protocol_version: int
    python: str
    executable: str


class Script(msgspec.Struct, forbid_unknown_fields=True):
    shell: str
    script: str


class Written(msgspec.Struct, forbid_unknown_fields=True):
    status: str
    path: str


class Published(msgspec.Struct):
    status: str
    manifest_generation: str
    routing_generation: str
    digest: str


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[Product]:
    with served(tmp_path_factory.mktemp("cli"), "connected", TALKING) as product:
        yield product


@pytest.fixture(scope="module")
def known(running: Product) -> dict[str, str]:
    """Ids of everything there is to be shown: a run that failed, and one with an Unknown attempt."""
    failed = running.send("talk/now", "go")["event_id"]
    run = running.ended(failed)
    waiting = running.send("talk/now", "wait")["event_id"]
    running.await_marker("working")
    running.workers[0].kill()
    unknown = eventually(lambda: running.get(f"{W}/attempts?state=unknown")["items"], "the attempt is Unknown")[0]
    running.start_worker(target=TALKING)
    return {
        "event": failed, "waiting": waiting, "run": run["run_id"], "attempt": unknown["attempt_id"], "unknown_run": unknown["run_id"],
        "routing": running.get(f"{W}/routing")["items"][0]["routing_generation"], "generation": str(unknown["attempt_generation"]),
    }  # fmt: skip


def asked(running: Product, *words: str, expect: int = 0) -> Done:
    done = ryusen(*words, "--json", RYUSEN_URL=running.url, ACCEPTANCE_FOLDER=str(running.folder))
    assert done.returncode == expect, (words, done.stdout, done.stderr)
    return done


def document(done: Done, shape: Any) -> Any:
    """The one document on stdout, which nothing follows; a program gets it on one line."""
    assert done.stdout.count(b"\n") == 1
    return msgspec.json.decode(done.stdout, type=shape)


LISTS: dict[str, Any] = {
    "runs ls": api.Page[api.RunSummary],
    "unknown ls": api.Page[api.AttemptDocument],
    "attempts ls": api.Page[api.AttemptDocument],
    "events ls": api.Page[api.EventSummary],
    "functions ls": api.Page[api.FunctionDocument],
    "apps ls": api.Page[api.ApplicationDocument],
    "workers ls": api.Page[api.WorkerDocument],
    "routing ls": api.Page[api.RoutingDocument],
}
SHOWN: dict[str, Any] = {
    "runs show {run}": ShownRun,
    "runs wait {run}": api.RunDetail,
    "runs history {run}": api.Page[api.HistoryEntryDocument],
    "unknown show {attempt}": ShownUnknown,
    "attempts show {attempt}": api.AttemptDocument,
    "events show {event}": api.EventDetail,
    "functions show talk": api.FunctionDocument,
    "apps show acceptance": api.ApplicationDocument,
    "routing show {routing}": api.RoutingDocument,
}
HERE_ONLY: dict[str, Any] = {"version": Version, "config show": Settings, "completion bash": Script, "init {new}": Written}
ELSEWHERE = {
    "dev", "serve", "worker", "tui", "conformance worker", "conformance http", "conformance server", "runs tail", "runs cancel",
    "runs rediscover", "unknown resolve", "send", "prune", "doctor", "apps publish", "backup",
}  # fmt: skip
"""Those with a test of their own, below or in another module."""


def test_every_command_takes_json_and_stands_in_a_table_here() -> None:
    tree = tree_of(build())
    leaves = {" ".join(words) for words, (below, _) in tree.items() if not below}
    assert {name for name in leaves if "--json" not in tree[tuple(name.split())][1]} <= {"tui"}
    tabled = {" ".join(word for word in line.split() if not word.startswith("{")) for line in (*LISTS, *SHOWN, *HERE_ONLY)}
    tabled = {name.removesuffix(" talk").removesuffix(" acceptance").removesuffix(" bash") for name in tabled}
    assert leaves - tabled - ELSEWHERE == set()


@pytest.mark.parametrize("line", [*LISTS, *SHOWN, *HERE_ONLY])
def test_a_reading_command_prints_one_document_of_its_type(running: Product, known: dict[str, str], tmp_path: Path, line: str) -> None:
    done = asked(running, *line.format(**known, new=tmp_path).split(), expect=6 if line.startswith("runs wait") else 0)
    found = document(done, {**LISTS, **SHOWN, **HERE_ONLY}[line])
    assert not line.endswith(" ls") or line == "routing ls" or found.items


def test_commands_that_change_something_print_one_document_of_their_type(running: Product, known: dict[str, str]) -> None:
    sent = asked(running, "send", "talk/now", "-d", '"go"', "--wait", expect=6)
    assert document(sent, api.EventReceipt).runs[0].outcome == "failed"
    assert document(asked(running, "send", "nobody/listens", "-d", "1", "--wait", expect=4), api.EventReceipt).matched == 0
    assert document(asked(running, "runs", "rediscover", known["run"], expect=5), dict)["code"] == "not_blocked"
    assert document(asked(running, "runs", "cancel", known["run"], expect=5), dict)["code"] == "not_cancellable"
    assert document(asked(running, "runs", "cancel", known["unknown_run"]), api.CancelReceipt).status == "applied"
    assert document(asked(running, "runs", "wait", known["unknown_run"], "--timeout", "1ms", expect=7), api.RunDetail).status == "stopping"
    settle = ("unknown", "resolve", known["attempt"], "--generation", known["generation"], "--yes")
    assert document(asked(running, *settle, "--retry", expect=5), RefusalEnvelope).refusal.code == "retry_forbidden"
    assert document(asked(running, *settle, "--result", "null"), Acknowledgement).status == "applied"
    assert document(asked(running, "apps", "publish", str(TALKING)), Published).status == "current"
    document(asked(running, "doctor", str(TALKING), expect=0), Findings)
    document(asked(running, "prune", "--older-than", "1h"), api.PruneReceipt)
    tailed = asked(running, "runs", "tail", known["run"]).stdout.splitlines()
    assert [msgspec.json.decode(line, type=api.HistoryEntryDocument).position for line in tailed]
    assert Change.__struct_fields__[0] == "position"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("runs ls --limit x", 2),
        ("runs nonsense", 2),
        ("runs show rn_none", 4),
        ("attempts show at_none", 4),
        ("events show ev_none", 4),
        ("functions show none", 4),
        ("apps show none", 4),
        ("routing show none", 4),
        ("unknown resolve at_none --generation 1 --retry --yes", 5),
        ("unknown resolve at_none --generation 1 --retry", 2),
        ("send a -d {", 2),
        ("worker nothing.here", 1),
        ("completion powershell", 2),
    ],
)
def test_a_command_that_fails_ends_with_its_code_and_a_document(running: Product, words: str, code: int) -> None:
    done = asked(running, *words.split(), expect=code)
    found = json.loads(done.stdout)
    assert found.get("code") or found["refusal"]["code"]


@pytest.mark.parametrize("words", ["runs ls", "send a -d 1", "doctor", "runs tail", "apps ls"])
def test_without_a_server_commands_end_with_3_and_doctor_tells(words: str) -> None:
    done = ryusen(*words.split(), "--json", "--url", "http://127.0.0.1:1")
    assert done.returncode == (1 if words == "doctor" else 3)
    assert json.loads(done.stdout)
