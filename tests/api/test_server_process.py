"""Starting and stopping a server: the port first, signals, what is printed, and what is refused with nothing touched."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from sanic import Sanic

from ryusen_server.api.app import create_app
from ryusen_server.api.gate import gate_rules
from ryusen_server.api.serving import prepare_app
from ryusen_server.bootstrap import ServerSettings, StartRefused, build, running_server
from ryusen_server.bootstrap.listening import listen
from tests.api.api_harness import ClosableMemoryStore, W, open_memory
from tests.gateway.worker_peer import publication, worker_peer

ROOT = Path(__file__).resolve().parents[2]
SERVE = """
import sys
from pathlib import Path
from ryusen_server.bootstrap import ServerSettings, StartRefused, serve
settings = ServerSettings(db=Path(sys.argv[1]), port=int(sys.argv[2]), drain_ms=int(sys.argv[3]))
try:
    number = serve(settings, on_ready=lambda ready: print(ready.url, flush=True))
except StartRefused as refused:
    print(refused, file=sys.stderr)
    sys.exit(5)
print("ended by", number, flush=True)
"""


HAS_PROC = Path("/proc/net/tcp").exists()
_FIRST_FREE = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
MAY_BIND_ANY_PORT = os.geteuid() == 0 or (_FIRST_FREE.exists() and int(_FIRST_FREE.read_text()) <= 80)


def contents(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def server_process(db: Path, *, port: int = 0, drain_ms: int = 5_000) -> AsyncGenerator[asyncio.subprocess.Process, None]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVE, str(db), str(port), str(drain_ms),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_says_where_it_is_and_stops_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    db = tmp_path / "a folder with spaces é" / "state.db"
    db.parent.mkdir()
    async with server_process(db) as process:
        url = await line(process)
        assert not url.endswith(":0")
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            assert (await client.get("/v1/health")).json()["status"] == "ok"
            assert (await client.post(f"{W}/events", json={"name": "x", "data": 1})).status_code == 201
        process.send_signal(number)
        assert await line(process) == f"ended by {int(number)}"
        assert await asyncio.wait_for(process.wait(), 10) == 0
        assert process.stderr is not None
        log = (await process.stderr.read()).decode()
    assert "Traceback" not in log
    lines = log.splitlines()
    assert len(lines) == 3, log
    assert f"ready at {url}" in lines[0]
    assert signal.Signals(number).name in lines[1]
    assert db.stat().st_mode & 0o777 == 0o600


async def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    async with server_process(tmp_path / "a.db", drain_ms=60_000) as process:
        url = await line(process)
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client, worker_peer(url) as peer:
            (await client.post(f"{W}/applications/shop/manifests", json=publication())).raise_for_status()
            await client.post(f"{W}/events", json={"name": "order/placed", "data": 1})
            await peer.declare(await peer.expect("invoke"), "charge")
            await peer.expect("invoke")
            process.terminate()
            await peer.expect("drain")
            assert process.returncode is None
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 10) == 0


async def test_a_drain_ends_at_its_bound(tmp_path: Path) -> None:
    async with server_process(tmp_path / "a.db", drain_ms=200) as process:
        url = await line(process)
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client, worker_peer(url) as peer:
            (await client.post(f"{W}/applications/shop/manifests", json=publication())).raise_for_status()
            await client.post(f"{W}/events", json={"name": "order/placed", "data": 1})
            await peer.expect("invoke")
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 10) == 0


async def test_a_taken_port_is_refused_in_one_line_and_the_database_is_not_touched(tmp_path: Path) -> None:
    with contextlib.closing(socket.socket()) as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        db = tmp_path / ".ryusen" / "ryusen.db"
        async with server_process(db, port=port) as process:
            _, stderr = await asyncio.wait_for(process.communicate(), 20)
        assert process.returncode == 5
        (told,) = stderr.decode().splitlines()
        assert f"port {port} is already in use" in told
        assert "--port" in told
        if HAS_PROC:
            assert f"process {os.getpid()} " in told
        assert not db.parent.exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_port_held_on_the_other_loopback_alone_is_refused(tmp_path: Path, host: str) -> None:
    with contextlib.closing(socket.socket(socket.AF_INET6)) as held:
        try:
            held.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")
        held.listen()
        port = held.getsockname()[1]
        with pytest.raises(StartRefused, match=f"port {port} is already in use"):
            await build(ServerSettings(db=tmp_path / "a.db", host=host, port=port)).start()
    assert contents(tmp_path) == []


async def test_the_second_server_on_one_port_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(StartRefused, match=str(port)):
            await build(ServerSettings(db=tmp_path / "other.db", port=port)).start()
        assert not (tmp_path / "other.db").exists()
        async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
            assert (await client.get("/v1/health")).status_code == 200


async def test_the_second_server_on_one_database_is_refused_and_lets_go_of_its_port(tmp_path: Path) -> None:
    port = free_port()
    async with running_server(tmp_path) as server:
        with pytest.raises(StartRefused, match="in use by the Ryusen server") as refused:
            await build(ServerSettings(db=tmp_path / "ryusen.db", port=port)).start()
        assert server.url in str(refused.value)
    for bound in listen("127.0.0.1", port):
        bound.close()


@pytest.mark.parametrize(
    ("host", "says"),
    [("192.0.2.1", "not an address of this machine"), ("no such host", "names no address"), ("x" * 300, "names no address")],
)
async def test_a_host_that_is_not_here_is_refused(tmp_path: Path, host: str, says: str) -> None:
    with pytest.raises(StartRefused, match=says):
        await build(ServerSettings(db=tmp_path / "a.db", host=host, port=0)).start()
    assert contents(tmp_path) == []


async def test_a_privileged_port_is_refused_in_words(tmp_path: Path) -> None:
    if MAY_BIND_ANY_PORT:
        from ryusen_server.bootstrap.listening import _why

        told = _why(PermissionError(13, "Permission denied"), "127.0.0.1", 80)
    else:
        with pytest.raises(StartRefused) as refused:
            await build(ServerSettings(db=tmp_path / "a.db", port=80)).start()
        told = str(refused.value)
    assert "port 80 needs privileges" in told
    assert "--port" in told


async def test_both_loopbacks_answer_on_one_port(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server:
        assert len({address.rpartition(":")[2] for address in server.addresses}) == 1
        for address in server.addresses:
            async with httpx.AsyncClient(base_url=address, trust_env=False) as client:
                assert (await client.get("/v1/health")).status_code == 200


@pytest.mark.req("SEC-06")
async def test_another_address_is_served_with_a_warning_that_names_the_risk(tmp_path: Path) -> None:
    async with running_server(tmp_path, host="0.0.0.0") as server:
        (warning,) = server.warnings
        assert "no login" in warning
        assert "--allow-host" in warning


async def test_a_missing_folder_is_refused_and_the_port_is_free_again(tmp_path: Path) -> None:
    port = free_port()
    with pytest.raises(StartRefused, match="does not exist"):
        await build(ServerSettings(db=tmp_path / "mistyped" / "a.db", port=port)).start()
    for bound in listen("127.0.0.1", port):
        bound.close()


async def test_a_start_that_is_given_up_anywhere_leaves_nothing_behind(tmp_path: Path) -> None:
    port = free_port()
    applications: dict[str, object] = cast("Any", Sanic)._app_registry
    before = set(applications)
    given_up = 0
    while True:
        server = build(ServerSettings(db=tmp_path / "a.db", port=port), store_factory=open_memory)
        starting = asyncio.ensure_future(server.start())
        for _ in range(given_up):
            await asyncio.sleep(0)
        if starting.done():
            break
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert set(applications) == before
        for bound in listen("127.0.0.1", port):
            bound.close()
        given_up += 1
    assert given_up > 1
    assert set(applications) != before
    await server.stop(0)
    assert set(applications) == before


async def test_an_application_that_finds_its_socket_closed_is_gone() -> None:
    applications: dict[str, object] = cast("Any", Sanic)._app_registry
    before = set(applications)
    first, second = listen("127.0.0.1", 0)
    second.close()
    with first, pytest.raises(OSError):  # noqa: PT011 - which one is the loop's affair
        await prepare_app(create_app(rules=gate_rules(0)), (first, second), backlog=1)
    assert set(applications) == before
    assert first.fileno() == -1


async def test_an_ephemeral_server_leaves_nothing(tmp_path: Path) -> None:
    async with running_server(tmp_path, db=None) as server:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
            assert (await client.get("/v1/server")).json()["database"]["ephemeral"]
        assert server.ready.ephemeral
    assert contents(tmp_path) == []


LOST_DISK = """
import asyncio, sys
from pathlib import Path
from ryusen_server.bootstrap import ServerSettings, build
from ryusen_server.bootstrap.process import _serve
from ryusen_server.store.sqlite import SqliteStore
async def open_store(path, on_fatal):
    store = await SqliteStore.open(path, on_fatal=on_fatal)
    asyncio.get_running_loop().run_in_executor(None, on_fatal, "The disk did not confirm a write")
    return store
asyncio.run(_serve(build(ServerSettings(db=Path(sys.argv[1]), port=0), store_factory=open_store), None))
"""


async def test_a_disk_that_does_not_confirm_a_write_ends_the_process_with_one_line(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LOST_DISK, str(tmp_path / "a.db"), cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    stdout, stderr = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 1
    assert stdout == b""
    assert stderr.decode() == "ryusen: The disk did not confirm a write\n"


async def test_reading_settings_imports_nothing_heavy() -> None:
    code = (
        "import sys; from ryusen_server.bootstrap import ServerSettings, serve, StartRefused; ServerSettings();"
        "print([name for name in sys.modules if name.split('.')[0] in {'sanic', 'uvloop', 'aiosqlite', 'websockets', 'ryusen_cli'}])"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    stdout, _ = await process.communicate()
    assert stdout.decode().strip() == "[]"


async def test_a_server_without_endpoints_starts_without_the_client_that_would_call_them(tmp_path: Path) -> None:
    code = (
        "import asyncio, pathlib, sys; from ryusen_server.bootstrap import running_server\n"
        "async def main():\n"
        "    async with running_server(pathlib.Path(sys.argv[1])):\n"
        "        print('sanic' in sys.modules, 'aiohttp' in sys.modules)\n"
        "asyncio.run(main())"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(tmp_path), cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    stdout, _ = await process.communicate()
    assert stdout.decode().split() == ["True", "False"]


async def test_a_server_can_run_on_a_store_of_the_tests_own(tmp_path: Path) -> None:
    opened: list[ClosableMemoryStore] = []

    async def open_store(path: Path | None, on_fatal: object) -> ClosableMemoryStore:
        del path, on_fatal
        opened.append(ClosableMemoryStore())
        return opened[0]

    async with running_server(tmp_path, store_factory=open_store) as server:
        assert server.store is opened[0]
