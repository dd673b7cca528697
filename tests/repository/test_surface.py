"""What may be seen of the product from outside, held still: the names of the SDK, the shape of the wire and of the file, who decides what,
and the one wheel that carries it all."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ryusen_sdk
from ryusen_protocol import codec, frames, invocation, outcome
from ryusen_protocol.errors import ErrorRecord
from ryusen_sdk import Event, Ryusen, Step, SyncStep
from ryusen_server.core.rows import ReleaseRow
from ryusen_server.store.sqlite import sql
from ryusen_server.store.sqlite.schema import migrate

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ryusen_protocol", "ryusen_server", "ryusen_sdk", "ryusen_conformance", "ryusen_testing", "ryusen_tui", "ryusen_cli")
FIXTURES = ROOT / "fixtures"


def words_of(name: str) -> set[str]:
    """The words of an identifier, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def imports(path: Path) -> Iterator[str]:
    """Every module a file imports, wherever in it the import stands, and `module.name` of what it takes from one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def fixtures(area: str) -> dict[str, Any]:
    return json.loads((FIXTURES / area / "accepted.json").read_text())


# The SDK


PUBLIC = {
    *(
        "Ryusen",
        "Event",
        "EventPayload",
        "Parent",
        "Step",
        "SyncStep",
        "Retry",
        "Compensate",
        "Operation",
        "operation",
        "run_logger",
        "BlobRef",
        "Manifest",
    ),
    *("Failure", "Terminal", "StepFailed", "RyusenError", "ConversionError", "DefinitionError", "DuplicateFunction", "MisuseError"),
    *("Client", "AsyncClient", "result_of", "ClientError", "RequestRefused", "ServerUnreachable"),
    *("TargetError", "WorkerError", "WorkerReplaced", "WorkerStatus", "RegistrationRejected"),
}
EFFECTS = {"run"}
"""The methods of a step that make effects."""
OTHERS = {"sleep", "sleep_until", "wait_for_event", "invoke", "send_event"}
"""What the server carries out by itself: nothing of it takes a callback or is undone."""


def own(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


@pytest.mark.req("SEM-01", "SDK-03")
def test_a_step_is_the_one_primitive_for_effects() -> None:
    assert set(ryusen_sdk.__all__) == PUBLIC
    assert own(Step) == own(SyncStep) == EFFECTS | OTHERS
    for name in EFFECTS | OTHERS:
        taken = set(inspect.signature(getattr(Step, name)).parameters)
        assert taken == set(inspect.signature(getattr(SyncStep, name)).parameters)
        assert ({"callback", "compensate", "retry"} <= taken) == (name in EFFECTS), name
    named = PUBLIC | own(Ryusen) | {name for kind in (Ryusen.function, Step.run) for name in inspect.signature(kind).parameters}
    for forbidden in ("saga", "integration", "version", "patch", "pin", "workflow"):
        assert not [name for name in named if forbidden in words_of(name)]
    example = ast.parse((ROOT / "examples" / "orders" / "orders.py").read_text())
    used = {
        node.func.attr
        for node in ast.walk(example)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "step"
    }
    assert used == {"run"}


SERVER_TERMS = {
    *("queue", "lease", "epoch", "session", "projection", "affinity", "partition", "shard", "transport", "connection", "kind", "priority"),
    *("worker", "release", "build", "version", "generation", "heartbeat", "checkpoint", "history", "capability", "endpoint"),
}


def required(call: Callable[..., object]) -> list[str]:
    return [
        name
        for name, parameter in inspect.signature(call).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name != "self"
    ]


@pytest.mark.req("SEM-03")
def test_no_author_has_to_name_a_term_of_the_server() -> None:
    written_by_authors = [
        Ryusen,
        *(vars(Ryusen)[name] for name in own(Ryusen) if callable(vars(Ryusen)[name])),
        *(getattr(kind, name) for kind in (Step, SyncStep) for name in EFFECTS | OTHERS),
        *(ryusen_sdk.Retry, ryusen_sdk.Compensate, ryusen_sdk.Failure, ryusen_sdk.Terminal, ryusen_sdk.operation),
        *(ryusen_sdk.Client, ryusen_sdk.Client.send, ryusen_sdk.AsyncClient, ryusen_sdk.AsyncClient.send),
    ]
    for call in written_by_authors:
        for name in required(call):
            assert not words_of(name) & SERVER_TERMS, f"{call} cannot be called without {name}"
    assert required(Step.run) == required(SyncStep.run) == ["step_id", "callback"]
    assert required(Ryusen) == required(Ryusen.function) == []


@pytest.mark.req("DLN-02")
def test_a_function_without_a_timeout_publishes_none() -> None:
    async def body(event: Event, step: Step) -> None: ...

    app = Ryusen("shop")
    app.function(id="free")(body)
    app.function(id="bound", timeout="2h")(body)
    published = json.loads(msgspec.json.encode(app.manifest().publication(None)))
    assert published["functions"] == [{"id": "bound", "timeout_ms": 7_200_000}, {"id": "free"}]


@pytest.mark.req("SDK-14")
def test_the_sdk_has_one_home() -> None:
    for name in PUBLIC - {"BlobRef", "WorkerStatus"}:
        assert getattr(ryusen_sdk, name).__module__.split(".")[0] == "ryusen_sdk", name
    assert ryusen_sdk.BlobRef.__module__ == "ryusen_protocol.values", "a value of the wire"
    for path in sources(*(name for name in PACKAGES if name != "ryusen_sdk")):
        defined = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)}
        assert not defined & {"Ryusen", "SyncStep", "StepFailed", "Compensate", "WorkerStatus"}, path
    for path in sources("ryusen_server", "ryusen_protocol"):
        assert not [name for name in imports(path) if name.startswith("ryusen_sdk")], path


# Who decides what


@pytest.mark.req("PRO-03")
def test_server_and_sdk_know_nothing_of_each_other() -> None:
    for path in sources("ryusen_server"):
        assert not [name for name in imports(path) if name.split(".")[0] in ("ryusen_sdk", "ryusen_cli")], path
    for path in sources("ryusen_sdk"):
        assert not [name for name in imports(path) if name.split(".")[0] in ("ryusen_server", "ryusen_cli", "sqlite3", "aiosqlite")], path
    for path in sources("ryusen_protocol"):
        assert not [name for name in imports(path) if name.startswith("ryusen_") and not name.startswith("ryusen_protocol")], path


@pytest.mark.req("STOP-11")
def test_a_transport_reports_and_the_engine_decides() -> None:
    for path in sources("ryusen_server/transports"):
        reached = {name for name in imports(path) if name.startswith("ryusen_server.")}
        assert not [name for name in reached if name.startswith(("ryusen_server.core", "ryusen_server.store", "ryusen_server.api"))], path
    deciding = [
        path.relative_to(ROOT).parts[1]
        for path in sources("ryusen_server")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "NeverBegan"
    ]
    assert set(deciding) == {"engine"}, "a proof of no start becomes a command nowhere else"


@pytest.mark.req("VAL-10")
def test_nothing_of_the_server_reads_a_stack() -> None:
    """But to leave it out of what workers get, to cut it to its limit, and to show it to people."""
    read = {
        (path.relative_to(ROOT).as_posix(), node.attr)
        for path in sources("ryusen_server")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "stack"
    }
    assert read == {("ryusen_server/core/evolve.py", "stack")}
    (function,) = [
        node
        for node in ast.walk(ast.parse((ROOT / "ryusen_server/core/evolve.py").read_text()))
        if isinstance(node, ast.FunctionDef) and any(isinstance(part, ast.Attribute) and part.attr == "stack" for part in ast.walk(node))
    ]
    assert function.name == "without_stack"


# The wire


@pytest.mark.req("PRO-01")
@pytest.mark.parametrize("module", [invocation, outcome])
def test_envelopes_know_no_transport(module: Any) -> None:
    path = Path(module.__file__)
    assert not [name for name in imports(path) if name.startswith("ryusen_protocol.frames")]
    carried = {"session", "socket", "connection", "frame", "http", "url", "header", "transport", "instance", "subprotocol", "ack"}
    for kind in vars(module).values():
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            assert not [name for name in kind.__struct_fields__ if words_of(name) & carried], kind


@pytest.mark.req("PRO-01")
@pytest.mark.parametrize("name", sorted(fixtures("invocations")))
def test_a_frame_carries_an_envelope_as_it_is(name: str) -> None:
    document = fixtures("invocations")[name]["document"]
    alone = codec.decode_invocation(json.dumps(document).encode())
    framed = codec.decode_server_frame(json.dumps({"protocol_version": 1, "type": "invoke", "invocation": document}).encode())
    assert isinstance(framed, frames.Invoke)
    assert framed.invocation == alone
    assert codec.encode(framed.invocation) == codec.encode(alone)


PYTHON = re.compile(
    r"traceback \(|__\w+__|builtins?\b|\bdict\b|\btuple\b|\bpickle|\bdataclass|\bmsgspec|\bNone\b|\bTrue\b|\bFalse\b|\.pyc\b"
)


@pytest.mark.req("PRO-02")
def test_fixtures_hold_nothing_of_one_language() -> None:
    for path in FIXTURES.rglob("*.json"):
        text = re.sub(r'"stack": ?"(?:[^"\\]|\\.)*"', "", path.read_text())  # a stack is for people, in the words of its language
        found = [match[0] for match in PYTHON.finditer(text)]
        assert not found, f"{path.name}: {found}"


@pytest.mark.req("PRO-04")
@pytest.mark.parametrize("name", sorted(fixtures("invocations")))
def test_a_target_says_of_which_class_it_is(name: str) -> None:
    document = fixtures("invocations")[name]["document"]
    assert document["target"]["mode"] in ("discovery", "forward", "compensation"), "repeatable, and two kinds of effect"
    for target in ({key: content for key, content in document["target"].items() if key != "mode"}, {**document["target"], "mode": "other"}):
        with pytest.raises(codec.MalformedDocument):
            codec.decode_invocation(json.dumps({**document, "target": target}).encode())


SUCCESSES, FAILURES = {"completed", "succeeded"}, {"uncaught", "callback_failed"}


@pytest.mark.req("RTY-05")
@pytest.mark.parametrize("name", sorted(fixtures("outcomes")))
def test_success_and_failure_are_tagged_documents(name: str) -> None:
    document = fixtures("outcomes")[name]["document"]
    body = document["outcome"]
    assert ("result" in body) == (body["type"] in SUCCESSES)
    assert ("failure" in body) == (body["type"] in FAILURES)
    if "failure" in body:
        assert set(body["failure"]) <= set(ErrorRecord.__struct_fields__)
    untagged = {key: content for key, content in body.items() if key != "type"}
    with pytest.raises(codec.MalformedDocument):
        codec.decode_outcome(json.dumps({**document, "outcome": untagged}).encode())


@pytest.mark.req("RTY-05")
def test_a_failure_is_plain_data() -> None:
    assert set(ErrorRecord.__struct_fields__) == {"category", "message", "retryable", "details", "cause", "stack"}
    seen = {entry["document"]["outcome"]["type"] for entry in fixtures("outcomes").values()}
    assert seen >= SUCCESSES | FAILURES


# The file


def columns() -> dict[str, set[str]]:
    with sqlite3.connect(":memory:") as database:
        migrate(database)
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        found = {table: {row[1] for row in database.execute(f"PRAGMA table_info({table})")} for table in tables}
    database.close()
    return found


@pytest.mark.req("MAN-01")
def test_every_durable_record_has_its_scope() -> None:
    of_no_workspace = {"meta"}
    of_a_workspace = {"history", "events", "event_keys", "operator_commands", "routing", "workspaces"}
    for table, names in columns().items():
        assert ("workspace" in names) == (table not in of_no_workspace), table
        if table not in of_no_workspace | of_a_workspace:
            assert "application" in names, table


@pytest.mark.req("MAN-04", "MAN-18")
def test_no_statement_changes_a_generation() -> None:
    statements = [text for text in vars(sql).values() if isinstance(text, str)]
    assert [text for text in statements if re.match(r"INSERT INTO (manifests|routing) ", text)]
    for text in statements:
        changes = re.search(r"\b(UPDATE|DELETE FROM|REPLACE INTO|REPLACE)\s+(manifests|routing)\b", text)
        assert changes is None, text
        if re.match(r"INSERT INTO (manifests|routing) ", text):
            assert "ON CONFLICT" not in text
    for path in sources("ryusen_server/store/sqlite"):
        written_in_place = re.search(r"\b(UPDATE|DELETE FROM|REPLACE INTO) (manifests|routing)\b", path.read_text())
        assert written_in_place is None, path
    assert {"workspace", "routing_generation", "expected_parent", "content_hash", "position", "applications"} <= columns()["routing"]


@pytest.mark.req("REG-05")
def test_a_release_is_coordination_and_no_code() -> None:
    fields = {"workspace", "application", "release_id", "contract", "first_seen_at_ms", "position"}
    assert set(ReleaseRow.__struct_fields__) == columns()["releases"] == fields
    assert set(frames.ExecutionContract.__struct_fields__) == {"protocol_version", "value_codec", "features"}


# The wheel


@pytest.mark.req("SDK-14")
def test_the_wheel_carries_every_package_with_its_types_and_runs(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    built = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    shipped = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    for package in PACKAGES:
        assert f"{package}/py.typed" in shipped
        assert {path.relative_to(ROOT).as_posix() for path in sources(package)} <= shipped
    tops = {name.split("/")[0] for name in shipped}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    (entry_points,) = [unpacked / name for name in shipped if name.endswith(".dist-info/entry_points.txt")]
    assert "ryusen = ryusen_cli.main:run" in entry_points.read_text()
    probe = "import sys, ryusen_cli; assert ryusen_cli.__file__.startswith(sys.argv.pop(1)); from ryusen_cli.main import run; run()"
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    for command in (["-m", "ryusen_cli", "version"], ["-c", probe, str(unpacked), "version"]):
        ran = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == 0, ran.stderr
        assert "0.1.0" in ran.stdout
