"""`ryusen doctor` finds each thing that can be wrong, with what, why and what to do; and nothing where nothing is."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ryusen_cli.commands.about import product_version
from ryusen_cli.target_probe import probe
from ryusen_protocol import PROTOCOL_VERSION
from ryusen_server.bootstrap.checkup import examine
from ryusen_server.store.sqlite import SqliteStore
from ryusen_server.store.sqlite.schema import SCHEMA_VERSION
from tests.cli.told import ryusen, told

APP = "from ryusen_sdk import Ryusen\nprint('noise')\napp = Ryusen('shop')\n\n\n@app.function(on='a')\ndef fulfil(event, step):\n    pass\n"
CONTRACT: dict[str, Any] = {"protocol_version": 1, "value_codec": 1, "features": []}
NOBODY = 65534


def worker(**more: Any) -> dict[str, Any]:
    return {
        "instance_id": "wi_1", "application": "shop", "session_id": "s", "release_id": "r2", "transport": "connected", "connected": True,
        "functions": ["fulfil"], "capacity": 1, "in_flight": 0, "draining": False, "manifest_digest": None, "contract": CONTRACT,
        "capabilities": [], "sdk": None, "runtime": None, "connected_at_ms": 1, "last_contact_at_ms": time.time_ns() // 1_000_000,
        "last_failure": None, **more,
    }  # fmt: skip


class World:
    """A server's answers, all of them well until a test says otherwise."""

    def __init__(self, digest: str) -> None:
        self.server: dict[str, Any] = {
            "product_version": product_version(), "protocol_version": PROTOCOL_VERSION, "addresses": [],
            "database": {"path": "/db", "schema_version": SCHEMA_VERSION}, "limits": {}, "heartbeat_ms": 10_000, "lease_ms": 30_000,
            "reconnect_grace_ms": 1, "default_run_timeout_ms": None, "max_run_timeout_ms": None, "started_at_ms": 1,
            "counts": {"events": 0, "runs": 0, "moving": 0, "unknown": 0, "blocked": 0, "workers": 1},
        }  # fmt: skip
        self.applications = [
            {"application": "shop", "manifest_generation": "mg_1", "digest": digest, "routing_generation": "rg", "functions": 1,
             "triggers": 1, "activated_at_ms": 1, "activated_position": 1}
        ]  # fmt: skip
        self.workers = [worker()]
        self.functions: list[dict[str, Any]] = [
            {
                "application": "shop",
                "function": "fulfil",
                "timeout_ms": None,
                "triggers": [],
                "manifest_generation": "mg_1",
                "workers": ["wi_1"],
            }
        ]
        self.releases: list[dict[str, Any]] = [
            {
                "application": "shop",
                "release_id": name,
                "first_seen_position": 1,
                "first_seen_at_ms": 1,
                "contract": CONTRACT,
                "instances": [],
            }
            for name in ("r1", "r2")
        ]

    def answer(self, _method: str, path: str, _body: Any) -> tuple[int, Any]:
        if path == "/v1/health":
            return 200, {"status": "ok", "protocol_version": PROTOCOL_VERSION, "product_version": "x"}
        if path == "/v1/server":
            return 200, self.server
        items: list[dict[str, Any]] = getattr(self, path.rpartition("/")[2].partition("?")[0])
        return 200, {"items": items, "next_cursor": None}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "orders.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems(url: str, *arguments: str) -> dict[str, dict[str, Any]]:
    """The problems found, by code; each says what, why and what to do."""
    done = ryusen("doctor", "--json", "--url", url, *arguments)
    document = json.loads(done.stdout)
    found = {item["code"]: item for item in document["items"] if item["status"] == "problem"}
    assert done.returncode == (1 if found else 0)
    assert document["problems"] == sum(item["status"] == "problem" for item in document["items"])
    for item in found.values():
        assert item["what"]
        assert item["why"]
        assert item["fix"]
    return found


def test_nothing_is_wrong_where_nothing_is(project: Path) -> None:
    world = World(probe("orders.py").digest)
    with told(world.answer) as server:
        assert problems(server.url) == {}
        said = ryusen("doctor", "--url", server.url)
    assert said.returncode == 0
    assert said.stdout.decode().endswith("nothing is wrong\n")
    assert b"noise" not in said.stdout


def stale(world: World) -> None:
    world.workers = [worker(release_id="r1")]


def of_another_manifest(world: World) -> None:
    world.workers = [worker(manifest_digest="sha256:other")]


def without_worker(world: World) -> None:
    world.functions[0]["workers"] = []


def not_synced(world: World) -> None:
    world.applications[0]["digest"] = "sha256:other"


def not_published(world: World) -> None:
    world.applications = []


def silent(world: World) -> None:
    world.workers = [worker(last_contact_at_ms=1)]


def blocked(world: World) -> None:
    world.workers = [worker(last_failure="loop_blocked: the event loop has not turned for 12 s")]


def another_version(world: World) -> None:
    world.server["product_version"] = "99.0"


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (stale, "stale_release"),
        (of_another_manifest, "stale_release"),
        (without_worker, "no_worker"),
        (not_synced, "not_synced"),
        (not_published, "not_synced"),
        (silent, "worker_silent"),
        (blocked, "worker_loop_blocked"),
        (another_version, "other_version"),
    ],
)
def test_each_thing_a_server_can_tell_is_found(project: Path, broken: Callable[[World], None], code: str) -> None:
    world = World(probe("orders.py").digest)
    broken(world)
    with told(world.answer) as server:
        assert list(problems(server.url)) == [code]


def test_a_server_that_takes_its_time_is_found(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ryusen_cli.checkup.SLOW_ANSWER_MS", -1)
    with told(World(probe("orders.py").digest).answer) as server:
        assert list(problems(server.url)) == ["server_loop_blocked"]


def test_without_a_server_the_rest_is_still_looked_at(project: Path) -> None:
    (project / "orders.py").write_text("from ryusen_sdk import Ryusen\napp = Ryusen('shop'\n")
    found = problems("http://127.0.0.1:1")
    assert set(found) == {"unreachable", "target_does_not_import"}
    assert "orders.py:2: SyntaxError" in found["target_does_not_import"]["why"]
    assert "ryusen dev" in found["unreachable"]["fix"]


def test_a_target_that_ends_or_hangs_its_process_is_told(project: Path) -> None:
    (project / "orders.py").write_text("import os\nos._exit(3)\n")
    assert "exit code 3" in str(probe("orders.py").problem)
    (project / "orders.py").write_text("import time\ntime.sleep(600)\n")
    assert "does not import within" in str(probe("orders.py", within_s=0.5).problem)


@contextmanager
def somebody_else(folder: Path) -> Generator[None]:
    """As a user who may not write here, whoever runs the test."""
    if os.getuid() == 0:
        os.setreuid(NOBODY, 0)
    try:
        folder.chmod(0o555)
        yield
    finally:
        if os.geteuid() == 0:
            os.setreuid(0, 0)
        folder.chmod(0o755)


async def database(path: Path) -> None:
    store = await SqliteStore.open(path, on_fatal=print)
    await store.close()


def codes(path: Path) -> list[str]:
    return [fault.code for fault in examine(path)]


def test_each_fault_of_a_database_is_found_and_nothing_is_changed(tmp_path: Path) -> None:
    good = tmp_path / "good.db"
    asyncio.run(database(good))
    assert codes(good) == []
    assert codes(tmp_path / ".ryusen" / "ryusen.db") == []
    assert codes(tmp_path / "none" / "ryusen.db") == ["database_missing"]

    newer = tmp_path / "newer.db"
    shutil.copy(good, newer)
    connection = sqlite3.connect(newer)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    assert codes(newer) == ["newer_database"]

    damaged = tmp_path / "damaged.db"
    shutil.copy(good, damaged)
    with damaged.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)
    assert codes(damaged) == ["damaged_database"]

    other = tmp_path / "other.db"
    other.write_text("not a database, whatever its name says")
    other.chmod(0o600)
    assert codes(other) == ["not_a_database"]

    good.chmod(0o644)
    assert codes(good) == ["open_to_others"]
    good.chmod(0o600)
    with somebody_else(tmp_path):
        assert "no_write_permission" in codes(good)
        assert codes(tmp_path / ".ryusen" / "ryusen.db") == ["no_write_permission"]
    assert not (tmp_path / ".ryusen").exists()
    assert not list(tmp_path.glob("good.db-*"))


def test_a_database_that_is_named_and_not_there_is_a_problem(project: Path) -> None:
    with told(World(probe("orders.py").digest).answer) as server:
        assert list(problems(server.url, "--db", "nowhere.db")) == ["database_missing"]
